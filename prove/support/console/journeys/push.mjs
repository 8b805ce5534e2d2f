import { check, until } from "../harness.mjs";
import { PushService } from "../push-service.mjs";

export const promise = "a browser is notified by web push: asked by a click, shown by the service worker, opened in the tab that is there; blocked, it says so";

/** Chromium without a network has no push service: the page gets the subscription of ours. Everything else is real. */
function replacePushManager(given) {
  const stored = () => sessionStorage.getItem("push-key");
  const make = () => ({
    endpoint: given.endpoint,
    options: { applicationServerKey: Uint8Array.from(atob(stored().replaceAll("-", "+").replaceAll("_", "/")), (it) => it.charCodeAt(0)).buffer },
    toJSON: () => given,
    unsubscribe: async () => {
      sessionStorage.removeItem("push-key");
      return true;
    },
  });
  PushManager.prototype.getSubscription = async () => (stored() ? make() : null);
  PushManager.prototype.subscribe = async ({ userVisibleOnly, applicationServerKey }) => {
    if (!userVisibleOnly) throw new Error("a browser demands that something is shown");
    sessionStorage.setItem("push-key", applicationServerKey);
    return make();
  };
}

async function allowPrivateAddresses(world) {
  const path = "/v1/settings/notifications.allow_private";
  const { status, text } = await world.api.send("GET", path);
  const known = status === 200 ? JSON.parse(text) : { version: 0 };
  if (known.value !== true) await world.api.send("PUT", path, { value: true, expected_version: known.version });
}

/** Gives a message to the service worker as the browser would. */
async function deliver(person, body) {
  const session = await person.context.newCDPSession(person.page);
  const found = new Promise((resolve) => {
    session.on("ServiceWorker.workerRegistrationUpdated", ({ registrations }) => {
      const own = registrations.find((it) => !it.isDeleted);
      if (own) resolve(own.registrationId);
    });
  });
  await session.send("ServiceWorker.enable");
  const { origin } = new URL(person.page.url());
  await session.send("ServiceWorker.deliverPushMessage", { origin, registrationId: await found, data: JSON.stringify(body) });
  await session.detach();
}

const listBrowsers = async (world) => (await world.api.ask("GET", "/v1/notification-channels?limit=100")).items.filter((it) => it.kind === "web_push");

export async function run({ world, browser, makePerson, variant }) {
  await allowPrivateAddresses(world);
  const service = await PushService.start();
  const person = await makePerson();
  try {
    const { origin } = new URL(world.url);
    await person.context.grantPermissions(["notifications"], { origin });
    await person.page.addInitScript(replacePushManager, service.subscription);
    await person.open("/settings/notifications");
    await person.press(person.button("Notify this browser"));
    await person.sees("This browser is notified");
    const channel = (await listBrowsers(world)).find((it) => it.address === service.subscription.endpoint);
    check(channel !== undefined, "the server has no channel for the browser");

    await person.press(person.button("Send test", person.page.getByRole("region", { name: "This browser" })));
    const [message] = await until("the message", () => service.messages.length > 0 && service.messages);
    check(message.body.path === "/settings/notifications" && message.body.asks === false, JSON.stringify(message.body));
    check(!/whsec|cookie|token/i.test(JSON.stringify(message.body)), "the message has more than it shows");

    const worker = person.context.serviceWorkers()[0] ?? (await person.context.waitForEvent("serviceworker"));
    const shown = () => worker.evaluate(async () => (await self.registration.getNotifications()).map((it) => [it.title, it.body, it.tag]));
    await deliver(person, message.body);
    await deliver(person, message.body);
    const { title, text, id } = message.body;
    await until("the notification", async () => (await shown()).length > 0);
    const now = JSON.stringify(await shown());
    check(now === JSON.stringify([[title, text, id]]), `shown: ${now}`);

    // The tab goes to the page without being loaded again.
    await person.open("/tasks");
    await person.page.evaluate(() => Object.assign(window, { isSamePage: true }));
    await worker.evaluate(async () => {
      const [notification] = await self.registration.getNotifications();
      self.dispatchEvent(new NotificationEvent("notificationclick", { notification }));
    });
    await person.page.waitForURL("**/settings/notifications");
    check(await person.page.evaluate(() => window.isSamePage === true), "the tab was loaded again");
    check((await shown()).length === 0, "the notification stays after the click");

    await person.press(person.button("Stop notifying this browser"));
    await person.button("Notify this browser").waitFor();
    check((await listBrowsers(world)).every((it) => it.channel_id !== channel.channel_id), "the channel is still there");
    check((await person.page.evaluate(() => sessionStorage.getItem("push-key"))) === null, "the browser is still subscribed");

    const other = await browser.person(variant);
    try {
      await other.page.addInitScript(() => Object.defineProperty(Notification, "permission", { get: () => "denied" }));
      await other.open("/settings/notifications");
      await other.sees("Blocked by the browser");
    } finally {
      await other.close();
    }
  } finally {
    service.close();
  }
}
