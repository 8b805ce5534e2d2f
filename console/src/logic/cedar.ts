/** The language of rules as the editor sees it: pieces to colour, places of errors, and what may stand at a place. */

import type { RuleField, RuleVocabulary } from "../api/types";

export type TokenKind = "comment" | "text" | "keyword" | "type" | "number" | "plain";

export interface Token {
  kind: TokenKind;
  start: number;
  end: number;
}

const KEYWORDS = new Set(
  "forbid permit when unless in has like is if then else true false principal action resource context".split(" "),
);
const PIECES = /(\/\/[^\n]*)|("(?:[^"\\\n]|\\.)*"?)|([A-Za-z_][A-Za-z0-9_]*)(\s*::)?|(\d+)|([\s\S])/gy;

/** Splits a text into pieces that cover it without gaps. Any text has pieces, also one that is no rule. */
export function tokenizeCedar(text: string): Token[] {
  const tokens: Token[] = [];
  const add = (kind: TokenKind, start: number, end: number) => {
    const last = tokens.at(-1);
    if (last && last.kind === kind && kind === "plain") last.end = end;
    else if (end > start) tokens.push({ kind, start, end });
  };
  PIECES.lastIndex = 0;
  while (PIECES.lastIndex < text.length) {
    const match = PIECES.exec(text);
    if (!match?.[0]) break;
    const end = match.index + match[0].length;
    if (match[1]) add("comment", match.index, end);
    else if (match[2]) add("text", match.index, end);
    else if (match[3]) add(match[4] ? "type" : KEYWORDS.has(match[3]) ? "keyword" : "plain", match.index, end);
    else add(match[5] ? "number" : "plain", match.index, end);
  }
  return tokens;
}

export interface Piece extends Token {
  text: string;
  wrong: boolean;
}

/** Cuts the pieces where errors begin and end, so that each piece is wrong as a whole or not at all. */
export function markErrors(text: string, errors: readonly { start: number; end: number }[]): Piece[] {
  const cuts = errors.flatMap((error) => [error.start, error.end]);
  return tokenizeCedar(text).flatMap((token) => {
    const inside = [...new Set(cuts.filter((cut) => cut > token.start && cut < token.end))].sort((a, b) => a - b);
    const edges = [token.start, ...inside, token.end];
    return edges.slice(1).map((end, index) => {
      const start = edges[index] as number;
      const wrong = errors.some((error) => error.start < end && error.end > start);
      return { kind: token.kind, start, end, text: text.slice(start, end), wrong };
    });
  });
}

/** Returns a place as a range of at least one character, so that it can be seen. */
export function toRange(text: string, start: number, end: number): { start: number; end: number } {
  const from = Math.min(Math.max(start, 0), Math.max(text.length - 1, 0));
  return { start: from, end: Math.min(Math.max(end, from + 1), text.length) };
}

export interface Completion {
  label: string;
  /** What stands there after it was chosen. */
  insert: string;
  detail: string;
}

export interface Completions {
  /** What is replaced. */
  from: number;
  to: number;
  options: Completion[];
}

const MAX_OPTIONS = 50;

/** Returns the tools that the text names, by name or by group; all of them when it names none. */
export function namedTools(text: string, vocabulary: RuleVocabulary): RuleVocabulary["tools"] {
  const names = new Set([...text.matchAll(/Action\s*::\s*"([^"\n]*)"/g)].map((match) => match[1]));
  const named = vocabulary.tools.filter(
    (tool) => names.has(tool.name) || tool.groups.some((group) => names.has(group)),
  );
  return named.length > 0 ? named : vocabulary.tools;
}

/** Returns what may stand at the caret. Without `asked`, only where the text itself leads to a choice. */
export function completeCedar(
  text: string,
  caret: number,
  vocabulary: RuleVocabulary,
  asked: boolean,
): Completions | null {
  const before = text.slice(0, caret);
  const found =
    completeEntity(before, vocabulary) ??
    completeValue(before, text, vocabulary) ??
    completePath(before, text, vocabulary) ??
    completeWord(before, vocabulary, asked);
  if (!found) return null;
  const typed = before.slice(found.from).toLowerCase();
  const options = found.options
    .filter((option) => option.label.toLowerCase().includes(typed))
    .sort((one, other) => startsWith(other, typed) - startsWith(one, typed))
    .slice(0, MAX_OPTIONS);
  // What is written out already needs no choice.
  if (options.length === 0 || (options.length === 1 && options[0]?.label.toLowerCase() === typed && !asked))
    return null;
  // A quote that stands there already is replaced by the one that comes with the name.
  const quoted = options.every((option) => option.insert.endsWith('"'));
  const rest = quoted ? /^[\w.*-]*"?/.exec(text.slice(caret))?.[0].length : /^\w*/.exec(text.slice(caret))?.[0].length;
  return { from: found.from, to: caret + (rest ?? 0), options };
}

function startsWith(option: Completion, typed: string): number {
  return option.label.toLowerCase().startsWith(typed) ? 1 : 0;
}

interface Found {
  from: number;
  options: Completion[];
}

/** Inside the quotes of `Role::"…"`, `Action::"…"` and `Server::"…"`. */
function completeEntity(before: string, vocabulary: RuleVocabulary): Found | null {
  const match = /(Role|Action|Server)\s*::\s*"([^"\n]*)$/.exec(before);
  if (!match) return null;
  const from = before.length - (match[2] ?? "").length;
  const quote = (label: string, detail: string): Completion => ({ label, insert: `${label}"`, detail });
  if (match[1] === "Role") return { from, options: vocabulary.roles.map((role) => quote(role, "role")) };
  if (match[1] === "Server") {
    return { from, options: vocabulary.servers.map((server) => quote(server.id, server.name)) };
  }
  return {
    from,
    options: [
      ...vocabulary.groups.map((group) => quote(group, "every tool of this group")),
      ...vocabulary.tools.map((tool) => quote(tool.name, tool.title)),
    ],
  };
}

