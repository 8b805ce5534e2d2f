// Measures how long the pages of a very large task take for each interaction, and their memory, with Chromium and nothing else.
//
//   node --experimental-websocket scripts/measure.mjs INSTALLATION_URL NAME PASSWORD_FILE
//
// Serves dist with large-data.mjs, presses keys, scrolls and clicks as a person does, and fails above 100 ms or 300 MB. What counts is
// the processor time of the page's main thread for one interaction: other programs on the machine do not change it. The time until the
// next frame is printed beside it.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TASK } from "./large-data.mjs";
import { serve } from "./serve.mjs";

const [installation, name, passwordFile] = process.argv.slice(2);
if (!passwordFile) {
  console.error("measure.mjs INSTALLATION_URL NAME PASSWORD_FILE");
  process.exit(2);
}
const MAX_INTERACTION_MS = 100;
const MAX_HEAP_MB = 300;
const TIMEOUT_MS = 60_000;

const server = serve(0, installation);
await new Promise((resolve) => server.once("listening", resolve));
const base = `http://127.0.0.1:${server.address().port}`;
const profile = mkdtempSync(join(tmpdir(), "console-measure-"));
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"];
const browser = spawn("chromium", [...flags, `--user-data-dir=${profile}`, "about:blank"], {
  stdio: ["ignore", "ignore", "pipe"],
});
const address = await new Promise((resolve, reject) => {
  let output = "";
  browser.stderr.on("data", (data) => {
    output += data;
    const found = /DevTools listening on (ws:\/\/\S+)/.exec(output);
    if (found) resolve(found[1]);
  });
  browser.on("exit", () => reject(new Error(output)));
});
const socket = new WebSocket(address);
await new Promise((resolve) => socket.addEventListener("open", resolve, { once: true }));
const pending = new Map();
let counter = 0;
socket.addEventListener("message", ({ data }) => {
  const message = JSON.parse(data);
  const waiting = pending.get(message.id);
  if (!waiting) return;
  pending.delete(message.id);
  if (message.error) waiting.reject(new Error(JSON.stringify(message.error)));
  else waiting.resolve(message.result);
});
function send(method, params = {}, sessionId = undefined) {
  counter += 1;
  const id = counter;
  socket.send(JSON.stringify({ id, method, params, sessionId }));
  return new Promise((resolve, reject) => pending.set(id, { resolve, reject }));
}
const { targetId } = await send("Target.createTarget", { url: "about:blank" });
const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
const page = (method, params) => send(method, params, sessionId);
async function evaluate(expression) {
  const options = { expression, awaitPromise: true, returnByValue: true };
  const { result, exceptionDetails } = await page("Runtime.evaluate", options);
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
async function until(expression, what) {
  const end = Date.now() + TIMEOUT_MS;
  while (!(await evaluate(expression).catch(() => false))) {
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// From an input until the next frame is painted, in the page itself; a scroll has no event timing, so its frame is measured.
const OBSERVER = `
  window.slowest = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.slowest = Math.max(window.slowest, entry.duration);
  }).observe({ type: "event", durationThreshold: 16 });
  window.frames = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  window.scrollAndPaint = async (element, top, left) => {
    const begin = performance.now();
    element.scrollTo({ top, left });
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));
    return performance.now() - begin;
  };
`;
const figures = [];
async function readTaskTime() {
  const { metrics } = await page("Performance.getMetrics");
  return metrics.find((metric) => metric.name === "TaskDuration").value * 1000;
}
async function interact(what, times, work) {
  await evaluate("window.slowest = 0; window.frames()");
  const before = await readTaskTime();
  const painted = await work();
  await evaluate("window.frames()");
  await new Promise((resolve) => setTimeout(resolve, 300));
  const value = Math.round(((await readTaskTime()) - before) / times);
  const wall = Math.round(Math.max(await evaluate("window.slowest"), painted ?? 0));
  figures.push({ what, value, limit: MAX_INTERACTION_MS, unit: "ms", note: `, next frame after ${wall} ms` });
}
async function center(selector) {
  return evaluate(`(() => {
    const element = ${selector.startsWith("(") ? selector : `document.querySelector(${JSON.stringify(selector)})`};
    element.scrollIntoView({ block: "center" });
    const box = element.getBoundingClientRect();
    return { x: box.left + Math.min(box.width, 600) / 2, y: box.top + Math.min(box.height, 300) / 2 };
  })()`);
}
async function click(selector) {
  const point = await center(selector);
  for (const type of ["mousePressed", "mouseReleased"]) {
    await page("Input.dispatchMouseEvent", { type, ...point, button: "left", clickCount: 1 });
  }
}
async function press(key) {
  for (const type of ["keyDown", "keyUp"]) {
    const text = type === "keyDown" && key.length === 1 ? { text: key } : {};
    await page("Input.dispatchKeyEvent", { type, key, ...text });
  }
}
const scroll = (selector) => async () => {
  let slowest = 0;
  for (const part of [0.1, 0.5, 0.9, 0.3]) {
    const expression = `(() => { const e = document.querySelector(${JSON.stringify(selector)}); return scrollAndPaint(e, e.scrollHeight * ${part}, e.scrollWidth * ${part}); })()`;
    slowest = Math.max(slowest, await evaluate(expression));
  }
  return slowest;
};
async function open(tab, ready) {
  const begin = Date.now();
  await page("Page.navigate", { url: `${base}/tasks/${TASK}?tab=${tab}` });
  await until(ready, tab);
  console.log(`${tab}: on screen after ${Date.now() - begin} ms`);
  await evaluate("window.frames()");
}
async function measureHeap(what) {
  await page("HeapProfiler.collectGarbage");
  const { metrics } = await page("Performance.getMetrics");
  const bytes = metrics.find((metric) => metric.name === "JSHeapUsedSize").value;
  figures.push({ what: `${what}: heap`, value: Math.round(bytes / 2 ** 20), limit: MAX_HEAP_MB, unit: "MB" });
}

let failure = null;
try {
  for (const domain of ["Page", "Runtime"]) await page(`${domain}.enable`);
  await page("Performance.enable", { timeDomain: "threadTicks" });
  await page("Emulation.setDeviceMetricsOverride", { width: 1440, height: 900, deviceScaleFactor: 1, mobile: false });
  await page("Page.addScriptToEvaluateOnNewDocument", { source: OBSERVER });
  await page("Page.navigate", { url: base });
  await until("document.querySelector('input[type=password]') !== null", "login form");
  for (const [selector, text] of [
    ["input[autocomplete=username]", name],
    ["input[type=password]", readFileSync(passwordFile, "utf8").trim()],
  ]) {
    await evaluate(`document.querySelector(${JSON.stringify(selector)}).focus()`);
    await page("Input.insertText", { text });
  }
  await evaluate("document.querySelector('form').requestSubmit()");
  await until("document.querySelector('main') !== null", "the frame");

  await open("plan", "document.querySelector('section[aria-label^=Plan] li') !== null");
  await interact("plan of 200 units: scroll", 4, scroll("section[aria-label^=Plan]"));
  await interact("plan of 200 units: press on the map", 1, () => click("section[aria-label^=Plan] + svg"));
  await measureHeap("plan of 200 units");

  await open("timeline", "document.querySelectorAll('[aria-label=\"What happened\"] li').length > 5");
  await interact("5,000 entries: cursor over the axis", 10, async () => {
    const point = await center("[role=slider]");
    for (let x = 0; x < 400; x += 40) {
      await page("Input.dispatchMouseEvent", { type: "mouseMoved", x: point.x - 200 + x, y: point.y + 60 });
    }
  });
  await interact("5,000 entries: put the cursor", 1, () => click("[role=slider]"));
  await interact("5,000 entries: arrow key", 1, async () => {
    await evaluate("document.querySelector('[role=slider]').focus()");
    await press("ArrowRight");
  });
  await interact("5,000 entries: scroll lanes", 4, scroll("ul[aria-label=Lanes]"));
  await interact("5,000 entries: scroll entries", 4, scroll("section section[aria-label='What happened']"));
  await measureHeap("5,000 entries");

  await open("logs&job=job_1", "/198,?\\d* lines|198[,.]\\d+ lines/.test(document.body.innerText)");
  await interact("200,000 lines: scroll", 4, scroll("section[aria-label=Log]"));
  await interact("200,000 lines: type a word", 9, async () => {
    await evaluate("document.querySelector('#log-search input').focus()");
    for (const key of "module-42") await press(key);
  });
  await interact("200,000 lines: delete the word", 1, async () => {
    await evaluate("document.querySelector('#log-search input').select()");
    await press("Backspace");
  });
  const button = (words) =>
    `([...document.querySelectorAll('button')].find((it) => it.textContent.includes('${words}')))`;
  await interact("200,000 lines: fold all commands", 1, () => click(button("Fold commands")));
  await interact("200,000 lines: unfold all commands", 1, () => click(button("Unfold commands")));
  await measureHeap("200,000 lines");

  await open("changes", "document.querySelectorAll('nav[aria-label=Files] a').length > 5");
  await until("document.querySelector('section[aria-label*=\"arrow keys\"]') !== null", "the first file");
  await interact("300 files: next file", 5, async () => {
    for (let count = 0; count < 5; count += 1) await press("j");
  });
  await until("document.querySelector('section[aria-label*=\"arrow keys\"]') !== null", "the next file");
  await interact("300 files: scroll the tree", 4, scroll("nav[aria-label=Files]"));
  await interact("300 files: scroll a diff", 4, scroll("section[aria-label*='arrow keys']"));
  await interact("300 files: begin a remark", 1, () => click("button[aria-label^='Remark on line']"));
  await interact("300 files: write a remark", 9, async () => {
    for (const key of "mend this") await press(key);
  });
  await measureHeap("300 files");
} catch (error) {
  failure = error;
} finally {
  socket.close();
  browser.kill();
  await new Promise((resolve) => browser.once("exit", resolve));
  server.closeAllConnections();
  server.close();
  rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
}
for (const { what, value, limit, unit, note = "" } of figures) {
  console.log(
    `${what.padEnd(44)} ${String(value).padStart(6)} ${unit}${note}${value > limit ? `  ! above ${limit}` : ""}`,
  );
}
if (failure) console.error(`! ${failure.message}`);
process.exitCode = failure || figures.some(({ value, limit }) => value > limit) ? 1 : 0;
