/** What can be set: the tables of the reference, and the kind of value that each key takes. */

import policiesPage from "../../../docs/reference/policies.md?raw";
import preferencesPage from "../../../docs/reference/preferences.md?raw";
import settingsPage from "../../../docs/reference/settings.md?raw";
import { formatBytes, formatCost, formatCount, formatMebibytes } from "./format";
import type { ValueKind } from "./values";

export interface KnownKey {
  /** The key; `<name>` stands for a name that a person chooses. */
  key: string;
  takes: string;
  /** What holds when nobody says anything. */
  fallback: string;
  bounds: string;
  meaning: string;
  kind: ValueKind;
}

/** Returns the rows below a table's head, as cells. */
function readTable(page: string, head: string): string[][] {
  const lines = page.split("\n");
  const start = lines.findIndex((line) => line.startsWith(`| ${head} |`));
  if (start < 0) return [];
  const rows: string[][] = [];
  for (const line of lines.slice(start + 2)) {
    if (!line.startsWith("|")) break;
    rows.push(
      line
        .slice(1, -1)
        .split("|")
        .map((cell) => cell.trim()),
    );
  }
  return rows;
}

const stripTicks = (text: string): string => text.replace(/^`([^`]*)`$/, "$1");

/** Returns the kind of value that the words of the reference describe. */
export function toKind(takes: string): ValueKind {
  const range = /^(\d+) to (\d+)$/.exec(takes);
  if (range) return { type: "integer", min: Number(range[1]), max: Number(range[2]) };
  if (takes === "true or false") return { type: "boolean" };
  if (takes === "`true`") return { type: "demand" };
  if (takes === "a whole number from 0 up") return { type: "integer", min: 0, max: null };
  if (takes === "a text or a list of texts") return { type: "texts" };
  if (takes.startsWith("a list of")) return { type: "list" };
  if (takes.startsWith("an amount")) return { type: "amount" };
  if (takes.startsWith("one of `") || takes.startsWith("`")) {
    return { type: "choice", options: [...takes.matchAll(/`([^`]+)`/g)].map((match) => match[1] ?? "") };
  }
  if (takes.startsWith("an object") || takes === "any value") return { type: "json" };
  return { type: "text" };
}

export const KNOWN_SETTINGS: readonly KnownKey[] = readTable(settingsPage, "setting").map(
  ([key = "", takes = "", fallback = "", meaning = ""]) => ({
    key: stripTicks(key),
    takes,
    fallback: stripTicks(fallback),
    bounds: "",
    meaning,
    kind: toKind(takes),
  }),
);

export const KNOWN_PREFERENCES: readonly KnownKey[] = readTable(preferencesPage, "preference").map(
  ([key = "", takes = "", fallback = "", bounds = "", meaning = ""]) => ({
    key: stripTicks(key),
    takes,
    fallback: stripTicks(fallback),
    bounds,
    meaning,
    kind: toKind(takes),
  }),
);

export const KNOWN_POLICIES: readonly KnownKey[] = readTable(policiesPage, "policy | takes").map(
  ([key = "", takes = "", meaning = ""]) => ({
    key: stripTicks(key),
    takes,
    fallback: "nothing is demanded",
    bounds: "",
    meaning,
    kind: toKind(takes),
  }),
);

/** What may stand in place of a placeholder. */
export const PLACEHOLDERS: ReadonlyMap<string, string> = new Map(
  readTable(preferencesPage, "placeholder").map(([name = "", values = ""]) => [
    stripTicks(name),
    values.replaceAll(/\[([^\]]+)\]\([^)]*\)/g, "$1"),
  ]),
);

export function findPlaceholder(key: string): string | null {
  return /<[a-z]+>/.exec(key)?.[0] ?? null;
}

/** Returns what is known of a key, also of one that fills in a placeholder. */
export function findKnown(known: readonly KnownKey[], key: string): KnownKey | undefined {
  return (
    known.find((entry) => entry.key === key) ??
    known.find((entry) => {
      const pattern = entry.key.split(/<[a-z]+>/).map((part) => part.replaceAll(".", "\\."));
      return pattern.length > 1 && new RegExp(`^${pattern.join("[^<>]+")}$`).test(key);
    })
  );
}

/** Returns a value for a list, with its unit; the form and the commands show it as it is written. */
export function formatShort(known: KnownKey | undefined, text: string, currency?: string): string {
  if (known === undefined || !/^\d+(\.\d+)?$/.test(text)) return text;
  const value = Number(text);
  if (known.kind.type === "amount") return formatCost(value * 1_000_000, currency);
  const unit = /_(bytes|mib|seconds|minutes|hours|days)(_|$)/.exec(known.key)?.[1];
  switch (unit) {
    case "bytes":
      return formatBytes(value);
    case "mib":
      return formatMebibytes(value);
    case undefined:
      return value.toLocaleString("en-US");
    default:
      return formatCount(value, unit.slice(0, -1));
  }
}

/** Returns the keys to list: all that are known and all that are in use, by name. */
export function listKeys(known: readonly KnownKey[], used: Iterable<string>, words: string): string[] {
  const wanted = words.trim().toLowerCase().split(/\s+/);
  return [...new Set([...known.map((entry) => entry.key), ...used])].sort().filter((key) => {
    const text = `${key} ${findKnown(known, key)?.meaning ?? ""}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}
