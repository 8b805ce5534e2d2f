/** Rules in words. */

import type { Schema } from "../api/client";
import type { Backtest } from "../api/types";
import { formatCount } from "./format";

export type RuleMode = "refuse" | "approve" | "shadow";

export function toMode(mode: string): RuleMode {
  return mode === "refuse" || mode === "approve" ? mode : "shadow";
}

/** The state of a rule, always with a sign and words. */
export const MODES: Record<RuleMode, { sign: string; state: string; words: string; tone: string }> = {
  refuse: { sign: "✗", state: "On", words: "On: refuses calls", tone: "text-bad" },
  approve: { sign: "?", state: "On", words: "On: asks a person", tone: "text-warn" },
  shadow: { sign: "○", state: "Shadow", words: "Shadow: only recorded", tone: "text-muted" },
};

/** Counts the records that name each rule. A call is counted once: its decision says which rules applied. */
export function countHits(records: readonly Pick<Schema["AuditView"], "phase" | "rules" | "shadow">[]) {
  const hits = new Map<string, number>();
  for (const record of records) {
    if (record.phase !== "decision") continue;
    for (const rule of new Set([...record.rules, ...record.shadow])) hits.set(rule, (hits.get(rule) ?? 0) + 1);
  }
  return hits;
}

/** Says what a rule would have done, as exactly as the records allow. */
export function describeBacktest(test: Backtest, days: number): string {
  const calls = formatCount(test.calls, "call");
  const time = days === 1 ? "the last day" : `the last ${days} days`;
  if (test.calls === 0) return `No call was recorded in ${time}.`;
  const unsure = test.undecidable > 0;
  const hits = test.hits.toLocaleString("en-US");
  const sure = `Would ${unsure ? "certainly " : ""}have hit ${hits} of ${calls} of ${time}`;
  if (!unsure) return `${sure}.`;
  const most = (test.hits + test.undecidable).toLocaleString("en-US");
  return `${sure}, and possibly up to ${most}.`;
}

/** Says what changes for the calls that a rule hits or releases. */
export function describeChange(then: string, now: string): string {
  const words: Record<string, string> = { allow: "allowed", deny: "refused", needs_approval: "asked a person" };
  const [was, is] = [words[then] ?? then, words[now] ?? now];
  return was === is ? `${was}, as before` : `${was} then, ${is} now`;
}

/** Returns why a name cannot be that of a rule; null when it can. */
export function findNameProblem(name: string, taken: readonly string[]): string | null {
  if (name === "") return "Give the rule a name";
  if (!/^[a-z0-9-]{1,60}$/.test(name)) return "A name has 1 to 60 of a-z, 0-9 and -";
  if (["backtest", "check", "vocabulary"].includes(name)) return "This name is taken by the interface";
  if (taken.includes(name)) return "There is a rule of this name already";
  return null;
}

export const STARTERS: readonly { id: string; name: string; text: string }[] = [
  {
    id: "tool",
    name: "One tool for one role",
    text: 'forbid (principal == Role::"developer", action == Action::"web.fetch", resource);',
  },
  {
    id: "group",
    name: "Every tool of a group",
    text: 'forbid (principal, action in Action::"git.*", resource)\nunless { context.tool.read_only };',
  },
  {
    id: "arguments",
    name: "By the arguments",
    text: 'forbid (principal, action == Action::"web.fetch", resource)\nwhen {\n  context.arguments has url &&\n  context.arguments.url like "*//billing.*"\n};',
  },
];
