import { readFileSync } from "node:fs";
import { runInNewContext } from "node:vm";
import { describe, expect, it } from "vitest";
import { findKindName, shortenAddress } from "../src/logic/notifications";
import {
  type BrowserFacts,
  encodeBase64Url,
  findPushState,
  nameBrowser,
  readOpenMessage,
  toSubscribeRequest,
} from "../src/logic/web-push";

const ENDPOINT = "https://push.example.com/send/abc";

describe("this browser", () => {
  const granted: BrowserFacts = { isSecure: true, hasPush: true, permission: "granted", endpoint: ENDPOINT };
  const channel = { channel_id: "chn_1", kind: "web_push", address: ENDPOINT, enabled: true };

  it("is on when a channel of the person has its subscription, and the browser may show something", () => {
    expect(findPushState(granted, [channel])).toEqual({ name: "on", channel: "chn_1" });
    const others = [
      { ...channel, enabled: false },
      { ...channel, address: `${ENDPOINT}d` },
      { ...channel, kind: "webhook" },
    ];
    expect(findPushState(granted, others)).toEqual({ name: "off" });
    expect(findPushState({ ...granted, endpoint: null }, [channel])).toEqual({ name: "off" });
    expect(findPushState({ ...granted, permission: "default" }, [channel])).toEqual({ name: "off" });
    // Addresses are compared as the server writes them.
    expect(findPushState({ ...granted, endpoint: "https://PUSH.example.com:443/send/abc" }, [channel]).name).toBe("on");
  });

  it("says what blocks it, the strongest reason first", () => {
    expect(findPushState({ ...granted, permission: "denied" }, [channel])).toEqual({ name: "blocked" });
    const without = { ...granted, hasPush: false };
    expect(findPushState(without, [channel])).toMatchObject({ reason: expect.stringContaining("ntfy or mail") });
    const plain = { ...without, isSecure: false };
    expect(findPushState(plain, [channel])).toMatchObject({ reason: expect.stringContaining("HTTPS") });
  });

  it.each([
    ["Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0", "Firefox on Linux"],
    [
      "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36 Edg/142.0.0.0",
      "Edge on Windows",
    ],
    [
      "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Mobile Safari/537.36",
      "Chrome on Android",
    ],
    [
      "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.0 Safari/605.1.15",
      "Safari on macOS",
    ],
    ["curl/8", "Browser"],
  ])("has a name: %s", (userAgent, name) => {
    expect(nameBrowser(userAgent)).toBe(name);
  });

  it("tells the server its endpoint and both keys, or nothing", () => {
    const keys = { p256dh: "BCVx", auth: "BTBZ" };
    expect(toSubscribeRequest({ endpoint: ENDPOINT, keys }, "x")).toEqual({ name: "x", endpoint: ENDPOINT, ...keys });
    expect(toSubscribeRequest({ endpoint: ENDPOINT, keys: { p256dh: "BCVx" } }, "x")).toBeNull();
    expect(toSubscribeRequest({ keys }, "x")).toBeNull();
  });

  it("compares keys in the form of the server", () => {
    expect(encodeBase64Url(new Uint8Array([251, 255, 254, 0]).buffer)).toBe("-__-AA");
  });

  it("opens paths of the console only", () => {
    expect(readOpenMessage({ type: "open", path: "/tasks/tsk_1" })).toBe("/tasks/tsk_1");
    for (const data of [
      null,
      "open",
      { type: "open" },
      { type: "other", path: "/" },
      { type: "open", path: "//evil.example" },
      { type: "open", path: "https://evil.example" },
      { type: "open", path: "javascript:alert(1)" },
    ]) {
      expect(readOpenMessage(data)).toBeNull();
    }
  });

  it("is listed by its push service", () => {
    expect(shortenAddress({ kind: "web_push", address: ENDPOINT })).toBe("push.example.com");
    expect(shortenAddress({ kind: "ntfy", address: "https://ntfy.sh/x" })).toBe("https://ntfy.sh/x");
    expect(["web_push", "mail", "carrier_pigeon"].map(findKindName)).toEqual(["Browser", "Mail", "carrier_pigeon"]);
  });
});

