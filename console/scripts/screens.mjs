// Smoke test and pictures of an installation that serves the console, with Chromium and nothing else.
//
//   node --experimental-websocket scripts/screens.mjs URL NAME PASSWORD_FILE DIRECTORY [PATH...]
//
// Logs in through the form, opens each path at 390 and 1440 px in both themes, writes a picture of each, and fails when a page logs an
// error, breaks the content security policy, or is wider than the window.
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [base, name, passwordFile, directory, ...wanted] = process.argv.slice(2);
if (!directory) {
  console.error("screens.mjs URL NAME PASSWORD_FILE DIRECTORY [PATH...]");
  process.exit(2);
}
const WIDTHS = (process.env.WIDTHS ?? "390,1440").split(",").map(Number);
const THEMES = (process.env.THEMES ?? "light,dark").split(",");
const HEIGHT = 900;
const TIMEOUT_MS = 15_000;
const paths = wanted.length > 0 ? wanted : ["/", "/tasks", "/tasks/new", "/projects", "/nodes", "/models", "/spend"];
const problems = [];

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
  const { data } = await page("Page.captureScreenshot", { format: "png" });
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
  await picture("login.png");
  const type = async (selector, text) => {
    await evaluate(`document.querySelector(${JSON.stringify(selector)}).focus()`);
    await page("Input.insertText", { text });
  };
  await type("input[autocomplete=username]", name);
  await type("input[type=password]", readFileSync(passwordFile, "utf8").trim());
  await evaluate("document.querySelector('form').requestSubmit()");
  await until("document.querySelector('main') !== null", "the frame after the login");
  await until("document.body.innerText.includes('live')", "the event stream");
  for (const theme of THEMES) {
    await page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: theme }] });
    for (const width of WIDTHS) {
      const metrics = { width, height: width < 640 ? 844 : HEIGHT, deviceScaleFactor: 1, mobile: width < 640 };
      await page("Emulation.setDeviceMetricsOverride", metrics);
      for (const path of paths) {
        place = `${path} at ${width} px, ${theme}`;
        await open(path);
        const wide = await evaluate(
          "Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth)",
        );
        if (wide > width) problems.push(`${place}: ${wide} px wide`);
        const file = `${path.replaceAll(/[^a-z0-9]+/gi, "-").replace(/^-|-$/g, "") || "inbox"}-${width}-${theme}.png`;
        await picture(file);
      }
    }
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
console.log(`${paths.length} pages, ${WIDTHS.length} widths, ${THEMES.length} themes: ${problems.length} problems`);
process.exitCode = problems.length > 0 ? 1 : 0;
