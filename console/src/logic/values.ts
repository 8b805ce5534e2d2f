/** Values of settings, preferences and policies: how people type them and how they are shown. */

export type ValueKind =
  | { type: "boolean" }
  | { type: "demand" }
  | { type: "integer"; min: number; max: number | null }
  | { type: "amount" }
  | { type: "text" }
  | { type: "choice"; options: readonly string[] }
  | { type: "list" }
  | { type: "texts" }
  | { type: "json" };

export type ParsedValue = { value: unknown } | { error: string };

const toLines = (text: string): string[] =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");

/** Reads what a person typed. */
export function parseValue(kind: ValueKind, text: string): ParsedValue {
  const trimmed = text.trim();
  switch (kind.type) {
    case "boolean":
      return trimmed === "true" || trimmed === "false"
        ? { value: trimmed === "true" }
        : { error: "Choose true or false" };
    case "demand":
      return { value: true };
    case "integer":
      return parseInteger(kind, trimmed);
    case "amount":
      if (trimmed === "none") return { value: "none" };
      return /^\d+(\.\d{1,6})?$/.test(trimmed) && Number(trimmed) > 0
        ? { value: Number(trimmed) }
        : { error: "Write an amount such as 2.50, or none" };
    case "text":
      return trimmed === "" ? { error: "Write a value" } : { value: trimmed };
    case "choice":
      return kind.options.includes(trimmed) ? { value: trimmed } : { error: `Choose ${kind.options.join(", ")}` };
    case "list":
      return { value: toLines(text) };
    case "texts": {
      const lines = toLines(text);
      if (lines.length === 0) return { error: "Write a text, or several, one per line" };
      return { value: lines.length === 1 ? lines[0] : lines };
    }
    case "json":
      try {
        return trimmed === "" ? { error: "Write a value as JSON" } : { value: JSON.parse(trimmed) as unknown };
      } catch (error) {
        return { error: error instanceof Error ? error.message : "This is no JSON" };
      }
  }
}

function parseInteger(kind: { min: number; max: number | null }, text: string): ParsedValue {
  const range = kind.max === null ? `from ${kind.min} up` : `from ${kind.min} to ${kind.max}`;
  const value = Number(text);
  if (!/^\d+$/.test(text) || value < kind.min || (kind.max !== null && value > kind.max)) {
    return { error: `Write a whole number ${range}` };
  }
  if (!Number.isSafeInteger(value)) return { error: "A browser cannot write a number that great. Use cynork for it" };
  return { value };
}

/** Returns a value as a person would type it. */
export function toDraft(kind: ValueKind, value: unknown): string {
  if (value === undefined || value === null) return "";
  if (kind.type === "json") return JSON.stringify(value, null, 2);
  if (Array.isArray(value)) return value.map((entry) => formatValue(entry)).join("\n");
  return typeof value === "string" ? value : formatValue(value);
}

/** Returns a value in one line. */
export function formatValue(value: unknown): string {
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.length > 0 && value.every((entry) => typeof entry === "string")) {
    return value.join(", ");
  }
  return JSON.stringify(value) ?? "";
}

/** Returns a value as an argument of cynork. */
export function toArgument(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}
