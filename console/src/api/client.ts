/** The client of the API. The session is a cookie that scripts cannot read; nothing secret is stored in the browser. */

import createClient, { type Middleware } from "openapi-fetch";
import { noteBuild } from "./build";
import { Problem, toConnectionProblem, toProblem } from "./problem";
import type { components, paths } from "./schema.gen";
import { send } from "./transport";

export type Schema = components["schemas"];

const UNSAFE_METHODS = new Set(["POST", "PUT", "PATCH", "DELETE"]);

/** Gives every change a key of its own, so that a repeated request is done once, and the content type that the server demands. */
const mutationHeaders: Middleware = {
  onRequest({ request }) {
    if (!UNSAFE_METHODS.has(request.method)) return undefined;
    if (!request.headers.has("Idempotency-Key")) request.headers.set("Idempotency-Key", makeKey());
    if (!request.headers.has("Content-Type")) request.headers.set("Content-Type", "application/json");
    return request;
  },
};

/** For how long after its start the requests of a page count as the act of the person who opened it. */
const PAGE_START_MS = 10_000;

/** Returns whether the page asks by itself: nobody has touched it for some seconds. An old browser does not know, and counts as touched. */
function isUntouched(): boolean {
  return "userActivation" in navigator && !navigator.userActivation.isActive && performance.now() > PAGE_START_MS;
}

/** Marks what the page loads by itself, so that a screen that is left alone does not keep its session alive. */
const automaticHeader: Middleware = {
  onRequest({ request }) {
    if (UNSAFE_METHODS.has(request.method) || !isUntouched()) return undefined;
    request.headers.set("X-CyNode-Automatic", "true");
    return request;
  },
};

const buildHeader: Middleware = {
  onResponse({ response }) {
    noteBuild(response.headers);
  },
};

/** Returns a random key. `crypto.randomUUID` exists in secure contexts only. */
export function makeKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const api = createClient<paths>({ baseUrl: "", credentials: "same-origin", fetch: send });
api.use(mutationHeaders, automaticHeader, buildHeader);

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Returns the data of an answer, or throws a [`Problem`]. */
export async function unwrap<T>(pending: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await pending;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw toConnectionProblem();
  }
  if (answer.response.ok) return answer.data as T;
  throw toProblem(answer.response.status, answer.error, answer.response.headers.get("x-trace-id"));
}

/** Returns whether a query is worth another try: the server was not reached, or it failed. */
export function isRetryable(count: number, error: unknown): boolean {
  return error instanceof Problem && count < 3 && (error.status === 0 || error.status === 429 || error.status >= 500);
}
