// What journeys share: the browser, people who use it by mouse or by keyboard, the interface, and what counts as a problem.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

export const TIMEOUT_MS = 15_000;
export const WIDTHS = { narrow: 390, wide: 1440 };

/** How a person uses the console: every width, theme and way of input occurs. */
export const VARIANTS = [
  { width: WIDTHS.wide, theme: "light", input: "mouse" },
  { width: WIDTHS.narrow, theme: "dark", input: "mouse" },
  { width: WIDTHS.wide, theme: "dark", input: "keyboard" },
  { width: WIDTHS.narrow, theme: "light", input: "keyboard" },
];

export function loadModules(directory) {
  const require = createRequire(join(directory, "package.json"));
  return {
    chromium: require("playwright-core").chromium,
    axeSource: readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"),
  };
}

/** Throws with the words if the value is not true. */
export function check(value, words) {
  if (!value) throw new Error(words);
}

/** Waits for a condition that no locator can express. */
export async function until(words, question, timeout = TIMEOUT_MS) {
  const end = performance.now() + timeout;
  for (;;) {
    const answer = await question();
    if (answer) return answer;
    if (performance.now() > end) throw new Error(`in vain waited for ${words}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** The public interface, as any program uses it. */
export class Interface {
  constructor(base) {
    this.base = base;
    this.token = null;
  }

  async send(method, path, body, { token = this.token, headers = {}, base = this.base } = {}) {
    const response = await fetch(base + path, {
      method,
      headers: {
        "Content-Type": "application/json",
        ...(token ? { Authorization: `Bearer ${token}` } : {}),
        ...headers,
      },
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, text };
  }

  async ask(method, path, body, options) {
    const { status, text } = await this.send(method, path, body, options);
    check(status < 300, `${method} ${path}: ${status} ${text.slice(0, 400)}`);
    return text === "" ? null : JSON.parse(text);
  }

  async logIn(handle, password) {
    this.token = (await this.ask("POST", "/v1/sessions", { handle, password }, { token: null })).token;
  }
}

/** Headings, buttons and so on by the words of either page, so that a word can be said more exactly later. */
const oneOf = (names) => (Array.isArray(names) ? new RegExp(names.map(escape).join("|"), "i") : names);
const escape = (text) => text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** A person at a browser window. Problems of any page are collected; `problems` must be empty in the end. */
export class Person {
  constructor(world, context, page, variant) {
    Object.assign(this, { world, context, page, variant });
    this.problems = [];
    this.requests = new Set();
    this.watch(page);
    page.on("request", (request) => {
      if (!/\/(events|stream)$/.test(new URL(request.url()).pathname)) this.requests.add(request);
    });
    for (const end of ["requestfinished", "requestfailed"]) page.on(end, (request) => this.requests.delete(request));
  }

  watch(page) {
    const at = () => new URL(page.url()).pathname;
    page.setDefaultTimeout(TIMEOUT_MS);
    page.on("pageerror", (error) => this.problems.push(`${at()}: ${error.stack ?? error.message}`));
    page.on("dialog", (dialog) => {
      this.problems.push(`${at()}: a dialog of the browser: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on("console", (message) => {
      const text = message.text();
      // What the network answered is judged by what the page shows.
      if (message.type() === "error" && !text.startsWith("Failed to load resource") && !text.includes("net::ERR_"))
        this.problems.push(`${at()}: ${text}`);
    });
    page.on("request", (request) => {
      const url = new URL(request.url());
      if (url.protocol.startsWith("http") && url.origin !== new URL(this.world.url).origin)
        this.problems.push(`${at()}: a request to ${url.origin}`);
    });
  }

  get usesKeyboard() {
    return this.variant.input === "keyboard";
  }

  async open(path) {
    await this.page.goto(new URL(path, this.world.url).href);
    await this.settle();
  }

  /** Until the page is there and has got what it asked for. */
  async settle() {
    await this.page.waitForFunction(() => document.querySelector("main, form") !== null);
    let quiet = 0;
    await until(`the answers to ${this.page.url()}`, async () => {
      const isBusy = this.requests.size > 0 || (await this.page.locator("[aria-busy=true]").count()) > 0;
      quiet = isBusy ? 0 : quiet + 1;
      return quiet >= 3;
    });
  }

  async logIn(handle = this.world.handle, password = this.world.password) {
    await this.open("/");
    await this.fill(this.field("Name"), handle);
    await this.fill(this.field("Password"), password);
    await this.press(this.button("Log in"));
    await this.page.getByRole("main").waitFor();
  }

  button(name, within = this.page) {
    return within.getByRole("button", { name: oneOf(name), exact: typeof name === "string" && name.endsWith("!") });
  }

  link(name, within = this.page) {
    return within.getByRole("link", { name: oneOf(name) });
  }

  field(name, within = this.page) {
    // A password field has no role.
    return within.getByLabel(oneOf(name)).and(within.locator("input, textarea, [contenteditable=true]")).first();
  }

  heading(name) {
    return this.page.getByRole("heading", { name: oneOf(name) });
  }

  text(words) {
    return this.page.getByText(oneOf(words)).filter({ visible: true }).first();
  }

  dialog() {
    return this.page.getByRole("dialog");
  }

  /** Brings the focus to an element by the Tab key alone; unless `itself`, to anything in it. */
  async reach(locator, { itself = false } = {}) {
    const element = locator.first();
    await element.waitFor();
    const isFocused = () =>
      element.evaluate(
        (node, only) => node === document.activeElement || (!only && node.contains(document.activeElement)),
        itself,
      );
    for (let presses = 0; presses < 250; presses += 1) {
      if (await isFocused()) return;
      await this.page.keyboard.press("Tab");
    }
    throw new Error(`${locator} is not reached by the Tab key`);
  }

  async press(locator, key = "Enter") {
    if (!this.usesKeyboard) return locator.first().click();
    await this.reach(locator);
    // A button that says why it cannot be pressed now keeps the focus; a click waits for it, too.
    await until(`${locator} is enabled`, () => locator.first().isEnabled());
    await this.page.keyboard.press(key);
  }

  /** Turns a switch or ticks a box. */
  async toggle(locator) {
    if (!this.usesKeyboard) return locator.first().click();
    await this.reach(locator);
    await this.page.keyboard.press("Space");
  }

  async fill(locator, text) {
    const element = locator.first();
    if (this.usesKeyboard) await this.reach(element);
    else await element.click();
    await this.page.keyboard.press("ControlOrMeta+a");
    await this.page.keyboard.insertText(text);
  }

  async choose(locator, value) {
    if (this.usesKeyboard) await this.reach(locator);
    await locator.first().selectOption(value);
  }

  /** The words must be on the page, within the time. */
  async sees(words, timeout = TIMEOUT_MS) {
    await this.text(words).waitFor({ timeout });
  }

  async isLive(page = this.page) {
    await page.getByRole("status").filter({ hasText: /^●?live$/ }).first().waitFor();
  }

  async close() {
    await this.context.close();
  }
}

/** A browser with its contexts. With `dist`, pages and their files come from that folder, with the headers of the server. */
export class Browser {
  static async launch(world, { args = [] } = {}) {
    const browser = await world.modules.chromium.launch({
      executablePath: "/usr/bin/chromium",
      args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", ...args],
    });
    return new Browser(world, browser);
  }

  constructor(world, browser) {
    this.world = world;
    this.browser = browser;
    this.state = undefined;
  }

  async context(variant) {
    const narrow = variant.width < 640;
    const context = await this.browser.newContext({
      viewport: { width: variant.width, height: narrow ? 844 : 900 },
      hasTouch: narrow,
      isMobile: narrow,
      colorScheme: variant.theme,
      reducedMotion: "reduce",
      storageState: this.state,
    });
    if (this.world.dist) await serveFrom(context, this.world);
    return context;
  }

  /** A person who is logged in already, unless `anonymous`. */
  async person(variant, { anonymous = false } = {}) {
    if (!anonymous) {
      this.login ??= this.logInOnce();
      await this.login;
    }
    const context = await this.context(variant);
    if (anonymous) await context.clearCookies();
    const page = await context.newPage();
    return new Person(this.world, context, page, variant);
  }

  async logInOnce() {
    const person = await this.person(VARIANTS[0], { anonymous: true });
    await person.logIn();
    this.state = await person.context.storageState();
    await person.close();
  }

  close() {
    return this.browser.close();
  }
}

const KINDS = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };

async function serveFrom(context, world) {
  const served = await fetch(world.url, { headers: { Accept: "text/html" } });
  const kept = [...served.headers].filter(([name]) => !/^(content-length|content-encoding|content-type|etag|transfer-encoding|date)$/.test(name));
  await context.route(
    (url) => url.origin === new URL(world.url).origin && !/^\/(v1|setup|answer|mcp|readyz|healthz)\b/.test(url.pathname),
    async (route) => {
      const { pathname } = new URL(route.request().url());
      const file = pathname.startsWith("/assets/") || /\.\w+$/.test(pathname) ? pathname : "/index.html";
      const headers = { "content-type": KINDS[file.split(".").at(-1)] ?? "application/octet-stream" };
      await route.fulfill({
        headers: { ...Object.fromEntries(kept), ...headers },
        body: readFileSync(join(world.dist, file)),
      });
    },
  );
}
