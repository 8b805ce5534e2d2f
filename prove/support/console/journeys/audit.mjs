import { callTool } from "../calls.mjs";
import { check, until } from "../harness.mjs";

export const promise = "the proof of a call is checked in the browser, and a chain that was cut off is shown loudly";

const HEADS = /\/v1\/audit\/head(\?|$)/;
/** The server signs the head of a chain again after at most this time. */
const SIGNED_MS = 90_000;

/** Waits once for two signed heads of one chain, the second longer than the first, while other journeys run. */
export function prepare(world) {
  world.signed ??= waitForHeads(world);
  return world.signed;
}

async function waitForHeads(world) {
  const readHeads = async (isWanted) => {
    const { text } = await world.api.send("GET", "/v1/audit/head?limit=100");
    return JSON.parse(text).heads?.some(({ checkpoint }) => checkpoint && isWanted(checkpoint)) ? text : null;
  };
  await callTool(world, "memory__search", { query: "first" });
  const shorter = await until("a signed head", () => readHeads(() => true), SIGNED_MS);
  const { chain, size } = JSON.parse(shorter).heads.find(({ checkpoint }) => checkpoint).checkpoint;
  await callTool(world, "memory__search", { query: "second" });
  await until("a longer head", () => readHeads((later) => later.chain === chain && later.size > size), SIGNED_MS);
  const id = `chn_${chain.replaceAll("-", "")}`;
  const { items } = await world.api.ask("GET", "/v1/audit?limit=1000");
  const record = items.find(({ chain_id, seq }) => chain_id === id && seq < size);
  check(record, "no record is below the signed head");
  return { shorter, call: record.call_id };
}

/** The heads that the browser keeps, without when it saw them: every look that proves a head again writes that anew. */
async function readKept(person) {
  const text = await person.page.evaluate(() => localStorage.getItem("cynode.audit.witness"));
  const { chains, ...rest } = JSON.parse(text);
  return JSON.stringify({ ...rest, chains: Object.values(chains).map(({ seen_at: _, ...head }) => head) });
}

export async function run({ world, makePerson }) {
  const { shorter, call } = await prepare(world);
  const person = await makePerson();
  const showShorter = (route) => route.fulfill({ status: 200, contentType: "application/json", body: shorter });
  await person.page.route(HEADS, showShorter);
  await person.open(`/audit?call=${call}`);
  await person.sees(/verified in this browser/i);

  // The chain has grown, and this browser sees it.
  const before = await readKept(person);
  await person.page.unroute(HEADS);
  await person.open("/audit");
  await person.sees(/nothing was removed or changed/i);
  const kept = await readKept(person);
  check(kept !== before, "the longer head is not kept");

  // The server shows the older head, which it did sign: everything after it was cut off.
  await person.page.route(HEADS, showShorter);
  await person.page.reload();
  await person.sees(/cut off/i);
  check((await readKept(person)) === kept, "the heads that were seen before are not kept");

  // With the true heads again, nothing is wrong.
  await person.page.unroute(HEADS);
  await person.page.reload();
  await person.sees(/nothing was removed or changed/i);
  check((await person.text(/cut off/i).count()) === 0, "the true heads are said to be cut off");
}
