/** Channels and deliveries of notifications. */

import type { Schema } from "../api/client";
import { toWords } from "./format";
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

export function findEventWords(kind: string): string {
  return EVENT_WORDS.find((it) => it.kind === kind)?.words ?? toWords(kind);
}

export type ChannelKind = "ntfy" | "mail" | "webhook";

/** Ways to be told: an address of each, and what its secret is called. */
export const CHANNEL_KINDS: readonly [KindEntry, ...KindEntry[]] = [
  {
    value: "ntfy",
    name: "ntfy",
    example: "https://ntfy.sh/a-topic-nobody-guesses",
    secret: "Access token, if the topic has one",
  },
  { value: "mail", name: "Mail", example: "ada@example.org", secret: null },
  {
    value: "webhook",
    name: "Webhook",
    example: "https://example.org/hooks/cynode",
    secret: "Secret (made for you without one)",
  },
];

/** Returns what people call a kind of channel. A browser is not in the list above: it subscribes itself. */
export function findKindName(kind: string): string {
  if (kind === "web_push") return "Browser";
  return CHANNEL_KINDS.find((it) => it.value === kind)?.name ?? kind;
}

/** Returns the address for a list. Of a browser's endpoint only the push service says something to people. */
export function shortenAddress({ kind, address }: { kind: string; address: string }): string {
  return kind === "web_push" && URL.canParse(address) ? new URL(address).host : address;
}

interface KindEntry {
  value: ChannelKind;
  name: string;
  example: string;
  secret: string | null;
}

export interface ChannelDraft {
  name: string;
  kind: ChannelKind;
  address: string;
  secret: string;
  gap: string;
  scope: "user" | "project" | "installation";
  project: string;
  kinds: string[];
}

const MAX_GAP_SECONDS = 3600;

/** Reads how long there is quiet after each notification. */
export function parseGap(text: string): { seconds: number; error: string | null } {
  const trimmed = text.trim();
  if (trimmed === "") return { seconds: 0, error: null };
  const seconds = Number(trimmed);
  return /^\d+$/.test(trimmed) && seconds <= MAX_GAP_SECONDS
    ? { seconds, error: null }
    : { seconds: 0, error: `Write seconds from 0 to ${MAX_GAP_SECONDS}` };
}

/** Returns what to send, or what is missing. All kinds of events are left out, so that later ones are told, too. */
export function toChannelRequest(draft: ChannelDraft): { body: Schema["CreateChannel"] } | { missing: string } {
  const [name, address, secret] = [draft.name.trim(), draft.address.trim(), draft.secret.trim()];
  const gap = parseGap(draft.gap);
  if (name === "") return { missing: "Write a name" };
  if (address === "") return { missing: "Write an address" };
  if (gap.error) return { missing: gap.error };
  if (draft.kinds.length === 0) return { missing: "Choose at least one kind of event" };
  if (draft.scope === "project" && draft.project === "") return { missing: "Choose a project" };
  const tellsAll = EVENT_WORDS.every((it) => draft.kinds.includes(it.kind));
  return {
    body: {
      name,
      address,
      kind: draft.kind,
      scope: draft.scope,
      ...(draft.scope === "project" ? { project_id: draft.project } : {}),
      ...(secret === "" ? {} : { secret }),
      ...(gap.seconds === 0 ? {} : { min_gap_seconds: gap.seconds }),
      ...(tellsAll ? {} : { kinds: draft.kinds }),
    },
  };
}
