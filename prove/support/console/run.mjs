// run.mjs --modules DIR --url URL --internal URL --link LINK --work DIR --cynork PROGRAM [--dist DIR] [--quick] [JOURNEY...]
//
// Goes through the journeys of journeys/, each in a window of its own, and ends with 1 if one of them failed. A picture and the outline of the
// page where a journey failed are written to the folder of results.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { Browser, check, Interface, loadModules, VARIANTS } from "./harness.mjs";

/** In this order: the first makes the first admin. */
const JOURNEYS = [
  "first-run",
  "login",
  "palette",
  "plan",
  "question",
  "call",
  "review",
  "tool-off",
  "tool-definition",
  "rule",
  "audit",
  "budgets",
  "schedules",
  "people",
  "barriers",
  "hostile-text",
  "forgery",
  "frames",
  "tabs",
  "kills",
];

const { values: options, positionals: wanted } = parseArgs({
  allowPositionals: true,
  options: {
    modules: { type: "string" },
    url: { type: "string" },
    internal: { type: "string" },
    link: { type: "string" },
    work: { type: "string" },
    cynork: { type: "string" },
    dist: { type: "string" },
    quick: { type: "boolean", default: false },
    list: { type: "boolean", default: false },
  },
});
if (options.list) {
  for (const name of JOURNEYS) {
    const journey = await import(`./journeys/${name}.mjs`);
    console.log(`${name.padEnd(16)} ${journey.promise}`);
  }
  process.exit(0);
}
for (const name of wanted) check(JOURNEYS.includes(name), `no such journey: ${name}`);
const chosen = wanted.length > 0 ? JOURNEYS.filter((name) => wanted.includes(name)) : JOURNEYS;

const world = {
  ...options,
  modules: loadModules(options.modules),
  api: new Interface(options.url),
  handle: "demo",
  password: "correct horse battery staple",
  data: join(options.work, "data"),
  root: new URL("../../..", import.meta.url).pathname,
  /** What ends with the run. */
  closers: [],
  /** Runs cynork as the admin. */
  cynork(...words) {
    const env = { ...process.env, HOME: join(options.work, "home") };
    return execFileSync(options.cynork, ["--url", options.url, ...words], { env, encoding: "utf8" });
  },
  async makeAdmin() {
    const token = options.link.split("#bootstrap=")[1]?.trim();
    const body = { token, handle: world.handle, display_name: "Demo", password: world.password };
    await world.api.ask("POST", "/v1/bootstrap", body);
    await world.afterAdmin();
  },
  /** Once there is an admin: the interface and cynork act as them. */
  async afterAdmin() {
    await world.api.logIn(world.handle, world.password);
    writeFileSync(join(world.data, "demo-password"), world.password);
    const input = `${world.password}\n`;
    const env = { ...process.env, HOME: join(options.work, "home") };
    mkdirSync(env.HOME, { recursive: true });
    execFileSync(options.cynork, ["login", options.url, "--handle", world.handle, "--password-stdin"], { env, input });
  },
  /** The sample's project, and things that wait for a decision; made once. */
  async setUp() {
    if (world.facts) return world.facts;
    const file = join(options.work, "facts.json");
    if (!existsSync(file)) {
      if (!existsSync(join(world.data, "slug"))) world.cynork("sample", join(world.data, "slug"));
      const made = execFileSync("python3", ["prove/support/screens.py", "set-up", world.data], { cwd: world.root });
      writeFileSync(file, made);
    }
    const { items } = await world.api.ask("GET", "/v1/projects");
    const idOf = (slug) => items.find((project) => project.slug === slug)?.id;
    world.facts = { ...JSON.parse(readFileSync(file, "utf8")), slug: idOf("slug"), web: idOf("web") };
    // The journeys spend more than the terminal screen does.
    const budget = { scope_type: "project", scope_id: world.facts.web, period: "total", max_cost_micros: 100_000_000, max_tokens: null };
    await world.api.ask("PUT", "/v1/budgets", budget);
    return world.facts;
  },
};

const results = process.env.CARGO_TARGET_DIR ?? join(world.root, "target");
const folder = join(results, "proofs");
mkdirSync(folder, { recursive: true });

async function explain(name, person) {
  const page = person?.page;
  if (!page || page.isClosed()) return;
  await page.screenshot({ path: join(folder, `console-${name}.png`) }).catch(() => undefined);
  const shown = (await page.getByRole("main").count()) > 0 ? page.getByRole("main") : page.locator("body");
  const outline = await shown.first().ariaSnapshot({ timeout: 2000 }).catch(() => "");
  console.log(`      at ${page.url()}\n${outline.split("\n").slice(0, 60).map((line) => `      ${line}`).join("\n")}`);
}

const browser = await Browser.launch(world);
const failed = [];
// An installation that is there already is logged in to.
const isNew = (await world.api.send("POST", "/v1/sessions", { handle: world.handle, password: world.password })).status >= 300;
if (!isNew) await world.afterAdmin();
else if (!chosen.includes("first-run")) await world.makeAdmin();

for (const [index, name] of chosen.entries()) {
  const journey = await import(`./journeys/${name}.mjs`);
  if (journey.needs === "new installation" && !isNew) {
    console.log(`${name}: left out, the installation is not new`);
    continue;
  }
  // The short form takes one variant for each journey, in turns; the long one takes them all.
  const variants = journey.once ? [VARIANTS[0]] : options.quick ? [VARIANTS[index % VARIANTS.length]] : VARIANTS;
  for (const variant of variants) {
    const started = performance.now();
    const words = journey.once ? name : `${name} at ${variant.width} px, ${variant.theme}, by ${variant.input}`;
    let person;
    const makePerson = async (given = {}) => {
      person = await browser.person({ ...variant, ...given.variant }, given);
      return person;
    };
    try {
      await journey.run({ world, browser, variant, makePerson, quick: options.quick });
      check((person?.problems.length ?? 0) === 0, person?.problems.join("\n      "));
      console.log(`ok    ${((performance.now() - started) / 1000).toFixed(1).padStart(5)} s  ${words}`);
    } catch (error) {
      failed.push(words);
      console.log(`FAILED ${((performance.now() - started) / 1000).toFixed(1)} s  ${words}: ${error.stack}`);
      for (const problem of person?.problems ?? []) console.log(`      ${problem}`);
      await explain(name, person);
    } finally {
      await person?.close().catch(() => undefined);
    }
  }
}
await browser.close();
for (const close of world.closers) close();
console.log(`figure: journeys ${chosen.length} journeys`);
console.log(`figure: failures ${failed.length} failures`);
process.exitCode = failed.length > 0 ? 1 : 0;
