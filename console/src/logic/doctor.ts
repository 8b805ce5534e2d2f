/** Results of the doctor in the order in which a person mends them. */

import type { DoctorCheck, DoctorState } from "../api/types";

export const CHECK_WORDS: Record<DoctorState, { word: string; sentence: string; sign: string; tone: string }> = {
  fail: { word: "Fails", sentence: "Something that work needs is missing.", sign: "✗", tone: "text-bad" },
  warn: {
    word: "Look at it",
    sentence: "Work can be done. Something should be looked at.",
    sign: "!",
    tone: "text-warn",
  },
  unknown: { word: "Not known", sentence: "Not everything could be checked.", sign: "○", tone: "text-faint" },
  ok: { word: "Good", sentence: "Everything that work needs is there.", sign: "✓", tone: "text-ok" },
};

const RANKS: Record<DoctorState, number> = { fail: 1, warn: 2, unknown: 3, ok: 4 };

/** Returns the checks, first those that stop all work, then by their state; checks of a kind keep their order. */
export function orderChecks(checks: readonly DoctorCheck[]): DoctorCheck[] {
  const rank = (check: DoctorCheck) => (check.blocks_work && check.state === "fail" ? 0 : RANKS[check.state]);
  return checks.toSorted((a, b) => rank(a) - rank(b));
}
