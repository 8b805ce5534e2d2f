/** Asks a model something short, to see that it answers. */

import { noteBuild } from "./build";
import { Problem, toConnectionProblem, toProblem } from "./problem";
import { send } from "./transport";

const TEST_TIMEOUT_MS = 60_000;

export async function askModel(model: string, project: string | null): Promise<{ text: string; milliseconds: number }> {
  const begun = performance.now();
  let response: Response;
  try {
    response = await send("/v1/chat/completions", {
      method: "POST",
      signal: AbortSignal.timeout(TEST_TIMEOUT_MS),
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", ...(project === null ? {} : { "OpenAI-Project": project }) },
      body: JSON.stringify({ model, max_tokens: 64, messages: [{ role: "user", content: "Say hello in one word." }] }),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "TimeoutError") {
      const detail = "The model did not answer within a minute.";
      throw new Problem({ status: 504, code: "timeout", title: "", detail, fix: "Look whether its server works." });
    }
    throw toConnectionProblem();
  }
  noteBuild(response.headers);
  const body: unknown = await response.json().catch(() => null);
  const trace = response.headers.get("x-trace-id");
  if (!response.ok) throw toProblem(response.status, toDetail(body), trace);
  return { text: toAnswer(body), milliseconds: performance.now() - begun };
}

interface Completion {
  error?: { message?: unknown; code?: unknown };
  choices?: { message?: { content?: unknown } }[];
}

/** Errors of the inference endpoints have the form of the dialect, not of the API. */
function toDetail(body: unknown): unknown {
  const error = typeof body === "object" && body !== null ? (body as Completion).error : undefined;
  const fix = "Correct the address, the key or the name of the model, and connect it again.";
  return error ? { detail: error.message, code: error.code, fix } : body;
}

function toAnswer(body: unknown): string {
  const content = typeof body === "object" && body !== null ? (body as Completion).choices?.[0]?.message?.content : "";
  return typeof content === "string" ? content : "";
}
