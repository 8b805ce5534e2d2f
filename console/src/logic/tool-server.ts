/** Tool servers: how they are installed and how they stand. */

import type { Schema } from "../api/client";
import type { Standing } from "./state";
import { quoteShell } from "./text";

export type ToolServer = Schema["ServerView"];
export type InstallServer = Schema["InstallServer"];

/** Returns how a server stands, in a sign and words. */
export function describeServer(server: ToolServer): { standing: Standing; words: string } {
  if (!server.enabled) return { standing: "cancelled", words: "Off" };
  if (server.failure) return { standing: "trouble", words: "Does not answer" };
  const waiting = findPending(server).length;
  if (waiting > 0) return { standing: "person", words: `${waiting} to accept` };
  if (!server.listed_at) return { standing: "waits", words: "Not read yet" };
  return { standing: "done", words: "In use" };
}

/** Returns the tools that a person has to accept before they can be called. */
export function findPending(server: ToolServer): ToolServer["tools"] {
  return server.tools.filter((tool) => tool.state === "new" || tool.state === "changed");
}

export function describeTransport(transport: ToolServer["transport"]): string {
  return transport.type === "http" ? transport.url : quoteShell([transport.command, ...(transport.args ?? [])]);
}

export interface InstallDraft {
  name: string;
  title: string;
  kind: "http" | "stdio" | "server_json";
  url: string;
  allowPrivate: boolean;
  command: string;
  /** Arguments, one per line. */
  args: string;
  /** Hosts that the program may reach, one per line. */
  hosts: string;
  document: string;
  audience: "everybody" | "project" | "user";
  project: string;
  scope: "" | "pm" | "sandbox" | "both";
  prefix: string;
  timeoutMs: string;
  maxInFlight: string;
  secrets: { name: string; value: string }[];
}

export const EMPTY_INSTALL: InstallDraft = {
  name: "",
  title: "",
  kind: "http",
  url: "",
  allowPrivate: false,
  command: "",
  args: "",
  hosts: "",
  document: "",
  audience: "user",
  project: "",
  scope: "",
  prefix: "",
  timeoutMs: "",
  maxInFlight: "",
  secrets: [],
};

/** Returns the lines of a field that are not empty. */
export function splitLines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** Returns the request of a draft, or why it is not complete. */
export function toInstallRequest(draft: InstallDraft): { body: InstallServer } | { missing: string } {
  if (!/^[a-z][a-z0-9-]*$/.test(draft.name)) return { missing: "Give it a name of small letters, digits and dashes" };
  if (draft.scope === "") return { missing: "Choose who may call its tools" };
  if (draft.audience === "project" && !draft.project) return { missing: "Choose the project" };
  const numbers = { timeout_ms: readNumber(draft.timeoutMs), max_in_flight: readNumber(draft.maxInFlight) };
  if (numbers.timeout_ms === undefined || numbers.max_in_flight === undefined)
    return { missing: "Limits are whole numbers" };
  const secrets = draft.secrets.filter((secret) => secret.name || secret.value);
  if (secrets.some((secret) => !secret.name || !secret.value))
    return { missing: "Give each secret a name and a value" };
  const reached = readTransport(draft);
  if ("missing" in reached) return reached;
  return {
    body: {
      name: draft.name,
      scope: draft.scope,
      audience: draft.audience,
      ...reached,
      ...(draft.title ? { title: draft.title } : {}),
      ...(draft.audience === "project" ? { project_id: draft.project } : {}),
      ...(draft.prefix ? { prefix: draft.prefix } : {}),
      ...(numbers.timeout_ms === null ? {} : { timeout_ms: numbers.timeout_ms }),
      ...(numbers.max_in_flight === null ? {} : { max_in_flight: numbers.max_in_flight }),
      ...(secrets.length > 0 ? { secrets: Object.fromEntries(secrets.map((it) => [it.name, it.value])) } : {}),
    },
  };
}

type Reached = Pick<InstallServer, "transport" | "server_json" | "allow_private">;

function readTransport(draft: InstallDraft): Reached | { missing: string } {
  if (draft.kind === "http") {
    if (!/^https?:\/\/./.test(draft.url))
      return { missing: "Give the address of the server, with http:// or https://" };
    return { transport: { type: "http", url: draft.url }, ...(draft.allowPrivate ? { allow_private: true } : {}) };
  }
  if (draft.kind === "stdio") {
    if (!draft.command.trim()) return { missing: "Give the program of the server" };
    const hosts = splitLines(draft.hosts);
    const args = draft.args.split("\n").filter((line) => line !== "");
    const network = hosts.length > 0 ? { network: true, network_hosts: hosts } : {};
    return {
      transport: { type: "stdio", command: draft.command.trim(), ...(args.length > 0 ? { args } : {}), ...network },
    };
  }
  try {
    const document: unknown = JSON.parse(draft.document);
    if (typeof document !== "object" || document === null || Array.isArray(document)) throw new Error();
    return {
      server_json: document as NonNullable<InstallServer["server_json"]>,
      ...(draft.allowPrivate ? { allow_private: true } : {}),
    };
  } catch {
    return { missing: "Paste the server.json of a registry: it is no JSON object yet" };
  }
}

/** Returns a whole number, null for an empty field and undefined for anything else. */
export function readNumber(text: string): number | null | undefined {
  if (text.trim() === "") return null;
  return /^\d{1,9}$/.test(text.trim()) ? Number(text.trim()) : undefined;
}
