import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { asProblem, toConnectionProblem, toProblem } from "../src/api/problem";
import { contrastRatio } from "../src/logic/color";
import { parseDiff } from "../src/logic/diff";
import { formatAge, formatCost, formatDuration, shortenId } from "../src/logic/format";
import { placeLanes } from "../src/logic/lanes";
import { toLogRows } from "../src/logic/log";
import { parseCriteria, parseLimit } from "../src/logic/new-task";
import { layoutPlan } from "../src/logic/plan";
import {
  describeStanding,
  describeSteps,
  standingOf,
  type Task,
  type Timeline,
  withoutDelivery,
} from "../src/logic/state";
import { groupTests } from "../src/logic/tests";
import {
  describeCommand,
  directionOf,
  quoteShell,
  splitBlocks,
  stripTerminal,
  toSentence,
  writeOutHidden,
} from "../src/logic/text";

const NOW = Date.parse("2026-01-01T00:10:00Z");

const task = (part: Partial<Task> = {}): Task => ({
  id: "tsk_1",
  project_id: "prj_1",
  name: "dark-mode",
  description: "Give the page a dark mode",
  acceptance_criteria: [],
  budget: {},
  created_at: "2026-01-01T00:00:00Z",
  created_by: "usr_1",
  updated_at: "2026-01-01T00:00:00Z",
  depends_on: [],
  state: "running",
  ...part,
});

const timeline = (part: Partial<Timeline> = {}): Timeline => ({
  task_id: "tsk_1",
  run_id: "run_1",
  trace_id: "0",
  state: "running",
  standing: "works at Plan Steps",
  node: "collect_result",
  cost_micros: 0,
  retries_used: 0,
  jobs: [],
  steps: [],
  units: [],
  waits: [],
  mermaid: "",
  plan_mermaid: "",
  ...part,
});

const unit = {
  key: "switch",
  title: "Show the switch",
  depends_on: [],
  state: "dispatched",
  attempts: 2,
  findings: [],
} as const;
const job = {
  job_id: "job_1",
  unit: "switch",
  attempt: 2,
  state: "running",
  queued_at: "2026-01-01T00:06:00Z",
  started_at: "2026-01-01T00:07:00Z",
};
const wait = {
  wait_id: "wai_1",
  reason: "approval",
  owner: "person",
  opened_at: "2026-01-01T00:08:00Z",
  question: "May it?\n- yes",
} as const;

