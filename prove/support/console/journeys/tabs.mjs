import { check } from "../harness.mjs";

export const promise = "eight tabs at once are live over HTTP/1.1 with one event stream, and stay so when the one that reads it closes";
export const once = true;
export const alone = "last";

const TABS = 8;

export async function run({ world, makePerson }) {
  await world.setUp();
  const person = await makePerson();
  const streams = new Set();
  const pages = [person.page];
  while (pages.length < TABS) pages.push(await person.context.newPage());
  for (const page of pages) {
    if (page !== person.page) person.watch(page);
    page.on("request", (request) => {
      if (new URL(request.url()).pathname === "/v1/events") streams.add(page);
    });
  }
  await Promise.all(pages.map((page) => page.goto(`${world.url}/projects`)));
  for (const page of pages) await person.isLive(page);
  check(streams.size === 1, `S004-147: events reach the console by one stream, but ${streams.size} tabs read events of their own`);

  const show = async (title) => {
    const slug = title.toLowerCase().replaceAll(" ", "-");
    const asked = performance.now();
    await world.api.ask("POST", "/v1/projects", { slug, title });
    const open = pages.filter((page) => !page.isClosed());
    await Promise.all(open.map((page) => page.getByText(title).first().waitFor()));
    return performance.now() - asked;
  };
  const stamp = Date.now().toString(36);
  const took = await show(`Tabs ${stamp} one`);
  const [leader] = streams;
  await leader.close();
  const again = await show(`Tabs ${stamp} two`);
  for (const page of pages) if (!page.isClosed()) await person.isLive(page);
  console.log(`figure: event_in_eight_tabs ${Math.round(took)} ms`);
  console.log(`figure: event_after_leader_closed ${Math.round(again)} ms`);
  await Promise.all(pages.map((page) => page.close()));
}
