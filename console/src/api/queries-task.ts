/** What the pages of a task and of the inbox read beside `queries.ts`. */

import { queryOptions } from "@tanstack/react-query";
import { api, type Schema, unwrap } from "./client";
import { Problem } from "./problem";

const CALLS_PER_PAGE = 200;
/** Model calls that are read at most: what a curve of a few hundred pixels can show. */
const MAX_CALLS = 5000;

/** The model calls of a task, newest first. Read again, it reads up to the newest call that is known. */
export const taskCallsQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "calls"],
    queryFn: async ({ signal, client, queryKey }) => {
      const known = client.getQueryData<Schema["UsageCall"][]>(queryKey) ?? [];
      const newest = known[0]?.call_id;
      const calls: Schema["UsageCall"][] = [];
      let cursor: string | null = null;
      while (calls.length < MAX_CALLS) {
        const query = { task_id: task, limit: CALLS_PER_PAGE, ...(cursor === null ? {} : { cursor }) };
        const page: Schema["Page_UsageCall"] = await unwrap(api.GET("/v1/usage/calls", { signal, params: { query } }));
        const end = page.items.findIndex((call) => call.call_id === newest);
        if (end >= 0) return [...calls, ...page.items.slice(0, end), ...known].slice(0, MAX_CALLS);
        calls.push(...page.items);
        cursor = page.next_cursor ?? null;
        if (cursor === null) break;
      }
      return calls;
    },
    retry: false,
    structuralSharing: false,
  });

export const handoffQuery = (task: string, handoff: string) =>
  queryOptions({
    queryKey: ["task", task, "handoff", handoff],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/handoffs/{handoff}", { signal, params: { path: { handoff } } })),
  });

export const promptQuery = (task: string, handoff: string, step: number) =>
  queryOptions({
    queryKey: ["prompt", task, handoff, String(step)],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/handoffs/{handoff}/decisions/{step}/prompt", { signal, params: { path: { handoff, step } } }),
      ),
    retry: false,
  });

/** A decision as it was recorded, and its replays. An event of a replay makes it old, by its task or its project. */
export const replaysQuery = (project: string, task: string | null, handoff: string, step: number) =>
  queryOptions({
    queryKey: [...(task === null ? ["project", project] : ["task", task]), "replays", handoff, String(step)],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/handoffs/{handoff}/decisions/{step}/replays", { signal, params: { path: { handoff, step } } }),
      ),
  });

/** The artifacts of a task; none where the server has no such list. */
export const artifactsQuery = (task: string) =>
  queryOptions({
    queryKey: ["task", task, "artifacts"],
    queryFn: async ({ signal }) => {
      try {
        const path = { task };
        return (await unwrap(api.GET("/v1/tasks/{task}/artifacts", { signal, params: { path } }))).items;
      } catch (error) {
        if (error instanceof Problem && error.status === 404) return [];
        throw error;
      }
    },
  });

/** The name of an account; null for those who may not see it. */
export const personQuery = (user: string) =>
  queryOptions({
    queryKey: ["person", user],
    queryFn: async ({ signal }) => {
      try {
        return (await unwrap(api.GET("/v1/users/{user}", { signal, params: { path: { user } } }))).display_name;
      } catch (error) {
        if (error instanceof Problem && (error.status === 403 || error.status === 404)) return null;
        throw error;
      }
    },
    retry: false,
  });

export const membersQuery = (project: string) =>
  queryOptions({
    queryKey: ["project", project, "members"],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/projects/{project}/members", { signal, params: { path: { project } } })),
    retry: false,
  });

/** What a task of a project will cost and how long it will take, from those that are done; null where the server cannot say. */
export const estimateQuery = (project: string, description: string) =>
  queryOptions({
    // The numbers depend on the project alone.
    queryKey: ["project", project, "estimate"],
    queryFn: async ({ signal }) => {
      try {
        const body = { project_id: project, description: description || "estimate" };
        return await unwrap(api.POST("/v1/task-estimates", { signal, body }));
      } catch (error) {
        if (error instanceof Problem && [403, 404, 405].includes(error.status)) return null;
        throw error;
      }
    },
    retry: false,
  });
