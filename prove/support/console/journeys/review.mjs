import { check, until } from "../harness.mjs";
import { startTask } from "../tasks.mjs";

export const promise = "remarks on lines are drafts that survive a reload, and go to the fixer together as one follow-up";

export async function run({ world, makePerson }) {
  const task = await startTask(world, "slug");
  await until("changes to review", async () => {
    const { status, text } = await world.api.send("GET", `/v1/tasks/${task.id}/diff`);
    return status === 200 && JSON.parse(text).files.files.length > 0;
  }, 60_000);
  const person = await makePerson();
  await person.open(`/tasks/${task.id}?tab=changes`);
  await person.press(person.button("Remark on the file"));
  await person.fill(person.field("Remark on the file"), "Say in a comment why the name is cut there.");
  const line = person.page.getByRole("button", { name: /^Remark on line/ }).first();
  await person.press(line);
  await person.fill(person.field(/^Remark on line/), "This is hard to read.");
  await person.button("Send 2 remarks").waitFor();
  await person.page.reload();
  await person.button("Send 2 remarks").waitFor();
  await person.press(person.button("Send 2 remarks"));
  await person.button("Send 2 remarks").waitFor({ state: "detached" });
  check((await person.page.getByRole("alert").count()) === 0, "the remarks were refused");
  await world.api.send("POST", `/v1/tasks/${task.id}/cancel`, "null");
}
