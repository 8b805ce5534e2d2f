/** Operations that docs/openapi.json does not list yet. When they are generated, this file goes and `api` is used. */

import type { Client } from "openapi-fetch";
import { api, type Schema } from "./client";

export interface ArtifactView {
  id: string;
  project_id: string;
  task_id?: string | null;
  job_id?: string | null;
  name: string;
  media_type: string;
  sha256: string;
  bytes: number;
  created_at: string;
}

export interface TaskEstimate {
  basis: "project" | "installation" | "unknown";
  samples: number;
  cost_micros?: { p50: number; p90: number } | null;
  seconds?: { p50: number; p90: number } | null;
}

/** A drafted rule. The page of rules reads it; here it is only handed on. */
export type RuleDraft = Record<string, unknown>;

interface Answer<T> {
  content: { "application/json": T };
}

interface PendingTaskPaths {
  "/v1/tasks/{task}/artifacts": {
    get: { parameters: { path: { task: string } }; responses: { 200: Answer<{ items: ArtifactView[] }> } };
  };
  "/v1/tasks/{task}/evidence/rerun": {
    post: { parameters: { path: { task: string } }; responses: { 202: Answer<Schema["TaskEvidence"]> } };
  };
  "/v1/tasks/estimate": {
    post: {
      requestBody: { content: { "application/json": Schema["CreateTask"] } };
      responses: { 200: Answer<TaskEstimate> };
    };
  };
  "/v1/inbox/{item}/presence": {
    put: {
      parameters: { path: { item: string } };
      requestBody: { content: { "application/json": Record<string, never> } };
      responses: { 204: { content?: never } };
    };
  };
  "/v1/approvals/{approval}/draft-rule": {
    post: {
      parameters: { path: { approval: string } };
      requestBody: { content: { "application/json": { approved: boolean } } };
      responses: { 200: Answer<RuleDraft> };
    };
  };
}

export const pendingApi = api as unknown as Client<PendingTaskPaths>;
