/** Every task that one may see. */

import { useInfiniteQuery, useQueries, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Plus } from "lucide-react";
import { useMemo, useState } from "react";
import { projectsQuery, tasksQuery, timelineQuery } from "../api/queries";
import { describeStanding, isAlive, SIGNS, standingOf, type Task, type Timeline } from "../logic/state";
import { directionOf } from "../logic/text";
import { Action, Age, cx, Empty, Foreign, Loaded, Page, PageHead, Sign, useNow } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice } from "../ui/fields";
import { useKeys } from "../ui/keys";

const STATES: readonly { value: Task["state"] | ""; name: string }[] = [
  { value: "", name: "Every state" },
  { value: "running", name: "Running" },
  { value: "queued", name: "Queued" },
  { value: "completed", name: "Done" },
  { value: "failed", name: "Given up" },
  { value: "cancelled", name: "Cancelled" },
];

export function TasksPage() {
  const search = useSearch({ from: "/tasks" });
  const navigate = useNavigate({ from: "/tasks" });
  const query = new URLSearchParams(
    Object.entries(search).filter((entry): entry is [string, string] => typeof entry[1] === "string"),
  ).toString();
  usePageCommand("cynork task list", `/v1/tasks${query ? `?${query}` : ""}`);
  const tasks = useInfiniteQuery(tasksQuery(search));
  const projects = useQuery(projectsQuery);
  const names = useMemo(() => new Map((projects.data?.items ?? []).map((it) => [it.id, it.slug])), [projects.data]);
  const items = useMemo(() => tasks.data?.pages.flatMap((page) => page.items) ?? [], [tasks.data]);
  const running = items.filter((task) => task.state === "running").slice(0, 20);
  const timelines = useQueries({
    queries: running.map((task) => timelineQuery(task.id)),
    combine: (results) =>
      new Map(results.flatMap((result) => (result.data ? [[result.data.task_id, result.data] as const] : []))),
  });
  const [cursor, setCursor] = useState(-1);
  const chosen = items[cursor];
  useKeys({
    j: () => setCursor((index) => Math.min(index + 1, items.length - 1)),
    k: () => setCursor((index) => Math.max(index - 1, 0)),
    Enter: chosen ? () => void navigate({ to: "/tasks/$task", params: { task: chosen.id } }) : undefined,
    "/": () => document.querySelector<HTMLElement>("#filters select")?.focus(),
  });
  return (
    <Page wide>
      <div className="flex items-start justify-between gap-4 max-small:pb-2">
        <PageHead title="Tasks" />
        <Link
          to="/tasks/new"
          search={{ project: search.project }}
          className="inline-flex min-h-8 items-center gap-1.5 rounded-box bg-accent px-3 font-medium text-on-accent max-small:min-h-10"
        >
          <Plus size={15} aria-hidden="true" /> New task
        </Link>
      </div>
      <div
        id="filters"
        className="grid grid-cols-2 gap-2 pb-3 small:grid-cols-[minmax(0,max-content)_max-content] small:[&_select]:max-w-64"
      >
        <Choice
          label="Project"
          hideLabel
          value={search.project ?? ""}
          onChange={(project) =>
            void navigate({ search: (previous) => ({ ...previous, project: project || undefined }) })
          }
          options={[
            { value: "", name: "Every project" },
            ...(projects.data?.items ?? []).map((project) => ({ value: project.id, name: project.slug })),
          ]}
        />
        <Choice
          label="State"
          hideLabel
          value={search.state ?? ""}
          onChange={(state) => void navigate({ search: (previous) => ({ ...previous, state: state || undefined }) })}
          options={STATES}
        />
      </div>
      <Loaded query={tasks} lines={8}>
        {() =>
          items.length === 0 ? (
            <NoTasks filtered={Boolean(search.project || search.state)} />
          ) : (
            <>
              <ul aria-label="Tasks" className="border-line border-t">
                {items.map((task, index) => (
                  <Row
                    key={task.id}
                    task={task}
                    timeline={timelines.get(task.id) ?? null}
                    project={names.get(task.project_id) ?? ""}
                    isChosen={index === cursor}
                  />
                ))}
              </ul>
              {tasks.hasNextPage && (
                <div className="py-4">
                  <Action
                    onPress={() => void tasks.fetchNextPage()}
                    reason={tasks.isFetchingNextPage ? "They are being read" : null}
                  >
                    Show more tasks
                  </Action>
                </div>
              )}
            </>
          )
        }
      </Loaded>
    </Page>
  );
}

function NoTasks({ filtered }: { filtered: boolean }) {
  if (filtered) {
    return (
      <Empty title="No task is like this.">
        <p>
          <Link to="/tasks" search={{}} className="font-medium text-accent underline">
            Show every task
          </Link>
        </p>
      </Empty>
    );
  }
  return (
    <Empty title="There is no task yet.">
      <p className="text-muted">
        A task is work in your own words. It gets a plan that you approve, runs in sandboxes, and ends in a pull request
        with evidence.
      </p>
      <p>
        <Link to="/tasks/new" className="font-medium text-accent underline">
          Start the first task
        </Link>
      </p>
    </Empty>
  );
}

function Row({
  task,
  timeline,
  project,
  isChosen,
}: {
  task: Task;
  timeline: Timeline | null;
  project: string;
  isChosen: boolean;
}) {
  const now = useNow();
  const standing = standingOf(task, timeline);
  const sentence = isAlive(task.state) && timeline ? describeStanding(task, timeline, now).text : task.description;
  return (
    <li>
      <Link
        to="/tasks/$task"
        params={{ task: task.id }}
        className={cx(
          "grid min-h-10 grid-cols-[130px_minmax(220px,1fr)_minmax(0,2fr)_minmax(0,90px)_44px] items-center gap-x-4 border-line border-b px-2 py-1.5 -outline-offset-2 hover:bg-surface",
          "max-medium:grid-cols-[1fr_auto] max-medium:gap-y-0.5 max-medium:py-2",
          isChosen && "bg-select",
        )}
      >
        <span className="max-medium:order-3 max-medium:text-meta">
          <Sign standing={standing} word={SIGNS[standing].words} />
        </span>
        <span className="line-clamp-2 font-medium max-medium:order-1" title={task.name}>
          <Foreign text={task.name} />
        </span>
        <span
          dir={directionOf(sentence)}
          className="text-muted max-medium:order-5 max-medium:col-span-2 max-medium:line-clamp-2 medium:truncate"
        >
          <Foreign text={sentence} />
        </span>
        <span className="truncate text-meta text-muted max-medium:order-4 max-medium:text-right" title={project}>
          {project}
        </span>
        <Age at={task.updated_at} className="text-right text-meta text-faint max-medium:order-2" />
      </Link>
    </li>
  );
}
