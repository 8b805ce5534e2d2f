import { join } from "node:path";
import { check } from "../harness.mjs";

export const promise = "from the link of the first start, a person becomes the admin, is led through the first steps, and merges a first task";
export const needs = "new installation";
export const once = true;
export const alone = "first";

const SLOW_MS = 90_000;

export async function run({ world, makePerson, variant }) {
  const person = await makePerson({ anonymous: true, variant });
  const { page } = person;
  await page.goto(world.link);
  await page.waitForURL((url) => url.hash === "");
  await person.fill(page.getByLabel("Handle"), world.handle);
  await person.fill(page.getByLabel("Name", { exact: true }), "Demo");
  await person.fill(page.getByLabel("Password"), world.password);
  await person.press(person.button("Make the admin"));
  // The page logs the admin in and hands over to the console.
  await page.waitForURL(/\/welcome/);
  await world.afterAdmin();
  await page.getByRole("heading", { level: 1, name: "First steps" }).waitFor();
  // The link works once.
  const again = await world.api.send("POST", "/v1/bootstrap", {
    token: world.link.split("#bootstrap=")[1], handle: "other", display_name: "Other", password: world.password,
  });
  check(again.status >= 400, `the link made a second admin: ${again.status}`);

  // A script in place of a model, and a repository. The page notices by itself.
  world.cynork("sample", join(world.data, "slug"));
  await person.sees("project slug");
  await person.open("/tasks/new");
  await person.fill(person.field("What is to be done?"), "Add an option --max LENGTH to slug: no name is longer, and names are cut between words.");
  await person.fill(person.field("Checks"), "sh tests/max_test.sh");
  await person.fill(person.field("Limit"), "0.50");
  await person.press(person.button("Start task"));
  await page.waitForURL(/\/tasks\/tsk_/);
  await person.button("Approve plan").click({ timeout: SLOW_MS });
  await person.button("Merge pull request").first().waitFor({ timeout: SLOW_MS });
  await person.press(person.button("Merge pull request"));
  await person.press(person.button("Merge pull request", person.dialog()));
  await person.button("Merge pull request").first().waitFor({ state: "detached", timeout: SLOW_MS });
  const task = page.url().match(/tsk_[0-9a-f]+/)[0];
  const timeline = await world.api.ask("GET", `/v1/tasks/${task}/timeline`);
  check(timeline.pull_request.state === "merged", `the pull request is ${timeline.pull_request.state}`);
  world.merged = task;
}
