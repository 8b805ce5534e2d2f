import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { plannedQuery } from "../../api/queries";
import { formatCount, formatDuration, toWords } from "../../logic/format";
import { groupAttempts, standingOfAttempt } from "../../logic/lanes";
import { standingOfUnit, type Task, type Timeline } from "../../logic/state";
import { Empty, Foreign, SectionHead, Sign } from "../../ui/basic";
import { PlanGraph } from "../../ui/plan";
import { toPlanUnits } from "./units";

export function PlanTab({ task, timeline }: { task: Task; timeline: Timeline }) {
  const planned = useQuery({ ...plannedQuery(task.project_id, task.id), enabled: timeline.units.length === 0 });
  if (timeline.units.length === 0) {
    const steps = planned.data?.plan.steps ?? [];
    if (steps.length === 0) {
      return (
        <Empty title="There is no plan yet.">
          <p className="text-muted">
            The project manager reads the task and the repository first. Its plan appears here, and in the inbox when it
            waits for a decision.
          </p>
        </Empty>
      );
    }
    const units = steps.map((step) => ({ ...step, depends_on: step.depends_on ?? [], standing: "waits" as const }));
    return <PlanGraph units={units} />;
  }
  return <Units timeline={timeline} />;
}

function Units({ timeline }: { timeline: Timeline }) {
  const units = useMemo(() => toPlanUnits(timeline), [timeline]);
  const attempts = useMemo(() => groupAttempts(timeline), [timeline]);
  return (
    <div className="grid grid-cols-1 gap-6">
      <PlanGraph units={units} />
      <section className="grid gap-1">
        <SectionHead>Units and attempts</SectionHead>
        <ul>
          {timeline.units.map((unit) => (
            <li key={unit.key} className="grid gap-1.5 border-line border-b py-3">
              <div className="grid grid-cols-[auto_minmax(0,1fr)] items-baseline gap-x-3">
                <Sign standing={standingOfUnit(unit)} word />
                <div className="flex min-w-0 flex-wrap items-baseline gap-x-3">
                  <span className="font-medium">
                    <Foreign text={unit.title} />
                  </span>
                  <code className="font-mono text-code text-faint">{unit.key}</code>
                </div>
              </div>
              <ol className="flex flex-wrap gap-1.5 pl-5">
                {(attempts.get(unit.key) ?? []).map((attempt, index, all) => (
                  <li
                    key={attempt.number}
                    className="rounded-chip border border-line px-1.5 py-0.5 text-meta text-muted"
                  >
                    <Sign standing={standingOfAttempt(attempt, index === all.length - 1, standingOfUnit(unit))} />{" "}
                    attempt {attempt.number} · {formatCount(attempt.jobs, "job")} ·{" "}
                    {formatDuration(attempt.milliseconds)}
                    {attempt.state && <span className="text-warn"> · {attempt.state}</span>}
                  </li>
                ))}
              </ol>
              {unit.findings.length > 0 && (
                <ul className="grid gap-1 pl-5">
                  {unit.findings.map((finding) => (
                    <li key={`${finding.at ?? ""} ${finding.text}`}>
                      <span
                        className={
                          finding.severity === "critical" || finding.severity === "major" ? "text-bad" : "text-muted"
                        }
                      >
                        {toWords(finding.severity)}
                      </span>
                      {": "}
                      <Foreign text={finding.text} />
                      {finding.at && <code className="ml-2 font-mono text-code text-faint">{finding.at}</code>}
                      {finding.how_to_fix && (
                        <span className="block text-muted">
                          To do: <Foreign text={finding.how_to_fix} />
                        </span>
                      )}
                    </li>
                  ))}
                </ul>
              )}
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}
