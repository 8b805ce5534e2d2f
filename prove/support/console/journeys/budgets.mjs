import { until } from "../harness.mjs";

export const promise = "a budget is set, changed and deleted, and shows what is spent of it";

export async function run({ world, makePerson }) {
  const facts = await world.setUp();
  const person = await makePerson();
  await person.open("/spend");
  await person.press(person.button("Set a limit"));
  await person.choose(person.dialog().getByRole("combobox", { name: /^Of whom/ }), "project");
  await person.choose(person.dialog().getByRole("combobox", { name: /^Project/ }), facts.slug);
  await person.choose(person.dialog().getByRole("combobox", { name: /^When/ }), "month");
  await person.fill(person.dialog().getByRole("textbox", { name: /^Limit in [A-Z]{3}/ }), "7.50");
  await person.press(person.button("Set limit").last());
  const find = async () =>
    (await world.api.ask("GET", "/v1/budgets")).items.find((it) => it.scope_id === facts.slug && it.period === "month");
  await until("the budget", async () => (await find())?.max_cost_micros === 7_500_000);
  await person.sees("7.50");
  const id = (await find()).budget_id ?? (await find()).id;
  await world.api.ask("DELETE", `/v1/budgets/${id}`);
}
