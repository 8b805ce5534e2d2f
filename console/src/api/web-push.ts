/** The subscription of this browser: its service worker, its permission, and the channel that the server has for it. */

import { queryOptions } from "@tanstack/react-query";
import { type BrowserFacts, encodeBase64Url, nameBrowser, toSubscribeRequest } from "../logic/web-push";
import { api, type Schema, unwrap } from "./client";
import { Problem } from "./problem";

const WORKER_PATH = "/sw.js";

/** Who subscribed this browser: a person who logs in after them must not be shown what concerns them. */
const OWNER_KEY = "cynode-push-owner";

/** Longest time that a log-out waits for the push service. */
const RELEASE_TIMEOUT_MS = 2000;

function hasPush(): boolean {
  return "serviceWorker" in navigator && "PushManager" in window && "Notification" in window;
}

async function findSubscription(): Promise<PushSubscription | null> {
  const registration = await navigator.serviceWorker.getRegistration("/");
  return (await registration?.pushManager.getSubscription()) ?? null;
}

async function readBrowser(): Promise<BrowserFacts> {
  const supported = hasPush();
  const subscription = supported ? await findSubscription() : null;
  return {
    isSecure: window.isSecureContext,
    hasPush: supported,
    permission: supported ? Notification.permission : "default",
    endpoint: subscription?.endpoint ?? null,
  };
}

export const browserQuery = queryOptions({
  queryKey: ["notifications", "browser"],
  queryFn: readBrowser,
  retry: false,
});

function browserProblem(detail: string, fix: string): Problem {
  return new Problem({ status: 0, code: "browser", title: "", detail, fix });
}

/** Subscribes this browser. Called by a click only, because it asks for the permission. Null if the person refused. */
export async function subscribeThisBrowser(owner: string): Promise<Schema["ChannelView"] | null> {
  // First of all: a browser asks only right after a click.
  if ((await Notification.requestPermission()) !== "granted") return null;
  const { public_key: key } = await unwrap(api.GET("/v1/web-push/key", {}));
  await navigator.serviceWorker.register(WORKER_PATH);
  const { pushManager } = await navigator.serviceWorker.ready;
  const known = await pushManager.getSubscription();
  // A subscription for another key would refuse what this installation sends.
  const fits = known?.options.applicationServerKey && encodeBase64Url(known.options.applicationServerKey) === key;
  if (known && !fits) await known.unsubscribe();
  const options = { userVisibleOnly: true, applicationServerKey: key };
  const subscription = await pushManager.subscribe(options).catch((error: unknown) => {
    const reason = error instanceof Error ? ` (${error.message})` : "";
    throw browserProblem(
      `The browser could not subscribe at its push service${reason}.`,
      "Check that this machine reaches the internet and that the browser allows push messages, then try again.",
    );
  });
  const body = toSubscribeRequest(subscription.toJSON(), nameBrowser(navigator.userAgent));
  if (!body) throw browserProblem("The browser gave no keys with its subscription.", "Use another browser.");
  const channel = await unwrap(api.POST("/v1/web-push/subscriptions", { body }));
  writeOwner(owner);
  return channel;
}

/** Ends the subscription of this browser, and its channel. */
export async function unsubscribeThisBrowser(channel: string): Promise<void> {
  await unwrap(api.DELETE("/v1/notification-channels/{channel}", { params: { path: { channel } } }));
  await releaseBrowser();
}

/** Ends the subscription in the browser alone: the server learns it from the push service. */
async function releaseBrowser(): Promise<void> {
  writeOwner(null);
  if (hasPush()) await (await findSubscription())?.unsubscribe();
}

/** Ends the subscription when its person logs out. */
export async function releaseAtLogout(): Promise<void> {
  const late = new Promise<void>((resolve) => setTimeout(resolve, RELEASE_TIMEOUT_MS));
  await Promise.race([releaseBrowser().catch(() => undefined), late]);
}

/** Ends a subscription that another person left behind in this browser. */
export async function releaseIfForeign(user: string): Promise<void> {
  const owner = readOwner();
  if (owner !== null && owner !== user) await releaseBrowser().catch(() => undefined);
}

function readOwner(): string | null {
  try {
    return localStorage.getItem(OWNER_KEY);
  } catch {
    return null;
  }
}

function writeOwner(owner: string | null): void {
  try {
    if (owner === null) localStorage.removeItem(OWNER_KEY);
    else localStorage.setItem(OWNER_KEY, owner);
  } catch {
    // A browser that stores nothing has no service worker either.
  }
}