describe("the sentence of a task", () => {
  it("says who works on what, in which attempt, since when", () => {
    const shown = describeStanding(
      task(),
      timeline({ units: [{ ...unit, depends_on: [], findings: [] }], jobs: [job] }),
      NOW,
    );
    expect(shown).toEqual({
      text: "Works on “Show the switch”, second attempt, since 3 m.",
      need: "Nothing is needed from you.",
    });
  });

  it("says that a decision is needed, in the words of the question", () => {
    expect(describeStanding(task(), timeline({ waits: [wait] }), NOW)).toEqual({
      text: "May it?",
      need: "Your decision is needed since 2 m.",
    });
  });

  it("says that a task is paused, and asks nobody", () => {
    const story = timeline({ waits: [{ ...wait, reason: "paused", question: null }] });
    expect([standingOf(task(), story), describeStanding(task(), story, NOW)]).toEqual([
      "waits",
      { text: "It is paused.", need: "Resume it when you want it to go on." },
    ]);
  });

  it("names a stall before anything that looks like work", () => {
    const stalls = [
      {
        kind: "unplaced_job",
        detail: "no node takes it",
        since: "2026-01-01T00:00:00Z",
        commands: ["cynork node list"],
      },
    ] as const;
    const story = timeline({
      stalls: [{ ...stalls[0], commands: ["cynork node list"] }],
      jobs: [job],
      units: [{ ...unit, depends_on: [], findings: [] }],
    });
    expect([standingOf(task(), story), describeStanding(task(), story, NOW)]).toEqual([
      "trouble",
      { text: "no node takes it", need: "An admin can mend it, see below." },
    ]);
  });

  it("says why a task was given up", () => {
    expect(describeStanding(task({ state: "failed", failure: "the budget is used up" }), null, NOW).text).toBe(
      "It was given up: the budget is used up",
    );
  });

  it("asks for a review when a pull request is open", () => {
    const pull_request = { id: "pul_1", number: 4, url: "", state: "open", title: "", branch: "b" } as const;
    expect(
      describeStanding(
        task({ state: "completed" }),
        timeline({ state: "completed", summary: "Done.", pull_request }),
        NOW,
      ),
    ).toEqual({
      text: "Done.",
      need: "Pull request #4 waits for your review.",
    });
  });

  it("is its first sentence when it has a summary", () => {
    const summary = "`slug --max 5` cuts names, e.g. at No. 5. The first attempt cut words.\n\n1 unit done:\n- a";
    const shown = describeStanding(task({ state: "completed" }), timeline({ state: "completed", summary }), NOW);
    expect(shown.text).toBe("`slug --max 5` cuts names, e.g. at No. 5.");
  });

  it("has a summary without the pull request that the page shows itself", () => {
    const body = "It was mended.\n\n1 unit done:\n- a";
    expect(
      ["", ": https://forge.example/7", ": /v1/pull-requests/pul_1"].map((end) =>
        withoutDelivery(`${body}\n\nPull request #7${end}`),
      ),
    ).toEqual([body, body, body]);
  });

  it("has a state for each step, and giving up only where it happened", () => {
    const step = {
      sequence: 1,
      attempt: 1,
      actor: "runner",
      duration_ms: 0,
      cost_micros: 0,
      at: "2026-01-01T00:00:00Z",
    };
    const steps = [
      { ...step, node: "load_task_context", verdict: "pass" },
      { ...step, node: "plan_steps", verdict: "wait" },
    ];
    expect(describeSteps(timeline({ node: "plan_steps", steps })).map((it) => it.state)).toEqual([
      "passed",
      "now",
      "before",
      "before",
      "before",
      "before",
    ]);
    const failed = [...steps, { ...step, node: "mark_failed", verdict: "pass" }];
    expect(describeSteps(timeline({ state: "failed", node: "mark_failed", steps: failed })).at(-1)).toEqual({
      node: "mark_failed",
      words: "Give up",
      state: "failed",
      visits: 1,
    });
  });
});

describe("errors", () => {
  it("keep what the server said, its fix and its trace", () => {
    const body = {
      status: 409,
      code: "conflict",
      title: "Conflict",
      detail: "it was decided",
      fix: "look again",
      trace_id: "abc",
    };
    expect(toProblem(409, body, null)).toMatchObject({
      status: 409,
      code: "conflict",
      message: "it was decided",
      fix: "look again",
      traceId: "abc",
    });
  });

  it("say what to do when the answer is no problem at all", () => {
    expect(toProblem(502, "<html>", "trace-of-header")).toMatchObject({
      message: "The server answered with status 502.",
      fix: "Try again. If it stays, give the trace to an admin: the server's log has it.",
      traceId: "trace-of-header",
    });
  });

  it("say that nothing is lost when the server is away", () => {
    expect(toConnectionProblem().fix).toContain("Nothing that you typed is lost");
    expect(asProblem("odd").message).toBe("odd");
  });
});

describe("a message", () => {
  it("begins with a capital letter, unless it begins with a name or code", () => {
    expect(["no node takes it", "`hm` is none", "tsk_1 is gone", "a, b"].map(toSentence)).toEqual([
      "No node takes it",
      "`hm` is none",
      "tsk_1 is gone",
      "A, b",
    ]);
  });
});

