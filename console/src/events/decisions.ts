/** What people decided while this page is open, so that an open item says at once who was faster. */

import { useSyncExternalStore } from "react";
import type { Decision } from "../logic/inbox";
import type { ApiEvent } from "./stream";

const DECIDING =
  /^(approval\.decided|task\.(instructed|cancelled|unparked)|environment\.(accepted|rejected)|tool_server\.(accepted|removed)|pull_request\.(closed|merged))$/;
const MAX_DECISIONS = 50;

let decisions: readonly Decision[] = [];
const readers = new Set<() => void>();

/** Keeps an event if it is a decision. */
export function recordDecision(event: ApiEvent): void {
  if (!DECIDING.test(event.kind)) return;
  const data = typeof event.data === "object" && event.data !== null ? (event.data as Record<string, unknown>) : {};
  const decision: Decision = {
    kind: event.kind,
    actor: event.actor_id ?? null,
    at: event.occurred_at ?? new Date().toISOString(),
    project: event.project_id ?? null,
    task: event.task_id ?? null,
    data,
  };
  decisions = [...decisions, decision].slice(-MAX_DECISIONS);
  for (const reader of readers) reader();
}

function subscribe(reader: () => void): () => void {
  readers.add(reader);
  return () => readers.delete(reader);
}

/** Returns the decisions that were seen, oldest first. */
export function useDecisions(): readonly Decision[] {
  return useSyncExternalStore(subscribe, () => decisions);
}
