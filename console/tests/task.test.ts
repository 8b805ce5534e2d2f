import { describe, expect, it } from "vitest";
import { staleKeys } from "../src/events/invalidate";
import { toTreeRows } from "../src/logic/file-tree";
import { colourLine, patternOf } from "../src/logic/highlight";
import {
  type Decision,
  describeDecision,
  describeItem,
  describeViewers,
  findDecision,
  type InboxItem,
} from "../src/logic/inbox";
import { accumulateCosts, costAt, findRecoveries, forecastCost, groupAttempts, listEntries } from "../src/logic/lanes";
import { findRow, listFoldable, selectRows, toLogRows, toRawLog } from "../src/logic/log";
import { describeEstimate } from "../src/logic/new-task";
import { cullPlan, layoutPlan } from "../src/logic/plan";
import { chooseRecipient, type Remark, toComments, toInstruction } from "../src/logic/remarks";
import { compareFigures, describeReplay, listReplayModels, type Replay, writeAnswerValue } from "../src/logic/replays";
import type { Timeline } from "../src/logic/state";

const at = (second: number) => new Date(Date.UTC(2026, 0, 1) + second * 1000).toISOString();
const time = (second: number) => Date.UTC(2026, 0, 1) + second * 1000;

const timeline = (part: Partial<Timeline>): Timeline => ({
  task_id: "tsk_1",
  run_id: "run_1",
  trace_id: "",
  state: "running",
  standing: "",
  retries_used: 0,
  cost_micros: 0,
  mermaid: "",
  plan_mermaid: "",
  steps: [],
  waits: [],
  units: [],
  jobs: [],
  ...part,
});

const step = (sequence: number, part: Partial<Timeline["steps"][number]> = {}) => ({
  sequence,
  node: "plan_steps",
  verdict: "pass",
  attempt: 1,
  actor: "runner-1",
  duration_ms: 0,
  cost_micros: 0,
  at: at(sequence),
  ...part,
});

const job = (id: string, part: Partial<Timeline["jobs"][number]> = {}) => ({
  job_id: id,
  unit: "a",
  attempt: 1,
  state: "succeeded",
  queued_at: at(1),
  started_at: at(2),
  ended_at: at(5),
  ...part,
});

const unit = (key: string, state: Timeline["units"][number]["state"]) => ({
  key,
  title: key,
  depends_on: [],
  attempts: 1,
  findings: [],
  state,
});

describe("recoveries", () => {
  it("are found where another runner drove on, a node fell silent or the claim of a decision expired", () => {
    const story = timeline({
      steps: [step(1), step(2, { actor: "usr_1" }), step(3), step(4, { actor: "runner-2" })],
      jobs: [job("job_1", { state: "lost", worker: "nod_12345678901234567890" }), job("job_2")],
    });
    const handoff = {
      handoff_id: "hof_1",
      role: "project_manager",
      kind: "plan",
      state: "done",
      attempt: 2,
      expired_leases: 1,
      created_at: at(4),
      ended_at: at(6),
    } as const;
    const failedOnce = { ...handoff, handoff_id: "hof_2", expired_leases: 0 };
    expect(findRecoveries(story, [handoff, failedOnce]).map((mark) => [mark.at, mark.words])).toEqual([
      [time(4), "runner-2 stored step 4 here, runner-1 step 3"],
      [time(5), "node 34567890 fell silent here; its job was given out again"],
      [
        time(6),
        "the lease of “plan” of the project manager expired once without a word; attempt 2 ended it here: done",
      ],
    ]);
  });

  it("say who had the lease, when it was last heard of and when the work went on", () => {
    const first = "11111111222222223333333344444444";
    const second = "55555555666666667777777788888888";
    const takeover = {
      sequence: 2,
      holder: "runner",
      instance: second,
      previous_holder: "runner",
      previous_instance: first,
      previous_seen_at: at(2),
      ended_by: "expired",
      lease_ended_at: at(32),
      taken_at: at(40),
    } as const;
    const steps = [
      step(1, { actor: "runner", instance: first }),
      step(2, { actor: "runner", instance: first }),
      step(3, { actor: "runner", instance: second, at: at(45) }),
    ];
    const find = (part: Partial<Timeline>) =>
      findRecoveries(timeline({ steps, ...part })).map((mark) => [mark.at, mark.words]);
    expect(find({ takeovers: [takeover] })).toEqual([
      [
        time(40),
        "runner (process 11111111) was last heard of 38 s before, and its lease expired 8 s before; runner (process 55555555) took over here after step 2 and stored step 3 5 s later",
      ],
    ]);
    expect(
      find({ takeovers: [{ ...takeover, ended_by: "released", instance: first }], steps: steps.slice(0, 2) }),
    ).toEqual([
      [
        time(40),
        "runner (process 11111111) gave its lease back 8 s before; the same process took over here after step 2 and has stored no step since",
      ],
    ]);
    expect(find({})).toEqual([
      [time(45), "runner (process 55555555) stored step 3 here, runner (process 11111111) step 2"],
    ]);
  });
});

