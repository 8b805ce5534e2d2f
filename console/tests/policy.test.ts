import { describe, expect, it } from "vitest";
import { toTime } from "../src/api/queries-policy";
import type { Backtest, RuleVocabulary } from "../src/api/types";
import { staleKeys } from "../src/events/invalidate";
import { readBundle } from "../src/logic/audit-bundle";
import { completeCedar, markErrors, namedTools, tokenizeCedar, toRange } from "../src/logic/cedar";
import { describeEnd, findRemedy, parseArguments, sampleArguments } from "../src/logic/explain";
import { countHits, describeBacktest, describeChange, findNameProblem } from "../src/logic/rules";

const VOCABULARY: RuleVocabulary = {
  modes: [],
  roles: ["developer", "reviewer"],
  groups: ["git.*"],
  servers: [{ id: "native", name: "CyNode" }],
  fields: [
    { path: "context.agent.kind", kind: "String", summary: "kind of agent", values: ["sandbox", "manager"] },
    { path: "context.agent.network", kind: "Boolean", summary: "may use the network", values: [] },
  ],
  operators: [{ name: "like", example: "", summary: "matches a pattern" }],
  tools: [
    {
      name: "git.push",
      title: "Push",
      server: "native",
      groups: ["git.*"],
      arguments: [{ path: "context.arguments.branch", kind: "String", required: true }],
      hidden_arguments: [],
    },
    {
      name: "web.fetch",
      title: "Fetch",
      server: "native",
      groups: [],
      arguments: [
        { path: "context.arguments.url", kind: "String", required: true },
        { path: "context.arguments.options", kind: "Record", required: false },
        { path: "context.arguments.options.depth", kind: "Long", required: false },
      ],
      hidden_arguments: [],
    },
  ],
  max_bytes: 16384,
};

/** What is offered at the bar in a text, and the text after the first was taken. */
function complete(marked: string, asked = false) {
  const caret = marked.indexOf("|");
  const text = marked.replace("|", "");
  const found = completeCedar(text, caret, VOCABULARY, asked);
  if (!found) return null;
  const first = found.options[0]?.insert ?? "";
  return {
    labels: found.options.map((it) => it.label),
    after: text.slice(0, found.from) + first + text.slice(found.to),
  };
}

describe("the editor of rules", () => {
  it("colours a text without losing a character of it", () => {
    const text = 'forbid (principal == Role::"a\\"b", action, resource) // why\nwhen { 7 > 3 } "open';
    expect(
      tokenizeCedar(text)
        .map((token) => text.slice(token.start, token.end))
        .join(""),
    ).toBe(text);
    expect(tokenizeCedar('when {"x" 7}//c').map((token) => token.kind)).toEqual([
      "keyword",
      "plain",
      "text",
      "plain",
      "number",
      "plain",
      "comment",
    ]);
  });

  it("marks exactly the place of an error", () => {
    const pieces = markErrors("forbid when", [{ start: 3, end: 9 }]);
    expect(pieces.filter((piece) => piece.wrong).map((piece) => piece.text)).toEqual(["bid", " ", "wh"]);
    expect([toRange("abc", 3, 3), toRange("", 0, 0), toRange("abc", 1, 9)]).toEqual([
      { start: 2, end: 3 },
      { start: 0, end: 0 },
      { start: 1, end: 3 },
    ]);
  });

  it("offers roles, tools with their groups, and servers inside the quotes", () => {
    expect(complete('principal == Role::"|')).toEqual({
      labels: ["developer", "reviewer"],
      after: 'principal == Role::"developer"',
    });
    expect(complete('action == Action::"pu|"')).toEqual({
      labels: ["git.push"],
      after: 'action == Action::"git.push"',
    });
    expect(complete('action in Action::"|"')?.labels).toEqual(["git.*", "git.push", "web.fetch"]);
    expect(complete('resource == Server::"|"')?.after).toBe('resource == Server::"native"');
  });

  it("offers the arguments of the tools that the text names, and of all when it names none", () => {
    expect(complete('action == Action::"web.fetch" context.arguments.|')?.labels).toEqual(["url", "options"]);
    expect(complete('action in Action::"git.*" context.arguments has |')?.labels).toEqual(["branch"]);
    expect(complete("context.arguments.options.|")?.labels).toEqual(["depth"]);
    expect(complete("context.|")?.labels).toEqual(["agent", "arguments"]);
    expect(namedTools("forbid (principal, action, resource);", VOCABULARY)).toBe(VOCABULARY.tools);
  });

  it("offers the values of a field that has some", () => {
    expect(complete('context.agent.kind == "s|')).toEqual({
      labels: ["sandbox"],
      after: 'context.agent.kind == "sandbox"',
    });
    expect(complete('context.arguments.url == "|')).toBeNull();
  });

  it("offers words where a word begins, and nothing in comments, in quotes and unasked", () => {
    expect(complete("for|")).toEqual({ labels: ["forbid"], after: "forbid" });
    expect(complete("forbid|")).toBeNull();
    expect([complete("// for|"), complete('"for|'), complete("|"), complete("f|")]).toEqual([null, null, null, null]);
    expect(complete("|", true)?.labels).toContain("like");
  });
});

