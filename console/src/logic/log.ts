/** The log of a job as rows: commands with their end, output line by line, and what the agent said. */

import type { Schema } from "../api/client";
import { stripTerminal } from "./text";

export type JobEvent = Schema["JobEventView"];

export interface LogRow {
  /** Number of the event, and of the line in it: together the place of the row. */
  event: number;
  line: number;
  kind: "phase" | "command" | "output" | "error" | "said" | "other";
  text: string;
  /** The text with the codes of terminals, where it has some. */
  raw?: string;
  at: number;
  /** Index of the row of the command that wrote this. */
  command?: number;
  /** State of a command: `in_progress`, `completed` or `failed`. */
  state?: string;
  milliseconds?: number;
  /** How many lines a command wrote. */
  lines?: number;
}

/** Returns the place of a row for the address of the page. */
export function placeOf(row: Pick<LogRow, "event" | "line">): string {
  return `${row.event}-${row.line}`;
}

function field(data: unknown, name: string): unknown {
  return typeof data === "object" && data !== null ? (data as Record<string, unknown>)[name] : undefined;
}

function textField(data: unknown, name: string): string {
  const value = field(data, name);
  return typeof value === "string" ? value : "";
}

/** Rows of a log that grows. A command is one row that gets its end when it is known. */
export class LogRows {
  readonly rows: LogRow[] = [];
  private readonly commands = new Map<string, LogRow>();
  private open: number | undefined = undefined;

  append(events: readonly JobEvent[]): void {
    for (const event of events) this.appendEvent(event);
  }

  private appendEvent(event: JobEvent): void {
    const { number, at_ms: at, data } = event;
    switch (event.event) {
      case "phase":
        this.open = undefined;
        this.rows.push({ event: number, line: 0, kind: "phase", text: textField(data, "phase"), at });
        break;
      case "tool":
        this.appendCommand(event);
        break;
      case "output":
        this.appendLines(event, textField(data, "stream") === "stderr" ? "error" : "output", textField(data, "text"));
        break;
      default: {
        const text = textField(data, "text") || textField(data, "message");
        this.open = undefined;
        if (text) this.appendLines(event, "said", text);
        else this.appendLines(event, "other", `${event.event} ${JSON.stringify(data)}`);
      }
    }
  }

  private appendCommand({ number, at_ms: at, data }: JobEvent): void {
    const call = textField(data, "call");
    const known = this.commands.get(call);
    const state = textField(data, "status");
    if (known && call !== "") {
      known.state = state;
      known.milliseconds = at - known.at;
      return;
    }
    const row: LogRow = {
      event: number,
      line: 0,
      kind: "command",
      text: textField(data, "title"),
      at,
      state,
      lines: 0,
    };
    this.commands.set(call, row);
    this.open = this.rows.push(row) - 1;
  }

  private appendLines(event: JobEvent, kind: LogRow["kind"], text: string): void {
    const stripped = stripTerminal(text);
    const lines = stripped.split("\n");
    const raw = stripped.length === text.length ? null : text.replaceAll("\r\n", "\n").split("\n");
    if (kind === "output" || kind === "error") if (lines.at(-1) === "") lines.pop();
    const owner = this.open === undefined ? undefined : this.rows[this.open];
    lines.forEach((line, index) => {
      const row: LogRow = { event: event.number, line: index, kind, text: line, at: event.at_ms };
      if (this.open !== undefined) row.command = this.open;
      const whole = raw?.[index];
      if (whole !== undefined && whole !== line) row.raw = whole;
      this.rows.push(row);
    });
    if (owner) owner.lines = (owner.lines ?? 0) + lines.length;
  }
}

/** Makes rows of the events of a job. */
export function toLogRows(events: readonly JobEvent[]): LogRow[] {
  const log = new LogRows();
  log.append(events);
  return log.rows;
}

/**
 * Returns the indexes of the rows to show: without the output of folded commands, or only those that have some words. Null when all of
 * them are shown.
 */
export function selectRows(
  rows: readonly LogRow[],
  folded: ReadonlySet<number>,
  words: string,
  onlyErrors = false,
): number[] | null {
  const wanted = words.trim();
  if (wanted === "" && folded.size === 0 && !onlyErrors) return null;
  const shown: number[] = [];
  if (wanted !== "" || onlyErrors) {
    const pattern = new RegExp(wanted.replaceAll(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "iu");
    rows.forEach((row, index) => {
      if (onlyErrors && row.kind !== "error" && row.state !== "failed") return;
      if (wanted === "" || pattern.test(row.text)) shown.push(index);
    });
    return shown;
  }
  rows.forEach((row, index) => {
    if (row.command === undefined || !folded.has(row.command)) shown.push(index);
  });
  return shown;
}

/** Returns the commands that wrote something. */
export function listFoldable(rows: readonly LogRow[]): number[] {
  return rows.flatMap((row, index) => (row.kind === "command" && (row.lines ?? 0) > 0 ? [index] : []));
}

/** Returns the index of the row at a place, else of the one after it; -1 when there is none. */
export function findRow(rows: readonly LogRow[], place: string): number {
  const [event = -1, line = 0] = place.split("-").map(Number);
  return rows.findIndex((row) => row.event > event || (row.event === event && row.line >= line));
}

/** Returns the whole log as it was written. */
export function toRawLog(rows: readonly LogRow[]): string {
  return rows.map((row) => row.raw ?? row.text).join("\n");
}
