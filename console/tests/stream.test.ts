import { describe, expect, it } from "vitest";
import { InvalidationBatch, type QueryKey, staleKeys } from "../src/events/invalidate";
import { EventParser } from "../src/events/sse";
import {
  type ApiEvent,
  type EventSourceEnvironment,
  followEvents,
  type LinkState,
  type TabMessage,
} from "../src/events/stream";

/** The tabs of one browser: one lock, one channel, and a server that answers by a script. */
class Browser {
  readonly opened: (string | null)[] = [];
  private readonly handlers = new Set<(message: TabMessage) => void>();
  private tail: Promise<void> = Promise.resolve();

  constructor(private readonly answers: (() => Response | Promise<Response>)[]) {}

  tab(): EventSourceEnvironment {
    let own: ((message: TabMessage) => void) | null = null;
    return {
      lead: (signal, work) => {
        const turn = this.tail.then(() => (signal.aborted ? undefined : work()));
        this.tail = turn.then(() => undefined);
        return turn.then(() => undefined);
      },
      channel: {
        post: (message) => {
          for (const handler of this.handlers) if (handler !== own) handler(message);
        },
        listen: (handler) => {
          own = handler;
          this.handlers.add(handler);
          return () => void this.handlers.delete(handler);
        },
      },
      open: async (position, signal) => {
        this.opened.push(position);
        const answer = this.answers.shift();
        if (answer) return answer();
        return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("aborted"))));
      },
      wait: () => Promise.resolve(),
      now: () => 1000,
    };
  }
}

/** A stream whose end the test decides. */
function openStream() {
  let controller!: ReadableStreamDefaultController<Uint8Array>;
  const body = new ReadableStream<Uint8Array>({
    start: (it) => {
      controller = it;
    },
  });
  const encoder = new TextEncoder();
  return {
    answer: () => new Response(body),
    send: (id: string, kind: string) => {
      controller.enqueue(encoder.encode(`id: ${id}\nevent: ${kind}\ndata: {"id":"${id}","task_id":"tsk_1"}\n\n`));
    },
    end: () => controller.close(),
  };
}

function record() {
  const events: string[] = [];
  const links: LinkState[] = [];
  let missed = 0;
  const waiting: { count: number; resolve: () => void }[] = [];
  const check = () => {
    for (const entry of waiting) if (events.length >= entry.count) entry.resolve();
  };
  return {
    events,
    links,
    missedCount: () => missed,
    received: (count: number) =>
      new Promise<void>((resolve) => {
        waiting.push({ count, resolve });
        check();
      }),
    listener: {
      onEvent: (event: ApiEvent) => {
        events.push(`${event.id} ${event.kind}`);
        check();
      },
      onLink: (state: LinkState) => void links.push(state),
      onMissed: () => {
        missed += 1;
      },
    },
  };
}

describe("the event stream", () => {
  it("is read by one tab, and every tab gets every event", async () => {
    const stream = openStream();
    const browser = new Browser([stream.answer]);
    const [first, second] = [record(), record()];
    const stop = new AbortController();
    void followEvents(browser.tab(), first.listener, stop.signal);
    void followEvents(browser.tab(), second.listener, stop.signal);
    stream.send("1.1", "task.created");
    stream.send("2.2", "task.started");
    await Promise.all([first.received(2), second.received(2)]);
    stop.abort();
    expect([first.events, second.events, browser.opened]).toEqual([
      ["1.1 task.created", "2.2 task.started"],
      ["1.1 task.created", "2.2 task.started"],
      [null],
    ]);
  });

  it("is taken over by another tab after the last event when its leader closes", async () => {
    const [one, two] = [openStream(), openStream()];
    const browser = new Browser([one.answer, two.answer]);
    const [first, second] = [record(), record()];
    const [closeFirst, closeSecond] = [new AbortController(), new AbortController()];
    void followEvents(browser.tab(), first.listener, closeFirst.signal);
    void followEvents(browser.tab(), second.listener, closeSecond.signal);
    one.send("1.1", "task.created");
    await second.received(1);
    closeFirst.abort();
    one.end();
    two.send("2.2", "task.started");
    await second.received(2);
    closeSecond.abort();
    expect([second.events, browser.opened]).toEqual([
      ["1.1 task.created", "2.2 task.started"],
      [null, "1.1"],
    ]);
  });

  it("resumes after the last event when the connection breaks", async () => {
    const [one, two] = [openStream(), openStream()];
    const browser = new Browser([one.answer, () => Promise.reject(new Error("refused")), two.answer]);
    const tab = record();
    const stop = new AbortController();
    void followEvents(browser.tab(), tab.listener, stop.signal);
    one.send("7.3", "task.created");
    await tab.received(1);
    one.end();
    two.send("8.4", "task.completed");
    await tab.received(2);
    stop.abort();
    expect([tab.events, browser.opened, tab.missedCount()]).toEqual([
      ["7.3 task.created", "8.4 task.completed"],
      [null, "7.3", "7.3"],
      0,
    ]);
    expect(tab.links).toContain("reconnecting");
  });

  it("begins now and has everything read again when the server does not know the position", async () => {
    const [one, two] = [openStream(), openStream()];
    const browser = new Browser([one.answer, () => new Response("{}", { status: 410 }), two.answer]);
    const tab = record();
    const stop = new AbortController();
    void followEvents(browser.tab(), tab.listener, stop.signal);
    one.send("7.3", "task.created");
    await tab.received(1);
    one.end();
    two.send("1.1", "task.completed");
    await tab.received(2);
    stop.abort();
    expect([browser.opened, tab.missedCount()]).toEqual([[null, "7.3", null], 1]);
  });

  it("ends when the session ended", async () => {
    const browser = new Browser([() => new Response("{}", { status: 401 })]);
    const tab = record();
    await followEvents(browser.tab(), tab.listener, new AbortController().signal);
    expect(tab.links).toEqual(["connecting", "signed_out"]);
  });
});

describe("server-sent events", () => {
  it("are read whole however the text is cut", () => {
    const text = ': keep-alive\n\nid: 1.2\nevent: task.created\ndata: {"a":\ndata: 1}\n\n';
    for (let cut = 0; cut <= text.length; cut += 1) {
      const parser = new EventParser();
      const events = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
      expect(events).toEqual([{ id: "1.2", kind: "task.created", data: '{"a":\n1}' }]);
    }
  });
});

describe("invalidation", () => {
  it("reads the inbox, the list and the task again when a task waits", () => {
    expect(staleKeys({ kind: "task.waiting", task_id: "tsk_1", project_id: "prj_1" })).toEqual([
      ["inbox"],
      ["task", "tsk_1"],
      ["tasks"],
    ]);
  });

  it("ignores kinds that it does not know", () => {
    expect(staleKeys({ kind: "moon.risen" })).toEqual([]);
  });

  it("reads each query once for a burst of events", async () => {
    const flushed = await new Promise<QueryKey[]>((resolve) => {
      const batch = new InvalidationBatch(resolve, 0);
      for (let count = 0; count < 100; count += 1) batch.add([["tasks"], ["inbox"]]);
    });
    expect(flushed).toEqual([["tasks"], ["inbox"]]);
  });
});
