// Answers of the API about a task that is larger than any real one: 200 units, 5,000 entries of a timeline, 5,000 model calls, a log of
// 200,000 lines and a diff of 300 files.

export const TASK = "tsk_large";
const PROJECT = "prj_large";
const UNITS = 200;
const STEPS = 1000;
const JOBS = 1000;
const WAITS = 1000;
const CALLS = 5000;
const FILES = 300;
const LOG_EVENTS = 20_000;
const LINES_PER_EVENT = 10;
const BEGIN = Date.now() - 9_200_000;
const at = (seconds) => new Date(BEGIN + seconds * 1000).toISOString();
const range = (count, make) => Array.from({ length: count }, (_, index) => make(index));

const unitKey = (index) => `unit-${String(index).padStart(3, "0")}`;

const task = {
  id: TASK,
  project_id: PROJECT,
  name: "move-everything",
  description: "Move every module to the new layout",
  acceptance_criteria: [{ text: "npm test", check: { argv: ["npm", "test"] } }],
  budget: { max_cost_micros: 90_000_000 },
  created_at: at(0),
  created_by: "usr_1",
  updated_at: at(9000),
  depends_on: [],
  state: "running",
  started_at: at(0),
};

const units = range(UNITS, (index) => ({
  key: unitKey(index),
  title: `Move module ${index} to the new layout and mend what imports it`,
  depends_on: index < 8 ? [] : [unitKey(index - 8), ...(index % 5 === 0 ? [unitKey(index - 5)] : [])],
  attempts: 1 + (index % 3),
  findings: [],
  state: index < 120 ? "done" : index < 128 ? "dispatched" : "pending",
}));

const NODES = ["plan_steps", "dispatch_step", "collect_result", "verify_step_result"];

const timeline = {
  task_id: TASK,
  run_id: "run_large",
  trace_id: "0".repeat(32),
  state: "running",
  node: "collect_result",
  standing: "waits for work",
  retries_used: 12,
  cost_micros: 41_000_000,
  mermaid: "",
  plan_mermaid: "",
  stalls: [],
  units,
  steps: range(STEPS, (index) => ({
    sequence: index,
    node: NODES[index % NODES.length],
    verdict: index % 17 === 0 ? "redo" : "pass",
    attempt: 1,
    actor: index < 600 ? "runner-1" : "runner-2",
    duration_ms: 3000,
    cost_micros: 40_000,
    unit: unitKey(index % UNITS),
    note:
      index % 3 === 0 ? `The result of module ${index % UNITS} imports what is gone: \`src/old/${index}.ts\`` : null,
    at: at(index * 9),
  })),
  jobs: range(JOBS, (index) => ({
    job_id: `job_${index}`,
    unit: unitKey(index % UNITS),
    attempt: 1 + Math.floor(index / UNITS),
    state: index === 400 ? "lost" : index >= JOBS - 8 ? "running" : index % 19 === 0 ? "failed" : "succeeded",
    worker: `nod_${index % 4}`,
    queued_at: at(index * 8.5),
    started_at: at(index * 8.5 + 20),
    ended_at: index >= JOBS - 8 ? null : at(index * 8.5 + 300),
  })),
  waits: range(WAITS, (index) => ({
    wait_id: `wai_${index}`,
    reason: index % 2 === 0 ? "human_input" : "approval",
    owner: "person",
    question: `May module ${index} be deleted?`,
    opened_at: at(index * 9),
    resolved_at: at(index * 9 + 4),
    resolution: "answered",
    answer: "yes",
  })),
};

const calls = range(CALLS, (index) => ({
  call_id: `cal_${CALLS - index}`,
  at: at((CALLS - index) * 1.8),
  user_id: "usr_1",
  trace_id: "",
  model: "standard",
  provider: "sample",
  outcome: "answered",
  basis: "reported",
  input_tokens: 4000,
  cached_tokens: 0,
  output_tokens: 200,
  reasoning_tokens: 0,
  cost_micros: 8200,
  redactions: 0,
  duration_ms: 900,
}));