/** Inside the quotes after a field that has known values. */
function completeValue(before: string, text: string, vocabulary: RuleVocabulary): Found | null {
  const match = /(context(?:\.\w+)+)\s*[=!]=\s*"([^"\n]*)$/.exec(before);
  const field = match && listFields(text, vocabulary).find((entry) => entry.path === match[1]);
  if (!match || !field?.values?.length) return null;
  return {
    from: before.length - (match[2] ?? "").length,
    options: field.values.map((value) => ({ label: value, insert: `${value}"`, detail: field.path })),
  };
}

function listFields(text: string, vocabulary: RuleVocabulary): RuleField[] {
  const fields = new Map<string, RuleField>(vocabulary.fields.map((field) => [field.path, field]));
  for (const tool of namedTools(text, vocabulary)) {
    for (const field of tool.arguments) if (!fields.has(field.path)) fields.set(field.path, field);
  }
  return [...fields.values()];
}

/** After `context.` and after `context.arguments has `. */
function completePath(before: string, text: string, vocabulary: RuleVocabulary): Found | null {
  const match = /(context(?:\.\w+)*)(?:\.|\s+has\s+)(\w*)$/.exec(before);
  if (!match?.[1]) return null;
  const parent = `${match[1]}.`;
  const options = new Map<string, Completion>();
  for (const field of listFields(text, vocabulary)) {
    if (!field.path.startsWith(parent)) continue;
    const rest = field.path.slice(parent.length);
    const dot = rest.indexOf(".");
    const label = dot < 0 ? rest : rest.slice(0, dot);
    const detail = dot < 0 ? [field.kind, field.summary].filter(Boolean).join(": ") : "Record";
    if (label && !options.has(label)) options.set(label, { label, insert: label, detail });
  }
  return { from: before.length - (match[2] ?? "").length, options: [...options.values()] };
}

const HEAD_WORDS: Completion[] = [
  { label: "forbid", insert: "forbid", detail: "what a rule does" },
  { label: "when", insert: "when", detail: "applies only when this is true" },
  { label: "unless", insert: "unless", detail: "does not apply when this is true" },
  { label: "principal", insert: "principal", detail: "the role of the agent" },
  { label: "action", insert: "action", detail: "the tool" },
  { label: "resource", insert: "resource", detail: "the server of the tool" },
  { label: "context", insert: "context", detail: "agent, tool and arguments" },
  { label: "Role", insert: 'Role::"', detail: "a role" },
  { label: "Action", insert: 'Action::"', detail: "a tool, or a group such as git.*" },
  { label: "Server", insert: 'Server::"', detail: "a tool server" },
];

function completeWord(before: string, vocabulary: RuleVocabulary, asked: boolean): Found | null {
  const word = /(?<![\w."])[A-Za-z]*$/.exec(before)?.[0] ?? null;
  if (word === null || isInsideText(before) || (word.length < 2 && !asked)) return null;
  const operators = vocabulary.operators.map((operator) => ({
    label: operator.name,
    insert: operator.name,
    detail: operator.summary,
  }));
  const known = new Set(HEAD_WORDS.map((option) => option.label));
  return {
    from: before.length - word.length,
    options: [...HEAD_WORDS, ...operators.filter((option) => !known.has(option.label))],
  };
}

/** Returns whether the end of a text is inside quotes or a comment. */
function isInsideText(before: string): boolean {
  const last = tokenizeCedar(before).at(-1);
  if (last?.kind === "comment") return true;
  return last?.kind === "text" && !/^"(?:[^"\\]|\\.)*"$/.test(before.slice(last.start, last.end));
}
