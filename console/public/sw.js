// The service worker of the console. It shows notifications that arrive by web push and opens their pages. It answers no request and stores
// nothing, so the console is never served from an old copy.

/** Pages of the server that are not the console. */
const OTHER_PAGES = /^\/(answer|setup|v1|mcp|docs)(\/|$)/;

self.addEventListener("install", () => void self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("push", (event) => event.waitUntil(showMessage(readMessage(event.data))));
self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(openPath(event.notification.data?.path));
});

/** Reads what was sent. A browser demands that something is shown, whatever it is. */
function readMessage(data) {
  try {
    const message = data?.json();
    if (typeof message?.title === "string" && message.title !== "") return message;
  } catch {
    // No JSON: below.
  }
  return { title: "CyNode has news", text: "Open the console to see it.", path: "/" };
}

/** Shows a message. One that arrives twice replaces itself. */
function showMessage(message) {
  return self.registration.showNotification(message.title, {
    body: typeof message.text === "string" ? message.text : "",
    tag: typeof message.id === "string" ? message.id : "cynode",
    requireInteraction: message.asks === true,
    data: { path: message.path },
  });
}

/** Returns a path of this server; the inbox, if it is none. */
function toOwnPath(path) {
  const url = typeof path === "string" && path.startsWith("/") ? new URL(path, self.location.origin) : null;
  const isOwn = url?.origin === self.location.origin && !OTHER_PAGES.test(url.pathname);
  return isOwn ? url.pathname + url.search : "/";
}

/** Opens a page in a tab of the console, or in a new one. The tab goes there by itself, so that nothing is loaded again. */
async function openPath(given) {
  const path = toOwnPath(given);
  const windows = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const tabs = windows.filter((it) => !OTHER_PAGES.test(new URL(it.url).pathname));
  const tab = tabs.find((it) => it.focused) ?? tabs.find((it) => it.visibilityState === "visible") ?? tabs[0];
  if (!tab) return self.clients.openWindow(path);
  tab.postMessage({ type: "open", path });
  return tab.focus();
}
