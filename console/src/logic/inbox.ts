/** What needs a person. */

import type { Schema } from "../api/client";
import { formatCount } from "./format";
import { firstLine } from "./text";

/** `viewers` are other people who look at it now. */
export type InboxItem = Schema["InboxItem"] & { viewers?: string[] };
export type InboxKind = Schema["InboxKind"];
export type InboxAction = Schema["InboxAction"];
export type InboxView = Schema["InboxView"];

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

/** Returns an item in one line: what stands still because of it, and what it is about. */
export function describeItem(item: Pick<InboxItem, "kind" | "text" | "blocked_tasks" | "blocked_units">): string {
  const units = item.blocked_units;
  const parts = [
    item.blocked_tasks > 1 ? `${formatCount(item.blocked_tasks, "task")} stand still` : null,
    units ? `${formatCount(units, "unit")} wait${units === 1 ? "s" : ""}` : null,
    item.kind === "plan" ? listPlanTitles(item.text).join(", ") || firstLine(item.text) : firstLine(item.text),
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Returns the titles of the units in the words of a plan: `1. Title (key), after other-key`. */
export function listPlanTitles(text: string): string[] {
  return [...text.matchAll(/^\d+\. (.+?)(?: \([a-z0-9-]+\))?(?:, after [a-z0-9, -]+)?$/gm)].map(
    (match) => match[1] ?? "",
  );
}

/** Returns who else looks at an item, in a sentence. */
export function describeViewers(names: readonly string[]): string | null {
  const last = names.at(-1);
  if (last === undefined) return null;
  if (names.length === 1) return `${last} looks at this too.`;
  return `${names.slice(0, -1).join(", ")} and ${last} look at this too.`;
}

/** What somebody did about something that waited. */
export interface Decision {
  kind: string;
  actor: string | null;
  at: string;
  project: string | null;
  task: string | null;
  data: Record<string, unknown>;
}

const TASK_DECISIONS = new Set(["task.instructed", "task.cancelled", "task.unparked"]);

/** Returns the decision that ended an item, if it was seen. */
export function findDecision(item: InboxItem, decisions: readonly Decision[]): Decision | null {
  const ends = (decision: Decision) => {
    switch (item.kind) {
      case "call":
        return decision.kind === "approval.decided" && decision.data.approval_id === item.id;
      case "environment":
        return /^environment\.(accepted|rejected)$/.test(decision.kind) && decision.project === item.project_id;
      case "tool_definition":
        return /^tool_server\.(accepted|removed)$/.test(decision.kind);
      case "delivery":
        return /^pull_request\.(closed|merged)$/.test(decision.kind) && decision.task === item.task_id;
      default:
        return TASK_DECISIONS.has(decision.kind) && decision.task === item.task_id;
    }
  };
  const isLater = (decision: Decision) => new Date(decision.at).getTime() >= new Date(item.since).getTime();
  return decisions.findLast((decision) => isLater(decision) && ends(decision)) ?? null;
}

const INSTRUCTIONS: Record<string, string> = {
  approved: "approved this plan",
  rejected: "sent this plan back",
  answered: "answered this question",
  resumed: "resumed the task",
  abort: "stopped the task",
  revise: "revised the plan",
  expand_scope: "expanded the scope",
  reduce_scope: "reduced the scope",
};

const DECISIONS: Record<string, string> = {
  "task.cancelled": "stopped the task",
  "task.unparked": "let the task go on",
  "environment.accepted": "accepted this environment",
  "environment.rejected": "rejected this environment",
  "tool_server.accepted": "accepted the definitions of this tool server",
  "tool_server.removed": "removed this tool server",
  "pull_request.closed": "closed the pull request",
  "pull_request.merged": "merged the pull request",
};

/** Returns what was done, as the rest of a sentence that begins with a name. */
export function describeDecision(decision: Decision): string {
  if (decision.kind === "approval.decided") {
    return decision.data.approved === true ? "approved this call" : "denied this call";
  }
  if (decision.kind === "task.instructed") {
    const kind = decision.data.kind;
    return (typeof kind === "string" ? INSTRUCTIONS[kind] : undefined) ?? "instructed the task";
  }
  return DECISIONS[decision.kind] ?? "decided this";
}
