/**
 * The log of a job while somebody looks at it: pages up to its end, then the stream of a job that still runs. A hidden tab holds no
 * stream, because a browser opens only six connections to a host.
 */

import { useEffect, useMemo, useSyncExternalStore } from "react";
import { EventParser } from "../events/sse";
import { type JobEvent, LogRows } from "../logic/log";
import { api, unwrap } from "./client";
import { asProblem, type Problem, toConnectionProblem, toProblem } from "./problem";
import { send } from "./transport";

const EVENTS_PER_REQUEST = 500;
/** Requests at the same time while a long log is read. */
const PARALLEL_REQUESTS = 4;
const NOTIFY_MS = 100;
const FIRST_RETRY_MS = 1000;
const MAX_RETRY_MS = 15_000;

export interface JobLogState {
  rows: LogRows["rows"];
  /** Counts what was added, because the rows grow in place. */
  version: number;
  isWhole: boolean;
  error: Problem | null;
}

/** Reads one job's log and tells its readers, at most every 100 ms. */
export class JobLog {
  private readonly log = new LogRows();
  private state: JobLogState = { rows: this.log.rows, version: 0, isWhole: false, error: null };
  private readonly readers = new Set<() => void>();
  private next = 0;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private stop: AbortController | null = null;

  constructor(
    private readonly job: string,
    private readonly runs: boolean,
  ) {}

  readonly read = (): JobLogState => this.state;

  readonly subscribe = (reader: () => void): (() => void) => {
    this.readers.add(reader);
    return () => this.readers.delete(reader);
  };

  /** Reads until the log has ended or the returned function is called; reading again goes on where it stopped. */
  start(): () => void {
    const stop = new AbortController();
    this.stop = stop;
    void this.follow(stop.signal);
    return () => stop.abort();
  }

  retry(): void {
    if (!this.stop || this.stop.signal.aborted) return;
    void this.follow(this.stop.signal);
  }

  private async follow(signal: AbortSignal): Promise<void> {
    try {
      this.change({ error: null });
      await this.readPages(signal);
      this.change({ isWhole: true });
    } catch (error) {
      if (!signal.aborted) this.change({ error: asProblem(error) });
      return;
    }
    for (let failures = 0; this.runs && !signal.aborted; failures += 1) {
      try {
        if (await this.readStream(signal, () => (failures = 0))) return;
        this.change({ error: null });
      } catch (error) {
        if (signal.aborted) return;
        this.change({ error: asProblem(error) });
      }
      await wait(Math.min(FIRST_RETRY_MS * 2 ** failures, MAX_RETRY_MS), signal);
    }
  }

  private async readPages(signal: AbortSignal): Promise<void> {
    const readPage = async (from: number) => {
      const query = { from, limit: EVENTS_PER_REQUEST };
      const path = { job: this.job };
      return (await unwrap(api.GET("/v1/jobs/{job}/events", { signal, params: { path, query } }))).items;
    };
    for (let width = 1; ; width = PARALLEL_REQUESTS) {
      const starts = Array.from({ length: width }, (_, index) => this.next + index * EVENTS_PER_REQUEST);
      const pages = await Promise.all(starts.map(readPage));
      for (const page of pages) this.append(page);
      if (pages.some((page) => page.length < EVENTS_PER_REQUEST)) return;
    }
  }

  /** Returns whether the job has ended. */
  private async readStream(signal: AbortSignal, onOpen: () => void): Promise<boolean> {
    let response: Response;
    try {
      response = await send(`/v1/jobs/${encodeURIComponent(this.job)}/events/stream?from=${this.next}`, {
        signal,
        credentials: "same-origin",
        cache: "no-store",
        headers: { Accept: "text/event-stream" },
      });
    } catch (error) {
      throw signal.aborted ? error : toConnectionProblem();
    }
    if (!response.ok || !response.body) {
      throw toProblem(response.status, await response.json().catch(() => null), response.headers.get("x-trace-id"));
    }
    onOpen();
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    const parser = new EventParser();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return false;
        for (const event of parser.push(decoder.decode(value, { stream: true }))) {
          if (event.kind === "job.event") this.append([JSON.parse(event.data) as JobEvent]);
          else if (event.kind === "job.ended") return true;
          else if (event.kind === "stream.failed") return false;
        }
      }
    } finally {
      await reader.cancel().catch(() => undefined);
    }
  }

  private append(events: readonly JobEvent[]): void {
    const fresh = events.filter((event) => event.number >= this.next);
    const last = fresh.at(-1);
    if (!last) return;
    this.next = last.number + 1;
    this.log.append(fresh);
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.change({});
    }, NOTIFY_MS);
  }

  private change(part: Partial<JobLogState>): void {
    this.state = { ...this.state, ...part, version: this.state.version + 1 };
    for (const reader of this.readers) reader();
  }
}

function wait(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const finish = () => {
      clearTimeout(timer);
      resolve();
    };
    const timer = setTimeout(finish, milliseconds);
    signal.addEventListener("abort", finish, { once: true });
  });
}

/** Returns the log of a job, and reads on while the tab is visible. */
export function useJobLog(job: string | null, runs: boolean): JobLogState & { retry: () => void } {
  // biome-ignore lint/correctness/useExhaustiveDependencies: the stream itself says when the job has ended
  const log = useMemo(() => (job === null ? null : new JobLog(job, runs)), [job]);
  useEffect(() => {
    if (!log) return undefined;
    let stop: (() => void) | null = null;
    const look = () => {
      if (document.hidden) {
        stop?.();
        stop = null;
      } else {
        stop ??= log.start();
      }
    };
    look();
    document.addEventListener("visibilitychange", look);
    return () => {
      document.removeEventListener("visibilitychange", look);
      stop?.();
    };
  }, [log]);
  const state = useSyncExternalStore(log?.subscribe ?? subscribeToNothing, log?.read ?? readNothing);
  return useMemo(() => ({ ...state, retry: () => log?.retry() }), [state, log]);
}

const NOTHING: JobLogState = { rows: [], version: 0, isWhole: false, error: null };
const subscribeToNothing = () => () => undefined;
const readNothing = () => NOTHING;
