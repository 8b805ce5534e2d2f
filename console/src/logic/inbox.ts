/** What needs a person. */

import type { Schema } from "../api/client";

export type InboxItem = Schema["InboxItem"];
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
