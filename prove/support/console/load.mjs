// load.mjs --modules DIR --url URL --internal URL --link LINK --work DIR --cynork PROGRAM [--dist DIR] [--quick] [PART...]
//
// Measures the console in a browser: the first paint, interactions with large tasks, an idle tab, and many consoles at once. The parts are
// paint, large, idle and many. Ends with 1 if a figure is above its limit.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { makeWorld, parseOptions } from "./world.mjs";
import { Browser, Interface, VARIANTS } from "./harness.mjs";
import { LARGE_JOB, makeTimeline, serveLarge, SIZES } from "./large.mjs";

const LIMITS = {
  inbox_painted: 1000,
  slowest_interaction: 100,
  heap: 300,
  idle_heap_growth: 3,
  idle_requests: 0,
  idle_timer_growth: 0,
  consoles_cpu: 5,
};
/** Times of the short form: it finds what became many times slower, on whatever machine it runs. */
const QUICK_LIMITS = { inbox_painted: 3000, slowest_interaction: 400, consoles_cpu: 15 };
const PAINTS = 5;
const CONSOLES = 200;
/** An account has 16 streams at most. */
const STREAMS_PER_ACCOUNT = 10;
const CLOCK_TICKS = 100;

const { options, chosen } = parseOptions(["paint", "large", "idle", "many"]);
const world = await makeWorld(options);
if (options.quick) Object.assign(LIMITS, QUICK_LIMITS);
const tooMuch = [];
function figure(name, value, unit, limit = LIMITS[name]) {
  console.log(`figure: ${name} ${Number(value.toFixed(2))} ${unit}`);
  if (limit !== undefined && value > limit) tooMuch.push(`${name} is ${value.toFixed(1)} ${unit}, more than ${limit}`);
}
const median = (values) => values.toSorted((left, right) => left - right)[Math.floor(values.length / 2)];
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const facts = await world.setUp();
const browser = await Browser.launch(world, { args: ["--enable-precise-memory-info"] });

/** Milliseconds from the address to the painted list, with nothing in the cache. */
async function measurePaint() {
  const times = [];
  for (let run = 0; run < PAINTS; run += 1) {
    const person = await browser.person(VARIANTS[0]);
    await person.page.addInitScript(() => {
      const look = () => {
        if (document.querySelector("main h1") && document.querySelector("main li a")) {
          requestAnimationFrame(() => setTimeout(() => {
            window.paintedAt ??= performance.now();
          }));
        } else requestAnimationFrame(look);
      };
      look();
    });
    await person.page.goto(`${world.url}/`);
    await person.page.waitForFunction(() => window.paintedAt !== undefined);
    times.push(await person.page.evaluate(() => window.paintedAt));
    await person.close();
  }
  figure("inbox_painted", median(times), "ms");
  figure("slowest_inbox_painted", Math.max(...times), "ms");
}

async function heapOf(session) {
  await session.send("HeapProfiler.collectGarbage");
  const { metrics } = await session.send("Performance.getMetrics");
  return metrics.find((metric) => metric.name === "JSHeapUsedSize").value / 2 ** 20;
}

/** The slowest interaction with each of the large pages, and their memory. */
async function measureLarge() {
  const person = await browser.person(VARIANTS[0]);
  const { page } = person;
  const timeline = makeTimeline(await world.api.ask("GET", `/v1/tasks/${facts.dark}/timeline`));
  await serveLarge(page, facts.dark, timeline);
  await page.addInitScript(() => {
    window.interactions = [];
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries())
        if (entry.interactionId) window.interactions.push([entry.name, Math.round(entry.duration)]);
    }).observe({ type: "event", durationThreshold: 16, buffered: true });
  });
  const session = await person.context.newCDPSession(page);
  await session.send("Performance.enable");
  const wheel = async (times) => {
    await page.mouse.move(720, 600);
    for (let turn = 0; turn < times; turn += 1) await page.mouse.wheel(0, 900);
  };
  const keys = async (...names) => {
    for (const name of names) await page.keyboard.press(name);
  };
  const parts = {
    plan: async () => {
      await wheel(10);
      await keys("Tab", "Tab", "Tab", "ArrowRight", "ArrowDown", "End", "Home");
    },
    timeline: async () => {
      for (let x = 300; x < 1300; x += 50) await page.mouse.move(x, 500);
      await page.mouse.click(800, 500);
      await wheel(10);
    },
    logs: async () => {
      await wheel(20);
      await keys("End", "Home");
      const search = page.getByRole("searchbox").first();
      if (await search.isVisible()) {
        await search.click();
        await page.keyboard.type("module 7", { delay: 30 });
        await keys("Enter");
      }
    },
    changes: async () => {
      await keys("j", "j", "j", "k");
      await wheel(10);
    },
    overview: () => wheel(5),
    decisions: () => wheel(2),
  };
  // What the machine itself does to the measure: keys on a page with little on it.
  await person.open("/projects");
  await keys("Tab", "Tab", "Tab", "j", "k");
  await pause(500);
  figure("slowest_interaction_small_page", await page.evaluate(() => Math.max(0, ...window.interactions.map((it) => it[1]))), "ms");
  const url = (tab) => `/tasks/${facts.dark}?tab=${tab}${tab === "logs" ? `&job=${LARGE_JOB}` : ""}`;
  for (const [tab, interact] of Object.entries(parts)) {
    await person.open(url(tab));
    await page.evaluate(() => {
      window.interactions.length = 0;
    });
    await interact();
    // To another part and back, with what is loaded already.
    for (const name of ["Timeline", "Logs", "Changes", "Plan"]) {
      await page.getByRole("link", { name: new RegExp(`^${name}`) }).first().click();
      await person.settle();
    }
    const slow = await page.evaluate(() => window.interactions.toSorted((left, right) => right[1] - left[1]).slice(0, 3));
    console.log(`      ${tab}: slowest ${slow.map(([name, duration]) => `${name} ${duration} ms`).join(", ") || "under 16 ms"}`);
    figure(`slowest_interaction_${tab}`, slow[0]?.[1] ?? 0, "ms", LIMITS.slowest_interaction);
    figure(`heap_${tab}`, await heapOf(session), "MiB", LIMITS.heap);
  }
  console.log(`      ${SIZES.units} units, ${SIZES.events} events, ${SIZES.logLines} lines, ${SIZES.files} files`);
  if (person.problems.length > 0) tooMuch.push(...person.problems);
  await person.close();
}

