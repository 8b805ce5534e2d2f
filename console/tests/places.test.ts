import { describe, expect, it } from "vitest";
import type { Schema } from "../src/api/client";
import { staleKeys } from "../src/events/invalidate";
import {
  compareSpecs,
  EMPTY_MODEL,
  firstDay,
  isPressing,
  joinCommand,
  parseCount,
  parseSpec,
  parseWords,
  roundUp,
  stackByDay,
  toModelRequest,
  toRegistryDraft,
} from "../src/logic/places";

describe("words and counts", () => {
  it("splits labels at commas and spaces and takes each once", () => {
    expect(parseWords(" gpu, big\nbig ,fast")).toEqual(["gpu", "big", "fast"]);
    expect(parseWords("  ")).toEqual([]);
  });

  it("reads counts with separators and refuses nothing and fractions", () => {
    expect(["1,000,000", "1 000", " 7 "].map(parseCount)).toEqual([1_000_000, 1000, 7]);
    expect(["0", "", "1.5", "-3", "many"].map(parseCount)).toEqual([null, null, null, null, null]);
  });
});

describe("versions of an environment", () => {
  it("names the lines that are gone, new and the same, part by part", () => {
    const before = { setup: ["npm ci", "npm run build"], system_packages: ["git"] } as Schema["EnvironmentSpec"];
    const after = { setup: ["npm ci", "make"], caches: ["~/.npm"] } as Schema["EnvironmentSpec"];
    expect(compareSpecs(before, after)).toEqual([
      { kind: "removed", part: "Set-up", text: "npm run build" },
      { kind: "same", part: "Set-up", text: "npm ci" },
      { kind: "added", part: "Set-up", text: "make" },
      { kind: "added", part: "Kept between jobs", text: "~/.npm" },
      { kind: "removed", part: "Packages", text: "git" },
    ]);
  });

  it("takes an object and says what is wrong with anything else", () => {
    expect(parseSpec('{"setup":["npm ci"]}')).toEqual({ spec: { setup: ["npm ci"] } });
    expect(parseSpec("[1]")).toEqual({ error: "Write an object with parts such as setup and checks" });
    expect(parseSpec("{")).toEqual({ error: expect.stringMatching(/^This is no JSON: /) });
  });
});

describe("models", () => {
  const model = {
    id: "coder",
    title: "coder",
    tier: "deep",
    context_tokens: 200_000,
    max_output_tokens: 4000,
    tools: true,
    images: false,
    json_schema: true,
    skills: false,
    enabled: false,
    project_id: "prj_1",
    think_seconds: 90,
    routes: [
      {
        provider: "local",
        upstream: "coder-7b",
        prices: { input: 1_000_000, output: 4_000_000, cached: 100_000, cache_write: 1_250_000 },
      },
    ],
  };

  it("comes back from the form as it was, so that saving without a change changes nothing", () => {
    const { id: _id, title: _title, ...body } = model;
    expect(toModelRequest(toRegistryDraft(model))).toEqual({ body });
  });

  it("costs the same when cached if no other price is given", () => {
    const route = { provider: "local", upstream: "m", input: "3", output: "0,5", cached: "", cacheWrite: "" };
    const request = toModelRequest({ ...EMPTY_MODEL, id: "m", routes: [route] });
    expect("body" in request && request.body.routes).toEqual([
      {
        provider: "local",
        upstream: "m",
        prices: { input: 3_000_000, output: 500_000, cached: 3_000_000, cache_write: 3_000_000 },
      },
    ]);
  });

  it("says what is missing, one thing at a time", () => {
    const missing = (part: Partial<typeof EMPTY_MODEL>) => toModelRequest({ ...EMPTY_MODEL, id: "m", ...part });
    expect(toModelRequest(EMPTY_MODEL)).toEqual({ missing: "Write an id" });
    expect(missing({ context: "much" })).toEqual({ missing: "Write the tokens as whole numbers" });
    expect(missing({ routes: [] })).toEqual({ missing: "Add a route to a provider" });
    expect(missing({})).toEqual({ missing: "Choose the provider of each route" });
    expect(missing({ thinkSeconds: "soon" })).toEqual({ missing: "Write the seconds as a whole number" });
  });
});

