/**
 * Answers that were recorded from an installation, for the demo that needs no server. It answers what was asked while it was recorded, and
 * filters of recorded lists. Everything that would change something is refused.
 */

export interface RecordedAnswer {
  /** Path and query, as it was asked. */
  path: string;
  /** The body of a question that is asked by POST and changes nothing. */
  question?: unknown;
  status: number;
  body: unknown;
}

export interface Recording {
  /** When it was made; the demo's clock begins here. */
  recorded_at: string;
  answers: RecordedAnswer[];
}

export interface ApiRequest {
  method: string;
  /** Path and query. */
  path: string;
  /** Text of the body; empty without one. */
  body: string;
}

export interface Answer {
  status: number;
  body: unknown;
  /** Whether it was refused because it would change something. */
  isRefused: boolean;
}

export const REFUSAL = "This is a recording; nothing can be changed here.";

/** Questions that are asked by POST because they are too long for an address. They change nothing. */
const QUESTIONS: readonly RegExp[] = [
  /^\/v1\/task-estimates$/,
  /^\/v1\/rules\/check$/,
  /^\/v1\/policy\/explain(-call)?$/,
  /^\/v1\/approvals\/[^/]+\/draft-rule$/,
  /^\/v1\/projects\/[^/]+\/memories\/search$/,
];

/** Somebody looks at something: neither a change that a person makes nor worth a refusal. */
const PRESENCE = /^\/v1\/inbox\/[^/]+\/presence$/;

const JOB_EVENTS = /^\/v1\/jobs\/[^/]+\/events$/;

const TIME = /^\d{4}-\d{2}-\d{2}T/;

/** Parts of a question that change no answer. */
const IGNORED_FIELDS: ReadonlySet<string> = new Set(["description"]);

type QueryParameters = Map<string, string>;

interface Variant {
  parameters: QueryParameters;
  answer: RecordedAnswer;
}

export class RecordedApi {
  private readonly variants = new Map<string, Variant[]>();
  private readonly questions = new Map<string, RecordedAnswer>();

  constructor(recording: Recording) {
    for (const answer of recording.answers) {
      if (answer.question !== undefined) {
        this.questions.set(toQuestionKey(answer.path, answer.question), answer);
        continue;
      }
      const { path, parameters } = parsePath(answer.path);
      const known = this.variants.get(path) ?? [];
      known.push({ parameters, answer });
      this.variants.set(path, known);
    }
    // The answer with the most filters of its own comes first.
    for (const known of this.variants.values()) known.sort((a, b) => b.parameters.size - a.parameters.size);
  }

  answer(request: ApiRequest): Answer {
    const { path, parameters } = parsePath(request.path);
    if (request.method === "GET") return this.read(path, parameters, request.path) ?? makeMissing();
    if (request.method === "POST" && QUESTIONS.some((pattern) => pattern.test(path))) {
      const found = this.questions.get(toQuestionKey(path, parseBody(request.body)));
      return found ? { status: found.status, body: found.body, isRefused: false } : makeMissing();
    }
    if (PRESENCE.test(path)) return { status: 204, body: null, isRefused: false };
    return makeRefusal();
  }

  private read(path: string, wanted: QueryParameters, whole: string): Answer | null {
    if (JOB_EVENTS.test(path)) return this.readJobEvents(path, whole);
    for (const { parameters, answer } of this.variants.get(path) ?? []) {
      if ([...parameters].some(([name, value]) => wanted.get(name) !== value)) continue;
      const rest = [...wanted].filter(([name]) => !parameters.has(name));
      if (rest.length === 0) return { status: answer.status, body: answer.body, isRefused: false };
      const body = filterItems(answer.body, rest);
      if (body) return { status: answer.status, body, isRefused: false };
    }
    return null;
  }

  /** The log of a job is one recorded list; pages of it are cut here. */
  private readJobEvents(path: string, whole: string): Answer | null {
    const recorded = this.variants.get(path)?.[0]?.answer;
    if (!recorded) return null;
    const query = new URLSearchParams(whole.split("?")[1] ?? "");
    const from = Number(query.get("from") ?? 0);
    const limit = Number(query.get("limit") ?? Number.POSITIVE_INFINITY);
    const items = itemsOf(recorded.body)?.filter((item) => Number(item.number) >= from) ?? [];
    return { status: recorded.status, body: { items: items.slice(0, limit) }, isRefused: false };
  }
}

/** Takes a path apart. Sizes of pages and times are left out: lists are recorded whole, and the clock of the demo is another one. */
function parsePath(text: string): { path: string; parameters: QueryParameters } {
  const [path = "", query = ""] = text.split("?");
  const parameters = [...new URLSearchParams(query)].filter(([name, value]) => name !== "limit" && !TIME.test(value));
  return { path: decodeURIComponent(path), parameters: new Map(parameters) };
}

function toQuestionKey(path: string, question: unknown): string {
  const fields = typeof question === "object" && question !== null ? Object.entries(question) : [];
  const kept = fields.filter(([name]) => !IGNORED_FIELDS.has(name)).sort(([a], [b]) => (a < b ? -1 : 1));
  return `${path} ${JSON.stringify(kept)}`;
}

function parseBody(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function itemsOf(body: unknown): Record<string, unknown>[] | null {
  const items = typeof body === "object" && body !== null && "items" in body ? body.items : null;
  return Array.isArray(items) ? (items as Record<string, unknown>[]) : null;
}

/** Filters a list by fields of its items, as the server does; null where the items have no such field. */
function filterItems(body: unknown, filters: [string, string][]): unknown {
  const items = itemsOf(body);
  if (!items) return null;
  const fields = filters.map(([name, value]) => {
    const field = [name, `${name}_id`].find((it) => items.some((item) => it in item));
    return { field, value };
  });
  if (items.length > 0 && fields.some(({ field }) => field === undefined)) return null;
  const fits = (item: Record<string, unknown>) =>
    fields.every(({ field, value }) => field !== undefined && String(item[field]) === value);
  return { ...(body as object), items: items.filter(fits) };
}

function makeRefusal(): Answer {
  const fix = "Install CyNode to do this with projects of your own.";
  return {
    status: 403,
    body: { status: 403, code: "recording", title: "Recording", detail: REFUSAL, fix },
    isRefused: true,
  };
}

function makeMissing(): Answer {
  const detail = "The recording has no answer to this.";
  const fix = "Go back to what the run has shown, or install CyNode to ask it yourself.";
  return {
    status: 404,
    body: { status: 404, code: "not_recorded", title: "Not recorded", detail, fix },
    isRefused: false,
  };
}

/** Returns an answer as a page gets it from a server. */
export function toResponse(answer: Answer): Response {
  if (answer.status === 204) return new Response(null, { status: 204 });
  const headers = { "content-type": answer.status < 400 ? "application/json" : "application/problem+json" };
  return new Response(JSON.stringify(answer.body), { status: answer.status, headers });
}