describe("foreign text", () => {
  it("has what hides in it written out", () => {
    expect(writeOutHidden("a\u202eb\u200bc\u001b[31m\u{e0041}\nd\te")).toBe("a⟨RLO⟩b⟨ZWSP⟩c⟨ESC⟩[31m⟨U+E0041⟩\nd\te");
  });

  it("loses the colours of terminals and keeps its words", () => {
    expect(stripTerminal("\u001b[1;31mred\u001b[0m \u001b]8;;http://evil\u0007link\u001b]8;;\u0007\r\n")).toBe(
      "red link\n",
    );
  });

  it("is quoted when it becomes a command", () => {
    expect([
      quoteShell(["run", "it's; rm -rf /"]),
      describeCommand(["sh", "-c", "npm test"]),
      describeCommand(["sh", "a b"]),
    ]).toEqual([`run 'it'\\''s; rm -rf /'`, "npm test", "sh 'a b'"]);
  });
});

describe("a text of several lines", () => {
  it("has paragraphs and lists, with the numbers that were written", () => {
    expect(splitBlocks("Two units:\n- a\n  and more\n- b\n\n\n3. c\nafter it\n-1 is no item")).toEqual([
      { kind: "text", text: "Two units:" },
      {
        kind: "list",
        items: [
          { number: null, text: "a\nand more" },
          { number: null, text: "b" },
        ],
      },
      { kind: "list", items: [{ number: "3.", text: "c" }] },
      { kind: "text", text: "after it\n-1 is no item" },
    ]);
  });

  it("has the direction of its first letter", () => {
    expect(["--max", "`slug` אחד", "1. أضف --max", "«שלום»", "…"].map(directionOf)).toEqual([
      "ltr",
      "ltr",
      "rtl",
      "rtl",
      "ltr",
    ]);
  });
});

describe("numbers", () => {
  it("have units and the digits that matter", () => {
    expect([
      formatDuration(192_000),
      formatDuration(43),
      formatDuration(7_260_000),
      formatAge("2026-01-01T00:08:00Z", NOW),
    ]).toEqual(["3 m 12 s", "43 ms", "2 h 1 m", "2 m"]);
    expect([
      formatCost(0),
      formatCost(13_203),
      formatCost(6950),
      formatCost(20_000_000),
      formatCost(1_500_000, "EUR"),
    ]).toEqual(["$0.00", "$0.013", "$0.007", "$20.00", "€1.50"]);
    expect(shortenId("tsk_01a1ec9880927a918c7bf835b9196318")).toBe("b9196318");
  });
});

describe("a plan", () => {
  it("is placed by its dependencies, and a circle does not hang it", () => {
    const placed = layoutPlan([
      { key: "a", depends_on: [] },
      { key: "b", depends_on: ["a", "missing"] },
      { key: "c", depends_on: ["a"] },
      { key: "d", depends_on: ["b", "c"] },
      { key: "x", depends_on: ["y"] },
      { key: "y", depends_on: ["x"] },
    ]);
    const places = Object.fromEntries(placed.nodes.slice(0, 4).map((it) => [it.node.key, [it.column, it.row]]));
    expect(places).toEqual({ a: [0, 0], b: [1, 0], c: [1, 1], d: [2, 0] });
    expect(placed.edges).toHaveLength(6);
  });
});

describe("a diff", () => {
  it("has line numbers of both sides, and lines that look like headers stay lines", () => {
    const text =
      "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@ fn\n a\n--- b\n+++ c\n\\ No newline at end of file\n";
    expect(parseDiff(text)).toEqual([
      {
        path: "x",
        rows: [
          { kind: "hunk", before: null, after: null, text: "@@ -1,2 +1,2 @@ fn" },
          { kind: "context", before: 1, after: 1, text: "a" },
          { kind: "delete", before: 2, after: null, text: "-- b" },
          { kind: "add", before: null, after: 2, text: "++ c" },
          { kind: "note", before: null, after: null, text: "No newline at end of file" },
        ],
      },
    ]);
  });
});

