import { until } from "../harness.mjs";

export const promise = "a schedule is made, run at once, paused and deleted";

export async function run({ world, makePerson }) {
  const facts = await world.setUp();
  const person = await makePerson();
  const name = `nightly-${Date.now().toString(36)}`;
  await person.open("/schedules");
  await person.press(person.button("New schedule").or(person.link("New schedule")));
  await person.fill(person.field("Name"), name);
  await person.choose(person.page.getByRole("combobox", { name: /^Project/ }), facts.slug);
  await person.fill(person.field(["What is to be done", "Task"]), "Add an option --max LENGTH to slug.");
  await person.fill(person.field(["When", "Cron", "Times"]), "0 3 * * *");
  await person.press(person.button(["Save schedule", "Make schedule", "Create schedule"]));
  const find = async () => (await world.api.ask("GET", "/v1/schedules")).items.find((it) => it.name === name);
  const made = await until("the schedule", find);
  await person.press(person.button(["Run now", "Run schedule"]));
  await person.press(person.button(["Pause schedule", "Pause"]));
  await until("the pause", async () => (await find()).enabled === false || (await find()).paused === true);
  await person.press(person.button("Delete schedule"));
  const ask = person.dialog();
  if (await ask.isVisible()) {
    const field = person.field("Name", ask).or(person.field("Type", ask));
    if (await field.isVisible()) await person.fill(field, name);
    await person.press(person.button("Delete schedule", ask));
  }
  await until(`no schedule ${made.name}`, async () => (await find()) === undefined);
}
