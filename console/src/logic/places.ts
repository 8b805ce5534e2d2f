/** Projects, nodes, models and spending: what a person typed as the API takes it, and what the API says as a person reads it. */

import type { Schema } from "../api/client";
import { listSpec } from "./environment";
import { parsePrice } from "./welcome";

/** Splits words at commas and spaces. A word counts once. */
export function parseWords(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter((word) => word !== ""))];
}

/** Reads a whole number of at least one; `1,000,000` and `1 000 000` too. Null is no number. */
export function parseCount(text: string): number | null {
  const digits = text.trim().replaceAll(/[\s,_]/g, "");
  if (!/^\d{1,15}$/.test(digits)) return null;
  const count = Number(digits);
  return count >= 1 ? count : null;
}

export interface SpecChange {
  /** `same` stands in both versions. */
  kind: "same" | "added" | "removed";
  part: string;
  text: string;
}

/** Compares two versions of an environment line by line. The lines of a part stay together, removed ones first. */
export function compareSpecs(before: Schema["EnvironmentSpec"], after: Schema["EnvironmentSpec"]): SpecChange[] {
  const [old, fresh] = [before, after].map(
    (spec) => new Map(listSpec(spec).map((part) => [part.name, part.lines.map((line) => line.text)])),
  ) as [Map<string, string[]>, Map<string, string[]>];
  const order = [...new Set([...fresh.keys(), ...old.keys()])];
  return order.flatMap((part) => {
    const [left, right] = [old.get(part) ?? [], fresh.get(part) ?? []];
    return [
      ...left.filter((text) => !right.includes(text)).map((text) => ({ kind: "removed" as const, part, text })),
      ...right.map((text) => ({ kind: left.includes(text) ? ("same" as const) : ("added" as const), part, text })),
    ];
  });
}

/** Reads an environment that a person wrote as JSON. The server checks the rest. */
export function parseSpec(text: string): { spec: Schema["EnvironmentSpec"] } | { error: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { error: `This is no JSON: ${error instanceof Error ? error.message : "it cannot be read"}` };
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return { error: "Write an object with parts such as setup and checks" };
  }
  return { spec: value as Schema["EnvironmentSpec"] };
}

export interface RouteDraft {
  provider: string;
  upstream: string;
  input: string;
  output: string;
  cached: string;
  cacheWrite: string;
}

export interface RegistryDraft {
  id: string;
  title: string;
  tier: string;
  project: string;
  context: string;
  output: string;
  thinkSeconds: string;
  tools: boolean;
  images: boolean;
  jsonSchema: boolean;
  skills: boolean;
  enabled: boolean;
  routes: RouteDraft[];
}

export const EMPTY_ROUTE: RouteDraft = {
  provider: "",
  upstream: "",
  input: "",
  output: "",
  cached: "",
  cacheWrite: "",
};

export const EMPTY_MODEL: RegistryDraft = {
  id: "",
  title: "",
  tier: "standard",
  project: "",
  context: "128000",
  output: "8192",
  thinkSeconds: "",
  tools: true,
  images: false,
  jsonSchema: true,
  skills: false,
  enabled: true,
  routes: [EMPTY_ROUTE],
};

const toAmount = (micros: number | undefined) => (micros ? String(micros / 1_000_000) : "");

/** Returns a model as the form shows it. */
export function toRegistryDraft(model: Schema["ModelView"]): RegistryDraft {
  return {
    id: model.id,
    title: model.title === model.id ? "" : model.title,
    tier: model.tier ?? "",
    project: model.project_id ?? "",
    context: String(model.context_tokens),
    output: String(model.max_output_tokens),
    thinkSeconds: model.think_seconds == null ? "" : String(model.think_seconds),
    tools: model.tools,
    images: model.images,
    jsonSchema: model.json_schema,
    skills: model.skills,
    enabled: model.enabled,
    routes: model.routes.map((route) => ({
      provider: route.provider,
      upstream: route.upstream,
      input: toAmount(route.prices?.input),
      output: toAmount(route.prices?.output),
      cached: toAmount(route.prices?.cached),
      cacheWrite: toAmount(route.prices?.cache_write),
    })),
  };
}

