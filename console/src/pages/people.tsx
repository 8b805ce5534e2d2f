/** Not built yet. */

import { NotFound } from "./not-found";

export const PeoplePage = NotFound;
