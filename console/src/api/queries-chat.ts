/** What the chat, the first steps and the doctor read. */

import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "./client";
import { readDoctor } from "./doctor";

const MAX_THREADS = 100;
const MAX_HANDOFFS = 200;
const MAX_CALLS = 200;

export const threadsQuery = queryOptions({
  queryKey: ["chat", "threads"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/chat/threads", { signal, params: { query: { limit: MAX_THREADS } } })),
});

export const messagesQuery = (thread: string) =>
  queryOptions({
    queryKey: ["chat", "messages", thread],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/chat/threads/{thread}/messages", { signal, params: { path: { thread } } })),
  });

/** The calls of models since a conversation began. A call and the answer that it was for have the same trace. */
export const chatCallsQuery = (project: string, from: string) =>
  queryOptions({
    queryKey: ["chat", "calls", project, from],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/usage/calls", { signal, params: { query: { project_id: project, from, limit: MAX_CALLS } } }),
      ),
    retry: false,
  });

/** The answers of a project's conversations, among its newest handoffs of all kinds. */
export const chatHandoffsQuery = (project: string) =>
  queryOptions({
    queryKey: ["chat", "handoffs", project],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/projects/{project}/handoffs", {
          signal,
          params: { path: { project }, query: { limit: MAX_HANDOFFS } },
        }),
      ),
    retry: false,
  });

/** The model that the project manager answers with. */
export const managerModelQuery = (project: string) =>
  queryOptions({
    queryKey: ["models", "choices", project],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/model-choices", {
          signal,
          params: { query: { project_id: project, agent_role: "project_manager", tier: "standard" } },
        }),
      ),
    retry: false,
  });

/** Whether tasks of a project can be done. */
export const projectReadinessQuery = (project: string) =>
  queryOptions({
    queryKey: ["readiness", project],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/readiness", { signal, params: { query: { project_id: project } } })),
  });

export const doctorQuery = queryOptions({
  queryKey: ["readiness", "doctor"],
  queryFn: ({ signal }) => readDoctor(signal),
});
