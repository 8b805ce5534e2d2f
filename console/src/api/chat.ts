/**
 * Answers of the project manager while they arrive. A run lives outside the page: it goes on while another page is open, and text is
 * appended without drawing the conversation anew. Ending the request ends the work behind it.
 */

import { EventParser } from "../events/sse";
import { type ChatMessage, type ChatTurn, readAnswerEvent } from "../logic/chat";
import { noteBuild } from "./build";
import { asProblem, Problem, toConnectionProblem, toProblem } from "./problem";
import { send } from "./transport";

export const MANAGER_MODEL = "cynodeai.pm";

export type RunState = "asking" | "answering" | "done" | "stopped" | "failed";

export interface RunSnapshot {
  state: RunState;
  text: string;
  error: Problem | null;
}

export interface Question {
  /** The conversation; null begins one. */
  thread: string | null;
  project: string;
  text: string;
  messages: ChatMessage[];
  /** Turns that were there when it was asked. */
  before: readonly ChatTurn[];
}

/** One question with its answer. */
export class ChatRun {
  readonly startedAt = Date.now();
  private snapshot: RunSnapshot = { state: "asking", text: "", error: null };
  private readonly abort = new AbortController();
  private readonly readers = new Set<() => void>();
  private frame: number | null = null;
  private pending = "";

  constructor(readonly question: Question) {}

  subscribe = (reader: () => void): (() => void) => {
    this.readers.add(reader);
    return () => this.readers.delete(reader);
  };

  read = (): RunSnapshot => this.snapshot;

  get isOpen(): boolean {
    return this.snapshot.state === "asking" || this.snapshot.state === "answering";
  }

  stop(): void {
    this.abort.abort();
  }

  /** Asks, and resolves when the answer has ended in any way. `onBegun` is called once the question is stored. */
  async ask(onBegun: () => void): Promise<void> {
    try {
      const response = await this.send();
      this.change({ state: "answering" });
      onBegun();
      await this.readAnswer(response);
      this.change({ state: "done" });
    } catch (error) {
      if (this.abort.signal.aborted) this.change({ state: "stopped" });
      else this.change({ state: "failed", error: asProblem(error) });
    }
  }

  private async send(): Promise<Response> {
    const { thread, project, messages } = this.question;
    let response: Response;
    try {
      response = await send("/v1/chat/completions", {
        method: "POST",
        signal: this.abort.signal,
        credentials: "same-origin",
        headers: {
          "Content-Type": "application/json",
          "OpenAI-Project": project,
          "X-CyNode-Thread": thread ?? "new",
        },
        body: JSON.stringify({ model: MANAGER_MODEL, stream: true, messages }),
      });
    } catch (error) {
      if (this.abort.signal.aborted) throw error;
      throw toConnectionProblem();
    }
    noteBuild(response.headers);
    if (!response.ok) {
      const body: unknown = await response.json().catch(() => null);
      throw toProblem(response.status, toProblemBody(body), response.headers.get("x-trace-id"));
    }
    return response;
  }

  private async readAnswer(response: Response): Promise<void> {
    const trace = response.headers.get("x-trace-id");
    const broken = (detail: string) =>
      new Problem({ status: 502, code: "interrupted", title: "", detail, fix: "Ask again.", trace_id: trace });
    const reader = response.body?.getReader();
    if (!reader) throw broken("The answer is empty.");
    const decoder = new TextDecoder();
    const parser = new EventParser();
    for (;;) {
      let chunk: ReadableStreamReadResult<Uint8Array>;
      try {
        chunk = await reader.read();
      } catch (error) {
        if (this.abort.signal.aborted) throw error;
        throw broken("The connection broke off before the answer ended.");
      }
      if (chunk.done) throw broken("The answer broke off.");
      for (const event of parser.push(decoder.decode(chunk.value, { stream: true }))) {
        const piece = readAnswerEvent(event.data);
        if (piece.failure) throw broken(piece.failure);
        if (piece.ended) return;
        this.append(piece.text);
      }
    }
  }

  /** Adds text at most once per drawn frame; a hidden page draws none, so there it is added when something else changes. */
  private append(text: string): void {
    if (text === "") return;
    this.pending += text;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.change({});
    });
  }

  private change(part: Partial<RunSnapshot>): void {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
    this.snapshot = { ...this.snapshot, ...part, text: this.snapshot.text + this.pending };
    this.pending = "";
    for (const reader of this.readers) reader();
  }
}

/** Errors of the inference endpoints have the form of the dialect, not of the API. */
function toProblemBody(body: unknown): unknown {
  if (typeof body !== "object" || body === null || !("error" in body)) return body;
  const error: unknown = body.error;
  if (typeof error !== "object" || error === null) return body;
  const { message, code } = error as { message?: unknown; code?: unknown };
  return { detail: message, code };
}

/** Runs by conversation, or by `new PROJECT` until the conversation is known. */
const runs = new Map<string, ChatRun>();
const listeners = new Set<() => void>();

export function runKey(thread: string | null, project: string): string {
  return thread ?? `new ${project}`;
}

export function subscribeRuns(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function findRun(key: string): ChatRun | undefined {
  return runs.get(key);
}

export function setRun(key: string, run: ChatRun | null): void {
  if (run) runs.set(key, run);
  else runs.delete(key);
  for (const listener of listeners) listener();
}

/** Returns whether an answer is arriving, which leaving the document would end. */
export function hasOpenRun(): boolean {
  return [...runs.values()].some((run) => run.isOpen);
}
