/** Programs of the installation and its backups, in words. */

import type { Schema } from "../api/client";
import type { DoctorState } from "../api/types";
import { formatCount } from "./format";

export type Process = Schema["UnpagedList_ProcessView"]["items"][number];
export type Backup = Schema["UnpagedList_BackupView"]["items"][number];

export const PROCESS_KINDS: Record<Process["kind"], string> = {
  server: "Server",
  engine: "Engine",
  database: "PostgreSQL",
  runner: "Runner",
  worker: "Worker",
  manager: "Project manager",
  analyst: "Analyst",
  node: "Node",
  command_line: "Command line",
};

/** Returns how a program stands: one that does not fit the server fails while it is there. */
export function judgeProcess(process: Pick<Process, "present" | "skewed">): DoctorState {
  if (process.skewed) return process.present ? "fail" : "warn";
  return "ok";
}

/** Returns how a backup stands: one that was never restored is only a hope. */
export function judgeBackup(backup: Pick<Backup, "verified_at" | "problems">): DoctorState {
  if (backup.problems.length > 0) return "fail";
  return backup.verified_at ? "ok" : "warn";
}

/** Says what the last verification of a backup found. */
export function describeVerification(backup: Pick<Backup, "verified_at" | "problems">): string {
  if (!backup.verified_at) return "Never restored for a trial";
  const [first] = backup.problems;
  return first
    ? `${formatCount(backup.problems.length, "problem")}, the first: ${first}`
    : "Restored for a trial, good";
}

/** Says who can open a backup. */
export function describeRecipients(backup: Pick<Backup, "recipients">): string {
  return backup.recipients.length === 0 ? "opened by a passphrase" : `opened by ${backup.recipients.join(", ")}`;
}
