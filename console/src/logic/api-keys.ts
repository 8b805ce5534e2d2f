/** API keys in words. */

import type { Schema } from "../api/client";
import type { Standing } from "./state";

export type ApiKey = Schema["ApiKeyView"];

export const LIFETIMES: readonly { value: string; name: string }[] = [
  { value: "7", name: "7 days" },
  { value: "30", name: "30 days" },
  { value: "90", name: "90 days" },
  { value: "365", name: "1 year" },
  { value: "", name: "As long as the installation says" },
];

export type ApiScope = Schema["ApiScope"];

/** The groups of operations that a key can be held to. */
export const API_SCOPES: readonly { value: ApiScope; name: string }[] = [
  { value: "tasks", name: "Tasks" },
  { value: "projects", name: "Projects, repositories, environments" },
  { value: "delivery", name: "Pull requests" },
  { value: "events", name: "Events" },
  { value: "schedules", name: "Schedules" },
  { value: "models", name: "Models, budgets, usage" },
  { value: "manager", name: "Chat with the project manager" },
  { value: "tools", name: "Tools, rules, approvals, audit" },
  { value: "skills", name: "Skills" },
  { value: "memory", name: "Memory" },
  { value: "nodes", name: "Nodes" },
  { value: "settings", name: "Settings, preferences, policies" },
  { value: "notifications", name: "Inbox and notification channels" },
  { value: "accounts", name: "Users and groups" },
  { value: "operation", name: "Health and metrics" },
];

/** What a new key is held to. */
export interface KeyLimits {
  scopes: readonly ApiScope[];
  isReadOnly: boolean;
  projects: readonly string[];
}

/** Returns the part of a request that says what the key is held to. */
export function toLimitRequest(limits: KeyLimits): Pick<Schema["CreateApiKey"], "scopes" | "read_only" | "projects"> {
  return {
    ...(limits.scopes.length === 0 ? {} : { scopes: [...limits.scopes] }),
    ...(limits.isReadOnly ? { read_only: true } : {}),
    ...(limits.projects.length === 0 ? {} : { projects: [...limits.projects] }),
  };
}

/** Returns what a key opens, in words. */
export function describeLimits(key: Pick<ApiKey, "scopes" | "read_only" | "projects">): string {
  const count = key.projects?.length ?? 0;
  const parts = [
    key.scopes ? key.scopes.join(", ") : "",
    key.projects ? `${count} ${count === 1 ? "project" : "projects"}` : "",
    key.read_only ? "reads only" : "",
  ].filter((part) => part !== "");
  return parts.length === 0 ? "Everything of its person" : parts.join("; ");
}

/** Returns how a key stands. */
export function describeKey(
  key: Pick<ApiKey, "id" | "revoked_at" | "expires_at">,
  now: number,
): { standing: Standing; words: string; works: boolean } {
  if (key.revoked_at) return { standing: "cancelled", words: "Revoked", works: false };
  if (key.expires_at && Date.parse(key.expires_at) <= now) {
    return { standing: "cancelled", words: "Expired", works: false };
  }
  return { standing: "done", words: "Works", works: true };
}
