/** The log of a job as rows: commands with their end, output line by line, and what the agent said. */

import type { Schema } from "../api/client";
import { stripTerminal } from "./text";

export type JobEvent = Schema["JobEventView"];

export interface LogRow {
  key: string;
  kind: "phase" | "command" | "output" | "error" | "said" | "other";
  text: string;
  at: number;
  /** State of a command: `in_progress`, `completed` or `failed`. */
  state?: string;
  milliseconds?: number;
}

function field(data: unknown, name: string): unknown {
  return typeof data === "object" && data !== null ? (data as Record<string, unknown>)[name] : undefined;
}

function textField(data: unknown, name: string): string {
  const value = field(data, name);
  return typeof value === "string" ? value : "";
}

/** Makes rows of the events of a job. A command is one row that gets its end when it is known. */
export function toLogRows(events: readonly JobEvent[]): LogRow[] {
  const rows: LogRow[] = [];
  const commands = new Map<string, LogRow>();
  for (const event of events) {
    const key = String(event.number);
    switch (event.event) {
      case "phase":
        rows.push({ key, kind: "phase", text: textField(event.data, "phase"), at: event.at_ms });
        break;
      case "tool": {
        const call = textField(event.data, "call");
        const known = commands.get(call);
        const state = textField(event.data, "status");
        if (known && call !== "") {
          known.state = state;
          known.milliseconds = event.at_ms - known.at;
        } else {
          const row: LogRow = { key, kind: "command", text: textField(event.data, "title"), at: event.at_ms, state };
          commands.set(call, row);
          rows.push(row);
        }
        break;
      }
      case "output": {
        const kind = textField(event.data, "stream") === "stderr" ? "error" : "output";
        const lines = stripTerminal(textField(event.data, "text")).split("\n");
        if (lines.at(-1) === "") lines.pop();
        lines.forEach((text, index) => {
          rows.push({ key: `${key}.${index}`, kind, text, at: event.at_ms });
        });
        break;
      }
      default: {
        const text = textField(event.data, "text") || textField(event.data, "message");
        const lines = stripTerminal(text || `${event.event} ${JSON.stringify(event.data)}`).split("\n");
        const kind = text ? "said" : "other";
        lines.forEach((line, index) => {
          rows.push({ key: `${key}.${index}`, kind, text: line, at: event.at_ms });
        });
      }
    }
  }
  return rows;
}