describe("spend per day", () => {
  const point = (at: string, key: string | null, cost: number) => ({
    at,
    key,
    cost_micros: cost,
    calls: 1,
    failed: 0,
    input_tokens: 1,
    output_tokens: 1,
  });

  it("keeps days without calls and orders models by cost", () => {
    const points = [
      point("2026-11-16T00:00:00Z", "small", 10),
      point("2026-11-16T00:00:00Z", "large", 30),
      point("2026-11-18T00:00:00Z", "small", 5),
    ];
    expect(stackByDay(points, "2026-11-16", 3)).toEqual({
      keys: ["large", "small"],
      days: [
        { day: "2026-11-16", total: 40, parts: [30, 10] },
        { day: "2026-11-17", total: 0, parts: [0, 0] },
        { day: "2026-11-18", total: 5, parts: [0, 5] },
      ],
      highest: 40,
    });
  });

  it("puts what is not among the largest together, and loses nothing", () => {
    const points = Array.from({ length: 8 }, (_, index) => point("2026-11-18T00:00:00Z", `m${index}`, 80 - index));
    expect(stackByDay(points, "2026-11-18", 1)).toEqual({
      keys: ["m0", "m1", "m2", "m3", "other"],
      days: [{ day: "2026-11-18", total: 612, parts: [80, 79, 78, 77, 298] }],
      highest: 612,
    });
  });

  it("counts today as one of the days, also over the end of a month", () => {
    expect(firstDay(30, Date.parse("2026-11-18T23:59:00Z"))).toBe("2026-10-20");
    expect(firstDay(1, Date.parse("2026-11-18T00:00:00Z"))).toBe("2026-11-18");
  });

  it("ends an axis at a round amount", () => {
    expect([0, 0.7, 101_113, 200_000, 5_100_000].map(roundUp)).toEqual([1, 0.8, 200_000, 200_000, 6_000_000]);
  });
});

describe("limits", () => {
  const budget = (part: Partial<Schema["BudgetStatusView"]>): Schema["BudgetStatusView"] => ({
    budget_id: "bdg_1",
    scope_type: "task",
    period: "total",
    since: "2000-01-01T00:00:00Z",
    max_cost_micros: 100,
    spent_micros: 0,
    reserved_micros: 0,
    spent_tokens: 0,
    reserved_tokens: 0,
    ...part,
  });

  it("of many are always shown, others when most of them is spent or reserved", () => {
    expect(isPressing(budget({ scope_type: "project" }))).toBe(true);
    expect(isPressing(budget({ spent_micros: 74 }))).toBe(false);
    expect(isPressing(budget({ spent_micros: 50, reserved_micros: 25 }))).toBe(true);
    expect(isPressing(budget({ max_tokens: 10, spent_tokens: 9 }))).toBe(true);
    expect(isPressing(budget({ max_cost_micros: null, spent_micros: 1000 }))).toBe(false);
  });
});

describe("nodes", () => {
  it("never puts the token into the command, where other users of the machine could read it", () => {
    expect(joinCommand("http://10.0.0.5:12082", "builder-1")).toBe(
      "cynode-node join --url http://10.0.0.5:12082 --token-stdin --name builder-1",
    );
    expect(joinCommand(" ", "")).toBe("cynode-node join --url INTERNAL_URL --token-stdin --name NAME");
  });
});

describe("events of projects", () => {
  const keys = (kind: string) => staleKeys({ kind, project_id: "prj_1", task_id: null });

  it("make the project old when its pull requests, secrets, issues or handoffs change", () => {
    for (const kind of ["pull_request.merged", "project_secret.set", "issue.imported", "handoff.ended"]) {
      expect(keys(kind)).toContainEqual(["project", "prj_1"]);
    }
  });

  it("leave the list of projects as it is when only something inside of one changes", () => {
    expect(keys("pull_request.merged")).not.toContainEqual(["projects"]);
  });
});
