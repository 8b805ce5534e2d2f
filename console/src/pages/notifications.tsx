/** Not built yet. */

import { NotFound } from "./not-found";

export const NotificationsPage = NotFound;
