/** Schedules: what a person types, and what came of a run, in words. */

import type { Schema } from "../api/client";
import { describeCron, findNextRuns } from "./cron";
import { formatMoment } from "./format";
import { parseCriteria, parseLimit } from "./new-task";
import type { Standing } from "./state";
import { describeCommand } from "./text";

export type Schedule = Schema["ScheduleView"];

export interface ScheduleDraft {
  name: string;
  when: "cron" | "once";
  expression: string;
  timezone: string;
  /** A time of day in the reader's own zone, as the browser's field writes it. */
  at: string;
  what: "words" | "task";
  text: string;
  checks: string;
  limit: string;
  missed: Schema["MissedPolicy"];
}

export const EMPTY_SCHEDULE: Omit<ScheduleDraft, "timezone"> = {
  name: "",
  when: "cron",
  expression: "0 9 * * mon",
  at: "",
  what: "words",
  text: "",
  checks: "",
  limit: "",
  missed: "once",
};

/** Returns a time as the browser's field for times writes it, in the reader's zone. */
export function toLocalInput(at: string | number): string {
  const date = new Date(at);
  const pad = (number: number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}T${pad(date.getHours())}:${pad(date.getMinutes())}`;
}

/** Returns the draft that a schedule would be typed as. */
export function toScheduleDraft(schedule: Schedule, timezone: string): ScheduleDraft {
  const { trigger, action } = schedule;
  return {
    name: schedule.name,
    when: trigger.kind,
    expression: trigger.kind === "cron" ? trigger.expression : EMPTY_SCHEDULE.expression,
    timezone: trigger.kind === "cron" ? (trigger.timezone ?? "UTC") : timezone,
    at: trigger.kind === "once" ? toLocalInput(trigger.at) : "",
    what: action.kind,
    text: action.kind === "words" ? action.text : action.description,
    checks:
      action.kind === "task"
        ? (action.acceptance_criteria ?? [])
            .map((it) => (it.check ? describeCommand(it.check.argv) : it.text))
            .join("\n")
        : "",
    limit:
      action.kind === "task" && action.budget?.max_cost_micros ? String(action.budget.max_cost_micros / 1_000_000) : "",
    missed: schedule.missed_policy,
  };
}

export interface ScheduleRequest {
  name: string;
  trigger: Schema["ScheduleTrigger"];
  action: Schema["ScheduleAction"];
  missed_policy: Schema["MissedPolicy"];
}

/** Returns what to send, or what is missing. What was not typed anew stays as it was. */
export function toScheduleRequest(
  draft: ScheduleDraft,
  before: Schedule | null,
  timezone: string,
): { body: ScheduleRequest } | { missing: string } {
  const name = draft.name.trim();
  const text = draft.text.trim();
  const limit = parseLimit(draft.limit);
  if (name === "") return { missing: "Write a name" };
  if (draft.when === "cron" && draft.expression.trim() === "") return { missing: "Write when it is due" };
  if (draft.when === "once" && Number.isNaN(Date.parse(draft.at))) return { missing: "Choose a time" };
  if (text === "") return { missing: "Write what is wanted" };
  if (draft.what === "task" && limit.error) return { missing: limit.error };
  const known = before ? toScheduleDraft(before, timezone) : null;
  const keepsTask =
    before?.action.kind === "task" &&
    known?.what === draft.what &&
    known.checks === draft.checks &&
    known.limit === draft.limit;
  const criteria = parseCriteria(draft.checks);
  const action: Schema["ScheduleAction"] =
    draft.what === "words"
      ? { kind: "words", text }
      : keepsTask && before.action.kind === "task"
        ? { ...before.action, description: text }
        : {
            kind: "task",
            description: text,
            ...(criteria.length > 0 ? { acceptance_criteria: criteria } : {}),
            ...(limit.micros === null ? {} : { budget: { max_cost_micros: limit.micros } }),
          };
  const trigger: Schema["ScheduleTrigger"] =
    draft.when === "cron"
      ? { kind: "cron", expression: draft.expression.trim(), timezone: draft.timezone }
      : known?.when === "once" && known.at === draft.at && before
        ? before.trigger
        : { kind: "once", at: new Date(draft.at).toISOString() };
  return { body: { name, trigger, action, missed_policy: draft.missed } };
}

export function describeTrigger(trigger: Schema["ScheduleTrigger"]): string {
  return trigger.kind === "once"
    ? `once, ${formatMoment(trigger.at)}`
    : `${describeCron(trigger.expression) ?? trigger.expression} (${trigger.timezone ?? "UTC"})`;
}

/** Returns the next times of a schedule. Where this browser reckons otherwise than the server, only what the server says. */
export function listNextRuns(schedule: Schedule, now: number, count: number): number[] {
  if (!schedule.next_at) return [];
  const next = Date.parse(schedule.next_at);
  if (schedule.trigger.kind === "once") return [next];
  const zone = schedule.trigger.timezone ?? "UTC";
  const runs = findNextRuns(schedule.trigger.expression, zone, Math.min(now, next - 1), count);
  return runs?.[0] === next ? runs : [next];
}

const OUTCOMES: Record<string, { standing: Standing; words: string }> = {
  task: { standing: "done", words: "Made a task" },
  handoff: { standing: "done", words: "Asked the project manager" },
  skipped: { standing: "cancelled", words: "Was too late and skipped" },
  refused: { standing: "trouble", words: "Was refused" },
};

export function describeOutcome(outcome: string): { standing: Standing; words: string } {
  return OUTCOMES[outcome] ?? { standing: "waits", words: outcome };
}

/** Returns how a schedule stands. */
export function describeSchedule(schedule: Schedule): { standing: Standing; words: string } {
  if (!schedule.enabled) return { standing: "cancelled", words: "Paused" };
  if (schedule.last_firing?.outcome === "refused") return { standing: "trouble", words: "Refused last time" };
  return schedule.next_at ? { standing: "waits", words: "Waits for its time" } : { standing: "done", words: "Over" };
}
