/** What the pages about tools read. An event of a tool or of a tool server makes everything below `tools` old. */

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "./client";

/** The most records that one request gives. */
const AUDIT_RECORDS = 1000;
const DAY_MS = 86_400_000;
const TOKENS_PER_PAGE = 50;

export const toolsQuery = queryOptions({
  queryKey: ["tools", "list"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/tools", { signal })),
});

export const allowlistsQuery = queryOptions({
  queryKey: ["tools", "allowlists"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/allowlists", { signal })),
  staleTime: Number.POSITIVE_INFINITY,
});

export const toolServersQuery = queryOptions({
  queryKey: ["tools", "servers"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/tool-servers", { signal })),
});

export const toolServerQuery = (server: string) =>
  queryOptions({
    queryKey: ["tools", "servers", server],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/tool-servers/{server}", { signal, params: { path: { server } } })),
  });

/** Rules, for the tools that they concern. */
export const rulesOfToolsQuery = queryOptions({
  queryKey: ["rules", "of-tools"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/rules", { signal })),
  retry: false,
});

interface AuditFilter {
  tool?: string;
  decision?: "deny";
  /** Needed by people who may not see the whole installation. */
  project: string | undefined;
}

/** The newest records of the last day. Records come without an event: they are read when a page is opened. */
export const dayRecordsQuery = (filter: AuditFilter) =>
  queryOptions({
    queryKey: ["audit", "day", filter.tool ?? "", filter.decision ?? "", filter.project ?? ""],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/audit", {
          signal,
          params: {
            query: {
              since: new Date(Date.now() - DAY_MS).toISOString(),
              limit: AUDIT_RECORDS,
              ...(filter.tool ? { tool: filter.tool } : {}),
              ...(filter.decision ? { decision: filter.decision } : {}),
              ...(filter.project ? { project_id: filter.project } : {}),
            },
          },
        }),
      ),
    retry: false,
    // Bounded, but many: nobody looks at which of them changed.
    structuralSharing: false,
  });

/** How many days the counts of calls go back. */
export type StatsDays = 1 | 7 | 30;

/** The calls of each tool that the reader may see. Records come without an event: they are read when a page is opened. */
export const toolStatsQuery = (days: StatsDays) =>
  queryOptions({
    queryKey: ["audit", "stats", String(days)],
    queryFn: ({ signal }) => {
      const since = new Date(Date.now() - days * DAY_MS).toISOString();
      return unwrap(api.GET("/v1/tool-stats", { signal, params: { query: { since } } }));
    },
    placeholderData: keepPreviousData,
    retry: false,
  });

export const agentTokensQuery = (project: string) => ({
  queryKey: ["agent-tokens", project],
  queryFn: ({ signal, pageParam }: { signal: AbortSignal; pageParam: string | null }) =>
    unwrap(
      api.GET("/v1/agent-tokens", {
        signal,
        params: {
          query: { project_id: project, limit: TOKENS_PER_PAGE, ...(pageParam ? { cursor: pageParam } : {}) },
        },
      }),
    ),
  initialPageParam: null as string | null,
  getNextPageParam: (page: { next_cursor?: string | null }) => page.next_cursor ?? null,
});

export const approvalsQuery = (decided: boolean) =>
  queryOptions({
    queryKey: ["approvals", decided ? "decided" : "waiting"],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/approvals", { signal, params: { query: decided ? { decided } : {} } })),
  });

export const imagesQuery = queryOptions({
  queryKey: ["images"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/allowed-images", { signal })),
});

/** The names of accounts. Only people who may list them get an answer; others see identifiers. */
export const peopleNamesQuery = queryOptions({
  queryKey: ["users", "names"],
  queryFn: async ({ signal }) => {
    const page = await unwrap(api.GET("/v1/users", { signal, params: { query: { limit: 200 } } }));
    return new Map(page.items.map((user) => [user.id, user.handle]));
  },
  retry: false,
  staleTime: 60_000,
});

/** The tasks of a project that an agent can work on. */
export const runningTasksQuery = (project: string) =>
  queryOptions({
    queryKey: ["tasks", "running", project],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/tasks", { signal, params: { query: { project, state: "running", limit: 100 } } })),
  });

/** In so many projects agents are looked for that a refusal can be measured with. */
const MAX_ASKED_PROJECTS = 5;

/** Agents whose tokens work now, of the first projects. */
export const activeAgentsQuery = (projects: readonly string[]) =>
  queryOptions({
    queryKey: ["agent-tokens", "active", ...projects.slice(0, MAX_ASKED_PROJECTS)],
    queryFn: async ({ signal }) => {
      const pages = await Promise.all(
        projects
          .slice(0, MAX_ASKED_PROJECTS)
          .map((project_id) => unwrap(api.GET("/v1/agent-tokens", { signal, params: { query: { project_id } } }))),
      );
      return pages.flatMap((page) => page.items).filter((token) => !token.revoked_at);
    },
    enabled: projects.length > 0,
    retry: false,
  });
