/** Which queries an event makes old. Unknown kinds concern nothing: a reader must accept kinds that it does not know. */

import type { ApiEvent } from "./stream";

export type QueryKey = readonly string[];

const INBOX_KINDS = new Set([
  "task.waiting",
  "task.instructed",
  "task.cancelled",
  "task.completed",
  "task.failed",
  "task.parked",
  "task.unparked",
  "approval.requested",
  "approval.decided",
  "tool_server.changed",
  "tool_server.accepted",
  "tool_server.removed",
  "notification.failed",
  "inbox.viewed",
  "project.deleted",
  "project.archived",
  "project.unarchived",
]);

/** A schedule also shows the states of the tasks that it made. */
const TASK_STATE_KINDS = new Set(["task.started", "task.completed", "task.failed", "task.cancelled"]);

/** What the pages below `/settings` and the schedules read, by the area of an event. */
const ADMIN_KEYS: Record<string, QueryKey[]> = {
  certificate: [["certificates"]],
  setting: [["settings"]],
  preference: [["preferences"]],
  policy: [["policies"], ["preferences"]],
  user: [["users"], ["api-keys"]],
  group: [["groups"]],
  identity_provider: [["identity-providers"]],
  identity: [["identities"], ["groups"], ["me"]],
  session: [["sessions"]],
  device_login: [["sessions"]],
  api_key: [["api-keys"]],
  second_factor: [["me"]],
  recovery_codes: [["me"]],
  recovery_code: [["me"]],
  scim_token: [["scim-tokens"]],
  notification_channel: [["notifications"]],
  notification: [["notifications"]],
  skill: [["skills"]],
  profile: [["profiles"]],
  memory: [["memories"]],
  content: [["skills"], ["schedules"]],
  schedule: [["schedules"]],
  // A schedule shows what became of its last run.
  handoff: [["schedules"]],
};

/** Returns the prefixes of the query keys that an event makes old. */
export function staleKeys(
  event: Pick<ApiEvent, "kind" | "project_id" | "task_id"> & Partial<Pick<ApiEvent, "data">>,
): QueryKey[] {
  if (event.kind === "job.changed") return event.task_id ? staleKeysOfJob(event.task_id, event.data) : [];
  const keys: QueryKey[] = [];
  const area = event.kind.slice(0, event.kind.indexOf("."));
  if (INBOX_KINDS.has(event.kind) || area === "environment") keys.push(["inbox"]);
  if (event.task_id) keys.push(["task", event.task_id]);
  if (area === "task") keys.push(["tasks"]);
  if (area === "handoff" || area === "verification" || area === "agent") keys.push(["usage"]);
  // A handoff without a task is an answer in a conversation.
  if (area === "handoff" && !event.task_id) keys.push(["chat"]);
  if (["project", "repository", "remote", "environment"].includes(area)) {
    keys.push(["projects"]);
    if (event.project_id) keys.push(["project", event.project_id]);
  }
  if (["pull_request", "project_secret", "issue", "handoff"].includes(area) && event.project_id) {
    keys.push(["project", event.project_id]);
  }
  if (area === "approval") keys.push(["approvals"]);
  if (area === "tool" || area === "tool_server") keys.push(["tools"]);
  if (area === "agent_token") keys.push(["agent-tokens"]);
  if (area === "images") keys.push(["images"]);
  if (area === "rule" || area === "tool" || area === "tool_server") keys.push(["rules"]);
  if (area === "node" || area === "join_token") keys.push(["nodes"], ["readiness"]);
  if (area === "provider" || area === "provider_key" || area === "model") keys.push(["models"], ["readiness"]);
  if (area === "budget") keys.push(["usage"]);
  if (area === "user" || event.kind === "setting.set") keys.push(["me"]);
  keys.push(...(ADMIN_KEYS[area] ?? []));
  if (TASK_STATE_KINDS.has(event.kind)) keys.push(["schedules"]);
  return keys;
}

/** A job changes often: only what shows jobs is read again, and what it left when it succeeded. */
function staleKeysOfJob(task: string, data: unknown): QueryKey[] {
  const { state, checks } = (data ?? {}) as { state?: string; checks?: boolean };
  const parts = ["timeline"];
  if (checks) parts.push("evidence");
  else if (state === "succeeded") parts.push("diff", "artifacts");
  return parts.map((part) => ["task", task, part]);
}

/** Collects keys and hands each of them over once per turn, so that a burst of events reads each query once. */
export class InvalidationBatch {
  private readonly keys = new Map<string, QueryKey>();
  private timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    private readonly flush: (keys: QueryKey[]) => void,
    private readonly delayMs = 150,
  ) {}

  add(keys: QueryKey[]): void {
    for (const key of keys) this.keys.set(key.join("\u0000"), key);
    if (this.keys.size > 0 && this.timer === null) this.timer = setTimeout(() => this.run(), this.delayMs);
  }

  private run(): void {
    const keys = [...this.keys.values()];
    this.keys.clear();
    this.timer = null;
    this.flush(keys);
  }
}
