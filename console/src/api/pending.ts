/**
 * Operations that the server has and `docs/openapi.json` does not list yet.
 * A path that the generated schema knows is taken from there, so an entry here is deleted once it is generated.
 */

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
}
