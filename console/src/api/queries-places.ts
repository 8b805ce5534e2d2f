/** What the pages of projects, nodes, models and spending read. */

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, type Schema, unwrap } from "./client";
import { Problem } from "./problem";

const PER_PAGE = 50;

interface PageContext {
  signal: AbortSignal;
  pageParam: string | null;
}

const paged = {
  initialPageParam: null as string | null,
  getNextPageParam: (page: { next_cursor?: string | null }) => page.next_cursor ?? null,
  placeholderData: keepPreviousData,
};

const pageQuery = (cursor: string | null) => ({ limit: PER_PAGE, ...(cursor ? { cursor } : {}) });

/** Returns null where nothing is stored. */
async function orNull<T>(pending: Promise<T>): Promise<T | null> {
  try {
    return await pending;
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

export const allProjectsQuery = queryOptions({
  queryKey: ["projects", "archived"],
  queryFn: ({ signal }) =>
    unwrap(api.GET("/v1/projects", { signal, params: { query: { limit: 200, archived: true } } })),
});

export const remoteQuery = (project: string) =>
  queryOptions({
    queryKey: ["project", project, "remote"],
    queryFn: ({ signal }) =>
      orNull(unwrap(api.GET("/v1/projects/{project}/remote", { signal, params: { path: { project } } }))),
    retry: false,
  });

export const issuesQuery = (project: string) =>
  queryOptions({
    queryKey: ["project", project, "issues"],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/projects/{project}/remote/issues", { signal, params: { path: { project } } })),
    retry: false,
  });

export const membersQuery = (project: string) => ({
  queryKey: ["project", project, "members"],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/projects/{project}/members", {
        signal,
        params: { path: { project }, query: pageQuery(pageParam) },
      }),
    ),
  ...paged,
});

/** The environment that jobs run in, or null. */
export const acceptedEnvironmentQuery = (project: string) =>
  queryOptions({
    queryKey: ["project", project, "environments", "accepted"],
    queryFn: ({ signal }) =>
      orNull(
        unwrap(api.GET("/v1/projects/{project}/environments/accepted", { signal, params: { path: { project } } })),
      ),
    retry: false,
  });

export const environmentQuery = (project: string, version: number) =>
  queryOptions({
    queryKey: ["project", project, "environments", version],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/projects/{project}/environments/{version}", { signal, params: { path: { project, version } } }),
      ),
    retry: false,
  });

export const secretsQuery = (project: string) =>
  queryOptions({
    queryKey: ["project", project, "secrets"],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/projects/{project}/secrets", { signal, params: { path: { project } } })),
    retry: false,
  });

export const packagesQuery = (project: string, refused: boolean) =>
  queryOptions({
    queryKey: ["project", project, "packages", refused],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/projects/{project}/packages", {
          signal,
          params: { path: { project }, query: refused ? { refused } : {} },
        }),
      ),
    placeholderData: keepPreviousData,
  });

export const pullRequestsQuery = (project: string, state: Schema["PullRequestState"] | undefined) => ({
  queryKey: ["project", project, "pull-requests", state ?? ""],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/projects/{project}/pull-requests", {
        signal,
        params: { path: { project }, query: { ...pageQuery(pageParam), ...(state ? { state } : {}) } },
      }),
    ),
  ...paged,
});

export const projectPullRequestQuery = (project: string, id: string) =>
  queryOptions({
    queryKey: ["project", project, "pull-request", id],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/pull-requests/{pull_request}", { signal, params: { path: { pull_request: id } } })),
  });

export const pullRequestFilesQuery = (project: string, id: string) =>
  queryOptions({
    queryKey: ["project", project, "pull-request", id, "files"],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/pull-requests/{pull_request}/files", { signal, params: { path: { pull_request: id } } })),
    retry: false,
  });

export const pullRequestDiffQuery = (project: string, id: string, path: string) =>
  queryOptions({
    queryKey: ["project", project, "pull-request", id, "diff", path],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/pull-requests/{pull_request}/diff", {
          signal,
          params: { path: { pull_request: id }, query: { path } },
        }),
      ),
    retry: false,
  });

export const projectHandoffsQuery = (project: string) => ({
  queryKey: ["project", project, "handoffs"],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/projects/{project}/handoffs", {
        signal,
        params: { path: { project }, query: pageQuery(pageParam) },
      }),
    ),
  ...paged,
});

export const handoffQuery = (project: string, handoff: string) =>
  queryOptions({
    queryKey: ["project", project, "handoff", handoff],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/handoffs/{handoff}", { signal, params: { path: { handoff } } })),
  });

/** The whole request behind a decision. It never changes; after a while it is no longer stored. */
export const promptQuery = (handoff: string, step: number) =>
  queryOptions({
    queryKey: ["prompt", handoff, step],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/handoffs/{handoff}/decisions/{step}/prompt", { signal, params: { path: { handoff, step } } }),
      ),
    retry: false,
    staleTime: Number.POSITIVE_INFINITY,
  });

export const nodeQuery = (node: string) =>
  queryOptions({
    queryKey: ["nodes", node],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/nodes/{node}", { signal, params: { path: { node } } })),
  });

/** The names of the newest tasks by their identifiers. */
export const taskNamesQuery = queryOptions({
  queryKey: ["tasks", "names"],
  queryFn: async ({ signal }) => {
    const { items } = await unwrap(api.GET("/v1/tasks", { signal, params: { query: { limit: 100 } } }));
    return new Map(items.map((task) => [task.id, task.name]));
  },
  staleTime: 60_000,
});

export const modelChoicesQuery = (project: string | undefined, role: string | undefined) =>
  queryOptions({
    queryKey: ["models", "choices", project ?? "", role ?? ""],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/model-choices", {
          signal,
          params: { query: { ...(project ? { project_id: project } : {}), ...(role ? { agent_role: role } : {}) } },
        }),
      ),
    placeholderData: keepPreviousData,
  });

export interface SpendFilter {
  project?: string | undefined;
  /** The first day, as `2026-11-01`. */
  from: string;
}

const toUsageQuery = (filter: SpendFilter) => ({
  from: `${filter.from}T00:00:00Z`,
  ...(filter.project ? { project_id: filter.project } : {}),
});

export const spendSumQuery = (by: string, filter: SpendFilter) =>
  queryOptions({
    queryKey: ["usage", "sum", by, filter.from, filter.project ?? ""],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/usage", { signal, params: { query: { by, ...toUsageQuery(filter) } } })),
    placeholderData: keepPreviousData,
  });

export const spendSeriesQuery = (filter: SpendFilter) =>
  queryOptions({
    queryKey: ["usage", "series", filter.from, filter.project ?? ""],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/usage/series", {
          signal,
          params: { query: { step: "day", by: "model", ...toUsageQuery(filter) } },
        }),
      ),
    placeholderData: keepPreviousData,
  });

export const modelCallsQuery = (filter: SpendFilter) => ({
  queryKey: ["usage", "calls", filter.from, filter.project ?? ""],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/usage/calls", {
        signal,
        params: { query: { ...pageQuery(pageParam), ...toUsageQuery(filter) } },
      }),
    ),
  ...paged,
});

/** The limits of one project, which its members may read; without one all of the installation. */
export const limitsQuery = (project: string | undefined) =>
  queryOptions({
    queryKey: ["usage", "budgets", project ?? ""],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/budgets", {
          signal,
          params: { query: project ? { scope_type: "project", scope_id: project } : {} },
        }),
      ),
    placeholderData: keepPreviousData,
    retry: false,
  });
