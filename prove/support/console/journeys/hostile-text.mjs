import { check, until } from "../harness.mjs";
import { TASK_TABS } from "../routes.mjs";
import { makeHostileWorld, PAYLOADS } from "../hostile.mjs";

export const promise = "text of tasks, logs, diffs, tools, reports and terminals is shown and never runs, links or loads";
export const once = true;

/** What must not be in the page, whatever text it shows. */
function inspect() {
  const bad = [];
  if (window.owned !== undefined) bad.push(`it ran: ${window.owned}`);
  for (const node of document.querySelectorAll("*")) {
    for (const { name, value } of node.attributes) {
      if (name.startsWith("on")) bad.push(`${node.nodeName} ${name}`);
      if (["href", "src", "action", "formaction", "xlink:href", "data"].includes(name) && /^\s*(javascript|data|vbscript):/i.test(value))
        bad.push(`${node.nodeName} ${name}=${value.slice(0, 60)}`);
      if (["href", "src"].includes(name) && /attacker\.example/.test(value) && node.nodeName !== "A") bad.push(`${node.nodeName} loads ${value}`);
    }
    if (["IFRAME", "OBJECT", "EMBED", "BASE", "META"].includes(node.nodeName) && node.closest("#root")) bad.push(node.nodeName);
    if (node.nodeName === "SCRIPT" && !node.src) bad.push("an inline script");
  }
  for (const mark of ["\u001b", "\u202e", "\u2066"])
    if (document.body.innerText.includes(mark)) bad.push(`a hidden character ${mark.codePointAt(0).toString(16)} as it is`);
  return bad;
}

export async function run({ world, makePerson, quick }) {
  const made = await makeHostileWorld(world, { soon: quick });
  const person = await makePerson();
  const addresses = [
    ...TASK_TABS.map((tab) => `/tasks/${made.task}?tab=${tab}`),
    ...made.jobs.map((job) => `/tasks/${made.task}?tab=logs&job=${job}`),
    ...made.files.map((file) => `/tasks/${made.task}?tab=changes&file=${encodeURIComponent(file)}`),
    "/",
    ...made.items.map((id) => `/?item=${encodeURIComponent(id)}`),
    "/tasks",
    "/projects",
    `/projects/${made.project}`,
    "/tools",
    `/tools?tool=${encodeURIComponent(made.tool)}`,
    `/tools/servers?server=${made.server}`,
    "/tools/rules",
    "/tools/approvals",
    "/audit",
    "/settings/skills",
    "/settings/people",
    "/chat",
    `/tasks/new?project=${encodeURIComponent(PAYLOADS[0])}`,
    `/tools?tool=${encodeURIComponent(PAYLOADS[0])}`,
    `/no/${encodeURIComponent(PAYLOADS[0])}`,
    `/tasks/${encodeURIComponent(PAYLOADS[1])}`,
  ];
  const found = [];
  let seen = 0;
  for (const address of quick ? addresses.filter((_, index) => index % 2 === 0) : addresses) {
    await person.open(address);
    for (const bad of await person.page.evaluate(inspect)) found.push(`${address}: ${bad}`);
    if (/attacker\.example|onerror/.test(await person.page.locator("body").innerText())) seen += 1;
  }
  check(found.length === 0, found.join("\n      "));
  check(seen >= (quick ? 3 : 6), `the hostile text was on ${seen} pages only, so little was shown`);
  console.log(`figure: pages_with_hostile_text ${seen} pages`);
  // The palette lists names of tasks and projects, too.
  await person.page.keyboard.press("Control+k");
  await person.page.getByRole("searchbox").waitFor();
  await until("the list", async () => (await person.page.getByRole("menuitem").count()) > 10);
  const bad = await person.page.evaluate(inspect);
  check(bad.length === 0, bad.join("\n      "));
}