const files = range(FILES, (index) => ({
  path: `packages/part-${index % 12}/src/area-${index % 5}/module-${index}.ts`,
  insertions: 220,
  deletions: 120,
}));

function diffOf(path) {
  const lines = [`diff --git a/${path} b/${path}`, `--- a/${path}`, `+++ b/${path}`];
  for (let hunk = 0; hunk < 20; hunk += 1) {
    const start = hunk * 40 + 1;
    lines.push(`@@ -${start},17 +${start},22 @@ export function part${hunk}() {`);
    for (let line = 0; line < 11; line += 1) lines.push(` const kept${line} = read("${path}", ${line}); // unchanged`);
    for (let line = 0; line < 6; line += 1) lines.push(`-import { old${line} } from "../old/${hunk}";`);
    for (let line = 0; line < 11; line += 1)
      lines.push(`+export const next${line} = await load(\`new-${hunk}\`, { line: ${line} });`);
  }
  return `${lines.join("\n")}\n`;
}

function logEvents(from, limit) {
  return range(Math.max(0, Math.min(limit, LOG_EVENTS - from)), (offset) => {
    const number = from + offset;
    if (number % 100 === 0) {
      const data = {
        call: `step-${number}`,
        title: `npm test -- part-${number / 100}`,
        status: "completed",
        input: null,
      };
      return { number, at: at(0), at_ms: number * 15, event: "tool", data };
    }
    const text = range(
      LINES_PER_EVENT,
      (line) =>
        `\u001b[32mok\u001b[0m ${number * LINES_PER_EVENT + line} src/module-${number % 97}.test.ts keeps its promise number ${line}\n`,
    ).join("");
    return { number, at: at(0), at_ms: number * 15, event: "output", data: { stream: "stdout", text } };
  });
}

/** Returns the answer to a request about the large task; undefined when it is about something else. */
export function answer(url) {
  const { pathname, searchParams } = url;
  const base = `/v1/tasks/${TASK}`;
  if (pathname === base) return task;
  if (pathname === `${base}/timeline`) return timeline;
  if (pathname === `${base}/diff`) {
    const path = searchParams.get("path");
    const head = { base: "b".repeat(40), head: "a".repeat(40) };
    const diff = path
      ? { ...head, text: diffOf(path), truncated: false }
      : {
          ...head,
          text: files
            .slice(0, 30)
            .map((file) => diffOf(file.path))
            .join(""),
          truncated: true,
        };
    return {
      state: "running",
      unit: unitKey(119),
      attempt: 1,
      checks: 3,
      checks_passed: 3,
      files: { ...head, files, truncated: false },
      diff,
    };
  }
  if (pathname === `${base}/evidence`) return { evidence: [], base: null, feedback: {} };
  if (pathname === `${base}/reports` || pathname === `${base}/artifacts`) return { items: [] };
  if (pathname === `${base}/park`) return null;
  if (pathname === `/v1/projects/${PROJECT}`) return { id: PROJECT, slug: "large", title: "Large" };
  if (pathname === `/v1/projects/${PROJECT}/handoffs`) return { items: [] };
  if (pathname === "/v1/usage/calls" && searchParams.get("task_id") === TASK) {
    const from = Number(searchParams.get("cursor") ?? 0);
    const limit = Number(searchParams.get("limit") ?? 50);
    const next = from + limit;
    return { items: calls.slice(from, next), next_cursor: next < CALLS ? String(next) : null };
  }
  if (pathname === "/v1/budgets" && searchParams.get("scope_id") === TASK) {
    const status = { spent_micros: 41_000_000, reserved_micros: 6_000_000, spent_tokens: 0, reserved_tokens: 0 };
    return {
      items: [
        {
          budget_id: "bud_1",
          scope_type: "task",
          scope_id: TASK,
          period: "total",
          since: at(0),
          max_cost_micros: 90_000_000,
          ...status,
        },
      ],
    };
  }
  const job = /^\/v1\/jobs\/job_\d+\/events$/.exec(pathname);
  if (job) return { items: logEvents(Number(searchParams.get("from") ?? 0), Number(searchParams.get("limit") ?? 200)) };
  return undefined;
}
