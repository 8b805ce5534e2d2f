/** The rows of the diff of one file. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { useRef } from "react";
import type { DiffRow } from "../logic/diff";
import { cx, Foreign } from "./basic";

const ROW_HEIGHT = 20;

const TONES: Record<DiffRow["kind"], string> = {
  hunk: "bg-surface text-faint",
  context: "",
  add: "bg-added",
  delete: "bg-removed",
  note: "text-faint italic",
};

const SIGNS: Record<DiffRow["kind"], string> = { hunk: " ", context: " ", add: "+", delete: "−", note: " " };

export function DiffRows({
  rows,
  path,
  line,
  onLine,
}: {
  rows: DiffRow[];
  path: string;
  /** The chosen line of the new file. */
  line: number | null;
  onLine: (line: number) => void;
}) {
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 30,
  });
  return (
    <section
      ref={scroller}
      tabIndex={0}
      aria-label={path}
      className="max-h-[70vh] overflow-auto rounded-box border border-line font-mono text-code"
    >
      <div className="relative min-w-max" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (!row) return null;
          const after = row.after;
          return (
            <div
              key={item.key}
              className={cx(
                "absolute left-0 flex h-5 w-full min-w-full whitespace-pre",
                after !== null && after === line ? "bg-select" : TONES[row.kind],
              )}
              style={{ top: item.start }}
            >
              <span aria-hidden="true" className="w-11 shrink-0 pr-2 text-right text-faint select-none">
                {row.before ?? ""}
              </span>
              {after === null ? (
                <span aria-hidden="true" className="w-11 shrink-0" />
              ) : (
                <button
                  type="button"
                  tabIndex={-1}
                  aria-label={`Comment on line ${after}`}
                  onClick={() => onLine(after)}
                  className="w-11 shrink-0 pr-2 text-right text-faint select-none hover:text-accent hover:underline"
                >
                  {after}
                </button>
              )}
              <span
                className={cx(
                  "w-4 shrink-0 select-none",
                  row.kind === "add" && "text-ok",
                  row.kind === "delete" && "text-bad",
                )}
              >
                {SIGNS[row.kind]}
              </span>
              <span className="pr-4">
                <Foreign text={row.text} />
              </span>
            </div>
          );
        })}
      </div>
    </section>
  );
}
