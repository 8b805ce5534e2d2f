/** How requests leave the page: to the server that it came from. The demo build answers them from a recording. */

import { answerRequest, RECORDED_ORIGIN } from "../recording/start";

type Send = (input: RequestInfo | URL, init?: RequestInit) => Promise<Response>;

export const send: Send = __DEMO__ ? answerRequest : (input, init) => fetch(input, init);

/** Returns the address of the server, for commands that people copy. */
export function serverOrigin(): string {
  return __DEMO__ ? RECORDED_ORIGIN : window.location.origin;
}