describe("a log", () => {
  it("has one row for a command, with its end", () => {
    const event = (number: number, name: string, at_ms: number, data: unknown) =>
      ({ number, at: "", at_ms, event: name, data }) as never;
    const rows = toLogRows([
      event(0, "tool", 100, { call: "step-1", title: "npm test", status: "in_progress" }),
      event(1, "output", 110, { text: "\u001b[32mok\u001b[0m 1\nok 2\n", stream: "stdout" }),
      event(2, "tool", 250, { call: "step-1", title: "npm test", status: "failed" }),
    ]);
    expect(rows).toEqual([
      { event: 0, line: 0, kind: "command", text: "npm test", at: 100, state: "failed", milliseconds: 150, lines: 2 },
      { event: 1, line: 0, kind: "output", text: "ok 1", raw: "\u001b[32mok\u001b[0m 1", at: 110, command: 0 },
      { event: 1, line: 1, kind: "output", text: "ok 2", at: 110, command: 0 },
    ]);
  });
});

describe("the lanes of a timeline", () => {
  it("show how long work waited and for whom", () => {
    const story = timeline({
      state: "completed",
      jobs: [{ ...job, state: "succeeded", ended_at: "2026-01-01T00:09:00Z" }],
      waits: [{ ...wait, resolved_at: "2026-01-01T00:08:30Z" }],
    });
    const spans = placeLanes(story, NOW).lanes.map((lane) => [
      lane.name,
      lane.spans.map((span) => [span.kind, span.end - span.start]),
    ]);
    expect(spans).toEqual([
      ["Waits for you", [["person", 30_000]]],
      [
        "switch",
        [
          ["wait", 60_000],
          ["work", 120_000],
        ],
      ],
    ]);
  });
});

describe("the form of a task", () => {
  it("takes a command per line and an amount with point or comma", () => {
    expect(parseCriteria(" npm test \n\ncargo test")).toEqual([
      { text: "npm test", check: { argv: ["sh", "-c", "npm test"] } },
      { text: "cargo test", check: { argv: ["sh", "-c", "cargo test"] } },
    ]);
    expect([parseLimit(""), parseLimit("0,5"), parseLimit("x").error, parseLimit("0").error]).toEqual([
      { micros: null, error: null },
      { micros: 500_000, error: null },
      "Write an amount such as 0.50",
      "The limit must be more than nothing",
    ]);
  });
});

describe("results per test", () => {
  it("show what the work mended first and leave out what is empty", () => {
    const names = (...list: string[]) => ({ total: list.length, names: list });
    const groups = groupTests({
      after: { passed: 2, failed: 1, skipped: 0 },
      added: names("new"),
      pass_to_fail: names("old"),
      fail_to_pass: names("max"),
      flaky: names(),
    });
    expect(groups.map((group) => [group.words, group.names])).toEqual([
      ["failed before, passes now", ["max"]],
      ["passed before, fails now", ["old"]],
      ["is new", ["new"]],
    ]);
  });
});

describe("colours", () => {
  const css = readFileSync("src/styles.css", "utf8");
  const tokens = new Map(
    [...css.matchAll(/--([\w-]+): light-dark\((#\w+), (#\w+)\)/g)].map(([, name, light, dark]) => [
      name,
      [light, dark],
    ]),
  );
  const ratio = (first: string, second: string, theme: 0 | 1) =>
    contrastRatio(tokens.get(first)?.[theme] ?? "", tokens.get(second)?.[theme] ?? "");

  for (const [theme, name] of [
    [0, "light"],
    [1, "dark"],
  ] as const) {
    it(`of text have a contrast of 4.5 on every surface in the ${name} theme`, () => {
      const weak = [];
      for (const text of ["text", "muted", "faint", "accent", "ok", "warn", "bad", "info"]) {
        for (const ground of ["bg", "surface", "raised", "select", "added", "removed"]) {
          if (ratio(text, ground, theme) < 4.5)
            weak.push(`${text} on ${ground}: ${ratio(text, ground, theme).toFixed(2)}`);
        }
      }
      if (ratio("on-accent", "accent", theme) < 4.5) weak.push("on-accent");
      if (ratio("control", "bg", theme) < 3) weak.push("control");
      expect(weak).toEqual([]);
    });
  }
});
