import { until } from "../harness.mjs";
import { startTask, waitFor } from "../tasks.mjs";

export const promise = "a plan is sent back with words, its revision is approved, and the task goes on";

export async function run({ world, makePerson, variant }) {
  const task = await startTask(world, "slug", { asks: true });
  const first = await waitFor(world, task.id, "approval");
  const person = await makePerson();
  await person.open("/");
  await person.press(person.page.getByRole("link", { name: task.name }));
  await person.button("Approve plan").waitFor();
  if (variant.input === "keyboard") await person.page.keyboard.press("d");
  else await person.button("Send back…").click();
  await person.fill(person.field("What should be different?"), "Keep the old names working.");
  await person.press(person.button("Send back"));
  const planned = await until("another plan", async () => {
    const wait = await waitFor(world, task.id, "approval");
    return wait.wait_id === first.wait_id ? null : wait;
  });
  await person.open(`/?item=${planned.wait_id}`);
  await person.button("Approve plan").waitFor();
  if (variant.input === "keyboard") await person.page.keyboard.press("a");
  else await person.button("Approve plan").click();
  await person.sees("You approved this plan");
  await until("the approved plan", async () => {
    const { waits } = await world.api.ask("GET", `/v1/tasks/${task.id}/timeline`);
    return waits.every((wait) => wait.reason !== "approval" || wait.resolved_at);
  });
  await world.api.ask("POST", `/v1/tasks/${task.id}/cancel`, "null");
}
