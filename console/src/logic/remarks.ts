/** Remarks on a diff: drafts until all of them are sent as one follow-up. */

import type { Schema } from "../api/client";

export interface Remark {
  id: string;
  path: string;
  /** Line of the file as it is offered; null for the file, or for a line that was removed. */
  line: number | null;
  /** The line that the remark is about, as it stood in the diff. */
  quote: string;
  /** Whether that line was removed. */
  isRemoved: boolean;
  body: string;
}

export interface RemarkDrafts {
  /** Names the attempt to send them, so that they are sent once. */
  key: string;
  remarks: Remark[];
}

/** Returns the drafts without those that say nothing. */
export function listWritten(drafts: RemarkDrafts): Remark[] {
  return drafts.remarks.filter((remark) => remark.body.trim() !== "");
}

function addQuote(remark: Remark): string {
  const body = remark.body.trim();
  return remark.isRemoved ? `About the removed line \`${remark.quote.trim()}\`: ${body}` : body;
}

/** Returns remarks as the comments of a review. */
export function toComments(remarks: readonly Remark[]): Schema["NewComment"][] {
  return remarks.map((remark) => ({
    path: remark.path,
    body: addQuote(remark),
    ...(remark.line === null ? {} : { line: remark.line }),
  }));
}

/** Returns remarks as one text for a task that still runs. */
export function toInstruction(remarks: readonly Remark[]): string {
  const lines = remarks.map((remark) => {
    const place = remark.line === null ? remark.path : `${remark.path}:${remark.line}`;
    return `- ${place}: ${addQuote(remark)}`;
  });
  return ["Remarks of a person on the changes so far:", ...lines].join("\n");
}

/** Returns how remarks can be sent, or why they cannot. */
export function chooseRecipient(
  state: Schema["TaskState"],
  pullRequest: Pick<Schema["PullRequestEntry"], "id" | "state" | "commit"> | null | undefined,
): { to: "review"; pullRequest: string; commit: string | null } | { to: "task" } | { to: null; reason: string } {
  if (pullRequest?.state === "open") {
    return { to: "review", pullRequest: pullRequest.id, commit: pullRequest.commit ?? null };
  }
  if (state === "running") return { to: "task" };
  const reason =
    pullRequest?.state === "merged"
      ? "The pull request is merged: ask for a new task"
      : "The task has ended and has no open pull request: try it again first";
  return { to: null, reason };
}

function storageKey(task: string): string {
  return `cynode-remarks-${task}`;
}

/** Reads the drafts of a task out of the tab's storage. */
export function readDrafts(task: string, makeKey: () => string): RemarkDrafts {
  try {
    const stored = JSON.parse(sessionStorage.getItem(storageKey(task)) ?? "null") as Partial<RemarkDrafts> | null;
    if (stored && typeof stored.key === "string" && Array.isArray(stored.remarks)) {
      return { key: stored.key, remarks: stored.remarks };
    }
  } catch {
    // What cannot be read is not there.
  }
  return { key: makeKey(), remarks: [] };
}

export function writeDrafts(task: string, drafts: RemarkDrafts): void {
  try {
    if (drafts.remarks.length === 0) sessionStorage.removeItem(storageKey(task));
    else sessionStorage.setItem(storageKey(task), JSON.stringify(drafts));
  } catch {
    // A browser that stores nothing loses the drafts when the tab is closed.
  }
}
