/** A definition of a tool, or two of them side by side. Everything is drawn; what hides is written out. */

import { useMemo } from "react";
import { type ComparedRow, compareLines, splitChange, splitIndent, toLines } from "../logic/definition";
import { formatCount } from "../logic/format";
import { cx, Foreign } from "./basic";

export function DefinitionDiff({ accepted, offered }: { accepted: unknown; offered: unknown }) {
  const isNew = accepted === null || accepted === undefined;
  const rows = useMemo(
    () =>
      isNew
        ? toLines(offered).map((line): ComparedRow => ({ kind: "added", before: null, after: line }))
        : compareLines(toLines(accepted), toLines(offered)),
    [accepted, offered, isNew],
  );
  if (isNew) {
    return (
      <div className="overflow-hidden rounded-box border border-line font-mono text-code">
        {rows.map((row, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the lines of a definition never move
          <Line key={index} sign="" text={row.after ?? ""} />
        ))}
      </div>
    );
  }
  const changed = rows.filter((row) => row.kind !== "same").length;
  return (
    <figure className="grid gap-1">
      <figcaption className="text-meta text-muted">
        {formatCount(changed, "line")} of {rows.length} differ
      </figcaption>
      <div className="overflow-hidden rounded-box border border-line font-mono text-code">
        <div
          aria-hidden="true"
          className="grid grid-cols-2 border-line border-b bg-surface font-sans text-meta text-muted max-medium:hidden"
        >
          <span className="border-line border-r px-2.5 py-1">Accepted</span>
          <span className="px-2.5 py-1">Offered now</span>
        </div>
        {rows.map((row, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the lines of a definition never move
          <Pair key={index} row={row} />
        ))}
      </div>
    </figure>
  );
}

function Pair({ row }: { row: ComparedRow }) {
  const parts =
    row.kind === "changed" && row.before !== null && row.after !== null ? splitChange(row.before, row.after) : null;
  const isSame = row.kind === "same";
  return (
    <div className="medium:grid medium:grid-cols-2">
      <div
        className={cx(
          "min-w-0 medium:border-line medium:border-r",
          !isSame && (row.before === null ? "bg-surface max-medium:hidden" : "bg-removed"),
        )}
      >
        {row.before !== null && (
          <Line sign={isSame ? "" : "removed"} text={row.before} {...(parts ? { parts: parts.before } : {})} />
        )}
      </div>
      <div
        className={cx(
          "min-w-0",
          // One below the other, a line that is the same stands there once.
          isSame ? "max-medium:hidden" : row.after === null ? "bg-surface max-medium:hidden" : "bg-added",
        )}
      >
        {row.after !== null && (
          <Line sign={isSame ? "" : "added"} text={row.after} {...(parts ? { parts: parts.after } : {})} />
        )}
      </div>
    </div>
  );
}

const MARKS = { removed: { sign: "−", word: "accepted: " }, added: { sign: "+", word: "offered: " } };

function Line({
  sign,
  text,
  parts,
}: {
  sign: "removed" | "added" | "";
  text: string;
  parts?: readonly [string, string, string];
}) {
  const mark = sign ? MARKS[sign] : null;
  const [indent, rest] = splitIndent(text);
  // A line that is another one altogether is not marked within.
  const isPartly = parts !== undefined && parts[0].length > indent.length && parts[1].length < text.length * 0.7;
  return (
    <div className="grid grid-cols-[14px_max-content_1fr] px-1.5 whitespace-pre-wrap">
      <span aria-hidden="true" className={cx("select-none", sign === "removed" ? "text-bad" : "text-ok")}>
        {mark?.sign}
      </span>
      <span className="whitespace-pre text-faint">{indent}</span>
      <span className="min-w-0">
        {mark && <span className="sr-only">{mark.word}</span>}
        {isPartly ? (
          <>
            <Foreign text={parts[0].slice(indent.length)} />
            {parts[1] && (
              <strong>
                <Foreign text={parts[1]} />
              </strong>
            )}
            <Foreign text={parts[2]} />
          </>
        ) : (
          <Foreign text={rest} />
        )}
      </span>
    </div>
  );
}
