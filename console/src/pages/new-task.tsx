/** A new task: words, project, checks, limit. */

import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, unwrap } from "../api/client";
import { meQuery, projectsQuery, readinessQuery } from "../api/queries";
import { estimateQuery } from "../api/queries-task";
import { nameProject } from "../logic/format";
import { describeEstimate, parseCriteria, parseLimit } from "../logic/new-task";
import { quoteShell } from "../logic/text";
import { Action, Command, Empty, Foreign, Loaded, Page, PageHead, ProblemNote } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";

interface Draft {
  project: string;
  description: string;
  criteria: string;
  limit: string;
  asks: boolean;
  /** The same key for each try of the same task, so that it is created once. */
  key: string;
}

const DRAFT_KEY = "cynode-new-task";

function readDraft(): Draft {
  const empty: Draft = { project: "", description: "", criteria: "", limit: "", asks: true, key: makeKey() };
  try {
    return { ...empty, ...(JSON.parse(sessionStorage.getItem(DRAFT_KEY) ?? "{}") as Partial<Draft>) };
  } catch {
    return empty;
  }
}

export function NewTaskPage() {
  const search = useSearch({ from: "/tasks/new" });
  const navigate = useNavigate();
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const readiness = useQuery(readinessQuery);
  const [draft, setDraft] = useState(readDraft);
  const project = draft.project || search.project || projects.data?.items[0]?.id || "";
  const estimate = useQuery({ ...estimateQuery(project, draft.description.trim()), enabled: project !== "" });
  const criteria = parseCriteria(draft.criteria);
  const limit = parseLimit(draft.limit);
  const change = (part: Partial<Draft>) => setDraft((previous) => ({ ...previous, ...part, key: makeKey() }));

  useEffect(() => {
    try {
      sessionStorage.setItem(DRAFT_KEY, JSON.stringify(draft));
    } catch {
      // A browser that stores nothing loses the draft when the tab is closed.
    }
  }, [draft]);

  const create = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/tasks", {
          params: { header: { "Idempotency-Key": draft.key } },
          body: {
            project_id: project,
            description: draft.description.trim(),
            acceptance_criteria: criteria,
            approve_plan: draft.asks,
            ...(limit.micros === null ? {} : { budget: { max_cost_micros: limit.micros } }),
          },
        }),
      ),
    onSuccess: (task) => {
      sessionStorage.removeItem(DRAFT_KEY);
      void navigate({ to: "/tasks/$task", params: { task: task.id } });
    },
  });

  const slug = projects.data?.items.find((it) => it.id === project)?.slug;
  const words = [
    "run",
    draft.description.trim() || "WHAT TO DO",
    ...(slug ? ["--project", slug] : []),
    ...criteria.flatMap((it) => (it.check ? ["--check", it.text] : [])),
    ...(limit.micros === null ? [] : ["--budget", String(limit.micros / 1_000_000)]),
  ];
  usePageCommand(`cynork ${quoteShell(words)}`, "/v1/tasks");
  const reason = create.isPending
    ? "It is being created"
    : draft.description.trim() === ""
      ? "Write what is to be done"
      : project === ""
        ? "Choose a project"
        : limit.error;
  const troubles = readiness.data?.checks.filter((check) => check.blocks_work) ?? [];

  return (
    <Page>
      <div className="grid max-w-[760px] gap-4">
        <PageHead title="New task" />
        <Loaded query={projects}>
          {(data) =>
            data.items.length === 0 ? (
              <Empty title="A task belongs to a project, and there is none yet.">
                <p className="text-muted">
                  <Link to="/projects" className="font-medium text-accent underline">
                    Make a project
                  </Link>
                  , or make one and import the repository that you stand in:
                </p>
                <Command line="cynork project create NAME" />
                <Command line="cynork project import . --project NAME" />
              </Empty>
            ) : (
              <Form
                className="grid gap-5"
                onSubmit={(event) => {
                  event.preventDefault();
                  if (!reason) create.mutate();
                }}
              >
                <Field
                  label="What is to be done?"
                  value={draft.description}
                  onChange={(description) => change({ description })}
                  lines={5}
                  autoFocus
                  description="In your own words. What must be true afterwards helps more than how to do it."
                />
                <Choice
                  label="Project"
                  value={project}
                  onChange={(value) => change({ project: value })}
                  options={data.items.map((it) => ({
                    value: it.id,
                    name: nameProject(it),
                  }))}
                />
                <Field
                  label="Checks"
                  value={draft.criteria}
                  onChange={(text) => change({ criteria: text })}
                  lines={3}
                  mono
                  placeholder="npm test"
                  description="One shell command per line. The task is done only when each of them passes from the commit in a fresh sandbox."
                />
                <Field
                  label={`Limit in ${me.data?.currency ?? "USD"}`}
                  value={draft.limit}
                  onChange={(text) => change({ limit: text })}
                  inputMode="decimal"
                  placeholder="0.50"
                  error={limit.error}
                  description="What model calls may cost together. Without one, the limits of the project and the installation hold."
                />
                <label className="flex min-h-8 items-center gap-2">
                  <input
                    type="checkbox"
                    checked={draft.asks}
                    onChange={(event) => change({ asks: event.target.checked })}
                    className="size-4 accent-accent"
                  />
                  Ask me before the plan is carried out
                </label>
                {troubles.map((check) => (
                  <p key={check.name} className="border-warn border-l-2 py-1 pl-3">
                    <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
                      !
                    </span>
                    <Foreign text={check.detail} />
                    {check.fix && (
                      <span className="block text-muted">
                        <Foreign text={check.fix} />
                      </span>
                    )}
                  </p>
                ))}
                {estimate.data && (
                  <section aria-label="Estimate" aria-live="polite">
                    <h2 className="text-body">Estimate</h2>
                    <p className="text-muted">{describeEstimate(estimate.data, me.data?.currency ?? "USD")}</p>
                  </section>
                )}
                {create.error && <ProblemNote error={create.error} />}
                <div className="sticky bottom-0 flex items-center gap-3 border-line border-t bg-bg py-3">
                  <Action type="submit" tone="primary" reason={reason}>
                    Start task
                  </Action>
                  <Link to="/tasks" className="text-muted underline">
                    Back to tasks
                  </Link>
                </div>
              </Form>
            )
          }
        </Loaded>
      </div>
    </Page>
  );
}
