import { callTool } from "../calls.mjs";
import { check, until } from "../harness.mjs";
import { serveTools } from "../tool-server.mjs";

export const promise = "a tool that is turned off is refused at the next call, the page says how soon, and Undo brings it back";

export async function run({ world, makePerson, variant }) {
  const tools = await serveTools([{ name: "ping", description: "Says what it did." }]);
  world.closers.push(tools.close);
  const prefix = `off${variant.width}${variant.input.slice(0, 1)}${Date.now().toString(36)}`;
  await tools.install(world.api, prefix);
  const name = (await world.api.ask("GET", "/v1/tools")).items.find((tool) => tool.name.startsWith(`proof.${prefix}`)).name;
  const call = async () => JSON.stringify(await callTool(world, name.replaceAll(".", "__"), { text: "x" }));
  await until("the tool", async () => (await call()).includes("did x"));

  const person = await makePerson();
  await person.open("/tools");
  await person.fill(person.field("Filter tools"), name);
  const toggle = person.page.getByRole("switch", { name: new RegExp(`^${name.replaceAll(".", "\\.")}`) }).filter({ visible: true });
  check(await toggle.first().isChecked(), "S003-27: the console shows that the tool is on");
  await person.toggle(toggle);
  await person.sees(/is (off|refused)( everywhere)? after/);
  const refused = await call();
  check(!refused.includes("did x"), `S003-27: a tool that is turned off in the console answers: ${refused}`);
  await person.press(person.button("Undo"));
  await until("the tool again", async () => (await call()).includes("did x"));

  // Whom it is for is changed in the same place.
  const scope = person.page.getByRole("combobox", { name: new RegExp(`scope|${name.replaceAll(".", "\\.")}`, "i") }).filter({ visible: true });
  await person.choose(scope, "pm");
  const isChanged = async () => (await world.api.ask("GET", "/v1/tools")).items.find((tool) => tool.name === name).scope === "pm";
  check(await until("the scope", isChanged), "S003-35: the console changes whom a tool is for");
}
