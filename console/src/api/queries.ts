/** What pages read. Keys begin with what an event names, so that `staleKeys` finds them. */

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import type { Task } from "../logic/state";
import { api, unwrap } from "./client";
import { Problem } from "./problem";

const TASKS_PER_PAGE = 50;

export const meQuery = queryOptions({
  queryKey: ["me"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/me", { signal })),
  retry: false,
  staleTime: Number.POSITIVE_INFINITY,
});

export const inboxQuery = queryOptions({
  queryKey: ["inbox"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/inbox", { signal })),
});

/** Reads a timeline; null before the task has begun. */
async function readTimeline(task: string, signal: AbortSignal) {
  try {
    return await unwrap(api.GET("/v1/tasks/{task}/timeline", { signal, params: { path: { task } } }));
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

export const approvalQuery = (approval: string) =>
  queryOptions({
    queryKey: ["approvals", approval],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/approvals/{approval}", { signal, params: { path: { approval } } })),
  });

export interface TaskFilter {
  project?: string | undefined;
  state?: Task["state"] | undefined;
}

export const tasksQuery = (filter: TaskFilter) => ({
  queryKey: ["tasks", filter.project ?? "", filter.state ?? ""],
  queryFn: ({ signal, pageParam }: { signal: AbortSignal; pageParam: string | null }) =>
    unwrap(
      api.GET("/v1/tasks", {
        signal,
        params: {
          query: {
            limit: TASKS_PER_PAGE,
            ...(filter.project ? { project: filter.project } : {}),
            ...(filter.state ? { state: filter.state } : {}),
            ...(pageParam ? { cursor: pageParam } : {}),
          },
        },
      }),
    ),
  initialPageParam: null as string | null,
  getNextPageParam: (page: { next_cursor?: string | null }) => page.next_cursor ?? null,
  placeholderData: keepPreviousData,
});

export const taskQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "view"],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/tasks/{task}", { signal, params: { path: { task } } })),
  });

export const timelineQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "timeline"],
    queryFn: ({ signal }) => readTimeline(task, signal),
  });

export const evidenceQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "evidence"],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/tasks/{task}/evidence", { signal, params: { path: { task } } })),
  });

export const taskDiffQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "diff"],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/tasks/{task}/diff", { signal, params: { path: { task } } })),
    retry: false,
  });

export const taskFileDiffQuery = (task: string, path: string) =>
  queryOptions({
    queryKey: ["task", task, "diff", path],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/tasks/{task}/diff", { signal, params: { path: { task }, query: { path } } })),
  });

export const reportsQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "reports"],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/tasks/{task}/reports", { signal, params: { path: { task } } })),
  });

export const handoffsQuery = (project: string, task: string) =>
  queryOptions({
    queryKey: ["task", task, "handoffs"],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/projects/{project}/handoffs", {
          signal,
          params: { path: { project }, query: { task_id: task, limit: 100 } },
        }),
      ),
  });

/** The newest plan of a task, before or after it was approved. */
export const plannedQuery = (project: string, task: string) =>
  queryOptions({
    queryKey: ["task", task, "planned"],
    queryFn: async ({ signal }) => {
      const page = await unwrap(
        api.GET("/v1/projects/{project}/handoffs", {
          signal,
          params: { path: { project }, query: { task_id: task, limit: 100 } },
        }),
      );
      const planning = page.items.find((handoff) => handoff.kind === "plan" && handoff.state === "done");
      if (!planning) return null;
      const path = { handoff: planning.handoff_id };
      const handoff = await unwrap(api.GET("/v1/handoffs/{handoff}", { signal, params: { path } }));
      return handoff.answer?.answer === "planned" ? handoff.answer : null;
    },
  });

export const parkQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "park"],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/tasks/{task}/park", { signal, params: { path: { task } } })),
    retry: false,
  });

export const taskUsageQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "usage"],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/usage", { signal, params: { query: { task_id: task, by: "model" } } })),
  });

export const taskBudgetsQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "budgets"],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/budgets", { signal, params: { query: { scope_type: "task", scope_id: task } } })),
    retry: false,
  });

export const pullRequestQuery = (task: string, id: string) =>
  queryOptions({
    queryKey: ["task", task, "pull-request", id],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/pull-requests/{pull_request}", { signal, params: { path: { pull_request: id } } })),
  });

export const projectsQuery = queryOptions({
  queryKey: ["projects"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/projects", { signal, params: { query: { limit: 100 } } })),
});

export const projectQuery = (project: string) =>
  queryOptions({
    queryKey: ["project", project, "view"],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/projects/{project}", { signal, params: { path: { project } } })),
  });

export const repositoryQuery = (project: string) =>
  queryOptions({
    queryKey: ["project", project, "repository"],
    queryFn: async ({ signal }) => {
      try {
        return await unwrap(api.GET("/v1/projects/{project}/repository", { signal, params: { path: { project } } }));
      } catch (error) {
        if (error instanceof Problem && error.status === 404) return null;
        throw error;
      }
    },
  });

export const environmentsQuery = (project: string) =>
  queryOptions({
    queryKey: ["project", project, "environments"],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/projects/{project}/environments", { signal, params: { path: { project } } })),
    retry: false,
  });

export const nodesQuery = queryOptions({
  queryKey: ["nodes"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/nodes", { signal })),
});

export const modelsQuery = queryOptions({
  queryKey: ["models", "registry"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/model-registry", { signal })),
});

export const providersQuery = queryOptions({
  queryKey: ["models", "providers"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/providers", { signal })),
});

export const usageQuery = (by: "model" | "project" | "day" | "task" | "user" | "role") =>
  queryOptions({
    queryKey: ["usage", by],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/usage", { signal, params: { query: { by } } })),
  });

export const budgetsQuery = queryOptions({
  queryKey: ["usage", "budgets"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/budgets", { signal })),
});

export const readinessQuery = queryOptions({
  queryKey: ["readiness"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/readiness", { signal })),
});
