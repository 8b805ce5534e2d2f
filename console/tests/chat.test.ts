import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { BuildWatch } from "../src/api/build";
import { ChatRun, type Question } from "../src/api/chat";
import { toDoctorCheck } from "../src/api/doctor";
import { staleKeys } from "../src/events/invalidate";
import {
  buildMessages,
  type ChatTurn,
  findHandoff,
  findMentionedTasks,
  readAnswerEvent,
  splitAnswer,
  sumCosts,
} from "../src/logic/chat";
import { orderChecks } from "../src/logic/doctor";

function turn(number: number, role: ChatTurn["role"], content: string, state: ChatTurn["state"] = "whole"): ChatTurn {
  return { number, role, content, state, at: "2026-11-18T06:00:00Z" };
}

test("a question is sent with the answered questions before it, and without those whose answer broke off", () => {
  const turns = [
    turn(1, "user", "one"),
    turn(2, "assistant", "first"),
    turn(3, "user", "two"),
    turn(4, "assistant", "sec", "interrupted"),
    turn(5, "user", "three"),
    turn(6, "user", "four"),
    turn(7, "assistant", "fourth"),
  ];
  expect(buildMessages(turns, "five")).toEqual([
    { role: "user", content: "one" },
    { role: "assistant", content: "first" },
    { role: "user", content: "four" },
    { role: "assistant", content: "fourth" },
    { role: "user", content: "five" },
  ]);
});

test("a long conversation is sent without its oldest turns, and always in whole pairs", () => {
  const many = Array.from({ length: 300 }, (_, index) => turn(index, index % 2 ? "assistant" : "user", `${index}`));
  const sent = buildMessages(many, "now");
  expect([sent.length, sent[0], sent.at(-1)]).toEqual([
    121,
    { role: "user", content: "180" },
    { role: "user", content: "now" },
  ]);
  const large = Array.from({ length: 6 }, (_, index) =>
    turn(index, index % 2 ? "assistant" : "user", `${index}`.repeat(60_000)),
  );
  expect(buildMessages(large, "now").map((message) => message.content[0])).toEqual(["4", "5", "n"]);
});

test("an answer is split into prose, headings, code and calls", () => {
  const text = "# Title\n\nOne\ntwo\n\n› db.task.create …\nThree\n```sh\nls\n\n# no heading\n```\nEnd";
  expect(splitAnswer(text)).toEqual([
    { kind: "heading", text: "Title" },
    { kind: "prose", text: "One\ntwo" },
    { kind: "call", text: "db.task.create" },
    { kind: "prose", text: "Three" },
    { kind: "code", text: "ls\n\n# no heading" },
    { kind: "prose", text: "End" },
  ]);
});

test("a block that is followed by another one never changes while the answer grows", () => {
  const text = "First **x**\n\n- a\n- b\n\n```\ncode\n```\n\n› web.fetch …\n\n## Next\nlast words";
  const whole = splitAnswer(text);
  for (let length = 1; length <= text.length; length += 1) {
    const blocks = splitAnswer(text.slice(0, length));
    expect(blocks.slice(0, -1)).toEqual(whole.slice(0, Math.max(0, blocks.length - 1)));
  }
});

test("code whose end has not arrived is code, and its markup is nothing else", () => {
  expect(splitAnswer("```html\n<script>")).toEqual([{ kind: "code", text: "<script>" }]);
});

test("tasks are mentioned by their identifier, by a name as code, and by a name that is no common word", () => {
  const known = [
    { id: "tsk_a", name: "dark-mode" },
    { id: "tsk_b", name: "greeting" },
    { id: "tsk_c", name: "mode" },
  ];
  const id = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
  expect(findMentionedTasks(`See ${id}, then dark-mode, then \`greeting\`, and ${id} again.`, known)).toEqual([
    id,
    "tsk_a",
    "tsk_b",
  ]);
  expect(findMentionedTasks("The greeting of very-dark-mode and dark-mode-2 and a/dark-mode.", known)).toEqual([]);
});

test("the handoff of a question is the nearest one in time", () => {
  const handoff = (id: string, created_at: string) => ({ handoff_id: id, trace_id: id, created_at });
  const handoffs = [handoff("b", "2026-11-18T06:00:02Z"), handoff("a", "2026-11-18T06:00:00.300Z")];
  expect(findHandoff(handoffs, "2026-11-18T06:00:00Z")?.handoff_id).toBe("a");
  expect(findHandoff(handoffs, "2026-11-18T06:01:00Z")).toBeNull();
});

test("an answer costs what all calls of its trace cost", () => {
  const call = (trace_id: string, cost_micros: number, provider: string) => ({ trace_id, cost_micros, provider });
  const costs = sumCosts([call("t", 300, "a"), call("t", 200, "b"), call("u", 1, "a"), call("t", 1, "a")]);
  expect([...costs]).toEqual([
    ["t", { micros: 501, providers: ["a", "b"] }],
    ["u", { micros: 1, providers: ["a"] }],
  ]);
});

