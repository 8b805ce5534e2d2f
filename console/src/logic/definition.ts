/** Definitions of tools as lines, and what changed between two of them. */

/**
 * Returns a value as lines that people read. Keys are sorted, so that their order is no difference. A description and a text of
 * several lines are written below their key, each line behind a bar: text can therefore never look like another key.
 */
export function toLines(value: unknown): string[] {
  const lines: string[] = [];
  write(value, "", "", lines);
  return lines;
}

function write(value: unknown, indent: string, lead: string, lines: string[]): void {
  // Descriptions always stand like this: one that got a second line is then compared line by line.
  if (typeof value === "string" && (value.includes("\n") || lead === "description: ")) {
    if (lead) lines.push(`${indent}${lead}`.trimEnd());
    for (const line of value.split("\n")) lines.push(`${indent}  | ${line}`);
    return;
  }
  if (Array.isArray(value) && value.length > 0) {
    if (value.every((item) => typeof item !== "object" && !(typeof item === "string" && item.includes("\n")))) {
      lines.push(`${indent}${lead}[${value.map(writeScalar).join(", ")}]`);
      return;
    }
    if (lead) lines.push(`${indent}${lead}`.trimEnd());
    for (const item of value) write(item, `${indent}  `, "- ", lines);
    return;
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    const entries = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
    if (entries.length > 0) {
      const inner = lead ? `${indent}  ` : indent;
      if (lead) lines.push(`${indent}${lead}`.trimEnd());
      for (const [key, entry] of entries) write(entry, inner, `${writeKey(key)}: `, lines);
      return;
    }
  }
  lines.push(`${indent}${lead}${writeScalar(value)}`);
}

function writeKey(key: string): string {
  return /^[\w$.-]+$/.test(key) ? key : JSON.stringify(key);
}

function writeScalar(value: unknown): string {
  return JSON.stringify(value) ?? String(value);
}

export interface ComparedRow {
  kind: "same" | "changed" | "added" | "removed";
  before: string | null;
  after: string | null;
}

/** Above so many comparisons the middle is shown as removed and added, so that no definition stops the browser. */
const MAX_COMPARISONS = 4_000_000;

/** Compares two lists of lines, side by side. */
export function compareLines(before: readonly string[], after: readonly string[]): ComparedRow[] {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (
    end < before.length - start &&
    end < after.length - start &&
    before[before.length - 1 - end] === after[after.length - 1 - end]
  )
    end += 1;
  const same = (line: string): ComparedRow => ({ kind: "same", before: line, after: line });
  return [
    ...before.slice(0, start).map(same),
    ...compareMiddle(before.slice(start, before.length - end), after.slice(start, after.length - end)),
    ...before.slice(before.length - end).map(same),
  ];
}

function compareMiddle(before: readonly string[], after: readonly string[]): ComparedRow[] {
  if (before.length * after.length > MAX_COMPARISONS) return pairLines(before, after);
  const width = after.length + 1;
  // The longest common part of what is left of both, by where one stands in each.
  const lengths = new Uint32Array((before.length + 1) * width);
  for (let row = before.length - 1; row >= 0; row -= 1) {
    for (let column = after.length - 1; column >= 0; column -= 1) {
      lengths[row * width + column] =
        before[row] === after[column]
          ? (lengths[(row + 1) * width + column + 1] ?? 0) + 1
          : Math.max(lengths[(row + 1) * width + column] ?? 0, lengths[row * width + column + 1] ?? 0);
    }
  }
  const rows: ComparedRow[] = [];
  let [row, column] = [0, 0];
  let removed: string[] = [];
  let added: string[] = [];
  const flush = () => {
    rows.push(...pairLines(removed, added));
    removed = [];
    added = [];
  };
  while (row < before.length || column < after.length) {
    const [one, other] = [before[row], after[column]];
    if (one !== undefined && one === other) {
      flush();
      rows.push({ kind: "same", before: one, after: other });
      row += 1;
      column += 1;
    } else if (
      one !== undefined &&
      (other === undefined || (lengths[(row + 1) * width + column] ?? 0) >= (lengths[row * width + column + 1] ?? 0))
    ) {
      removed.push(one);
      row += 1;
    } else if (other !== undefined) {
      added.push(other);
      column += 1;
    }
  }
  flush();
  return rows;
}

/** Sets removed and added lines beside each other. */
function pairLines(removed: readonly string[], added: readonly string[]): ComparedRow[] {
  return Array.from({ length: Math.max(removed.length, added.length) }, (_, index): ComparedRow => {
    const [before, after] = [removed[index] ?? null, added[index] ?? null];
    const kind = before === null ? "added" : after === null ? "removed" : "changed";
    return { kind, before, after };
  });
}

/** Splits two lines of a pair into what both begin with, what differs, and what both end with. */
export function splitChange(before: string, after: string): { before: Parts; after: Parts } {
  // By characters, not by halves of them.
  const [one, other] = [[...before], [...after]];
  let start = 0;
  while (start < one.length && start < other.length && one[start] === other[start]) start += 1;
  let end = 0;
  while (
    end < one.length - start &&
    end < other.length - start &&
    one[one.length - 1 - end] === other[other.length - 1 - end]
  )
    end += 1;
  const split = (line: string[]): Parts => [
    line.slice(0, start).join(""),
    line.slice(start, line.length - end).join(""),
    line.slice(line.length - end).join(""),
  ];
  return { before: split(one), after: split(other) };
}

/** Splits a line into its indent, with the bar of a text, and the rest. */
export function splitIndent(line: string): readonly [string, string] {
  const indent = /^ *(?:\| |- )?/.exec(line)?.[0] ?? "";
  return [indent, line.slice(indent.length)];
}

type Parts = readonly [string, string, string];
