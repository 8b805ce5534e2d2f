/** What needs a person, from the approvals and the tasks that wait, for servers without an inbox of their own. */

import type { Schema } from "../api/client";
import type { InboxItem, InboxKind, InboxView } from "../api/pending";
import { findPersonWait, type Task, type Timeline } from "./state";
import { firstLine } from "./text";

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

/** Counts items, in all and per kind. */
export function countKinds(items: readonly InboxItem[]): InboxView["counts"] {
  const counts = {
    total: items.length,
    plan: 0,
    question: 0,
    call: 0,
    environment: 0,
    tool_definition: 0,
    delivery: 0,
    parked: 0,
  };
  for (const item of items) counts[item.kind] += 1;
  return counts;
}

/** Orders items: what holds up most comes first, then what waits longest. */
export function orderItems(items: readonly InboxItem[]): InboxItem[] {
  const weight = (item: InboxItem) => item.blocked_tasks * 100 + item.blocked_units;
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
      project_id: approval.project_id ?? null,
      task_id: approval.task_id ?? null,
      expires_at: approval.expires_at,
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
      project_id: task.project_id,
      task_id: task.id,
      task_name: task.name,
      title: firstLine(wait.question ?? ""),
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
