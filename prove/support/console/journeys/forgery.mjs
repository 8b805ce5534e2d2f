import { serveAttacker } from "../attacker.mjs";
import { check } from "../harness.mjs";

export const promise = "requests that another page forges, with forms, fetch, beacons or navigation, change and tell nothing";
export const once = true;

/** A page that tries everything at once, and says when it has done so. */
function attackPage(base, name) {
  const project = JSON.stringify({ slug: name, title: name });
  const user = JSON.stringify({ handle: name, display_name: name, password: "correct horse battery staple" });
  const form = (action, type, fields) =>
    `<form method="post" action="${base}${action}" enctype="${type}" target="sink">${fields}</form>`;
  const jsonField = (text) => {
    const [head, tail] = [text.slice(0, -1), '}'];
    return `<input name='${head},"x":"' value='"${tail}'>`;
  };
  return `<!doctype html><title>attack</title><iframe name="sink" hidden></iframe>
    ${form("/v1/projects", "text/plain", jsonField(project))}
    ${form("/v1/users", "text/plain", jsonField(user))}
    ${form("/v1/projects", "application/x-www-form-urlencoded", `<input name="slug" value="${name}"><input name="title" value="x">`)}
    ${form("/v1/projects", "multipart/form-data", `<input name="slug" value="${name}"><input name="title" value="x">`)}
    <script>
      const results = [];
      const note = (what, promise) => promise.then(
        async (answer) => results.push([what, answer.type, await answer.text().catch(() => "")]),
        (error) => results.push([what, "error", String(error)]),
      );
      async function attack() {
        for (const form of document.forms) { form.submit(); await new Promise((done) => setTimeout(done, 150)); }
        const send = (what, path, options) => note(what, fetch("${base}" + path, { credentials: "include", ...options }));
        const plain = { "Content-Type": "text/plain" };
        const json = { "Content-Type": "application/json" };
        await send("plain", "/v1/projects", { method: "POST", mode: "no-cors", headers: plain, body: ${JSON.stringify(project)} });
        await send("json", "/v1/projects", { method: "POST", headers: json, body: ${JSON.stringify(project)} });
        await send("json without cors", "/v1/projects", { method: "POST", mode: "no-cors", headers: json, body: ${JSON.stringify(project)} });
        await send("empty", "/v1/sessions/current", { method: "POST", mode: "no-cors" });
        await send("delete", "/v1/sessions/current", { method: "DELETE" });
        await send("read", "/v1/me", {});
        await send("read without cors", "/v1/me", { mode: "no-cors" });
        await send("events", "/v1/events", { signal: AbortSignal.timeout(1000) });
        navigator.sendBeacon("${base}/v1/projects", new Blob([${JSON.stringify(project)}], { type: "text/plain" }));
        navigator.sendBeacon("${base}/v1/projects", new Blob([${JSON.stringify(project)}], { type: "application/json" }));
        await new Promise((done) => setTimeout(done, 300));
        window.results = results;
      }
      attack();
    </script>`;
}

export async function run({ world, makePerson }) {
  const name = `forged-${Date.now().toString(36)}`;
  const attacker = await serveAttacker({ "/": attackPage(world.url, name) });
  try {
    const person = await makePerson();
    // Requests to the attacker's page are no problem here.
    person.page.removeAllListeners("request");
    await person.open("/");
    let attempts = 0;
    for (const origin of attacker.origins) {
      const page = await person.context.newPage();
      await page.goto(`${origin}/`);
      await page.waitForFunction(() => window.results !== undefined, undefined, { timeout: 30_000 });
      const results = await page.evaluate(() => window.results);
      attempts += results.length + 6;
      const told = results.filter(([, , text]) => text.includes(world.handle) && !text.includes("Error"));
      check(told.length === 0, `another page could read: ${JSON.stringify(told)}`);
      await page.close();
    }
    const projects = (await world.api.ask("GET", "/v1/projects?limit=100")).items.filter((it) => it.slug === name);
    const users = (await world.api.ask("GET", "/v1/users?limit=100")).items.filter((it) => it.handle === name);
    check(projects.length === 0 && users.length === 0, `made by another page: ${JSON.stringify([projects, users])}`);
    await person.open("/");
    await person.isLive();

    // The same request from the console itself does take effect, so the attempts were meaningful.
    const status = await person.page.evaluate(async (slug) => {
      const headers = { "Content-Type": "application/json" };
      const body = JSON.stringify({ slug, title: slug });
      return (await fetch("/v1/projects", { method: "POST", headers, body })).status;
    }, name);
    check(status === 200 || status === 201, `the console itself gets ${status}`);
    // Without a content type the console is refused as well.
    const bare = await person.page.evaluate(async () => (await fetch("/v1/sessions/current", { method: "DELETE" })).status);
    check(bare === 415, `a request without a content type gets ${bare}`);
    console.log(`figure: forged_requests ${attempts} attempts`);
    person.problems.length = 0;
  } finally {
    attacker.close();
  }
}
