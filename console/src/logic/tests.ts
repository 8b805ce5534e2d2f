/** Results per test, as the server compares them with the base commit. */

export interface TestNames {
  total: number;
  names: string[];
}

export interface TestComparison {
  before?: { passed: number; skipped: number; failed: number } | null;
  after: { passed: number; skipped: number; failed: number };
  fail_to_pass?: TestNames;
  pass_to_fail?: TestNames;
  pass_to_pass?: number;
  fail_to_fail?: TestNames;
  failed?: TestNames;
  added?: TestNames;
  vanished?: TestNames;
  flaky?: TestNames;
  incomplete?: boolean;
}

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

/** Returns the groups that have tests, what the work mended first. */
export function groupTests(comparison: TestComparison): TestGroup[] {
  return GROUPS.flatMap(([key, words, tone]) => {
    const found = comparison[key];
    return found && found.total > 0 ? [{ words, tone, total: found.total, names: [...found.names] }] : [];
  });
}