/** Returns what to send, or what is missing. A price of cached tokens that is left out is that of other tokens. */
export function toModelRequest(draft: RegistryDraft): { body: Schema["SetModel"] } | { missing: string } {
  const [context, output] = [parseCount(draft.context), parseCount(draft.output)];
  const think = draft.thinkSeconds.trim() === "" ? undefined : parseCount(draft.thinkSeconds);
  if (draft.id.trim() === "") return { missing: "Write an id" };
  if (context === null || output === null) return { missing: "Write the tokens as whole numbers" };
  if (think === null) return { missing: "Write the seconds as a whole number" };
  if (draft.routes.length === 0) return { missing: "Add a route to a provider" };
  const routes: Schema["RouteView"][] = [];
  for (const route of draft.routes) {
    if (route.provider === "") return { missing: "Choose the provider of each route" };
    if (route.upstream.trim() === "") return { missing: "Write what the model is called at each provider" };
    const [input, written] = [parsePrice(route.input), parsePrice(route.output)];
    const cached = route.cached.trim() === "" ? input : parsePrice(route.cached);
    const kept = route.cacheWrite.trim() === "" ? input : parsePrice(route.cacheWrite);
    if (input === null || written === null || cached === null || kept === null) {
      return { missing: "Write prices such as 3 or 0.25" };
    }
    const prices = { input, output: written, cached, cache_write: kept };
    routes.push({
      provider: route.provider,
      upstream: route.upstream.trim(),
      ...(input + written > 0 ? { prices } : {}),
    });
  }
  return {
    body: {
      context_tokens: context,
      max_output_tokens: output,
      routes,
      tools: draft.tools,
      images: draft.images,
      json_schema: draft.jsonSchema,
      skills: draft.skills,
      enabled: draft.enabled,
      ...(draft.title.trim() === "" ? {} : { title: draft.title.trim() }),
      ...(draft.tier === "" ? {} : { tier: draft.tier }),
      ...(draft.project === "" ? {} : { project_id: draft.project }),
      ...(think === undefined ? {} : { think_seconds: think }),
    },
  };
}

/** Returns the first day of a span that ends today, as `2026-11-01`. Days are those of UTC, as the server sums them. */
export function firstDay(days: number, now: number): string {
  return new Date(now - (days - 1) * 86_400_000).toISOString().slice(0, 10);
}

export interface DayStack {
  day: string;
  total: number;
  /** One for each key, in the order of `keys`. */
  parts: number[];
}

export interface SpendStack {
  /** By cost, descending; the rest is the last one. */
  keys: string[];
  days: DayStack[];
  highest: number;
}

/** The name of what is not among the largest. */
export const OTHER_KEY = "other";
const MAX_STACK_KEYS = 5;

/** Stacks the cost per day by model. Days without calls are there, too, so that a gap is seen as one. */
export function stackByDay(points: readonly Schema["UsagePoint"][], from: string, days: number): SpendStack {
  const totals = new Map<string, number>();
  for (const point of points) {
    const key = point.key ?? OTHER_KEY;
    totals.set(key, (totals.get(key) ?? 0) + point.cost_micros);
  }
  const ordered = [...totals.keys()].sort((left, right) => (totals.get(right) ?? 0) - (totals.get(left) ?? 0));
  const keys = ordered.length > MAX_STACK_KEYS ? [...ordered.slice(0, MAX_STACK_KEYS - 1), OTHER_KEY] : ordered;
  const begin = Date.parse(`${from}T00:00:00Z`);
  const stacks = Array.from({ length: days }, (_, index): DayStack => {
    const day = new Date(begin + index * 86_400_000).toISOString().slice(0, 10);
    return { day, total: 0, parts: keys.map(() => 0) };
  });
  const byDay = new Map(stacks.map((stack) => [stack.day, stack]));
  for (const point of points) {
    const stack = byDay.get(point.at.slice(0, 10));
    if (!stack) continue;
    const known = keys.indexOf(point.key ?? OTHER_KEY);
    const index = known === -1 ? keys.length - 1 : known;
    stack.parts[index] = (stack.parts[index] ?? 0) + point.cost_micros;
    stack.total += point.cost_micros;
  }
  return { keys, days: stacks, highest: Math.max(0, ...stacks.map((stack) => stack.total)) };
}

/** Returns the next round amount at or above a value: 1, 2 or 5 times a power of ten. */
export function roundUp(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 4, 6, 8, 10].find((step) => step * power >= value) ?? 10) * power;
}

/** Returns the command that lets one machine join. */
export function joinCommand(address: string, name: string): string {
  return `cynode-node join --url ${address.trim() || "INTERNAL_URL"} --token-stdin --name ${name.trim() || "NAME"}`;
}

/** Part of a limit from which it is always shown. */
const PRESSING_PART = 0.75;

/** Returns whether a limit is worth a look: it concerns more than one person or task, or most of it is spent or reserved. */
export function isPressing(budget: Schema["BudgetStatusView"]): boolean {
  if (budget.scope_type === "installation" || budget.scope_type === "project") return true;
  const cost = budget.max_cost_micros ?? Number.POSITIVE_INFINITY;
  const tokens = budget.max_tokens ?? Number.POSITIVE_INFINITY;
  return (
    budget.spent_micros + budget.reserved_micros >= cost * PRESSING_PART ||
    budget.spent_tokens + budget.reserved_tokens >= tokens * PRESSING_PART
  );
}
