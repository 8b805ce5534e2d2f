/**
 * Operations that the server has and `docs/openapi.json` does not list yet.
 * A path that the generated schema knows is taken from there, so an entry here is deleted once it is generated.
 */

export interface EnvironmentCheck {
  kind: "build" | "test" | "lint" | "format";
  command: string;
  timeout_seconds?: number;
}

export interface EnvironmentSpec {
  base: "host" | { image: string } | { debian: string };
  system_packages?: string[];
  setup?: string[];
  checks?: EnvironmentCheck[];
  services?: { name: string; command: string; ready: string }[];
  variables?: Record<string, string>;
  secrets?: Record<string, string>;
  caches?: string[];
  lock_files?: string[];
  package_sources?: string[];
  packages_during_work?: boolean;
  limits?: Record<string, number | null>;
}

export interface EnvironmentView {
  version: number;
  digest: string;
  state: "proposed" | "accepted" | "rejected" | "superseded";
  origin: "person" | "detected" | "repository" | "devcontainer";
  source_commit?: string;
  spec: EnvironmentSpec;
  reasons?: { line: string; file: string; reason: string }[];
  warnings?: string[];
  proposed_by?: string;
  proposed_at: string;
  decided_by?: string;
  decided_at?: string;
  note?: string;
}

export type InboxKind = "plan" | "question" | "call" | "environment" | "tool_definition" | "delivery" | "parked";

export interface InboxItem {
  /** Identifier of the item, unique in the inbox. */
  id: string;
  kind: InboxKind;
  /** Project, by identifier. */
  project?: string | null;
  /** Task, by identifier. */
  task?: string | null;
  title: string;
  /** The exact words that were asked. */
  text: string;
  since: string;
  blocked_units?: number;
  blocked_tasks?: number;
  actions: string[];
  /** People who look at the item now, by name. */
  presence?: string[];
}

export interface InboxView {
  items: InboxItem[];
  counts: Partial<Record<InboxKind, number>>;
}

interface Json<T> {
  headers: { [name: string]: unknown };
  content: { "application/json": T };
}

interface Operation<Path, Body, Status extends number, Answer> {
  parameters: { path: Path; query?: never; header?: { "Idempotency-Key"?: string | null }; cookie?: never };
  requestBody: Body extends never ? never : { content: { "application/json": Body } };
  responses: Record<Status, Json<Answer>>;
}

interface Reading<Path, Answer> {
  parameters: { path?: Path; query?: never; header?: never; cookie?: never };
  requestBody?: never;
  responses: { 200: Json<Answer> };
}

interface Nothing {
  put?: never;
  delete?: never;
  options?: never;
  head?: never;
  patch?: never;
  trace?: never;
}

export interface PendingPaths {
  "/v1/inbox": Nothing & { post?: never; get: Reading<never, InboxView> };
  "/v1/projects/{project}/environments": Nothing & {
    post?: never;
    get: {
      parameters: { path: { project: string } };
      requestBody?: never;
      responses: { 200: Json<{ items: EnvironmentView[] }> };
    };
  };
  "/v1/projects/{project}/environments/detect": Nothing & {
    get?: never;
    post: Operation<{ project: string }, { devcontainer?: boolean }, 200, EnvironmentView>;
  };
  "/v1/projects/{project}/environments/{version}/accept": Nothing & {
    get?: never;
    post: Operation<{ project: string; version: number }, { note?: string }, 200, EnvironmentView>;
  };
  "/v1/projects/{project}/environments/{version}/reject": Nothing & {
    get?: never;
    post: Operation<{ project: string; version: number }, { note?: string }, 200, EnvironmentView>;
  };
}
