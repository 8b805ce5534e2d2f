/** The first steps: from an admin to a first task. */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Schema } from "../api/client";
import { toDoctorCheck } from "../api/doctor";
import { meQuery, modelsQuery, projectsQuery, readinessQuery, tasksQuery } from "../api/queries";
import { orderChecks } from "../logic/doctor";
import { formatCount } from "../logic/format";
import type { Standing } from "../logic/state";
import {
  findNextStep,
  isWelcomeStep,
  STEP_TITLES,
  type StepState,
  WELCOME_STEPS,
  type WelcomeStep,
} from "../logic/welcome";
import { Action, cx, Foreign, Loaded, Page, PageHead, Sign } from "../ui/basic";
import { CheckList } from "../ui/checks";
import { usePageCommand } from "../ui/copy";
import { useWelcome } from "../ui/welcome-state";
import { EnvironmentStep } from "./welcome/environment";
import { ModelStep } from "./welcome/model";
import { RepositoryStep } from "./welcome/repository";
import { TaskStep } from "./welcome/task";

const STANDINGS: Record<StepState, { standing: Standing; word: string }> = {
  unknown: { standing: "waits", word: "Being read" },
  done: { standing: "done", word: "Done" },
  missing: { standing: "waits", word: "Not done" },
  optional: { standing: "waits", word: "Can be left out" },
};

export function WelcomePage() {
  usePageCommand("cynork status", "/v1/readiness");
  const search = useSearch({ from: "/welcome" });
  const projects = useQuery(projectsQuery);
  const { project, states, isRead } = useWelcome(search.project);
  const next = findNextStep(states);
  const open: WelcomeStep | null = isWelcomeStep(search.step) ? search.step : isRead ? next : null;
  const chosen = projects.data?.items.find((it) => it.id === project) ?? null;
  return (
    <Page>
      <PageHead
        title="First steps"
        lead={
          next === null && isRead ? (
            <>
              Everything is set up.{" "}
              <Link to="/tasks/new" className="text-accent underline">
                Start a task
              </Link>
            </>
          ) : (
            "Each step tests what it sets. You can leave at any time: what is done stays done."
          )
        }
      />
      <div className="grid grid-cols-1 gap-8 medium:grid-cols-[220px_1fr]">
        <nav aria-label="Steps" className="max-medium:hidden">
          <ol className="grid gap-0.5 medium:sticky medium:top-4">
            {WELCOME_STEPS.map((step, index) => (
              <li key={step}>
                <Link
                  to="/welcome"
                  search={(previous) => ({ ...previous, step })}
                  replace
                  aria-current={step === open ? "step" : undefined}
                  className={cx(
                    "flex min-h-8 items-baseline gap-2 rounded-box px-2 py-1.5 hover:bg-surface max-small:min-h-10",
                    step === open && "bg-select font-medium",
                  )}
                >
                  <Sign {...STANDINGS[states[step]]} word={false} />
                  <span>
                    {index + 1}. {STEP_TITLES[step]}
                    <span className="sr-only">: {STANDINGS[states[step]].word}</span>
                  </span>
                </Link>
              </li>
            ))}
          </ol>
        </nav>
        <div className="grid min-w-0 max-w-[760px] grid-cols-1 content-start gap-6">
          <Step step="installation" open={open} state={states.installation} summary={<CheckSummary />}>
            <InstallationStep />
          </Step>
          <Step step="model" open={open} state={states.model} summary={<ModelSummary />}>
            <ModelStep />
          </Step>
          <Step
            step="repository"
            open={open}
            state={states.repository}
            summary={chosen && states.repository === "done" ? <Foreign text={`project ${chosen.slug}`} /> : undefined}
          >
            <RepositoryStep project={chosen} projects={projects.data?.items ?? []} />
          </Step>
          <Step step="environment" open={open} state={states.environment}>
            <EnvironmentStep project={chosen} hasRepository={states.repository === "done"} />
          </Step>
          <Step
            step="task"
            open={open}
            state={states.task}
            summary={chosen ? <TaskSummary project={chosen.id} /> : undefined}
          >
            <TaskStep project={chosen} states={states} />
          </Step>
        </div>
      </div>
    </Page>
  );
}

