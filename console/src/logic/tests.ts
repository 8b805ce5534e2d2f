/** Results per test, as the server compares them with the base commit. */

import type { Schema } from "../api/client";

export type TestComparison = Pick<Schema["TestRunComparison"], "after"> & Partial<Schema["TestRunComparison"]>;

export interface TestGroup {
  words: string;
  tone: "ok" | "bad" | "warn" | "muted";
  total: number;
  names: string[];
}

const GROUPS = [
  ["fail_to_pass", "failed before, passes now", "ok"],
  ["pass_to_fail", "passed before, fails now", "bad"],
  ["fail_to_fail", "failed before and now", "warn"],
  ["failed", "fails", "bad"],
  ["vanished", "is not there any more", "warn"],
  ["flaky", "changes from run to run", "warn"],
  ["added", "is new", "muted"],
] as const;

/** Returns what makes the numbers less than they look. */
export function listTestDoubts(comparison: TestComparison): string[] {
  return [
    comparison.broke_off ? "the run broke off: before the change it came to its end" : null,
    comparison.fewer ? `${comparison.fewer} tests fewer ran than before` : null,
    comparison.incomplete ? "tests may be missing from the report" : null,
  ].filter((words) => words !== null);
}

/** Returns the groups that have tests, what the work mended first. */
export function groupTests(comparison: TestComparison): TestGroup[] {
  return GROUPS.flatMap(([key, words, tone]) => {
    const found = comparison[key];
    return found && found.total > 0 ? [{ words, tone, total: found.total, names: [...found.names] }] : [];
  });
}
