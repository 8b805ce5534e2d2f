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

export type InboxAction =
  | "approve"
  | "send_back"
  | "deny"
  | "answer"
  | "accept"
  | "reject"
  | "retry"
  | "close"
  | "unpark"
  | "cancel";

export interface InboxItem {
  /**
   * The wait (`plan`, `question`), the approval (`call`), the tool server (`tool_definition`), the pull request (`delivery`) or the task
   * (`parked`). For `environment` it is `PROJECT/VERSION`.
   */
  id: string;
  kind: InboxKind;
  project_id?: string | null;
  project_slug?: string | null;
  task_id?: string | null;
  task_name?: string | null;
  version?: number | null;
  /** The question in one line. */
  title: string;
  /** The exact words that are decided about. */
  text: string;
  since: string;
  expires_at?: string | null;
  blocked_units: number;
  blocked_tasks: number;
  actions: InboxAction[];
}

export interface InboxView {
  items: InboxItem[];
  counts: { total: number } & Record<InboxKind, number>;
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