describe("the entries of a timeline", () => {
  it("have steps, jobs and questions in the order of time, without waits that say nothing", () => {
    const story = timeline({
      units: [unit("a", "done")],
      steps: [step(3), step(4, { verdict: "wait" })],
      jobs: [job("job_1")],
      waits: [{ wait_id: "wai_1", reason: "human_input", owner: "person", question: "Which?", opened_at: at(1) }],
    });
    expect(listEntries(story).map((entry) => [entry.at, entry.what, entry.state, entry.note])).toEqual([
      [time(1), "Question", "asked", "Which?"],
      [time(2), "Job", "began", "attempt 1"],
      [time(3), "Plan", "done", null],
      [time(5), "Job", "succeeded", "attempt 1, 3 s"],
    ]);
  });
});

describe("the cost of a task", () => {
  it("is known at each moment, whatever the order of the calls", () => {
    const cost = accumulateCosts([
      { at: 30, micros: 5 },
      { at: 10, micros: 2 },
    ]);
    expect(cost).toEqual([
      { at: 10, micros: 2 },
      { at: 30, micros: 7 },
    ]);
    expect([5, 10, 29, 30].map((moment) => costAt(cost, moment))).toEqual([0, 2, 2, 7]);
  });

  it("is forecast from the units that are done, and not before the first or after the last", () => {
    const units = [unit("a", "done"), unit("b", "dispatched"), unit("c", "pending"), unit("d", "cancelled")];
    expect(forecastCost({ state: "running", units }, 100)).toBe(300);
    expect(forecastCost({ state: "running", units: units.slice(1) }, 100)).toBeNull();
    expect(forecastCost({ state: "running", units: units.slice(0, 1) }, 100)).toBeNull();
    expect(forecastCost({ state: "completed", units }, 100)).toBeNull();
  });
});

describe("attempts", () => {
  it("are grouped by unit with the time of their jobs", () => {
    const story = timeline({ jobs: [job("job_1"), job("job_2", { state: "failed" }), job("job_3", { attempt: 2 })] });
    expect(groupAttempts(story)).toEqual(
      new Map([
        [
          "a",
          [
            { number: 1, jobs: 2, milliseconds: 6000, state: "failed" },
            { number: 2, jobs: 1, milliseconds: 3000, state: null },
          ],
        ],
      ]),
    );
  });
});

describe("a large plan", () => {
  it("keeps a chain in its lane and draws what is in view, with the edges that cross it", () => {
    const layout = layoutPlan([
      { key: "a", depends_on: [] },
      { key: "b", depends_on: [] },
      { key: "c", depends_on: ["b"] },
      { key: "d", depends_on: ["c"] },
    ]);
    expect(layout.nodes.map((it) => [it.node.key, it.column, it.row])).toEqual([
      ["a", 0, 0],
      ["b", 0, 1],
      ["c", 1, 1],
      ["d", 2, 1],
    ]);
    const drawn = cullPlan(layout, { firstColumn: 1, lastColumn: 1, firstRow: 1, lastRow: 1 });
    expect(drawn.nodes.map((it) => it.node.key)).toEqual(["c"]);
    expect(drawn.edges.map((it) => `${it.from.node.key}${it.to.node.key}`)).toEqual(["bc", "cd"]);
  });
});

describe("a log", () => {
  const event = (number: number, name: string, data: unknown) =>
    ({ number, at: "", at_ms: number, event: name, data }) as never;
  const rows = toLogRows([
    event(0, "tool", { call: "1", title: "npm test", status: "failed" }),
    event(1, "output", { stream: "stderr", text: "\u001b[31mno\u001b[0m\nBad (x)\n" }),
    event(2, "message", { text: "I look." }),
  ]);

  it("folds what a command wrote, and finds words and errors", () => {
    expect(listFoldable(rows)).toEqual([0]);
    expect(selectRows(rows, new Set(), "")).toBeNull();
    expect(selectRows(rows, new Set([0]), "")).toEqual([0, 3]);
    expect(selectRows(rows, new Set([0]), "bad (X)")).toEqual([2]);
    expect(selectRows(rows, new Set(), "", true)).toEqual([0, 1, 2]);
  });

  it("has a place for each line and is copied as it was written", () => {
    expect(["1-1", "2-0", "9-0"].map((place) => findRow(rows, place))).toEqual([2, 3, -1]);
    expect(toRawLog(rows)).toBe("npm test\n\u001b[31mno\u001b[0m\nBad (x)\nI look.");
  });
});

