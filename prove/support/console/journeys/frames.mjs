import { serveAttacker } from "../attacker.mjs";
import { check } from "../harness.mjs";
import { readRoutes } from "../routes.mjs";

export const promise = "no other page can show the console in a frame, keep a hand on its window, or sniff what it serves";
export const once = true;

const HEADERS = {
  "content-security-policy": /frame-ancestors 'none'/,
  "x-content-type-options": /^nosniff$/,
  "cross-origin-opener-policy": /^same-origin$/,
  "cross-origin-resource-policy": /^same-origin$/,
  "referrer-policy": /^no-referrer$/,
};

export async function run({ world, makePerson }) {
  const attacker = await serveAttacker({
    "/": `<!doctype html><iframe src="${world.url}/"></iframe><object data="${world.url}/tasks"></object>
      <embed src="${world.url}/audit"><iframe src="${world.url}/v1/me"></iframe>
      <iframe sandbox="allow-scripts allow-same-origin allow-forms" src="${world.url}/tools"></iframe>`,
    "/opener": `<!doctype html><script>window.opened = window.open("${world.url}/");</script>`,
  });
  try {
    const person = await makePerson();
    person.page.removeAllListeners("request");
    for (const origin of attacker.origins) {
      const page = await person.context.newPage();
      await page.goto(`${origin}/`, { waitUntil: "load" });
      const shown = [];
      for (const frame of page.frames().filter((it) => it !== page.mainFrame())) {
        const text = await frame.evaluate(() => document.body?.innerText ?? "").catch(() => "");
        if (/Inbox|Log in|Tasks|installation_role/.test(text)) shown.push(`${frame.url()}: ${text.slice(0, 80)}`);
      }
      check(shown.length === 0, `in a frame of ${origin}: ${shown.join("; ")}`);
      const popup = person.context.waitForEvent("page");
      await page.goto(`${origin}/opener`);
      const opened = await popup;
      await opened.waitForLoadState();
      const hand = await page.evaluate(() => window.opened.closed);
      check(hand, "the page that opened the console keeps a hand on its window");
      const opener = await opened.evaluate(() => window.opener === null);
      check(opener, "the console knows the window that opened it");
      await opened.close();
      await page.close();
    }
    person.problems.length = 0;
  } finally {
    attacker.close();
  }
  const paths = [...readRoutes(world.root), "/v1/me", "/v1/openapi.json", "/assets/none.js", "/icon.svg", "/setup"];
  const wrong = [];
  for (const path of paths) {
    const { headers } = await world.api.send("GET", path, undefined, { headers: { Accept: "text/html" } });
    for (const [name, meant] of Object.entries(HEADERS)) {
      if (!meant.test(headers.get(name) ?? "")) wrong.push(`${path}: ${name} is ${headers.get(name)}`);
    }
  }
  check(wrong.length === 0, wrong.join("\n      "));
}
