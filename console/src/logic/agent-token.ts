/** Tokens of agents: how they stand, and what is asked for when one is issued. */

import type { Schema } from "../api/client";
import type { Standing } from "./state";
import { splitLines } from "./tool-server";

export type AgentToken = Schema["AgentTokenView"];

/** Returns how a token stands. */
export function describeToken(token: AgentToken, now: number): { standing: Standing; words: string; works: boolean } {
  if (token.revoked_at) return { standing: "cancelled", words: "Revoked", works: false };
  if (token.expires_at && new Date(token.expires_at).getTime() <= now)
    return { standing: "cancelled", words: "Expired", works: false };
  return { standing: "works", words: "Works", works: true };
}

export interface TokenDraft {
  role: string;
  /** The type of agent that has the role. */
  kind: string;
  task: string;
  seconds: string;
  profile: string;
  network: boolean;
  /** One per line. */
  models: string;
  /** One per line; all of the role without any. */
  tools: string;
}

/** Returns the request of a draft, or why it is not complete. */
export function toTokenRequest(
  project: string,
  draft: TokenDraft,
): { body: Schema["IssueAgentToken"] } | { missing: string } {
  if (!project) return { missing: "Choose a project" };
  if (!draft.role) return { missing: "Choose a role" };
  if (draft.kind !== "pm" && !draft.task)
    return { missing: "Choose the task: only a project manager works without one" };
  const [models, tools] = [splitLines(draft.models), splitLines(draft.tools)];
  return {
    body: {
      role: draft.role,
      project_id: project,
      network: draft.network,
      expires_in_seconds: Number(draft.seconds),
      ...(draft.task ? { task_id: draft.task } : {}),
      ...(draft.profile.trim() ? { profile: draft.profile.trim() } : {}),
      ...(models.length > 0 ? { models } : {}),
      ...(tools.length > 0 ? { tools } : {}),
    },
  };
}