describe("remarks", () => {
  const remarks: Remark[] = [
    { id: "1", path: "a.ts", line: 3, quote: "x", isRemoved: false, body: " Why? " },
    { id: "2", path: "b.ts", line: null, quote: " old()", isRemoved: true, body: "Keep it" },
  ];

  it("become the comments of one review, or one instruction", () => {
    expect(toComments(remarks)).toEqual([
      { path: "a.ts", line: 3, body: "Why?" },
      { path: "b.ts", body: "About the removed line `old()`: Keep it" },
    ]);
    expect(toInstruction(remarks)).toBe(
      "Remarks of a person on the changes so far:\n- a.ts:3: Why?\n- b.ts: About the removed line `old()`: Keep it",
    );
  });

  it("go to the open pull request, else to the task that runs, else nowhere with the reason", () => {
    const request = { id: "pul_1", state: "open", commit: "c" } as const;
    expect(chooseRecipient("completed", request)).toEqual({ to: "review", pullRequest: "pul_1", commit: "c" });
    expect(chooseRecipient("running", null)).toEqual({ to: "task" });
    expect(chooseRecipient("completed", { ...request, state: "merged" })).toEqual({
      to: null,
      reason: "The pull request is merged: ask for a new task",
    });
  });
});

describe("changed files", () => {
  it("are a tree whose lonely directories are one row", () => {
    const rows = toTreeRows([{ path: "src/a/b/x.ts" }, { path: "src/a/b/y.ts" }, { path: "README.md" }]);
    expect(rows.map((row) => `${" ".repeat(row.depth)}${row.name}`)).toEqual([
      "src/a/b",
      " x.ts",
      " y.ts",
      "README.md",
    ]);
  });

  it("have colours for comments, strings and words of the language, and none where nothing is known", () => {
    expect(colourLine('let a = "if"; // if', patternOf("x.rs"))).toEqual([
      { text: "let", tone: "keyword" },
      { text: " a = ", tone: "plain" },
      { text: '"if"', tone: "string" },
      { text: "; ", tone: "plain" },
      { text: "// if", tone: "comment" },
    ]);
    expect(colourLine("if # x", patternOf("README.md"))).toEqual([{ text: "if # x", tone: "plain" }]);
  });
});

describe("the inbox", () => {
  const item: InboxItem = {
    id: "apr_1",
    kind: "call",
    title: "",
    text: "",
    since: at(10),
    actions: [],
    blocked_tasks: 0,
    blocked_units: 0,
    task_id: "tsk_1",
    project_id: "prj_1",
  };
  const decision = (part: Partial<Decision>): Decision => ({
    kind: "approval.decided",
    actor: "usr_2",
    at: at(11),
    project: null,
    task: null,
    data: { approval_id: "apr_1", approved: false },
    ...part,
  });

  it("finds who decided an item, and not who decided another one or earlier", () => {
    const own = decision({});
    expect(findDecision(item, [own, decision({ data: { approval_id: "apr_2" } })])).toBe(own);
    expect(findDecision(item, [decision({ at: at(9) })])).toBeNull();
    const plan = { ...item, id: "wai_1", kind: "plan" as const };
    const approved = decision({ kind: "task.instructed", task: "tsk_1", data: { kind: "approved" } });
    expect(findDecision(plan, [decision({}), approved])).toBe(approved);
    expect([own, approved].map(describeDecision)).toEqual(["denied this call", "approved this plan"]);
  });

  it("says who else looks", () => {
    expect([[], ["Ada"], ["Ada", "Ben", "Cy"]].map(describeViewers)).toEqual([
      null,
      "Ada looks at this too.",
      "Ada, Ben and Cy look at this too.",
    ]);
  });
});

describe("an estimate", () => {
  it("says from how many tasks it comes, or that nothing is known", () => {
    const range = { p50: 420_000, p90: 1_900_000 };
    const known = { basis: "project", samples: 12, cost_micros: range, seconds: { p50: 340, p90: 1800 } } as const;
    expect(describeEstimate(known, "USD")).toBe(
      "About $0.42 and 5 m 40 s; nine of ten stay below $1.90 and 30 m. From 12 tasks of this project.",
    );
    expect(describeEstimate({ basis: "unknown", samples: 1 }, "USD")).toBe(
      "Unknown: fewer than three tasks have been done.",
    );
  });
});

