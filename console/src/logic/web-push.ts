/** Notifications of this browser: where they stand, and what the server is told. */

import type { Schema } from "../api/client";

type Channel = Pick<Schema["ChannelView"], "channel_id" | "kind" | "address" | "enabled">;

/** What the browser says about itself. */
export interface BrowserFacts {
  /** Whether the page came over HTTPS or from this machine. Browsers give nothing to others. */
  isSecure: boolean;
  hasPush: boolean;
  permission: NotificationPermission;
  /** The endpoint of its subscription, if it has one. */
  endpoint: string | null;
}

export type PushState =
  | { name: "unsupported"; reason: string }
  | { name: "blocked" }
  | { name: "off" }
  | { name: "on"; channel: string };

/** Returns where notifications stand in this browser. A subscription counts if one of the person's channels has it. */
export function findPushState(facts: BrowserFacts, channels: readonly Channel[]): PushState {
  if (!facts.isSecure) {
    const reason =
      "Browsers show notifications only for pages over HTTPS or from this machine. Open the console by its https address.";
    return { name: "unsupported", reason };
  }
  if (!facts.hasPush) {
    const reason = "This browser cannot be notified. Use another browser, or a channel by ntfy or mail.";
    return { name: "unsupported", reason };
  }
  if (facts.permission === "denied") return { name: "blocked" };
  const own = channels.find((it) => it.kind === "web_push" && it.enabled && isSameAddress(it.address, facts.endpoint));
  return own && facts.permission === "granted" ? { name: "on", channel: own.channel_id } : { name: "off" };
}

function isSameAddress(address: string, endpoint: string | null): boolean {
  return endpoint !== null && URL.canParse(endpoint) && new URL(endpoint).href === address;
}

const BROWSERS: readonly [RegExp, string][] = [
  [/\bEdgA?\//, "Edge"],
  [/\bOPR\//, "Opera"],
  [/\bFirefox\/|\bFxiOS\//, "Firefox"],
  [/\bChrome\/|\bCriOS\//, "Chrome"],
  [/\bSafari\//, "Safari"],
];

const SYSTEMS: readonly [RegExp, string][] = [
  [/\bAndroid\b/, "Android"],
  [/\biPhone\b/, "iPhone"],
  [/\biPad\b/, "iPad"],
  [/\bWindows\b/, "Windows"],
  [/\bMac OS X\b/, "macOS"],
  [/\bCrOS\b/, "ChromeOS"],
  [/\bLinux\b/, "Linux"],
];

/** Returns a name that tells browsers of one person apart. */
export function nameBrowser(userAgent: string): string {
  const find = (names: readonly [RegExp, string][]) => names.find(([pattern]) => pattern.test(userAgent))?.[1];
  const system = find(SYSTEMS);
  return `${find(BROWSERS) ?? "Browser"}${system ? ` on ${system}` : ""}`;
}

/** Returns what the server needs of a subscription; null if the browser left something out. */
export function toSubscribeRequest(
  subscription: PushSubscriptionJSON,
  name: string,
): Schema["SubscribeBrowser"] | null {
  const { endpoint, keys } = subscription;
  const [p256dh, auth] = [keys?.p256dh, keys?.auth];
  return endpoint && p256dh && auth ? { name, endpoint, p256dh, auth } : null;
}

/** Writes bytes in base64url, as the server writes its key. */
export function encodeBase64Url(bytes: ArrayBuffer): string {
  const text = String.fromCharCode(...new Uint8Array(bytes));
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Returns the path that the service worker asks a tab to open; null for any other message. */
export function readOpenMessage(data: unknown): string | null {
  const message = (data ?? {}) as { type?: unknown; path?: unknown };
  const { type, path } = message;
  return type === "open" && typeof path === "string" && /^\/(?!\/)/.test(path) ? path : null;
}
