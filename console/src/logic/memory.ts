/** Records of memory and ingests, in words. */

import type { Schema } from "../api/client";
import { formatCount } from "./format";
import type { Standing } from "./state";

export type Memory = Schema["MemoryView"];
export type Ingest = Schema["IngestView"];

/** What a person writes by hand. */
export const WRITTEN_KINDS = ["fact", "decision", "convention", "finding", "summary"] as const;
export type WrittenKind = (typeof WRITTEN_KINDS)[number];

const AUTHORS: Record<Memory["author"], string> = { person: "a person", agent: "an agent", system: "CyNode" };

/** Who wrote a record. */
export function describeAuthor(memory: Pick<Memory, "author" | "role">): string {
  return memory.author === "agent" && memory.role ? `the ${memory.role.replaceAll("_", " ")}` : AUTHORS[memory.author];
}

/** Where a record comes from, as one line. */
export function describeOrigin(memory: Pick<Memory, "source" | "path" | "url" | "commit">): string {
  const place = memory.path ?? memory.url;
  const at = memory.commit ? ` at ${memory.commit.slice(0, 10)}` : "";
  return place ? `${memory.source}: ${place}${at}` : `${memory.source}${at}`;
}

/** A score from 0 to 1 as it stands beside a hit. */
export function formatScore(score: number): string {
  return score.toFixed(2);
}

const INGEST_STANDINGS: Record<Ingest["state"], Standing> = {
  queued: "waits",
  running: "works",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
};

export function standingOfIngest(ingest: Pick<Ingest, "state">): Standing {
  return INGEST_STANDINGS[ingest.state];
}

/** How far an ingest is. */
export function describeProgress(progress: Ingest["progress"]): string {
  const parts = [
    formatCount(progress.files, "file"),
    `${progress.read} read`,
    progress.unchanged > 0 ? `${progress.unchanged} unchanged` : null,
    progress.skipped > 0 ? `${progress.skipped} skipped` : null,
    progress.removed > 0 ? `${progress.removed} removed` : null,
    formatCount(progress.records, "record"),
  ];
  return parts.filter((part) => part !== null).join(", ");
}

/** Whether an ingest can still be stopped. */
export function canCancel(ingest: Pick<Ingest, "state">): boolean {
  return ingest.state === "queued" || ingest.state === "running";
}
