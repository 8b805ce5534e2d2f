// Smoke test and pictures of an installation that serves the console, with Chromium and nothing else.
//
//   node --experimental-websocket scripts/screens.mjs URL NAME PASSWORD_FILE DIRECTORY [PATH...]
//   node --experimental-websocket scripts/screens.mjs --docs URL NAME PASSWORD_FILE [DIRECTORY]
//
// Logs in through the form, opens each path at four widths in both themes, writes a picture of each, and fails when a page logs an error,
// breaks the content security policy, or is wider than the window. Without paths it goes through every route of src/router.tsx, with the
// newest task and the newest project. WIDTHS and THEMES choose others. `--docs` writes the twelve pictures of the documentation as small
// WebP files, to docs/pictures unless a directory is given.
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const isForDocs = process.argv[2] === "--docs";
const [base, name, passwordFile, givenDirectory, ...wanted] = process.argv.slice(isForDocs ? 3 : 2);
const directory = givenDirectory ?? (isForDocs ? join(import.meta.dirname, "../../docs/pictures") : undefined);
if (!directory || !passwordFile) {
  console.error("screens.mjs [--docs] URL NAME PASSWORD_FILE DIRECTORY [PATH...]");
  process.exit(2);
}
const WIDTHS = (process.env.WIDTHS ?? "390,768,1280,1920").split(",").map(Number);
const THEMES = (process.env.THEMES ?? "light,dark").split(",");
const HEIGHT = 900;
const TIMEOUT_MS = 15_000;
const TASK_TABS = ["overview", "plan", "timeline", "logs", "changes", "evidence", "decisions"];
/** The pictures of the documentation: name, path, width and theme. */
const DOCS_PICTURES = [
  ["inbox", "/", 1280, "light"],
  ["inbox-dark", "/", 1280, "dark"],
  ["inbox-phone", "/", 390, "light"],
  ["task", "/tasks/$task", 1280, "light"],
  ["task-timeline", "/tasks/$task?tab=timeline", 1280, "dark"],
  ["task-changes", "/tasks/$task?tab=changes", 1280, "light"],
  ["task-evidence", "/tasks/$task?tab=evidence", 1280, "light"],
  ["tools", "/tools", 1280, "light"],
  ["rules", "/tools/rules", 1280, "dark"],
  ["audit", "/audit", 1280, "light"],
  ["spend", "/spend", 1280, "light"],
  ["chat", "/chat", 1280, "dark"],
];
const problems = [];

/** Every route, with an address for each tab of a task. */
function readPaths() {
  const router = readFileSync(join(import.meta.dirname, "../src/router.tsx"), "utf8");
  const routes = [...router.matchAll(/^ {2}path: "([^"]+)"/gm)].map((found) => found[1]);
  return routes.flatMap((path) => (path === "/tasks/$task" ? TASK_TABS.map((tab) => `${path}?tab=${tab}`) : [path]));
}

const profile = mkdtempSync(join(tmpdir(), "console-screens-"));
const browser = spawn(
  "chromium",
  [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-port=0",
    `--user-data-dir=${profile}`,
    "about:blank",
  ],
  {
    stdio: ["ignore", "ignore", "pipe"],
  },
);
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
const listeners = new Set();
let counter = 0;
socket.addEventListener("message", ({ data }) => {
  const message = JSON.parse(data);
  if (message.id === undefined) for (const listener of listeners) listener(message);
  else {
    const { resolve, reject } = pending.get(message.id);
    pending.delete(message.id);
    if (message.error) reject(new Error(JSON.stringify(message.error)));
    else resolve(message.result);
  }
});
function send(method, params = {}, sessionId = undefined) {
  counter += 1;
  socket.send(JSON.stringify({ id: counter, method, params, sessionId }));
  return new Promise((resolve, reject) => pending.set(counter, { resolve, reject }));
}

