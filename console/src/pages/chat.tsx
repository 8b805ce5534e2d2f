/** Not built yet. */

import { NotFound } from "./not-found";

export const ChatPage = NotFound;
