/** Errors of the API as people read them: what happened, what to do next, and the trace to name when asking for help. */

export interface ProblemBody {
  status: number;
  code: string;
  title: string;
  detail: string;
  fix?: string | null;
  trace_id?: string | null;
}

export class Problem extends Error {
  readonly status: number;
  readonly code: string;
  readonly fix: string | null;
  readonly traceId: string | null;

  constructor(body: ProblemBody) {
    super(body.detail);
    this.name = "Problem";
    this.status = body.status;
    this.code = body.code;
    this.fix = body.fix ?? null;
    this.traceId = body.trace_id ?? null;
  }
}

/** Makes a problem of an answer that is no success, whatever its body is. */
export function toProblem(status: number, body: unknown, traceId: string | null): Problem {
  const problem = typeof body === "object" && body !== null ? (body as Partial<ProblemBody>) : {};
  return new Problem({
    status,
    code: typeof problem.code === "string" ? problem.code : `http_${status}`,
    title: typeof problem.title === "string" ? problem.title : "",
    detail: typeof problem.detail === "string" ? problem.detail : `The server answered with status ${status}.`,
    fix: typeof problem.fix === "string" ? problem.fix : defaultFix(status),
    trace_id: typeof problem.trace_id === "string" ? problem.trace_id : traceId,
  });
}

/** Makes a problem of a request that got no answer. */
export function toConnectionProblem(): Problem {
  return new Problem({
    status: 0,
    code: "unreachable",
    title: "",
    detail: "The server does not answer.",
    fix: "Check that CyNode runs and that this machine reaches it. Nothing that you typed is lost; try again.",
  });
}

function defaultFix(status: number): string | null {
  if (status === 401) return "Log in again.";
  if (status === 403) return "Ask an admin for the role that this needs.";
  if (status === 404) return "It may have been deleted, or you may not see it. Check the address.";
  if (status === 409) return "It does not fit what stands there now. Look again, then decide.";
  if (status === 429) return "Wait a moment and try again.";
  if (status >= 500) return "Try again. If it stays, give the trace to an admin: the server's log has it.";
  return null;
}

/** Returns any thrown value as a problem. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem({ status: 0, code: "console", title: "", detail, fix: "Reload the page." });
}
