/** Not built yet. */

import { NotFound } from "./not-found";

export const ExplainPage = NotFound;
