/** Tools: what they do, who may call them, what their definitions say and how those changed. */

import type { Schema } from "../api/client";
import { formatDuration } from "./format";

export type Tool = Schema["ToolView"];
export type ToolScope = "pm" | "sandbox" | "both";
export type AuditRecord = Schema["AuditView"];
export type Allowlist = Schema["UnpagedList_AllowlistView"]["items"][number];

export const SCOPES: readonly { value: ToolScope; name: string }[] = [
  { value: "pm", name: "PM" },
  { value: "sandbox", name: "Sandbox" },
  { value: "both", name: "Both" },
];

/** Returns a scope in words; a scope that this console does not know stays as it is. */
export function describeScope(scope: string): string {
  return SCOPES.find((entry) => entry.value === scope)?.name ?? scope;
}

export const ANNOTATIONS = [
  { key: "readOnlyHint", name: "Changes nothing", short: "reads" },
  { key: "destructiveHint", name: "May destroy what it changes", short: "destroys" },
  { key: "idempotentHint", name: "Twice is the same as once", short: "repeatable" },
  { key: "openWorldHint", name: "Reaches what the installation does not control", short: "open world" },
] as const;

export type Annotations = Record<(typeof ANNOTATIONS)[number]["key"], boolean>;

/** Returns the annotations of a tool; those that nobody set are the most careful ones. */
export function readAnnotations(value: unknown): Annotations {
  const given = typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  const read = (key: string, otherwise: boolean) => (typeof given[key] === "boolean" ? given[key] : otherwise);
  return {
    readOnlyHint: read("readOnlyHint", false),
    destructiveHint: read("destructiveHint", true),
    idempotentHint: read("idempotentHint", false),
    openWorldHint: read("openWorldHint", true),
  };
}

/** Returns what a tool does to the world, in few words. */
export function describeAnnotations(value: unknown): string {
  const given = readAnnotations(value);
  const words: string[] = [given.readOnlyHint ? "reads" : "writes"];
  if (!given.readOnlyHint && given.destructiveHint) words.push("destroys");
  if (!given.readOnlyHint && given.idempotentHint) words.push("repeatable");
  if (given.openWorldHint) words.push("open world");
  return words.join(" · ");
}

export type ToolFilter = "on" | "off" | "changed";

