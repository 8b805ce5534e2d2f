import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { check, until } from "../harness.mjs";

export const promise = "when processes are killed, the page says what it knows, goes on by itself and loses no input";
export const once = true;
export const alone = "last";

const RECOVERY_MS = 60_000;

/** Processes whose parent is that one, by the name of their program. */
function childrenOf(parent) {
  const found = new Map();
  for (const entry of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const fields = readFileSync(`/proc/${entry}/stat`, "utf8").split(")").at(-1).trim().split(" ");
      if (Number(fields[1]) !== parent) continue;
      const [program] = readFileSync(`/proc/${entry}/cmdline`, "utf8").split("\0");
      found.set(program.split("/").at(-1), Number(entry));
    } catch {
      // It has ended meanwhile.
    }
  }
  return found;
}

export async function run({ world, makePerson, quick }) {
  const facts = await world.setUp();
  const server = () => Number(readFileSync(join(world.work, "up.pid"), "utf8"));
  const person = await makePerson();
  const words = `Words that are typed while the server is away ${Date.now().toString(36)}`;
  await person.open(`/tasks/new`);
  await person.isLive();
  const status = person.page.getByRole("status").first();
  const times = {};

  const victims = quick ? ["server"] : ["postgres", "restate-server", "server"];
  for (const victim of victims) {
    const before = server();
    const pid = victim === "server" ? before : childrenOf(before).get(victim);
    check(pid, `${victim} is not a process of the installation`);
    await person.fill(person.field("What is to be done?"), `${words}: ${victim}`);
    process.kill(pid, "SIGKILL");
    const killed = performance.now();
    if (victim === "server") {
      await person.page.getByText(/reconnecting|offline/).first().waitFor();
      const said = await status.innerText();
      check(/data from .* ago/.test(said) || (await status.getAttribute("title"))?.includes("ago"), `it says ${said}`);
      await person.fill(person.field("Limit"), "0.25");
    }
    // The others go on answering meanwhile, so ready counts only once the victim is there again.
    const isBack = () => {
      const now = victim === "server" ? server() : childrenOf(server()).get(victim);
      return now && now !== pid;
    };
    await until(`${victim} is started again`, isBack, RECOVERY_MS);
    await until(`the installation after ${victim}`, async () => {
      const answer = await fetch(`${world.url}/readyz`).catch(() => null);
      return answer?.status === 200;
    }, RECOVERY_MS);
    const ready = performance.now();
    await person.page.getByRole("status").filter({ hasText: /^●?live$/ }).first().waitFor({ timeout: RECOVERY_MS });
    times[victim] = performance.now() - killed;
    console.log(`figure: live_again_after_${victim.replace("-", "_")} ${(times[victim] / 1000).toFixed(1)} s`);
    console.log(`figure: live_after_ready_${victim.replace("-", "_")} ${((performance.now() - ready) / 1000).toFixed(1)} s`);
    const kept = await person.field("What is to be done?").inputValue();
    check(kept === `${words}: ${victim}`, `the field has ${JSON.stringify(kept)}`);
  }
  check((await person.field("Limit").inputValue()) === "0.25", "what was typed while the server was away is lost");

  // What happened while it was away is shown without a reload.
  await world.api.logIn(world.handle, world.password);
  const second = await person.context.newPage();
  person.watch(second);
  await second.goto(`${world.url}/projects`);
  const title = `After the kill ${Date.now().toString(36)}`;
  await world.api.ask("POST", "/v1/projects", { slug: title.toLowerCase().replaceAll(" ", "-"), title });
  await second.getByText(title).first().waitFor();

  // A request that the kill cuts off is sent again, by the page or by hand, and takes effect once.
  await person.choose(person.page.getByRole("combobox", { name: "Project" }), facts.slug);
  const described = `${words}: ${victims.at(-1)}`;
  process.kill(server(), "SIGKILL");
  await person.press(person.button("Start task"));
  const made = () => person.page.waitForURL(/\/tasks\/tsk_/, { timeout: RECOVERY_MS }).then(() => true);
  const refused = person.page.getByRole("alert").first().waitFor({ timeout: RECOVERY_MS }).then(() => false);
  if (!(await Promise.race([made(), refused.catch(() => false)]))) {
    const isReady = async () => (await fetch(`${world.url}/readyz`).catch(() => null))?.status === 200;
    await until("the installation", isReady, RECOVERY_MS);
    await person.press(person.button("Start task"));
    await made();
  }
  await world.api.logIn(world.handle, world.password);
  const { items } = await world.api.ask("GET", "/v1/tasks?limit=20");
  const tasks = items.filter((task) => task.description === described);
  check(tasks.length === 1, `the task was made ${tasks.length} times`);
  await world.api.ask("POST", `/v1/tasks/${tasks[0].id}/cancel`, "null");
}