/** What a tab that nobody touches does. */
async function measureIdle() {
  const person = await browser.person(VARIANTS[0]);
  const { page } = person;
  await page.addInitScript(() => {
    const live = new Set();
    const { setInterval, clearInterval } = window;
    window.setInterval = (...words) => {
      const timer = setInterval(...words);
      live.add(timer);
      return timer;
    };
    window.clearInterval = (timer) => {
      live.delete(timer);
      clearInterval(timer);
    };
    window.countTimers = () => live.size;
  });
  await person.open(`/tasks`);
  await person.isLive();
  const session = await person.context.newCDPSession(page);
  await session.send("Performance.enable");
  await pause(options.quick ? 5000 : 60_000);
  const before = { heap: await heapOf(session), timers: await page.evaluate(() => window.countTimers()) };
  let requests = 0;
  page.on("request", (request) => {
    requests += 1;
    console.log(`      a request of the idle tab: ${request.method()} ${new URL(request.url()).pathname}`);
  });
  await pause(options.quick ? 20_000 : 30 * 60_000);
  const after = { heap: await heapOf(session), timers: await page.evaluate(() => window.countTimers()) };
  figure("idle_heap", after.heap, "MiB");
  figure("idle_heap_growth", after.heap - before.heap, "MiB");
  figure("idle_timer_growth", after.timers - before.timers, "timers");
  figure("idle_requests", requests, "requests");
  await person.close();
}

/** Processor time of the server and all its descendants, in seconds. */
function readProcessorTime() {
  const parents = new Map();
  const ticks = new Map();
  for (const entry of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const fields = readFileSync(`/proc/${entry}/stat`, "utf8").split(") ").at(-1).split(" ");
      parents.set(Number(entry), Number(fields[1]));
      ticks.set(Number(entry), Number(fields[11]) + Number(fields[12]));
    } catch {
      // It has ended meanwhile.
    }
  }
  const root = Number(readFileSync(join(world.work, "up.pid"), "utf8"));
  const belongs = (pid) => pid === root || (parents.has(pid) && belongs(parents.get(pid)));
  return [...ticks].filter(([pid]) => belongs(pid)).reduce((sum, [, value]) => sum + value, 0) / CLOCK_TICKS;
}

async function measureProcessor(seconds) {
  const [before, start] = [readProcessorTime(), performance.now()];
  await pause(seconds * 1000);
  return ((readProcessorTime() - before) / ((performance.now() - start) / 1000)) * 100;
}

/** What open consoles cost the server while nothing happens. */
async function measureMany() {
  const seconds = options.quick ? 15 : 120;
  const accounts = [];
  for (let index = 0; index < CONSOLES / STREAMS_PER_ACCOUNT; index += 1) {
    const [handle, password] = [`reader-${Date.now().toString(36)}-${index}`, "correct horse battery staple"];
    await world.api.ask("POST", "/v1/users", { handle, display_name: handle, password });
    const account = new Interface(world.url);
    await account.logIn(handle, password);
    accounts.push(account);
  }
  await pause(5000);
  const alone = await measureProcessor(seconds);
  const stop = new AbortController();
  let open = 0;
  for (const account of accounts) {
    for (let count = 0; count < STREAMS_PER_ACCOUNT; count += 1) {
      const headers = { Authorization: `Bearer ${account.token}`, Accept: "text/event-stream" };
      const response = await fetch(`${world.url}/v1/events`, { headers, signal: stop.signal });
      if (response.status !== 200) throw new Error(`stream ${open}: ${response.status}`);
      open += 1;
      const reader = response.body.getReader();
      const read = () => reader.read().then(({ done }) => (done ? undefined : read()), () => undefined);
      void read();
    }
  }
  await pause(5000);
  const together = await measureProcessor(seconds);
  stop.abort();
  figure("consoles", open, "consoles");
  figure("idle_cpu", alone, "% of a core");
  figure("consoles_cpu", Math.max(0, together - alone), "% of a core more");
}

const PARTS = { paint: measurePaint, large: measureLarge, idle: measureIdle, many: measureMany };
try {
  for (const part of chosen) {
    console.log(`--- ${part}`);
    await PARTS[part]();
  }
} finally {
  await browser.close();
}
for (const words of tooMuch) console.log(`TOO MUCH: ${words}`);
process.exitCode = tooMuch.length > 0 ? 1 : 0;