/** Returns the tools that have every word of a filter in what the table shows of them. */
export function filterTools(
  tools: readonly Tool[],
  words: string,
  state: ToolFilter | undefined,
  serverName: (origin: string) => string,
): Tool[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return tools.filter((tool) => {
    if (state === "on" && !tool.enabled) return false;
    if (state === "off" && tool.enabled) return false;
    if (state === "changed" && tool.accepted) return false;
    const text = [tool.name, tool.title, serverName(tool.origin), tool.scope, ...tool.roles, ...tool.aliases]
      .join(" ")
      .toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/** Returns whether a pattern such as `db.*` or `web.fetch` means a tool. */
export function matchesPattern(pattern: string, tool: string): boolean {
  if (pattern === "*") return true;
  return pattern.endsWith(".*") ? tool.startsWith(pattern.slice(0, -1)) : pattern === tool;
}

/** Returns the lines of the allowlists that name a tool. */
export function findAllowlistLines(lists: readonly Allowlist[], tool: string) {
  return lists.flatMap((list) => {
    // The first line that fits decides.
    const line = list.lines.find((entry) => matchesPattern(entry.tools, tool));
    return line ? [{ role: list.role, pattern: line.tools, setting: line.setting ?? null }] : [];
  });
}

/** Returns how a rule concerns a tool: by its name or a group, because it names no tool at all, or not (`null`). */
export function findRuleConcern(text: string, tool: string): "named" | "every" | null {
  const code = text.replaceAll(/\/\/[^\n]*/g, "");
  const names = [...code.matchAll(/\bAction::"((?:[^"\\]|\\.)*)"/g)].map((match) => match[1] ?? "");
  if (names.length === 0) return "every";
  return names.some((name) => matchesPattern(name, tool)) ? "named" : null;
}

export type ToolStat = Schema["ToolCallStats"];

export type ToolSort = "name" | "calls" | "refused" | "failed" | "p50" | "p95" | "used";

export const TOOL_SORTS: readonly { value: ToolSort; name: string }[] = [
  { value: "name", name: "Name" },
  { value: "calls", name: "Calls" },
  { value: "refused", name: "Refused" },
  { value: "failed", name: "Failed" },
  { value: "p50", name: "Median" },
  { value: "p95", name: "95 %" },
  { value: "used", name: "Used" },
];

/** Returns how many calls of a tool were decided. */
export function sumCalls(stat: ToolStat): number {
  return stat.allowed + stat.refused + stat.needs_approval;
}

const MEASURES: Record<Exclude<ToolSort, "name">, (stat: ToolStat) => number> = {
  calls: sumCalls,
  refused: (stat) => stat.refused,
  failed: (stat) => stat.failed,
  p50: (stat) => stat.p50_us ?? -1,
  p95: (stat) => stat.p95_us ?? -1,
  used: (stat) => new Date(stat.last_at).getTime(),
};

/** Returns tools by one column, the largest first; those that were not called come last, in their order. */
export function sortTools(tools: readonly Tool[], sort: ToolSort, stats: ReadonlyMap<string, ToolStat>): Tool[] {
  if (sort === "name") return [...tools];
  const measure = MEASURES[sort];
  const weigh = (tool: Tool) => {
    const stat = stats.get(tool.name);
    return stat ? measure(stat) : -2;
  };
  return tools.toSorted((a, b) => weigh(b) - weigh(a));
}

/** Returns a duration of microseconds. */
export function formatMicroseconds(microseconds: number): string {
  if (microseconds < 1000) return `${microseconds} µs`;
  // A tenth of a second matters where calls take few of them.
  if (microseconds >= 999_500 && microseconds < 9_950_000) return `${(microseconds / 1_000_000).toFixed(1)} s`;
  return formatDuration(microseconds / 1000);
}

export interface HourCounts {
  allowed: number;
  refused: number;
}

const HOUR_MS = 3_600_000;

/** Returns the calls of each of the last `hours` hours, oldest first. */
export function countHours(records: readonly AuditRecord[], now: number, hours: number): HourCounts[] {
  const buckets = Array.from({ length: hours }, () => ({ allowed: 0, refused: 0 }));
  for (const record of records) {
    if (record.phase !== "decision") continue;
    const bucket = buckets[hours - 1 - Math.floor((now - new Date(record.at).getTime()) / HOUR_MS)];
    if (bucket) bucket[record.decision === "deny" ? "refused" : "allowed"] += 1;
  }
  return buckets;
}

export interface RecordedCall {
  callId: string;
  at: string;
  decision: string;
  reason: string;
  role: string | null;
  outcome: string | null;
  durationUs: number | null;
}

/** Joins the decision and the outcome of each call, newest first. */
export function joinCalls(records: readonly AuditRecord[]): RecordedCall[] {
  const outcomes = new Map(
    records.filter((record) => record.phase === "outcome").map((record) => [record.call_id, record]),
  );
  return records
    .filter((record) => record.phase === "decision")
    .map((record) => {
      const outcome = outcomes.get(record.call_id);
      return {
        callId: record.call_id,
        at: record.at,
        decision: record.decision,
        reason: record.reason,
        role: record.agent_role ?? null,
        outcome: outcome?.outcome ?? null,
        durationUs: outcome?.duration_us ?? null,
      };
    });
}

export interface SchemaRow {
  depth: number;
  name: string;
  type: string;
  required: boolean;
  description: string;
  /** Limits in words: values, lengths, ranges, patterns. */
  limits: string[];
}

const MAX_SCHEMA_DEPTH = 8;
const MAX_SCHEMA_ROWS = 500;

/** Returns a JSON Schema of arguments as rows that people read. References into the schema itself are followed. */
export function describeSchema(schema: unknown): SchemaRow[] {
  const rows: SchemaRow[] = [];
  const visit = (node: Record<string, unknown>, depth: number) => {
    const required = new Set(Array.isArray(node.required) ? node.required : []);
    for (const [name, value] of Object.entries(asObject(node.properties))) {
      if (rows.length >= MAX_SCHEMA_ROWS) return;
      const field = resolveReference(schema, value);
      rows.push({
        depth,
        name,
        type: describeType(field),
        required: required.has(name),
        description: typeof field.description === "string" ? field.description : "",
        limits: describeLimits(field),
      });
      if (depth + 1 >= MAX_SCHEMA_DEPTH) continue;
      const inner = field.type === "array" ? resolveReference(schema, field.items) : field;
      if (inner.properties) visit(inner, depth + 1);
    }
  };
  visit(resolveReference(schema, schema), 0);
  return rows;
}

function asObject(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

function resolveReference(root: unknown, value: unknown): Record<string, unknown> {
  let node = asObject(value);
  for (let hops = 0; hops < MAX_SCHEMA_DEPTH && typeof node.$ref === "string"; hops += 1) {
    const path = node.$ref.startsWith("#/") ? node.$ref.slice(2).split("/") : null;
    if (!path) return node;
    let target: unknown = root;
    for (const step of path) target = asObject(target)[step.replaceAll("~1", "/").replaceAll("~0", "~")];
    node = asObject(target);
  }
  return node;
}

function describeType(field: Record<string, unknown>): string {
  const named = Array.isArray(field.type) ? field.type.join(" or ") : field.type;
  if (typeof named === "string") {
    const items = asObject(field.items);
    return named === "array" && items.type ? `array of ${describeType(items)}` : named;
  }
  for (const key of ["oneOf", "anyOf"]) {
    const choices = field[key];
    if (Array.isArray(choices)) return choices.map((choice) => describeType(asObject(choice))).join(" or ");
  }
  return typeof field.$ref === "string" ? field.$ref : "any";
}

function describeLimits(field: Record<string, unknown>): string[] {
  const limits: string[] = [];
  const write = (value: unknown) => JSON.stringify(value) ?? String(value);
  if (Array.isArray(field.enum)) limits.push(`one of ${field.enum.map(write).join(", ")}`);
  if (field.const !== undefined) limits.push(`always ${write(field.const)}`);
  if (field.default !== undefined) limits.push(`${write(field.default)} when left out`);
  for (const [key, words] of [
    ["minimum", "at least"],
    ["maximum", "at most"],
    ["minLength", "characters at least"],
    ["maxLength", "characters at most"],
    ["minItems", "items at least"],
    ["maxItems", "items at most"],
    ["pattern", "matches"],
    ["format", "format"],
  ] as const) {
    const value = field[key];
    if (value !== undefined) limits.push(`${words} ${typeof value === "string" ? value : write(value)}`);
  }
  return limits;
}

export interface RefusalTiming {
  /** From the click until the server had stored the change. */
  storedMs: number;
  /** From the click until a call of an agent was refused because of it; null when no agent could be asked about. */
  refusedMs: number | null;
}

const MAX_REFUSAL_QUESTIONS = 50;

/**
 * Switches a tool off and asks the policy about a call of an agent, until it is refused because of that.
 * Returns what was measured, in milliseconds since the click.
 */
export async function measureRefusal(steps: {
  now: () => number;
  switchOff: () => Promise<unknown>;
  /** Returns why a call would be refused; null when there is no agent to ask about. */
  explain: (() => Promise<string>) | null;
}): Promise<RefusalTiming> {
  const start = steps.now();
  await steps.switchOff();
  const storedMs = steps.now() - start;
  if (!steps.explain) return { storedMs, refusedMs: null };
  try {
    for (let question = 0; question < MAX_REFUSAL_QUESTIONS; question += 1) {
      if ((await steps.explain()) === "disabled") return { storedMs, refusedMs: steps.now() - start };
    }
  } catch {
    // The tool is off; only the question about it failed.
  }
  return { storedMs, refusedMs: null };
}
