/** Profiles: what agents may use, as it is shown and as it is typed. */

import type { Schema } from "../api/client";
import { formatCost, formatMebibytes } from "./format";

type Whole = Schema["ProfileSpec"];

/** What is left out is not there. */
export type ProfileSpec = Partial<Omit<Whole, "paths" | "sandbox">> & {
  paths?: Partial<Whole["paths"]>;
  sandbox?: Partial<Whole["sandbox"]>;
};

/** Returns a profile as the server takes it, which adds what is left out. */
export function toBody(spec: ProfileSpec): Whole {
  return spec as Whole;
}

/** A profile that permits nothing: what it does not name is not there. */
export const EMPTY_SPEC: ProfileSpec = {
  description: "",
  tools: [],
  network: [],
  variables: [],
  paths: { read: ["**"], write: [] },
  models: [],
  memory: "read",
  sandbox: {},
};

/** One entry per line; empty lines say nothing. */
export function toLines(entries: readonly string[] | undefined): string {
  return (entries ?? []).join("\n");
}

export function fromLines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}

/** Rules of the network, one per line: the host, then the methods. */
export function toRules(network: ProfileSpec["network"]): string {
  return (network ?? []).map((rule) => [rule.domain, ...rule.methods].join(" ")).join("\n");
}

/** A host without methods may be read. */
export function fromRules(text: string): NonNullable<ProfileSpec["network"]> {
  return fromLines(text).map((line) => {
    const [domain = "", ...methods] = line.split(/\s+/);
    const named = methods.map((method) => method.toUpperCase());
    return { domain: domain.toLowerCase(), methods: named.length > 0 ? named : ["GET", "HEAD"] };
  });
}

export type ParsedSpec = { spec: ProfileSpec; error: null } | { spec: null; error: string };

/** Reads a profile as JSON. The server checks what is in it. */
export function parseSpec(text: string): ParsedSpec {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? { spec: value as ProfileSpec, error: null }
      : { spec: null, error: "A profile is an object" };
  } catch (error) {
    return { spec: null, error: `Not JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

export function formatSpec(spec: ProfileSpec): string {
  return JSON.stringify(spec, null, 2);
}

const list = (entries: readonly string[] | undefined) =>
  (entries ?? []).length === 0 ? "none" : (entries ?? []).includes("*") ? "all" : (entries ?? []).join(", ");

const MEMORY_WORDS: Record<NonNullable<ProfileSpec["memory"]>, string> = {
  none: "none",
  read: "search",
  write: "search and remember",
};

/** The rows of a profile: a name, and what it permits. */
export function describeSpec(spec: ProfileSpec): [name: string, words: string][] {
  const { read = [], write = [] } = spec.paths ?? {};
  const sandbox = spec.sandbox ?? {};
  const limits = [
    sandbox.memory_mib ? formatMebibytes(sandbox.memory_mib) : null,
    sandbox.cpu_percent ? `${sandbox.cpu_percent / 100} CPU` : null,
    sandbox.processes ? `${sandbox.processes} processes` : null,
    sandbox.disk_mib ? `${formatMebibytes(sandbox.disk_mib)} of disk` : null,
  ].filter((words) => words !== null);
  const rules = (spec.network ?? []).map(
    (rule) => `${rule.domain === "*" ? "every host" : rule.domain} ${rule.methods.join(" ")}`,
  );
  return [
    ["Tools", list(spec.tools)],
    ["Network", rules.length === 0 ? "none" : rules.join(", ")],
    ["Variables", list(spec.variables)],
    ["Reads", read.includes("**") ? "every file" : list(read)],
    ["Changes", write.includes("**") ? "every file" : list(write)],
    ["Models", list(spec.models)],
    ["Memory", MEMORY_WORDS[spec.memory ?? "none"]],
    ["Sandbox", limits.length === 0 ? "the limits of the node" : `at most ${limits.join(", ")}`],
    ["Budget", spec.budget_micros ? `${formatCost(spec.budget_micros)} for a task that names none` : "none of its own"],
  ];
}

/** The names of the rows that two versions differ in. */
export function changedRows(before: ProfileSpec, after: ProfileSpec): string[] {
  const old = new Map(describeSpec(before));
  const changed = describeSpec(after).flatMap(([name, words]) => (old.get(name) === words ? [] : [name]));
  return (before.description ?? "") === (after.description ?? "") ? changed : [...changed, "Description"];
}

const NAME = /^[a-z][a-z0-9]*(-[a-z0-9]+)*$/;

/** Why a name cannot be one of a profile; null when it can. */
export function nameProblem(name: string, taken: readonly string[]): string | null {
  if (name === "") return "Write a name";
  if (name.length > 63 || !NAME.test(name)) return "Small letters, digits and single dashes, at most 63";
  return taken.includes(name) ? "There is one of this name" : null;
}
