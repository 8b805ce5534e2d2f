/** Who said what: each level with its value, and which of them holds. */

import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { describeLevel, type Level, toLevelKey } from "../logic/levels";
import { cx, Foreign } from "./basic";

export interface LevelRow {
  level: Level;
  /** What the level says; null when it says nothing. */
  value: string | null;
  /** Who wrote it and when, or why it does not count. */
  note?: ReactNode;
  holds: boolean;
}

export function LevelList({ rows, chosen }: { rows: readonly LevelRow[]; chosen: string }) {
  return (
    <ol aria-label="Levels" className="border-line border-t">
      {rows.map((row) => {
        const id = toLevelKey(row.level);
        return (
          <li key={id}>
            <Link
              to="."
              search={(previous: Record<string, unknown>) => ({ ...previous, level: id })}
              replace
              aria-current={id === chosen ? "true" : undefined}
              className={cx(
                "grid min-h-10 grid-cols-[170px_1fr_auto] items-baseline gap-x-3 border-line border-b px-2 py-1.5 -outline-offset-2 hover:bg-surface max-small:grid-cols-[1fr_auto]",
                id === chosen && "bg-select hover:bg-select",
              )}
            >
              <span className="min-w-0 truncate font-medium">
                <Foreign text={describeLevel(row.level)} />
              </span>
              <span className="min-w-0 max-small:order-last max-small:col-span-2">
                {row.value === null ? (
                  <span className="text-faint">says nothing</span>
                ) : (
                  <code className="font-mono text-code break-words">
                    <Foreign text={row.value} />
                  </code>
                )}
                {row.note && <span className="block text-meta text-muted">{row.note}</span>}
              </span>
              <span className={cx("text-meta", row.holds ? "text-ok" : "text-faint")}>
                {row.holds && (
                  <>
                    <span aria-hidden="true">✓ </span>holds
                  </>
                )}
              </span>
            </Link>
          </li>
        );
      })}
    </ol>
  );
}
