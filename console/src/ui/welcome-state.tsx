/** How far the first steps are, and the link to them while something is missing. */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import {
  environmentsQuery,
  meQuery,
  modelsQuery,
  projectsQuery,
  readinessQuery,
  repositoryQuery,
  tasksQuery,
} from "../api/queries";
import { findNextStep, judgeSteps, STEP_TITLES, type StepState, type WelcomeStep } from "../logic/welcome";

/** Reads how far the steps are for a project; the first one by default. */
export function useWelcome(wanted: string | undefined): {
  project: string | null;
  states: Record<WelcomeStep, StepState>;
  isRead: boolean;
} {
  const readiness = useQuery(readinessQuery);
  const models = useQuery(modelsQuery);
  const projects = useQuery(projectsQuery);
  const known = projects.data?.items.find((it) => it.id === wanted) ?? projects.data?.items[0];
  const project = known?.id ?? null;
  const enabled = project !== null;
  const repository = useQuery({ ...repositoryQuery(project ?? ""), enabled });
  const environments = useQuery({ ...environmentsQuery(project ?? ""), enabled });
  const tasks = useInfiniteQuery({ ...tasksQuery({ project: project ?? undefined }), enabled });
  const noProject = projects.data !== undefined && !enabled;
  const states = judgeSteps({
    checks: readiness.data?.checks,
    models: models.data?.items,
    project: projects.data ? project : undefined,
    repository: repository.data,
    environments: environments.data?.items,
    tasks: noProject ? 0 : tasks.data?.pages[0]?.items.length,
  });
  const isRead = Object.values(states).every((state) => state !== "unknown");
  return { project, states, isRead };
}

/** Leads an admin to what is missing. */
export function WelcomeLink() {
  const me = useQuery(meQuery);
  return me.data?.installation_role === "admin" ? <NextStep /> : null;
}

function NextStep() {
  const { states, isRead } = useWelcome(undefined);
  const next = findNextStep(states);
  if (!isRead || next === null) return null;
  return (
    <p className="mb-4 border-accent border-l-2 py-1 pl-3">
      This installation is not set up yet.{" "}
      <Link to="/welcome" className="font-medium text-accent underline">
        {STEP_TITLES[next]}
      </Link>
    </p>
  );
}
