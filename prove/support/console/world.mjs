// The installation that a proof looks at: how it is reached, its admin, and what is set up in it.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { check, Interface, loadModules } from "./harness.mjs";

/** Reads the command line: the installation, and which of the names are chosen. */
export function parseOptions(names) {
  const text = { type: "string" };
  const flag = { type: "boolean", default: false };
  const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: { modules: text, url: text, internal: text, link: text, work: text, cynork: text, dist: text, quick: flag, list: flag },
  });
  for (const name of positionals) check(names.includes(name), `there is no ${name}; there are ${names.join(", ")}`);
  return { options, chosen: positionals.length > 0 ? names.filter((name) => positionals.includes(name)) : names };
}

/** With `withoutAdmin`, a new installation is left without its first admin. */
export async function makeWorld(options, { withoutAdmin = false } = {}) {
  const world = {
    ...options,
    modules: loadModules(options.modules),
    api: new Interface(options.url),
    handle: "demo",
    password: "correct horse battery staple",
    data: join(options.work, "data"),
    root: new URL("../../..", import.meta.url).pathname,
    /** What ends with the run. */
    closers: [],
    /** Runs cynork as the admin. */
    cynork(...words) {
      const env = { ...process.env, HOME: join(options.work, "home") };
      return execFileSync(options.cynork, ["--url", options.url, ...words], { env, encoding: "utf8" });
    },
    async makeAdmin() {
      const token = options.link.split("#bootstrap=")[1]?.trim();
      const body = { token, handle: world.handle, display_name: "Demo", password: world.password };
      await world.api.ask("POST", "/v1/bootstrap", body);
      await world.afterAdmin();
    },
    /** Once there is an admin: the interface and cynork act as them. */
    async afterAdmin() {
      await world.api.logIn(world.handle, world.password);
      writeFileSync(join(world.data, "demo-password"), world.password);
      const input = `${world.password}\n`;
      const env = { ...process.env, HOME: join(options.work, "home") };
      mkdirSync(env.HOME, { recursive: true });
      execFileSync(options.cynork, ["login", options.url, "--handle", world.handle, "--password-stdin"], { env, input });
    },
    /** The sample's project, and things that wait for a decision; made once. */
    setUp() {
      world.facts ??= world.setUpOnce();
      return world.facts;
    },
    async setUpOnce() {
      const file = join(options.work, "facts.json");
      if (!existsSync(file)) {
        if (!existsSync(join(world.data, "slug"))) world.cynork("sample", join(world.data, "slug"));
        const made = execFileSync("python3", ["prove/support/screens.py", "set-up", world.data], { cwd: world.root });
        writeFileSync(file, made);
      }
      const { items } = await world.api.ask("GET", "/v1/projects");
      const idOf = (slug) => items.find((project) => project.slug === slug)?.id;
      const facts = { ...JSON.parse(readFileSync(file, "utf8")), slug: idOf("slug"), web: idOf("web") };
      // The journeys spend more than the terminal screen does.
      const budget = { scope_type: "project", scope_id: facts.web, period: "total", max_cost_micros: 100_000_000, max_tokens: null };
      await world.api.ask("PUT", "/v1/budgets", budget);
      return facts;
    },
  };
  // An installation that is there already is logged in to.
  const login = { handle: world.handle, password: world.password };
  world.isNew = (await world.api.send("POST", "/v1/sessions", login)).status >= 300;
  if (!world.isNew) await world.afterAdmin();
  else if (!withoutAdmin) await world.makeAdmin();
  return world;
}
