import { callTool } from "../calls.mjs";
import { check, until } from "../harness.mjs";
import { serveTools } from "../tool-server.mjs";

export const promise = "a rule is written, tried against recorded calls, and put into force; then it refuses the call";

export async function run({ world, makePerson, variant }) {
  const tools = await serveTools([{ name: "ring", description: "Rings." }]);
  world.closers.push(tools.close);
  const prefix = `rule${variant.width}${variant.input.slice(0, 1)}${Date.now().toString(36)}`;
  await tools.install(world.api, prefix);
  const name = (await world.api.ask("GET", "/v1/tools")).items.find((tool) => tool.name.startsWith(`proof.${prefix}`)).name;
  const call = async () => JSON.stringify(await callTool(world, name.replaceAll(".", "__"), { text: "x" }));
  await until("the tool", async () => (await call()).includes("did x"));

  const person = await makePerson();
  await person.open("/tools/rules");
  await person.press(person.link("New rule"));
  await person.fill(person.field("Name"), `no-${prefix}`);
  await person.fill(person.field("Text"), `forbid (principal, action == Action::"${name}", resource`);
  await person.sees(/line 1|unexpected|expected/i);
  await person.fill(person.field("Text"), `forbid (principal, action == Action::"${name}", resource);`);
  await person.press(person.button("Backtest rule"));
  await person.sees(/would (certainly )?have hit/i);
  await person.press(person.button("Put into force"));
  const stored = await until("the rule", async () =>
    (await world.api.ask("GET", "/v1/rules")).items.find((rule) => rule.name === `no-${prefix}`));
  check(stored.mode !== "shadow", `the rule is ${stored.mode}`);
  await until("the refusal", async () => !(await call()).includes("did x"));
}
