/** Conversations with the project manager: what is sent, what an answer is made of, and what it is about. */

import type { Schema } from "../api/client";

export type ChatTurn = Schema["ChatTurn"];
export type ChatHandoff = Pick<
  Schema["HandoffView"],
  "handoff_id" | "thread_id" | "trace_id" | "created_at" | "ended_at" | "failure"
>;
export type ChatCall = Pick<Schema["UsageCall"], "trace_id" | "cost_micros" | "provider">;

export interface ChatMessage {
  role: "user" | "assistant";
  content: string;
}

/** The server takes at most 200 turns and 512 KiB; older turns are left out well before. */
const MAX_SENT_TURNS = 120;
const MAX_SENT_CHARACTERS = 240_000;

/** Returns what is sent with a question: the answered questions before it. One whose answer broke off is not sent along. */
export function buildMessages(turns: readonly ChatTurn[], question: string): ChatMessage[] {
  const messages: ChatMessage[] = [];
  for (const [index, turn] of turns.entries()) {
    const answer = turns[index + 1];
    if (turn.role !== "user" || answer?.role !== "assistant" || answer.state !== "whole") continue;
    if (turn.content.trim() === "" || answer.content.trim() === "") continue;
    messages.push({ role: "user", content: turn.content }, { role: "assistant", content: answer.content });
  }
  let start = Math.max(0, messages.length - MAX_SENT_TURNS);
  let size = messages.slice(start).reduce((sum, message) => sum + message.content.length, question.length);
  while (size > MAX_SENT_CHARACTERS && start < messages.length) {
    size -= (messages[start]?.content.length ?? 0) + (messages[start + 1]?.content.length ?? 0);
    start += 2;
  }
  return [...messages.slice(start), { role: "user", content: question }];
}

/** A part of an answer. A part that is followed by another one never changes while the answer grows. */
export interface AnswerBlock {
  kind: "prose" | "heading" | "code" | "call";
  text: string;
}

/** The project manager writes a line of this form before it calls a tool. */
const CALL_LINE = /^› ([\w.-]+) …$/;

/** Splits an answer into prose, headings, fenced code and calls of tools. */
export function splitAnswer(text: string): AnswerBlock[] {
  const blocks: AnswerBlock[] = [];
  let lines: string[] = [];
  let fence: string | null = null;
  const close = (kind: "prose" | "code") => {
    const joined = lines.join("\n");
    const content = kind === "prose" ? joined.replace(/^\n+|\n+$/g, "") : joined;
    if (content !== "" || kind === "code") blocks.push({ kind, text: content });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (fence !== null) {
      if (line.trim() === fence) {
        close("code");
        fence = null;
      } else lines.push(line);
      continue;
    }
    const opened = /^\s*(`{3,}|~{3,})[\w+-]*\s*$/.exec(line)?.[1];
    const heading = /^#{1,6} +(.+?)\s*#*$/.exec(line)?.[1];
    const call = CALL_LINE.exec(line)?.[1];
    if (opened) {
      close("prose");
      fence = opened;
    } else if (heading) {
      close("prose");
      blocks.push({ kind: "heading", text: heading });
    } else if (call) {
      close("prose");
      blocks.push({ kind: "call", text: call });
    } else if (line.trim() === "" && lines.some((it) => it.trim() !== "")) close("prose");
    else lines.push(line);
  }
  close(fence === null ? "prose" : "code");
  return blocks;
}

/** Returns the identifiers of the tasks that a text is about: written as such, or by a name of a task that is known. */
export function findMentionedTasks(text: string, known: readonly { id: string; name: string }[]): string[] {
  const mentions: { at: number; id: string }[] = [];
  for (const match of text.matchAll(/\btsk_[0-9a-f]{32}\b/g)) mentions.push({ at: match.index, id: match[0] });
  for (const { id, name } of known) {
    const at = findName(text, name);
    if (at >= 0) mentions.push({ at, id });
  }
  mentions.sort((a, b) => a.at - b.at);
  return [...new Set(mentions.map((mention) => mention.id))];
}

/** A name of one plain word is a mention only as code: `greeting`. */
function findName(text: string, name: string): number {
  if (name === "") return -1;
  const code = text.indexOf(`\`${name}\``);
  if (code >= 0 || !name.includes("-")) return code;
  for (let at = text.indexOf(name); at >= 0; at = text.indexOf(name, at + 1)) {
    const around = (text[at - 1] ?? " ") + (text[at + name.length] ?? " ");
    if (!/[\w/-]/.test(around)) return at;
  }
  return -1;
}

/** Time between a question and its handoff, which are stored by one transaction. */
const MAX_HANDOFF_DISTANCE_MS = 5000;

/** Returns the handoff of a question, by its time. */
export function findHandoff(handoffs: readonly ChatHandoff[], askedAt: string): ChatHandoff | null {
  const at = new Date(askedAt).getTime();
  let best: { handoff: ChatHandoff; distance: number } | null = null;
  for (const handoff of handoffs) {
    const distance = Math.abs(new Date(handoff.created_at).getTime() - at);
    if (distance <= MAX_HANDOFF_DISTANCE_MS && (!best || distance < best.distance)) best = { handoff, distance };
  }
  return best?.handoff ?? null;
}

export interface AnswerCost {
  micros: number;
  providers: string[];
}

/** Returns what each answer cost, by its trace. An answer that calls tools asks a model several times. */
export function sumCosts(calls: readonly ChatCall[]): Map<string, AnswerCost> {
  const costs = new Map<string, AnswerCost>();
  for (const call of calls) {
    const known = costs.get(call.trace_id) ?? { micros: 0, providers: [] };
    const providers = known.providers.includes(call.provider) ? known.providers : [...known.providers, call.provider];
    costs.set(call.trace_id, { micros: known.micros + call.cost_micros, providers });
  }
  return costs;
}

export interface AnswerPiece {
  text: string;
  /** What went wrong, if the answer ends here without its end. */
  failure: string | null;
  ended: boolean;
}

/** Reads one event of a streamed answer. What is no part of an answer is empty. */
export function readAnswerEvent(data: string): AnswerPiece {
  if (data === "[DONE]") return { text: "", failure: null, ended: true };
  let event: unknown;
  try {
    event = JSON.parse(data);
  } catch {
    return { text: "", failure: "The answer cannot be read.", ended: false };
  }
  if (!isRecord(event)) return { text: "", failure: null, ended: false };
  if (isRecord(event.error)) {
    const message = event.error.message;
    return { text: "", failure: typeof message === "string" ? message : "The answer broke off.", ended: false };
  }
  const choice: unknown = Array.isArray(event.choices) ? event.choices[0] : null;
  const content = isRecord(choice) && isRecord(choice.delta) ? choice.delta.content : null;
  return { text: typeof content === "string" ? content : "", failure: null, ended: false };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