const { targetId } = await send("Target.createTarget", { url: "about:blank" });
const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
const page = (method, params) => send(method, params, sessionId);
const evaluate = async (expression) => {
  const { result, exceptionDetails } = await page("Runtime.evaluate", {
    expression,
    awaitPromise: true,
    returnByValue: true,
  });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
};
async function until(expression, what) {
  const end = Date.now() + TIMEOUT_MS;
  while (!(await evaluate(expression).catch(() => false))) {
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
let place = "login";
let taken = 0;
listeners.add(({ method, params }) => {
  if (method === "Runtime.exceptionThrown")
    problems.push(`${place}: ${params.exceptionDetails.exception?.description ?? params.exceptionDetails.text}`);
  if (method === "Runtime.consoleAPICalled" && params.type === "error")
    problems.push(`${place}: ${params.args.map((it) => it.value ?? it.description).join(" ")}`);
  if (method === "Log.entryAdded" && params.entry.source === "security")
    problems.push(`${place}: ${params.entry.text}`);
});
await page("Page.enable");
await page("Runtime.enable");
await page("Log.enable");

const settled = "document.querySelector('main, form') !== null && document.querySelector('[aria-busy=true]') === null";
async function open(path) {
  await page("Page.navigate", { url: new URL(path, base).href });
  await until(`document.readyState === 'complete' && ${settled}`, path);
  await new Promise((resolve) => setTimeout(resolve, 500));
  await until(settled, path);
}
async function picture(file) {
  const format = file.endsWith(".webp") ? { format: "webp", quality: 70 } : { format: "png" };
  const { data } = await page("Page.captureScreenshot", format);
  writeFileSync(join(directory, file), Buffer.from(data, "base64"));
}

try {
  mkdirSync(directory, { recursive: true });
  await page("Emulation.setDeviceMetricsOverride", {
    width: 1440,
    height: HEIGHT,
    deviceScaleFactor: 1,
    mobile: false,
  });
  await open("/");
  await until("document.querySelector('input[type=password]') !== null", "login form");
  if (!isForDocs) await picture("login.png");
  const type = async (selector, text) => {
    await evaluate(`document.querySelector(${JSON.stringify(selector)}).focus()`);
    await page("Input.insertText", { text });
  };
  await type("input[autocomplete=username]", name);
  await type("input[type=password]", readFileSync(passwordFile, "utf8").trim());
  await evaluate("document.querySelector('form').requestSubmit()");
  await until("document.querySelector('main') !== null", "the frame after the login");
  await until("document.body.innerText.includes('live')", "the event stream");
  const newest = (list) =>
    evaluate(`fetch("/v1/${list}?limit=1").then((it) => it.json()).then((it) => it.items[0]?.id)`);
  const [task, project] = [await newest("tasks"), await newest("projects")];
  const fill = (path) => path.replace("$task", task).replace("$project", project);
  const shots = isForDocs
    ? DOCS_PICTURES.map(([title, path, width, theme]) => ({ file: `${title}.webp`, path: fill(path), width, theme }))
    : THEMES.flatMap((theme) =>
        WIDTHS.flatMap((width) =>
          (wanted.length > 0 ? wanted : readPaths()).map((path) => {
            const title = path.replaceAll(/[^a-z0-9]+/gi, "-").replace(/^-|-$/g, "") || "inbox";
            return { file: `${title}-${width}-${theme}.png`, path: fill(path), width, theme };
          }),
        ),
      );
  for (const { file, path, width, theme } of shots) {
    await page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: theme }] });
    const metrics = { width, height: width < 640 ? 844 : HEIGHT, deviceScaleFactor: 1, mobile: width < 640 };
    await page("Emulation.setDeviceMetricsOverride", metrics);
    place = `${path} at ${width} px, ${theme}`;
    await open(path);
    const wide = await evaluate(
      "Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth)",
    );
    if (wide > width) problems.push(`${place}: ${wide} px wide`);
    await picture(file);
    taken += 1;
  }
} catch (error) {
  problems.push(`${place}: ${error.message}`);
  await picture("failure.png").catch(() => undefined);
} finally {
  socket.close();
  browser.kill();
  await new Promise((resolve) => browser.once("exit", resolve));
  rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
}
for (const problem of problems) console.error(`! ${problem}`);
console.log(`${taken} pictures, ${problems.length} problems`);
process.exitCode = problems.length > 0 ? 1 : 0;
