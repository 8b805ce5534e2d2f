import { callTool } from "../calls.mjs";
import { check, until } from "../harness.mjs";

export const promise = "the proof of a call is checked in the browser, and a chain that was cut off is shown loudly";

const HEADS = /\/v1\/audit\/head(\?|$)/;
/** The server signs the head of a chain again after at most this time. */
const SIGNED_MS = 90_000;

export async function run({ world, makePerson }) {
  const readHeads = async () => (await world.api.send("GET", "/v1/audit/head?limit=100")).text;
  await callTool(world, "memory__search", { query: "first" });
  const person = await makePerson();
  const { items } = await world.api.ask("GET", "/v1/audit?limit=1");
  await person.open(`/audit?call=${items[0].call_id}`);
  await person.sees(/verified in this browser/i, SIGNED_MS);
  const before = await readHeads();

  // The chain grows, and this browser sees it.
  await callTool(world, "memory__search", { query: "second" });
  await until("a new head", async () => (await readHeads()) !== before, SIGNED_MS);
  await person.open("/audit");
  await person.page.reload();
  const { size } = JSON.parse(await readHeads()).heads[0].checkpoint;
  const isKept = (wanted) => (localStorage.getItem("cynode.audit.witness") ?? "").includes(`"size":${wanted}`);
  await until("the longer head is kept", () => person.page.evaluate(isKept, size));
  const kept = await person.page.evaluate(() => ({ ...localStorage }));

  // The server shows the older head, which it did sign: everything after it was cut off.
  await person.page.route(HEADS, (route) => route.fulfill({ status: 200, contentType: "application/json", body: before }));
  await person.page.reload();
  await person.sees(/cut off/i);
  const after = await person.page.evaluate(() => ({ ...localStorage }));
  check(JSON.stringify(after) === JSON.stringify(kept), "the heads that were seen before are not kept");

  // With the true heads again, nothing is wrong.
  await person.page.unroute(HEADS);
  await person.page.reload();
  await person.settle();
  await person.text(/cut off/i).waitFor({ state: "detached" });
}
