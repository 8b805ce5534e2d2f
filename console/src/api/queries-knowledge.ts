/** What the pages of memory and profiles read. Keys begin with what an event names. */

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, type Schema, unwrap } from "./client";

const PER_PAGE = 50;
const MAX_HITS = 20;

interface PageContext {
  signal: AbortSignal;
  pageParam: string | null;
}

/** Those of the product, of the installation and of the project. */
export const profilesQuery = (project: string) =>
  queryOptions({
    queryKey: ["profiles", "list", project],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/profiles", { signal, params: { query: { project_id: project } } })),
  });

/** The project that a profile is asked for with: none for one of the installation. */
const areaOf = (project: string | null) => (project ? { project_id: project } : {});

export const profileQuery = (name: string, project: string | null) =>
  queryOptions({
    queryKey: ["profiles", "one", name, project ?? ""],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/profiles/{name}", { signal, params: { path: { name }, query: areaOf(project) } })),
  });

export const profileVersionsQuery = (name: string, project: string | null) =>
  queryOptions({
    queryKey: ["profiles", "versions", name, project ?? ""],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/profiles/{name}/versions", { signal, params: { path: { name }, query: areaOf(project) } })),
  });

export interface MemoryFilter {
  profile: string;
  state: Schema["MemoryState"];
}

export const memoriesQuery = (project: string, filter: MemoryFilter) => ({
  queryKey: ["memories", "list", project, filter.profile, filter.state],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/projects/{project}/memories", {
        signal,
        params: {
          path: { project },
          query: {
            profile: filter.profile,
            state: filter.state,
            limit: PER_PAGE,
            ...(pageParam ? { cursor: pageParam } : {}),
          },
        },
      }),
    ),
  initialPageParam: null as string | null,
  getNextPageParam: (page: { next_cursor?: string | null }) => page.next_cursor ?? null,
  placeholderData: keepPreviousData,
});

export const memoryQuery = (memory: string) =>
  queryOptions({
    queryKey: ["memories", "one", memory],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/memories/{memory}", { signal, params: { path: { memory } } })),
  });

/** A search is a question: it changes nothing, and what it finds is old when a record changes. */
export const memorySearchQuery = (project: string, profile: string, query: string) =>
  queryOptions({
    queryKey: ["memories", "search", project, profile, query],
    queryFn: ({ signal }) =>
      unwrap(
        api.POST("/v1/projects/{project}/memories/search", {
          signal,
          params: { path: { project } },
          body: { query, profile, limit: MAX_HITS },
        }),
      ),
    enabled: query !== "",
    placeholderData: keepPreviousData,
  });

export const ingestsQuery = (project: string, profile: string) =>
  queryOptions({
    queryKey: ["memories", "ingests", project, profile],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/projects/{project}/memory-ingests", {
          signal,
          params: { path: { project }, query: { profile, limit: PER_PAGE } },
        }),
      ),
  });
