import { callTool } from "../calls.mjs";
import { check } from "../harness.mjs";

export const promise = "the proof of a call is checked in the browser, and a chain that was cut off or rewritten is shown loudly";

export async function run({ world, makePerson }) {
  await callTool(world, "memory__search", { query: "journey" });
  const person = await makePerson();
  const { items } = await world.api.ask("GET", "/v1/audit?limit=1");
  await person.open(`/audit?call=${items[0].call_id}`);
  await person.sees(/verified in this browser/i);
  const kept = await person.page.evaluate(() => ({ ...localStorage }));
  const heads = Object.entries(kept).filter(([, value]) => /[0-9a-f]{64}/.test(value));
  check(heads.length > 0, "the browser keeps no head of the chain");

  // The server answers as if the chain had been cut off: its head is smaller than the one that this browser has seen.
  await person.page.route(/\/v1\/audit\/(head|consistency)/, async (route) => {
    const url = new URL(route.request().url());
    if (url.pathname.endsWith("/consistency")) {
      const body = JSON.stringify({ title: "Conflict", status: 409, code: "conflict", detail: "the chain is shorter than that head" });
      return route.fulfill({ status: 409, contentType: "application/problem+json", body });
    }
    const answer = await route.fetch();
    const text = (await answer.text()).replaceAll(/"(size|tree_size)":\s*(\d+)/g, (_, name) => `"${name}":1`);
    return route.fulfill({ response: answer, body: text });
  });
  await person.page.reload();
  await person.sees(/cut off|rewritten|shorter than|does not continue/i);
  const after = await person.page.evaluate(() => ({ ...localStorage }));
  for (const [name, value] of heads) check(after[name] === value, "the head that was seen before is not kept");
}