const TEST: Backtest = {
  since: "2026-01-01T00:00:00Z",
  until: "2026-01-08T00:00:00Z",
  complete: true,
  calls: 3120,
  hits: 14,
  misses: 3106,
  not_reached: 0,
  undecidable: 0,
  undecidable_reasons: [],
  effects: { refuse: 14, approve: 0, shadow: 0 },
  decisions: [],
  released: 0,
  by_tool: [],
  samples: [],
};

describe("rules in words", () => {
  it("says what a rule would have hit, and does not claim what the records do not tell", () => {
    expect(describeBacktest(TEST, 7)).toBe("Would have hit 14 of 3,120 calls of the last 7 days.");
    expect(describeBacktest({ ...TEST, hits: 0, undecidable: 20 }, 1)).toBe(
      "Would certainly have hit 0 of 3,120 calls of the last day, and possibly up to 20.",
    );
    expect(describeBacktest({ ...TEST, calls: 0, hits: 0 }, 30)).toBe("No call was recorded in the last 30 days.");
  });

  it("says what changes", () => {
    expect(describeChange("allow", "deny")).toBe("allowed then, refused now");
    expect(describeChange("deny", "deny")).toBe("refused, as before");
  });

  it("counts a call once for each rule", () => {
    const record = { phase: "decision", rules: ["a"], shadow: ["b", "a"] };
    expect([...countHits([record, { ...record, phase: "outcome" }, { ...record, shadow: [] }])]).toEqual([
      ["a", 2],
      ["b", 1],
    ]);
  });

  it("knows which names a rule cannot have", () => {
    expect(["", "No", "check", "no-fetch", "no-push"].map((name) => findNameProblem(name, ["no-push"]))).toEqual([
      "Give the rule a name",
      "A name has 1 to 60 of a-z, 0-9 and -",
      "This name is taken by the interface",
      null,
      "There is a rule of this name already",
    ]);
  });

  it("are old when a rule or a tool changes", () => {
    for (const kind of ["rule.set", "rule.deleted", "tool.set", "tool_server.accepted"]) {
      expect(staleKeys({ kind, project_id: null, task_id: null })).toContainEqual(["rules"]);
    }
  });
});

describe("an explanation", () => {
  it("says how a call ended, and keeps the name of an end that it does not know", () => {
    expect(["success", "timeout", null, "melted"].map(describeEnd)).toEqual([
      "succeeded",
      "timed out",
      "has an unknown end",
      "ended as melted",
    ]);
  });

  it("has a remedy for every refusal of the gateway that people can do something about", () => {
    expect(findRemedy("disabled")).toEqual({ words: "An admin must enable the tool.", to: "/tools", link: "The tool" });
    expect(findRemedy("a code of another version")).toBeNull();
  });

  it("begins with what the schema requires and the token does not know", () => {
    const schema = {
      required: ["task_id", "url", "depth", "mode", "deep"],
      properties: {
        url: { type: "string" },
        depth: { type: ["integer", "null"] },
        mode: { enum: ["a", "b"] },
        deep: { type: "object", required: ["on"], properties: { on: { type: "boolean" } } },
      },
    };
    expect(sampleArguments(schema, ["task_id"])).toEqual({ url: "", depth: 0, mode: "a", deep: { on: false } });
    expect(sampleArguments(null, [])).toEqual({});
  });

  it("takes one object as arguments and nothing else", () => {
    expect(parseArguments(" ")).toEqual({ value: {} });
    expect(parseArguments('{"a":1}')).toEqual({ value: { a: 1 } });
    expect(parseArguments("[]")).toEqual({ problem: "Arguments are one JSON object, such as {}." });
    expect(Object.keys(parseArguments("{"))).toEqual(["problem"]);
  });
});

describe("the query line of the audit log", () => {
  it("reads times, and how long ago something was", () => {
    const now = Date.parse("2026-01-08T00:00:00Z");
    expect(["1h", "7d", "2026-01-01", "soon", undefined].map((text) => toTime(text, now))).toEqual([
      "2026-01-07T23:00:00.000Z",
      "2026-01-01T00:00:00.000Z",
      "2026-01-01T00:00:00.000Z",
      null,
      null,
    ]);
  });

  it("takes a bundle only when it is whole", () => {
    const lines = ['{"type":"bundle"}', '{"type":"record"}', '{"type":"end","records":1,"proven":1,"complete":false}'];
    expect(readBundle(`${lines.join("\n")}\n`)).toEqual({ records: 1, proven: 1, complete: false });
    expect(() => readBundle(lines.slice(0, 2).join("\n"))).toThrow("not whole");
    expect(() => readBundle([lines[0], lines[2]].join("\n"))).toThrow("not whole");
    expect(() => readBundle("")).toThrow("not whole");
  });
});
