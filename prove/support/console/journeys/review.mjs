import { join } from "node:path";
import { check, until } from "../harness.mjs";
import { startTask } from "../tasks.mjs";

export const promise = "remarks on lines are drafts that survive a reload, and go to the fixer together as one follow-up";
// The sample brings its own script of the model, which the other journeys must not get.
export const alone = "last";

const SLOW_MS = 90_000;

export async function run({ world, makePerson, variant }) {
  // A project of its own: elsewhere the same change may be merged already.
  await world.setUp();
  const slug = `review-${variant.width}-${variant.input}-${Date.now().toString(36)}`;
  const project = JSON.parse(world.cynork("--json", "sample", join(world.work, slug))).project_id;
  const task = await startTask(world, project);
  await until("changes to review", async () => {
    const timeline = JSON.parse((await world.api.send("GET", `/v1/tasks/${task.id}/timeline`)).text);
    return timeline.state === "completed" && timeline.pull_request?.state === "open";
  }, SLOW_MS);
  const person = await makePerson();
  await person.open(`/tasks/${task.id}?tab=changes`);
  await person.press(person.button("Remark on the file"));
  await person.fill(person.field("Remark on the file"), "Say in a comment why the name is cut there.");
  if (person.usesKeyboard) {
    await person.reach(person.page.getByLabel(/arrow keys choose a line/), { itself: true });
    for (const key of ["ArrowDown", "ArrowDown", "Enter"]) await person.page.keyboard.press(key);
  } else {
    await person.page.getByRole("button", { name: /^Remark on line/ }).first().click();
  }
  await person.fill(person.field(/^Remark on line/), "This is hard to read.");
  await person.button("Send 2 remarks").waitFor();
  await person.page.reload();
  await person.button("Send 2 remarks").waitFor();
  await person.press(person.button("Send 2 remarks"));
  await person.button("Send 2 remarks").waitFor({ state: "detached" });
  check((await person.page.getByRole("alert").count()) === 0, "the remarks were refused");
  const { pull_request: request } = await world.api.ask("GET", `/v1/tasks/${task.id}/timeline`);
  const { comments } = await world.api.ask("GET", `/v1/pull-requests/${request.id}`);
  check(comments.length === 2, `${comments.length} remarks arrived instead of 2`);
}