describe("an event of a job", () => {
  it("makes only what shows jobs old, and what a job left when it succeeded", () => {
    const event = { kind: "job.changed", task_id: "tsk_1" };
    expect(staleKeys({ ...event, data: { state: "running", checks: false } })).toEqual([["task", "tsk_1", "timeline"]]);
    expect(staleKeys({ ...event, data: { state: "failed", checks: true } })).toEqual([
      ["task", "tsk_1", "timeline"],
      ["task", "tsk_1", "evidence"],
    ]);
    expect(staleKeys({ ...event, data: { state: "succeeded", checks: false } })).toEqual([
      ["task", "tsk_1", "timeline"],
      ["task", "tsk_1", "diff"],
      ["task", "tsk_1", "artifacts"],
    ]);
  });
});

describe("replays of a decision", () => {
  const decision = {
    step: 0,
    kind: "classify",
    prompt_digest: "",
    schema_digest: "",
    model: "cynodeai.fast",
    output: { class: "quick_fix" },
    attempts: 2,
    input_tokens: 1200,
    output_tokens: 30,
    latency_ms: 1500,
  };
  const replay = (part: Partial<Replay>): Replay => ({
    replay_id: "rpl_1",
    handoff_id: "hof_1",
    step: 0,
    state: "answered",
    user_id: "usr_1",
    model: "large",
    created_at: at(1),
    ...part,
  });

  it("can be asked of the recorded model, of tiers and of the models of the project", () => {
    const model = (id: string, part: { enabled?: boolean; project_id?: string; tier?: string } = {}) => ({
      id,
      title: `Model ${id}`,
      enabled: true,
      ...part,
    });
    const models = [
      model("a", { tier: "fast" }),
      model("b", { tier: "deep", project_id: "prj_2" }),
      model("c", { tier: "deep", enabled: false }),
      model("d", { project_id: "prj_1" }),
    ];
    expect(listReplayModels(models, "prj_1", "cynodeai.fast").map((option) => option.value)).toEqual(["", "a", "d"]);
    expect(listReplayModels(models, "prj_2", "a").map((option) => option.value)).toEqual([
      "",
      "cynodeai.deep",
      "cynodeai.fast",
      "b",
    ]);
  });

  it("stand beside the recorded decision, and what is not known is a dash", () => {
    const replays = { decision, cost_micros: 1000, prompt_held: true, replays: [] };
    const rows = compareFigures(replays, replay({ state: "failed", error: "away" }), "USD");
    expect(rows.map((row) => [row.name, row.recorded, row.replay])).toEqual([
      ["Model", "cynodeai.fast", "large"],
      ["Answered by", "not recorded", "–"],
      ["State", "Answered", "Failed"],
      ["Cost", "$0.001", "–"],
      ["Took", "1 s", "–"],
      ["Tokens in", "1,200", "–"],
      ["Tokens out", "30", "–"],
      ["Asked", "2 times", "once"],
    ]);
  });

  it("say in a sentence what came of them", () => {
    const difference = { path: "/class", original: "quick_fix", replay: "feature_request" };
    expect(describeReplay(replay({ is_same: true }))).toBe("The answer is the recorded one, field by field.");
    expect(describeReplay(replay({ is_same: false, differences: [difference] }))).toBe(
      "The answer differs in one field.",
    );
    expect(describeReplay(replay({ state: "invalid" }))).toBe("The answer is not of the form that was asked for.");
    expect([undefined, "a", { b: 1 }].map(writeAnswerValue)).toEqual(["", "a", '{\n  "b": 1\n}']);
  });
});

describe("an item of the inbox", () => {
  it("says in one line what stands still and what it is about, without the keys of units", () => {
    const plan = "1. Write the API (api)\n2. Write the page (ui), after api\nTaken for granted: the port is free";
    const held = { blocked_tasks: 2, blocked_units: 1 };
    expect([
      describeItem({ kind: "plan", text: plan, blocked_tasks: 1, blocked_units: 2 }),
      describeItem({ kind: "plan", text: "May the plan be carried out?\n- yes", ...held }),
      describeItem({ kind: "question", text: "Which?\n1. a (b)", blocked_tasks: 1, blocked_units: 0 }),
    ]).toEqual([
      "2 units wait · Write the API, Write the page",
      "2 tasks stand still · 1 unit waits · May the plan be carried out?",
      "Which?",
    ]);
  });
});
