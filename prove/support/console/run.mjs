// run.mjs --modules DIR --url URL --internal URL --link LINK --work DIR --cynork PROGRAM [--dist DIR] [--quick] [JOURNEY...]
//
// Goes through the journeys of journeys/, each in a window of its own, and ends with 1 if one of them failed. A picture and the outline of the
// page where a journey failed are written to the folder of results.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { Browser, check, VARIANTS } from "./harness.mjs";
import { makeWorld, parseOptions } from "./world.mjs";

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
  "push",
];

const LANES = 2;

const { options, chosen } = parseOptions(JOURNEYS);
if (options.list) {
  for (const name of JOURNEYS) {
    const journey = await import(`./journeys/${name}.mjs`);
    console.log(`${name.padEnd(16)} ${journey.promise}`);
  }
  process.exit(0);
}
const world = await makeWorld(options, { withoutAdmin: chosen.includes("first-run") });

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
async function play(name, journey) {
  if (journey.needs === "new installation" && !world.isNew) {
    console.log(`${name}: left out, the installation is not new`);
    return;
  }
  // The short form takes one variant for each journey, in turns; the long one takes them all.
  const variants = journey.once ? [VARIANTS[0]] : options.quick ? [VARIANTS[JOURNEYS.indexOf(name) % VARIANTS.length]] : VARIANTS;
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
/** The first admin comes first, and whatever disturbs others comes last and alone; the others wait a lot, so two go at a time. */
const journeys = [];
for (const name of chosen) journeys.push([name, await import(`./journeys/${name}.mjs`)]);
const together = journeys.filter(([, journey]) => !journey.alone);
for (const [name, journey] of journeys.filter(([, journey]) => journey.alone === "first")) await play(name, journey);
// Without an admin nothing else can be looked at.
if (!world.api.token) await world.makeAdmin();
await world.setUp();
// What takes long to come begins now; a journey that fails for want of it says so itself.
for (const [, journey] of journeys) void journey.prepare?.(world).catch(() => undefined);
await Promise.all(
  Array.from({ length: LANES }, async () => {
    for (let next = together.shift(); next; next = together.shift()) await play(...next);
  }),
);
for (const [name, journey] of journeys.filter(([, journey]) => journey.alone === "last")) await play(name, journey);
await browser.close();
for (const close of world.closers) close();
console.log(`figure: journeys ${chosen.length} journeys`);
console.log(`figure: failures ${failed.length} failures`);
process.exitCode = failed.length > 0 ? 1 : 0;
