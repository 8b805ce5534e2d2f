/** What a person types into the form of a task, as the API takes it. */

import type { Schema } from "../api/client";
import type { TaskEstimate } from "../api/types";
import { formatCost, formatDuration } from "./format";

/** Makes a criterion of each line; a line is a shell command. */
export function parseCriteria(text: string): Schema["Criterion"][] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "")
    .map((line) => ({ text: line, check: { argv: ["sh", "-c", line] } }));
}

export interface Limit {
  micros: number | null;
  error: string | null;
}

/** Reads an amount of money; with a comma, too. */
export function parseLimit(text: string): Limit {
  const trimmed = text.trim().replace(",", ".");
  if (trimmed === "") return { micros: null, error: null };
  if (!/^\d+(\.\d{1,6})?$/.test(trimmed)) return { micros: null, error: "Write an amount such as 0.50" };
  const micros = Math.round(Number(trimmed) * 1_000_000);
  return micros > 0 ? { micros, error: null } : { micros: null, error: "The limit must be more than nothing" };
}

/** Returns an estimate in words. */
export function describeEstimate(estimate: TaskEstimate, currency: string): string {
  const { cost_micros: cost, seconds, samples, basis } = estimate;
  if (basis === "unknown" || (!cost && !seconds)) return "Unknown: fewer than three tasks have been done.";
  const half = [cost && formatCost(cost.p50, currency), seconds && formatDuration(seconds.p50 * 1000)];
  const most = [cost && formatCost(cost.p90, currency), seconds && formatDuration(seconds.p90 * 1000)];
  const join = (parts: (string | null | undefined)[]) => parts.filter(Boolean).join(" and ");
  const where = basis === "project" ? "this project" : "the installation";
  return `About ${join(half)}; nine of ten stay below ${join(most)}. From ${samples} tasks of ${where}.`;
}
