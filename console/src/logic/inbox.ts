/** What needs a person, from the approvals and the tasks that wait, for servers without an inbox of their own. */

import type { Schema } from "../api/client";
import type { InboxItem, InboxKind, InboxView } from "../api/pending";
import { findPersonWait, type Task, type Timeline } from "./state";

export const KIND_WORDS: Record<InboxKind, { one: string; many: string; sign: string }> = {
  plan: { one: "Plan", many: "Plans", sign: "⚑" },
  question: { one: "Question", many: "Questions", sign: "?" },
  call: { one: "Call", many: "Calls", sign: "▣" },
  environment: { one: "Environment", many: "Environments", sign: "⬡" },
  tool_definition: { one: "Tool", many: "Tools", sign: "⚙" },
  delivery: { one: "Delivery", many: "Deliveries", sign: "!" },
  parked: { one: "Parked", many: "Parked", sign: "!" },
};

export type InboxKindName = InboxKind;

/** Returns whether a value names a kind of item. */
export function isInboxKind(value: unknown): value is InboxKindName {
  return typeof value === "string" && Object.hasOwn(KIND_WORDS, value);
}

/** Counts items per kind. */
export function countKinds(items: readonly InboxItem[]): InboxView["counts"] {
  const counts: InboxView["counts"] = {};
  for (const item of items) counts[item.kind] = (counts[item.kind] ?? 0) + 1;
  return counts;
}

/** Orders items: what holds up most comes first, then what waits longest. */
export function orderItems(items: readonly InboxItem[]): InboxItem[] {
  const weight = (item: InboxItem) => (item.blocked_tasks ?? 0) * 100 + (item.blocked_units ?? 0);
  return [...items].sort((a, b) => weight(b) - weight(a) || a.since.localeCompare(b.since));
}

/** Makes an inbox of approvals and of tasks with their timelines. */
export function assembleInbox(
  approvals: readonly Schema["ApprovalView"][],
  tasks: readonly { task: Task; timeline: Timeline }[],
): InboxView {
  const items: InboxItem[] = approvals
    .filter((approval) => approval.state === "pending")
    .map((approval) => ({
      id: approval.approval_id,
      kind: "call",
      project: approval.project_id ?? null,
      task: approval.task_id ?? null,
      title: approval.tool,
      text: JSON.stringify(approval.arguments ?? {}, null, 2),
      since: approval.asked_at,
      blocked_tasks: approval.task_id ? 1 : 0,
      blocked_units: 1,
      actions: ["approve", "deny"],
    }));
  for (const { task, timeline } of tasks) {
    const wait = findPersonWait(timeline);
    if (!wait) continue;
    const isPlan = wait.reason === "approval";
    items.push({
      id: wait.wait_id,
      kind: isPlan ? "plan" : "question",
      project: task.project_id,
      task: task.id,
      title: task.name,
      text: wait.question ?? "",
      since: wait.opened_at,
      blocked_tasks: 1,
      blocked_units: timeline.units.filter((unit) => unit.state !== "done").length,
      actions: isPlan ? ["approve", "send_back"] : ["answer"],
    });
  }
  const ordered = orderItems(items);
  return { items: ordered, counts: countKinds(ordered) };
}
