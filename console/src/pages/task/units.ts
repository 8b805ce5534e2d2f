import { groupAttempts, standingOfAttempt } from "../../logic/lanes";
import { standingOfUnit, type Timeline } from "../../logic/state";
import type { PlanUnit } from "../../ui/plan";

/** Returns the units of a timeline as a plan shows them. */
export function toPlanUnits(timeline: Timeline): PlanUnit[] {
  const attempts = groupAttempts(timeline);
  return timeline.units.map((unit) => {
    const standing = standingOfUnit(unit);
    const tries = attempts.get(unit.key) ?? [];
    return {
      key: unit.key,
      title: unit.title,
      depends_on: unit.depends_on,
      standing,
      note: unit.attempts > 1 ? `${unit.attempts} attempts` : unit.attempts === 1 ? "1 attempt" : "not started",
      attempts: tries.map((attempt, index) => standingOfAttempt(attempt, index === tries.length - 1, standing)),
    };
  });
}
