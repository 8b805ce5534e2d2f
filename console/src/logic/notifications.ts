/** Channels and deliveries of notifications. */

import type { Schema } from "../api/client";
import type { Standing } from "./state";

export type Notification = Schema["NotificationView"];

/** The kinds of events that are sent, and when. */
export const EVENT_WORDS: readonly { kind: string; words: string }[] = [
  { kind: "task.waiting", words: "A task waits for a person" },
  { kind: "approval.requested", words: "A call needs approval" },
  { kind: "task.completed", words: "A task is done" },
  { kind: "task.failed", words: "A task was given up" },
  { kind: "task.cancelled", words: "A task was cancelled" },
  { kind: "task.parked", words: "A task may not use models for a while" },
  { kind: "budget.exhausted", words: "A budget is used up" },
  { kind: "provider_key.parked", words: "The quota of a provider's key is used up" },
  { kind: "reconciler.halted", words: "Jobs are no longer reclaimed" },
  { kind: "schedule.refused", words: "A schedule was due and was refused" },
  { kind: "pull_request.opened", words: "A pull request was opened" },
  { kind: "environment.proposed", words: "An environment waits for acceptance" },
  { kind: "environment.unreadable", words: "An environment file cannot be read" },
];

export const STATE_WORDS: Record<string, { standing: Standing; words: string }> = {
  pending: { standing: "waits", words: "Pending" },
  sent: { standing: "done", words: "Sent" },
  failed: { standing: "failed", words: "Failed" },
  dropped: { standing: "cancelled", words: "Dropped" },
};

const SHORTEST_DELAY_MS = 1500;
const LONGEST_DELAY_MS = 3_600_000;

/** Returns in how many milliseconds a delivery that is due must have been tried; null when none is. */
export function nextReadDelay(notifications: readonly Notification[], now: number): number | null {
  const due = notifications.filter((it) => it.state === "pending").map((it) => Date.parse(it.due_at ?? "") || now);
  if (due.length === 0) return null;
  return Math.min(Math.max(Math.min(...due) - now + SHORTEST_DELAY_MS, SHORTEST_DELAY_MS), LONGEST_DELAY_MS);
}
