import { until } from "../harness.mjs";
import { startTask, waitFor } from "../tasks.mjs";

export const promise = "a question is answered in the inbox, with the exact words";

export async function run({ world, makePerson }) {
  const task = await startTask(world, "web", { description: "Make the greeting friendlier." });
  const wait = await waitFor(world, task.id, "human_input");
  const person = await makePerson();
  await person.open("/");
  await person.press(person.page.getByRole("link", { name: task.name }));
  await person.sees("Friendlier to whom: people who come for the first time, or those who come back?");
  const words = "To people who come for the first time. `<b>No</b>` markup, and “quotes” stay.";
  await person.fill(person.field("Your answer"), words);
  await person.press(person.button("Send answer"));
  await until("the answer", async () => {
    const { waits } = await world.api.ask("GET", `/v1/tasks/${task.id}/timeline`);
    return waits.find((it) => it.wait_id === wait.wait_id)?.resolved_at;
  });
  await world.api.ask("POST", `/v1/tasks/${task.id}/cancel`, "null");
}
