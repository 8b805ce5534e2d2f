/** Leads to the first task, and says what would keep it from being done. */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Schema } from "../../api/client";
import { toDoctorCheck } from "../../api/doctor";
import { tasksQuery } from "../../api/queries";
import { projectReadinessQuery } from "../../api/queries-chat";
import { STEP_TITLES, type StepState, WELCOME_STEPS, type WelcomeStep } from "../../logic/welcome";
import { Command, cx, Loaded, Sign } from "../../ui/basic";
import { CheckList } from "../../ui/checks";
import { TaskCard } from "../../ui/task-card";

export function TaskStep({
  project,
  states,
}: {
  project: Schema["ProjectView"] | null;
  states: Record<WelcomeStep, StepState>;
}) {
  const missing = WELCOME_STEPS.filter((step) => step !== "task" && states[step] === "missing");
  if (!project) return <p className="text-muted">A task belongs to a project, which is not here yet.</p>;
  return (
    <div className="grid grid-cols-1 gap-4">
      <Blockers project={project.id} />
      {missing.length > 0 && (
        <p className="text-muted">Before it: {missing.map((step) => STEP_TITLES[step].toLowerCase()).join(", ")}.</p>
      )}
      <FirstTask project={project.id} />
      <div className="flex flex-wrap items-center gap-3">
        <Link
          to="/tasks/new"
          search={{ project: project.id }}
          className={cx(
            "inline-flex min-h-8 items-center rounded-box border px-3 font-medium max-small:min-h-10",
            states.task === "missing" ? "border-accent bg-accent text-on-accent" : "border-control hover:bg-surface",
          )}
        >
          New task
        </Link>
        <Link to="/chat" search={{ thread: "new", project: project.id }} className="text-accent underline">
          Or talk it over with the project manager
        </Link>
      </div>
      <Command line={`cynork run "Say hello in the README" --project ${project.slug}`} />
    </div>
  );
}

/** What the server itself says about this project. */
function Blockers({ project }: { project: string }) {
  const readiness = useQuery(projectReadinessQuery(project));
  return (
    <Loaded query={readiness} lines={2}>
      {(data) => {
        const blockers = data.checks.filter((check) => check.blocks_work).map(toDoctorCheck);
        return blockers.length === 0 ? (
          <Sign standing="done" word="Tasks of this project can be done" />
        ) : (
          <CheckList checks={blockers} />
        );
      }}
    </Loaded>
  );
}

function FirstTask({ project }: { project: string }) {
  const tasks = useInfiniteQuery(tasksQuery({ project }));
  const newest = tasks.data?.pages[0]?.items[0];
  if (!newest) return null;
  return <TaskCard task={newest.id} decides onDecide={() => undefined} />;
}
