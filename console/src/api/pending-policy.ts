/** Operations about rules, policy and audit that `docs/openapi.json` does not list yet. Deleted when they are generated. */

import type { Client } from "openapi-fetch";
import type { Checkpoint } from "../logic/audit";
import { api, type Schema } from "./client";

type Parameters<Query, Path> = { header?: never; cookie?: never } & ([Query] extends [never]
  ? { query?: never }
  : { query?: Query }) &
  ([Path] extends [never] ? { path?: never } : { path: Path });

type Answers<Answer> = { 200: { headers: Record<string, unknown>; content: { "application/json": Answer } } };

interface Get<Query, Answer, Path = never> {
  get: { parameters: Parameters<Query, Path>; requestBody?: never; responses: Answers<Answer> };
}

interface Post<Body, Answer, Path = never> {
  post: {
    parameters: Parameters<never, Path>;
    requestBody: { content: { "application/json": Body } };
    responses: Answers<Answer>;
  };
}

export interface RuleProblem {
  code: string;
  message: string;
  help?: string | null;
  line?: number | null;
  column?: number | null;
  /** Offsets in UTF-16 code units. */
  start?: number | null;
  end?: number | null;
}

export interface RuleCheck {
  valid: boolean;
  errors: RuleProblem[];
  reads_arguments: boolean;
  tools: string[];
  roles: string[];
}

export interface RuleField {
  path: string;
  kind: string;
  summary?: string | null;
  values?: string[];
  required?: boolean;
}

export interface RuleVocabulary {
  modes: { name: string; summary: string }[];
  roles: string[];
  groups: string[];
  servers: { id: string; name: string }[];
  fields: RuleField[];
  operators: { name: string; example: string; summary: string }[];
  tools: {
    name: string;
    title: string;
    server: string;
    groups: string[];
    arguments: RuleField[];
    hidden_arguments: string[];
  }[];
  max_bytes: number;
}

export interface RuleVersion {
  version: number;
  mode?: string | null;
  text?: string | null;
  changed_by?: string | null;
  changed_at: string;
  deleted: boolean;
}

export interface BacktestSample {
  call_id: string;
  at: string;
  tool: string;
  agent_role?: string | null;
  agent_token_id?: string | null;
  project_id?: string | null;
  task_id?: string | null;
  result: string;
  /** Calls that it stands for. */
  calls?: number;
  then: string;
  reason_then: string;
  now?: string | null;
}

export interface Backtest {
  since: string;
  until: string;
  complete: boolean;
  calls: number;
  hits: number;
  misses: number;
  not_reached: number;
  undecidable: number;
  undecidable_reasons: { reason: string; calls: number; detail: string }[];
  effects: { refuse: number; approve: number; shadow: number };
  decisions: { then: string; now: string; calls: number }[];
  released: number;
  by_tool: { tool: string; calls: number; hits: number; undecidable: number }[];
  samples: BacktestSample[];
}

export interface RuleDraft {
  name: string;
  rule: Schema["SetRule"];
  replaces?: string | null;
  arguments_included: boolean;
  omitted_arguments: string[];
  notes: string[];
}

export interface CallExplanation {
  record: Schema["AuditView"];
  then: Schema["PolicyExplanation"];
  now?: Schema["PolicyExplanation"] | null;
  now_missing?: string | null;
  changed: boolean;
  same_policy: boolean;
  same_catalogue: boolean;
}

export interface ChainHead {
  chain_id: string;
  number: number;
  writer: string;
  started_at: string;
  pruned_at?: string | null;
  checkpoint?: Checkpoint | null;
}

export interface AuditHeads {
  public_key: string;
  registry_head: string;
  heads: ChainHead[];
  complete: boolean;
}

export interface AuditConsistency {
  chain_id: string;
  from: number;
  to: number;
  path: string[];
  checkpoint: Checkpoint;
  public_key: string;
}

export interface PendingPolicyPaths {
  "/v1/rules/check": Post<{ name?: string; mode: string; text: string }, RuleCheck>;
  "/v1/rules/vocabulary": Get<never, RuleVocabulary>;
  "/v1/rules/{name}/history": Get<never, { items: RuleVersion[] }, { name: string }>;
  "/v1/rules/backtest": Post<
    { name?: string; mode: string; text: string; days?: number; project_id?: string },
    Backtest
  >;
  "/v1/approvals/{approval}/draft-rule": Post<{ approved: boolean }, RuleDraft, { approval: string }>;
  "/v1/policy/explain-call": Post<{ call_id: string; arguments?: Record<string, unknown> }, CallExplanation>;
  "/v1/audit/head": Get<{ chain?: string; limit?: number }, AuditHeads>;
  "/v1/audit/consistency": Get<{ chain: string; from: number; to?: number }, AuditConsistency>;
}

export const policyApi = api as unknown as Client<PendingPolicyPaths>;
