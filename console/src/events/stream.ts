/**
 * One event stream per browser. The tab that holds the lock reads `/v1/events` and hands every event to the other tabs; when it closes,
 * the next tab gets the lock and resumes after the last event that it was handed.
 */

import { noteBuild } from "../api/build";
import { send } from "../api/transport";
import { EventParser } from "./sse";

export interface ApiEvent {
  id: string;
  kind: string;
  project_id?: string | null;
  task_id?: string | null;
  actor_id?: string | null;
  occurred_at?: string;
  data: unknown;
}

export type LinkState = "connecting" | "live" | "reconnecting" | "offline" | "signed_out";

/** Messages between tabs. */
export type TabMessage =
  | { type: "event"; event: ApiEvent }
  | { type: "link"; state: LinkState; at: number; position: string | null }
  | { type: "missed" }
  | { type: "hello" };

export interface TabChannel {
  post(message: TabMessage): void;
  listen(handler: (message: TabMessage) => void): () => void;
}

export interface EventSourceEnvironment {
  /** Runs `work` while this tab is the leader; resolves when `work` ended. */
  lead(signal: AbortSignal, work: () => Promise<void>): Promise<void>;
  channel: TabChannel;
  open(position: string | null, signal: AbortSignal): Promise<Response>;
  wait(milliseconds: number, signal: AbortSignal): Promise<void>;
  now(): number;
}

export interface StreamListener {
  onEvent(event: ApiEvent): void;
  onLink(state: LinkState, at: number): void;
  /** Events may have been missed: everything on screen is read again. */
  onMissed(): void;
}

const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 15_000;
const OFFLINE_AFTER_FAILURES = 4;

/** Follows the events until the signal is aborted. */
export async function followEvents(
  environment: EventSourceEnvironment,
  listener: StreamListener,
  signal: AbortSignal,
): Promise<void> {
  let position: string | null = null;
  let leads = false;
  let link: TabMessage & { type: "link" } = { type: "link", state: "connecting", at: 0, position: null };

  const stop = environment.channel.listen((message) => {
    if (message.type === "hello") {
      if (leads) environment.channel.post({ ...link, position });
      return;
    }
    if (leads) return;
    if (message.type === "event") {
      position = message.event.id;
      listener.onEvent(message.event);
    } else if (message.type === "link") {
      position = message.position ?? position;
      listener.onLink(message.state, message.at);
    } else {
      listener.onMissed();
    }
  });
  signal.addEventListener("abort", stop, { once: true });

  const announce = (state: LinkState) => {
    link = { type: "link", state, at: environment.now(), position };
    listener.onLink(state, link.at);
    environment.channel.post(link);
  };

  environment.channel.post({ type: "hello" });
  await environment.lead(signal, async () => {
    leads = true;
    let failures = 0;
    let forgot = false;
    while (!signal.aborted) {
      announce(failures === 0 ? "connecting" : failures < OFFLINE_AFTER_FAILURES ? "reconnecting" : "offline");
      try {
        const response = await environment.open(position, signal);
        if (response.status === 401 || response.status === 403) {
          announce("signed_out");
          return;
        }
        if (response.status >= 400 && response.status < 500 && response.status !== 429 && position !== null) {
          // The server does not know the position any more: begin now, and read everything again.
          position = null;
          forgot = true;
          continue;
        }
        if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
        if (failures > 0 || forgot) {
          forgot = false;
          if (position === null) {
            listener.onMissed();
            environment.channel.post({ type: "missed" });
          }
        }
        failures = 0;
        announce("live");
        for await (const event of readEvents(response.body)) {
          if (signal.aborted) return;
          if (event === null) break;
          position = event.id;
          listener.onEvent(event);
          environment.channel.post({ type: "event", event });
        }
      } catch {
        if (signal.aborted) return;
      }
      failures += 1;
      announce(failures < OFFLINE_AFTER_FAILURES ? "reconnecting" : "offline");
      await environment.wait(Math.min(FIRST_RETRY_MS * 2 ** (failures - 1), MAX_RETRY_MS), signal);
    }
  });
}

/** Yields the events of a body; null when the server ended the stream with a failure. */
async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ApiEvent | null> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const event of parser.push(decoder.decode(value, { stream: true }))) {
        if (event.kind === "stream.failed") yield null;
        else if (event.id !== null) yield { ...(JSON.parse(event.data) as ApiEvent), id: event.id, kind: event.kind };
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

const CHANNEL_NAME = "cynode-events";

/** The environment of a browser. Without Web Locks, which need a secure context, each tab reads for itself. */
export function browserEnvironment(): EventSourceEnvironment {
  const shares = "locks" in navigator && "BroadcastChannel" in window;
  const channel = shares ? new BroadcastChannel(CHANNEL_NAME) : null;
  return {
    lead: async (signal, work) => {
      if (!shares) return work();
      try {
        await navigator.locks.request(CHANNEL_NAME, { signal }, work);
      } catch (error) {
        if (!signal.aborted) throw error;
      }
    },
    channel: {
      post: (message) => channel?.postMessage(message),
      listen: (handler) => {
        const receive = (event: MessageEvent<TabMessage>) => handler(event.data);
        channel?.addEventListener("message", receive);
        return () => {
          channel?.removeEventListener("message", receive);
          channel?.close();
        };
      },
    },
    open: async (position, signal) => {
      const response = await send("/v1/events", {
        signal,
        credentials: "same-origin",
        cache: "no-store",
        headers: { Accept: "text/event-stream", ...(position === null ? {} : { "Last-Event-ID": position }) },
      });
      noteBuild(response.headers);
      return response;
    },
    wait: (milliseconds, signal) =>
      new Promise((resolve) => {
        const finish = () => {
          clearTimeout(timer);
          window.removeEventListener("online", finish);
          resolve();
        };
        const timer = setTimeout(finish, milliseconds);
        signal.addEventListener("abort", finish, { once: true });
        window.addEventListener("online", finish);
      }),
    now: () => Date.now(),
  };
}