test("an event of an answer is text, its end or its failure", () => {
  const events = [
    '{"choices":[{"delta":{"content":"Hel"}}]}',
    '{"choices":[],"usage":{}}',
    '{"error":{"message":"no more"}}',
    "[DONE]",
    "{",
  ];
  expect(events.map(readAnswerEvent)).toEqual([
    { text: "Hel", failure: null, ended: false },
    { text: "", failure: null, ended: false },
    { text: "", failure: "no more", ended: false },
    { text: "", failure: null, ended: true },
    { text: "", failure: "The answer cannot be read.", ended: false },
  ]);
});

const QUESTION: Question = {
  thread: null,
  project: "prj_1",
  text: "hi",
  messages: [{ role: "user", content: "hi" }],
  before: [],
};

/** Answers with these pieces, and then as `end` says. */
function answerWith(pieces: string[], end: "close" | "hang") {
  return (_: unknown, { signal }: { signal: AbortSignal }) => {
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (const piece of pieces) controller.enqueue(new TextEncoder().encode(piece));
        if (end === "close") controller.close();
        else signal.addEventListener("abort", () => controller.error(new DOMException("aborted", "AbortError")));
      },
    });
    return Promise.resolve(new Response(body, { headers: { "x-trace-id": "abc" } }));
  };
}

const delta = (text: string) => `data: ${JSON.stringify({ choices: [{ delta: { content: text } }] })}\n\n`;

beforeEach(() => {
  vi.stubGlobal("requestAnimationFrame", (callback: () => void) => {
    callback();
    return 0;
  });
  vi.stubGlobal("cancelAnimationFrame", () => undefined);
});
afterEach(() => vi.unstubAllGlobals());

test("an answer grows piece by piece, and ends with its end only", async () => {
  vi.stubGlobal("fetch", answerWith([delta("Hel"), delta("lo"), "data: [DONE]\n\n"], "close"));
  const run = new ChatRun(QUESTION);
  const texts: string[] = [];
  run.subscribe(() => texts.push(run.read().text));
  const onBegun = vi.fn();
  await run.ask(onBegun);
  expect(run.read()).toEqual({ state: "done", text: "Hello", error: null });
  expect(texts.filter((text, index) => text !== texts[index - 1])).toEqual(["", "Hel", "Hello"]);
  expect(onBegun).toHaveBeenCalledTimes(1);
});

test("an answer that breaks off keeps its words and says so", async () => {
  vi.stubGlobal("fetch", answerWith([delta("Hel")], "close"));
  const run = new ChatRun(QUESTION);
  await run.ask(() => undefined);
  const { state, text, error } = run.read();
  expect([state, text, error?.message, error?.traceId]).toEqual(["failed", "Hel", "The answer broke off.", "abc"]);
});

test("a stopped answer is stopped, not failed", async () => {
  vi.stubGlobal("fetch", answerWith([delta("Hel")], "hang"));
  const run = new ChatRun(QUESTION);
  run.subscribe(() => {
    if (run.read().text === "Hel") run.stop();
  });
  await run.ask(() => undefined);
  expect(run.read()).toEqual({ state: "stopped", text: "Hel", error: null });
});

test("a refusal in the form of the dialect is a problem with its words", async () => {
  const body = JSON.stringify({ error: { message: "there is no such model", code: "model_not_found" } });
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(body, { status: 404 })));
  const run = new ChatRun(QUESTION);
  await run.ask(() => undefined);
  const { state, error } = run.read();
  expect([state, error?.status, error?.code, error?.message]).toEqual([
    "failed",
    404,
    "model_not_found",
    "there is no such model",
  ]);
});

test("an answer in a conversation makes conversations old, a handoff of a task does not", () => {
  const others = [["project", "p"], ["schedules"]];
  expect(staleKeys({ kind: "handoff.ended", project_id: "p" })).toEqual([["usage"], ["chat"], ...others]);
  expect(staleKeys({ kind: "handoff.ended", project_id: "p", task_id: "t" })).toEqual([
    ["task", "t"],
    ["usage"],
    ...others,
  ]);
});

test("a page is outdated when the server has another build, and tells other tabs once", () => {
  const shared: string[] = [];
  const watch = new BuildWatch((build) => shared.push(build));
  const outdated: boolean[] = [];
  watch.subscribe(() => outdated.push(watch.isOutdated()));
  for (const build of [null, "a", "a", null, "b", "b"]) watch.note(build);
  expect([outdated, shared]).toEqual([
    [false, true],
    ["a", "b"],
  ]);
});

test("a build of another tab is no word about a page that has heard of none", () => {
  const watch = new BuildWatch();
  watch.note("b", true);
  expect(watch.isOutdated()).toBe(false);
  watch.note("a");
  watch.note("b", true);
  expect(watch.isOutdated()).toBe(true);
});

test("checks that stop all work come first, good ones last", () => {
  const check = (name: string, status: "ok" | "warning" | "failed", blocks_work = false) =>
    toDoctorCheck({ name, status, detail: "", blocks_work });
  const checks = [check("a", "ok"), check("b", "warning"), check("c", "failed"), check("d", "failed", true)];
  expect(orderChecks(checks).map((it) => it.name)).toEqual(["d", "c", "b", "a"]);
});