/** The world of a service worker: what it shows, and the tabs that it sees. */
class Worker {
  readonly shown: unknown[] = [];
  readonly opened: string[] = [];
  private readonly handlers = new Map<string, (event: unknown) => void>();

  constructor(private readonly tabs: readonly Tab[] = []) {
    const source = readFileSync(new URL("../public/sw.js", import.meta.url), "utf8");
    const self = {
      addEventListener: (name: string, handler: (event: unknown) => void) => this.handlers.set(name, handler),
      skipWaiting: () => undefined,
      location: { origin: "https://cynode.example" },
      registration: {
        showNotification: async (title: string, options: object) => void this.shown.push({ title, ...options }),
      },
      clients: {
        claim: async () => undefined,
        matchAll: async () => this.tabs,
        openWindow: async (path: string) => void this.opened.push(path),
      },
    };
    runInNewContext(source, { self, URL });
  }

  async send(name: string, event: object): Promise<void> {
    const waits: unknown[] = [];
    this.handlers.get(name)?.({ waitUntil: (work: unknown) => waits.push(work), ...event });
    await Promise.all(waits);
  }

  async push(text: string | null): Promise<void> {
    await this.send("push", { data: text === null ? null : { json: () => JSON.parse(text) as unknown } });
  }

  async click(path: unknown): Promise<void> {
    await this.send("notificationclick", { notification: { close: () => undefined, data: { path } } });
  }
}

class Tab {
  readonly messages: unknown[] = [];
  hasFocus = false;

  constructor(
    readonly url: string,
    readonly focused = false,
    readonly visibilityState = "hidden",
  ) {}

  postMessage(message: unknown) {
    this.messages.push(message);
  }

  async focus() {
    this.hasFocus = true;
  }
}

describe("the service worker", () => {
  it("shows a message, and the same one again in its place", async () => {
    const worker = new Worker();
    const message = {
      id: "ntf_1",
      kind: "task.waiting",
      title: "May it?",
      text: "A task waits.",
      path: "/?item=wai_1",
      asks: true,
    };
    await worker.push(JSON.stringify(message));
    expect(worker.shown).toEqual([
      {
        title: "May it?",
        body: "A task waits.",
        tag: "ntf_1",
        requireInteraction: true,
        data: { path: "/?item=wai_1" },
      },
    ]);
  });

  it.each([[null], ["no JSON"], ["{}"], ['{"title":5}'], ["null"]])("shows something for %s", async (text) => {
    const worker = new Worker();
    await worker.push(text);
    expect(worker.shown).toMatchObject([{ title: "CyNode has news", data: { path: "/" } }]);
  });

  it("opens the page in the tab that is looked at, without loading it again", async () => {
    const link = new Tab("https://cynode.example/answer/abc", true, "visible");
    const [hidden, visible] = [
      new Tab("https://cynode.example/"),
      new Tab("https://cynode.example/tasks", false, "visible"),
    ];
    const worker = new Worker([link, hidden, visible]);
    await worker.click("/tasks/tsk_1?tab=changes");
    expect(visible.messages).toEqual([{ type: "open", path: "/tasks/tsk_1?tab=changes" }]);
    expect([link, hidden, visible].map((tab) => tab.hasFocus)).toEqual([false, false, true]);
    expect(worker.opened).toEqual([]);
  });

  it("opens a new tab when none of the console is open", async () => {
    const worker = new Worker([new Tab("https://cynode.example/setup")]);
    await worker.click("/?item=wai_1");
    expect(worker.opened).toEqual(["/?item=wai_1"]);
  });

  it.each([
    ["https://evil.example/x"],
    ["//evil.example"],
    ["javascript:alert(1)"],
    ["/answer/abc"],
    [undefined],
    [{}],
  ])("goes to the inbox for %s, which is no page of the console", async (path) => {
    const worker = new Worker();
    await worker.click(path);
    expect(worker.opened).toEqual(["/"]);
  });
});
