import { standingOfUnit, type Timeline } from "../../logic/state";
import type { PlanUnit } from "../../ui/plan";

/** Returns the units of a timeline as a plan shows them. */
export function toPlanUnits(timeline: Timeline): PlanUnit[] {
  return timeline.units.map((unit) => ({
    key: unit.key,
    title: unit.title,
    depends_on: unit.depends_on,
    standing: standingOfUnit(unit),
    note: unit.attempts > 1 ? `${unit.attempts} attempts` : unit.attempts === 1 ? "1 attempt" : "not started",
  }));
}
