import { check, VARIANTS, WIDTHS } from "../harness.mjs";
import { readAddresses } from "../routes.mjs";

export const promise = "axe finds no barrier on any route, and no page is wider than the window";
export const once = true;

/** The innermost element that reaches beyond the window. */
function findWidest() {
  const wide = [...document.querySelectorAll("main *")].filter((it) => it.getBoundingClientRect().right > window.innerWidth + 1);
  return wide.filter((it) => !wide.some((other) => other !== it && it.contains(other))).slice(0, 2).map((it) => it.outerHTML.slice(0, 300)).join(" | ");
}

export async function run({ world, makePerson, quick }) {
  const facts = await world.setUp();
  const addresses = readAddresses(world.root, { task: facts.dark, project: facts.web });
  const { items } = await world.api.ask("GET", "/v1/inbox");
  const kinds = new Map(items.map((item) => [item.kind, item.id]));
  addresses.push(...[...kinds.values()].map((id) => `/?item=${encodeURIComponent(id)}`), "/no-such-page");
  const found = [];
  const looks = quick ? [{ width: WIDTHS.wide, theme: "dark" }] : VARIANTS;
  const person = await makePerson();
  let pages = 0;
  for (const { width, theme } of looks) {
    await person.page.setViewportSize({ width, height: width < 640 ? 844 : 900 });
    await person.page.emulateMedia({ colorScheme: theme, reducedMotion: "reduce" });
    for (const address of addresses) {
      await person.open(address);
      pages += 1;
      await person.page.evaluate(world.modules.axeSource);
      const violations = await person.page.evaluate(async () => {
        const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
        return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
      });
      found.push(...violations.map((text) => `${address} at ${width} px, ${theme}: ${text}`));
      const wide = await person.page.evaluate(() =>
        Math.max(document.documentElement.scrollWidth, document.querySelector("main")?.scrollWidth ?? 0),
      );
      if (wide > width) found.push(`${address} at ${width} px, ${theme}: ${wide} px wide, by ${await person.page.evaluate(findWidest)}`);
    }
  }
  console.log(`figure: pages_without_barriers ${pages - new Set(found.map((it) => it.split(":")[0])).size} pages`);
  console.log(`figure: barriers ${found.length} barriers`);
  check(found.length === 0, found.join("\n      "));
}
