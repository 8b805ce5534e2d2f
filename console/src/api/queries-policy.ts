/** What the pages about rules, explanations and the audit log read. */

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import type { CallProof } from "../logic/audit";
import { api, type Schema, unwrap } from "./client";

const RECORDS_PER_PAGE = 50;
/** Records that the list of rules counts hits in. */
export const HIT_SAMPLE_RECORDS = 1000;
export const HIT_SAMPLE_DAYS = 7;
const MAX_HEADS = 500;
const DAY_MS = 86_400_000;

export const rulesQuery = queryOptions({
  queryKey: ["rules", "list"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/rules", { signal })),
});

/** The newest records, whose rules are counted. Calls have no event: they are read when the page is opened. */
export const ruleHitsQuery = queryOptions({
  queryKey: ["audit", "hits"],
  queryFn: ({ signal }) => {
    const since = new Date(Date.now() - HIT_SAMPLE_DAYS * DAY_MS).toISOString();
    return unwrap(api.GET("/v1/audit", { signal, params: { query: { since, limit: HIT_SAMPLE_RECORDS } } }));
  },
  staleTime: 0,
  retry: false,
});

export const vocabularyQuery = queryOptions({
  queryKey: ["rules", "vocabulary"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/rules/vocabulary", { signal })),
  staleTime: Number.POSITIVE_INFINITY,
});

export const ruleHistoryQuery = (name: string) =>
  queryOptions({
    queryKey: ["rules", "history", name],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/rules/{name}/history", { signal, params: { path: { name } } })),
    retry: false,
  });

/** A text is checked once; what it is checked against changes with the tools, and then the key is old. */
export const ruleCheckQuery = (name: string, mode: string, text: string) =>
  queryOptions({
    queryKey: ["rules", "check", name, mode, text],
    queryFn: ({ signal }) =>
      unwrap(api.POST("/v1/rules/check", { signal, body: { ...(name ? { name } : {}), mode, text } })),
    placeholderData: keepPreviousData,
    gcTime: 60_000,
  });

/** The rule that somebody wants after deciding a call. Whoever asked before deciding may have put the answer here. */
export const ruleDraftQuery = (approval: string, approved: boolean) =>
  queryOptions({
    queryKey: ["rule-draft", approval, String(approved)],
    queryFn: ({ signal }) =>
      unwrap(
        api.POST("/v1/approvals/{approval}/draft-rule", {
          signal,
          params: { path: { approval } },
          body: { approved },
        }),
      ),
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });

export const policyToolsQuery = queryOptions({
  queryKey: ["tools", "policy"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/tools", { signal })),
});

export const projectAgentsQuery = (project: string) =>
  queryOptions({
    queryKey: ["agent-tokens", "policy", project],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/agent-tokens", { signal, params: { query: { project_id: project, limit: 100 } } })),
  });

/** Explains a call that was never made. */
export const explanationQuery = (body: Schema["ExplainRequest"]) =>
  queryOptions({
    queryKey: ["rules", "explain", JSON.stringify(body)],
    queryFn: ({ signal }) => unwrap(api.POST("/v1/policy/explain", { signal, body })),
    retry: false,
    placeholderData: keepPreviousData,
  });

/** Explains a recorded call: what was decided then, and what would be decided now. */
export const callExplanationQuery = (call: string, values: Record<string, unknown> | null) =>
  queryOptions({
    queryKey: ["rules", "explain", call, JSON.stringify(values)],
    queryFn: ({ signal }) =>
      unwrap(
        api.POST("/v1/policy/explain-call", {
          signal,
          body: {
            call_id: call,
            ...(values ? { arguments: values as NonNullable<Schema["ExplainRecordedCall"]["arguments"]> } : {}),
          },
        }),
      ),
    retry: false,
    placeholderData: keepPreviousData,
  });

export interface AuditFilter {
  tool?: string | undefined;
  decision?: string | undefined;
  project?: string | undefined;
  task?: string | undefined;
  /** A time, or how long ago: `2h`, `7d`. */
  since?: string | undefined;
  until?: string | undefined;
}

/** The filter as the server takes it. */
export function toAuditQuery(filter: AuditFilter, now: number) {
  const since = toTime(filter.since, now);
  const until = toTime(filter.until, now);
  return {
    ...(filter.tool ? { tool: filter.tool } : {}),
    ...(filter.decision ? { decision: filter.decision } : {}),
    ...(filter.project ? { project_id: filter.project } : {}),
    ...(filter.task ? { task_id: filter.task } : {}),
    ...(since ? { since } : {}),
    ...(until ? { until } : {}),
  };
}

const UNITS: Record<string, number> = { m: 60_000, h: 3_600_000, d: DAY_MS };

/** Returns a time of RFC 3339 from one that somebody wrote or from how long ago it was; null when it is neither. */
export function toTime(text: string | undefined, now: number): string | null {
  if (!text) return null;
  const ago = /^(\d{1,4})([mhd])$/.exec(text);
  const at = ago ? now - Number(ago[1]) * (UNITS[ago[2] ?? ""] ?? 0) : Date.parse(text);
  return Number.isNaN(at) ? null : new Date(at).toISOString();
}

export const auditQuery = (filter: AuditFilter) => ({
  queryKey: ["audit", "list", JSON.stringify(filter)],
  queryFn: ({ signal, pageParam }: { signal: AbortSignal; pageParam: string | null }) =>
    unwrap(
      api.GET("/v1/audit", {
        signal,
        params: {
          query: {
            ...toAuditQuery(filter, Date.now()),
            limit: RECORDS_PER_PAGE,
            ...(pageParam ? { cursor: pageParam } : {}),
          },
        },
      }),
    ),
  initialPageParam: null as string | null,
  getNextPageParam: (page: { next_cursor?: string | null }) => page.next_cursor ?? null,
  placeholderData: keepPreviousData,
  // Calls have no event: the list is read when the page is opened, and when somebody asks for it.
  staleTime: 0,
});

/** The records of one call: its decision and, when it was made, its outcome. */
export const callRecordsQuery = (call: string) =>
  queryOptions({
    queryKey: ["audit", "call", call],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/audit", { signal, params: { query: { call_id: call, limit: 10 } } })),
    staleTime: 0,
  });

export const proofQuery = (call: string) =>
  queryOptions({
    queryKey: ["audit", "proof", call],
    queryFn: async ({ signal }) => {
      const answer = await unwrap(api.GET("/v1/audit/{call}/proof", { signal, params: { path: { call } } }));
      // The document leaves the signed forms open; every field is checked when it is hashed.
      return answer.items as CallProof[];
    },
    retry: false,
  });

export const auditHeadsQuery = queryOptions({
  queryKey: ["audit", "heads"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/audit/head", { signal, params: { query: { limit: MAX_HEADS } } })),
  retry: false,
});

/** Names of people, for those who may see them. */
export const handlesQuery = queryOptions({
  queryKey: ["users", "handles"],
  queryFn: async ({ signal }) => {
    const page = await unwrap(api.GET("/v1/users", { signal, params: { query: { limit: 200 } } }));
    return new Map(page.items.map((user) => [user.id, user.handle]));
  },
  retry: false,
});