function Step({
  step,
  open,
  state,
  summary,
  children,
}: {
  step: WelcomeStep;
  open: WelcomeStep | null;
  state: StepState;
  summary?: ReactNode;
  children: ReactNode;
}) {
  const { standing, word } = STANDINGS[state];
  return (
    <section aria-labelledby={`step-${step}`} className="grid grid-cols-1 gap-3">
      <div className="flex items-baseline gap-x-3 border-line border-b pb-1">
        <div className="flex min-w-0 flex-1 flex-wrap items-baseline gap-x-3">
          <h2 id={`step-${step}`} className="text-lead">
            {STEP_TITLES[step]}
          </h2>
          <span className="text-meta">
            <Sign standing={standing} word={word} />
          </span>
          {summary && <span className="text-meta text-muted">{summary}</span>}
        </div>
        {step !== open && (
          <Link
            to="/welcome"
            search={(previous) => ({ ...previous, step })}
            replace
            className="shrink-0 text-accent underline"
          >
            Open<span className="sr-only"> {STEP_TITLES[step]}</span>
          </Link>
        )}
      </div>
      {step === open && children}
    </section>
  );
}

function InstallationStep() {
  const me = useQuery(meQuery);
  const readiness = useQuery(readinessQuery);
  return (
    <div className="grid grid-cols-1 gap-3">
      {me.data && (
        <p>
          You are <Foreign text={me.data.user.display_name} />,{" "}
          {me.data.installation_role === "admin"
            ? "an admin of this installation."
            : "and no admin of this installation: some steps need one."}
        </p>
      )}
      <Loaded query={readiness}>
        {(data) => {
          const checks = orderChecks(data.checks.filter((check) => check.name !== "models").map(toDoctorCheck));
          const open = checks.filter((check) => check.state !== "ok");
          const good = checks.filter((check) => check.state === "ok");
          return (
            <>
              {open.length > 0 && <CheckList checks={open} />}
              <details open={open.length === 0}>
                <summary className="cursor-default text-muted">{formatCount(good.length, "check")} passed</summary>
                <div className="pt-2">
                  <CheckList checks={good} />
                </div>
              </details>
            </>
          );
        }}
      </Loaded>
      <div className="flex flex-wrap items-center gap-3">
        <Action onPress={() => void readiness.refetch()} reason={readiness.isFetching ? "It is being checked" : null}>
          Check again
        </Action>
        <Link to="/settings/doctor" className="text-accent underline">
          Everything that the doctor sees
        </Link>
      </div>
    </div>
  );
}

function CheckSummary() {
  const readiness = useQuery(readinessQuery);
  const count = readiness.data?.checks.filter((check) => check.status !== "ok" && check.name !== "models").length ?? 0;
  return count > 0 ? <Sign standing="trouble" word={`${formatCount(count, "check")} to look at`} /> : null;
}

function ModelSummary() {
  const models = useQuery(modelsQuery);
  const offered = models.data?.items.filter((model: Schema["ModelView"]) => model.enabled) ?? [];
  if (offered.length === 0) return null;
  return <Foreign text={offered.length <= 2 ? offered.map((it) => it.title).join(", ") : `${offered.length} models`} />;
}

function TaskSummary({ project }: { project: string }) {
  const tasks = useInfiniteQuery(tasksQuery({ project }));
  const first = tasks.data?.pages[0]?.items.at(-1);
  if (!first) return null;
  return (
    <Link to="/tasks/$task" params={{ task: first.id }} className="text-accent underline">
      <Foreign text={first.name} />
    </Link>
  );
}
