/** Unified diffs as rows. */

export interface DiffRow {
  kind: "hunk" | "context" | "add" | "delete" | "note";
  before: number | null;
  after: number | null;
  text: string;
}

export interface FileDiff {
  path: string;
  rows: DiffRow[];
}

/** Splits the text of `git diff` by file. */
export function parseDiff(text: string): FileDiff[] {
  const files: FileDiff[] = [];
  let file: FileDiff | null = null;
  let before = 0;
  let after = 0;
  let inHunk = false;
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  for (const line of lines) {
    if (line.startsWith("diff --git ")) {
      file = { path: line.slice(line.lastIndexOf(" b/") + 3), rows: [] };
      files.push(file);
      inHunk = false;
      continue;
    }
    if (!file) {
      file = { path: "", rows: [] };
      files.push(file);
    }
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(line);
    if (hunk) {
      before = Number(hunk[1]);
      after = Number(hunk[2]);
      inHunk = true;
      file.rows.push({ kind: "hunk", before: null, after: null, text: line });
    } else if (!inHunk) {
      if (line.startsWith("+++ b/")) file.path = line.slice(6);
      else if (/^(Binary files|rename |new file|deleted file|old mode|new mode|similarity )/.test(line)) {
        file.rows.push({ kind: "note", before: null, after: null, text: line });
      }
    } else if (line.startsWith("+")) {
      file.rows.push({ kind: "add", before: null, after: after++, text: line.slice(1) });
    } else if (line.startsWith("-")) {
      file.rows.push({ kind: "delete", before: before++, after: null, text: line.slice(1) });
    } else if (line.startsWith("\\")) {
      file.rows.push({ kind: "note", before: null, after: null, text: line.slice(2) });
    } else {
      file.rows.push({ kind: "context", before: before++, after: after++, text: line.slice(1) });
    }
  }
  return files;
}
