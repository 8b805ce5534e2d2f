// Answers of the interface for a task that is much larger than any that a proof can wait for, in the forms of the real ones.

export const SIZES = { units: 200, events: 5000, logLines: 200_000, files: 300 };
const LINES_PER_EVENT = 20;
const LINES_PER_FILE = 60;
const START = Date.parse("2026-01-01T00:00:00Z");
const at = (seconds) => new Date(START + seconds * 1000).toISOString();
const id = (prefix, number) => `${prefix}_${number.toString(16).padStart(32, "0")}`;
export const LARGE_JOB = id("job", 1);

/** A timeline with so many units, jobs, steps and waits. */
export function makeTimeline(real) {
  const units = Array.from({ length: SIZES.units }, (_, index) => ({
    key: `unit-${index}`,
    title: `Unit ${index} changes a part of the program`,
    depends_on: index < 5 ? [] : [`unit-${index - 5}`, ...(index % 7 === 0 ? [`unit-${index - 3}`] : [])],
    state: "done",
    attempts: 1 + (index % 3),
    findings: [],
    job: { attempt: 1 + (index % 3), state: "succeeded", collected: true },
  }));
  const jobs = Array.from({ length: SIZES.units * 2 }, (_, index) => ({
    job_id: id("job", index + 1),
    unit: `unit-${index % SIZES.units}`,
    attempt: 1 + Math.floor(index / SIZES.units),
    state: index % 9 === 0 ? "failed" : "succeeded",
    worker: id("nod", 1),
    queued_at: at(index * 20),
    started_at: at(index * 20 + 2),
    ended_at: at(index * 20 + 60),
  }));
  const others = SIZES.events - jobs.length * 3;
  const steps = Array.from({ length: Math.floor(others * 0.6) }, (_, index) => ({
    sequence: index + 1,
    node: ["load_task_context", "plan", "dispatch", "collect", "verify"][index % 5],
    verdict: "pass",
    attempt: 1,
    actor: "runner",
    duration_ms: 800,
    cost_micros: 120,
    at: at(index * 4),
  }));
  const waits = Array.from({ length: Math.floor(others * 0.2) }, (_, index) => ({
    wait_id: id("wai", index + 1),
    reason: index % 2 === 0 ? "job" : "agent",
    owner: index % 2 === 0 ? "worker" : "operator",
    opened_at: at(index * 10),
    resolved_at: at(index * 10 + 8),
    resolution: "woken",
  }));
  const { stalls, ...rest } = real;
  return { ...rest, state: "completed", standing: "completed", summary: "Done.", cost_micros: 1_000_000, units, jobs, steps, waits };
}

/** A page of a log of so many lines. */
export function makeLogPage(from, limit) {
  const count = SIZES.logLines / LINES_PER_EVENT;
  const items = [];
  for (let number = from; number < Math.min(from + limit, count); number += 1) {
    const lines = Array.from({ length: LINES_PER_EVENT }, (_, line) => `line ${number * LINES_PER_EVENT + line}: compiling module ${line} of the program`);
    const stream = { text: `${lines.join("\n")}\n`, stream: "stdout" };
    items.push({ number, at: at(number), at_ms: number * 10, event: "output", data: stream });
  }
  return { items };
}

const pathOf = (index) => `src/part-${index % 12}/module-${index}.ts`;

function fileDiff(index) {
  const path = pathOf(index);
  const lines = Array.from({ length: LINES_PER_FILE }, (_, line) => (line % 3 === 0 ? `+const added${line} = compute(${index}, ${line});` : ` const kept${line} = ${line};`));
  const added = lines.filter((line) => line.startsWith("+")).length;
  return `diff --git a/${path} b/${path}\nindex 9dec4ee..a1ae611 100644\n--- a/${path}\n+++ b/${path}\n@@ -1,${LINES_PER_FILE - added} +1,${LINES_PER_FILE} @@\n${lines.join("\n")}\n`;
}

/** The changes of so many files; the text of one, or of all. */
export function makeDiff(path) {
  const commits = { base: "3edbffb9ffc2329bab70c2996592547276b3bb8d", head: "ab054449ec951c63b1419120107c3f8bc77cb83c" };
  const indexes = Array.from({ length: SIZES.files }, (_, index) => index);
  const files = indexes.map((index) => ({ path: pathOf(index), insertions: LINES_PER_FILE / 3, deletions: 0 }));
  const shown = path === null ? indexes : indexes.filter((index) => pathOf(index) === path);
  return {
    unit: "unit-0", attempt: 1, state: "completed", checks: 2, checks_passed: 2,
    files: { ...commits, files, truncated: false },
    diff: { ...commits, text: shown.map(fileDiff).join(""), truncated: false },
  };
}

/** Answers with the large forms in a page, for one task. */
export async function serveLarge(page, task, timeline) {
  const send = (route, body) => route.fulfill({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
  await page.route(`**/v1/tasks/${task}/timeline*`, (route) => send(route, timeline));
  await page.route(`**/v1/tasks/${task}/diff*`, (route) => send(route, makeDiff(new URL(route.request().url()).searchParams.get("path"))));
  await page.route("**/v1/jobs/*/events/stream*", (route) => {
    const from = Number(new URL(route.request().url()).searchParams.get("from") ?? 0);
    const { items } = makeLogPage(from, SIZES.logLines);
    const events = items.map((item) => `id: ${item.number}\nevent: job.event\ndata: ${JSON.stringify(item)}\n\n`).join("");
    const end = `event: job.ended\ndata: ${JSON.stringify({ job_id: LARGE_JOB, state: "succeeded" })}\n\n`;
    return route.fulfill({ status: 200, contentType: "text/event-stream", body: events + end });
  });
  await page.route(/\/v1\/jobs\/[^/]+\/events(\?|$)/, (route) => {
    const query = new URL(route.request().url()).searchParams;
    return send(route, makeLogPage(Number(query.get("from") ?? 0), Number(query.get("limit") ?? 500)));
  });
}
