/** A list and the chosen item: side by side where there is room, else one of them. */

import { ArrowLeft } from "lucide-react";
import type { ReactNode } from "react";
import { cx } from "./basic";
import { useKeys } from "./keys";

export function Split({
  list,
  detail,
  onClose,
  back,
}: {
  list: ReactNode;
  /** Nothing while no item is chosen. */
  detail: ReactNode;
  onClose: () => void;
  /** The name of the list, for the way back on a small screen. */
  back: string;
}) {
  return (
    <div className={cx("grid grid-cols-1 gap-6", Boolean(detail) && "split:grid-cols-[420px_1fr]")}>
      <div
        className={cx(
          "min-w-0",
          // The list stays beside the chosen item and scrolls by itself.
          Boolean(detail) &&
            "max-split:hidden split:sticky split:top-3 split:max-h-[calc(100dvh-72px)] split:self-start split:overflow-y-auto split:p-0.5",
        )}
      >
        {list}
      </div>
      {detail && (
        <div className="min-w-0">
          <button
            type="button"
            onClick={onClose}
            className="mb-3 hidden min-h-10 items-center gap-1.5 text-muted max-split:inline-flex"
          >
            <ArrowLeft size={15} aria-hidden="true" /> {back}
          </button>
          {detail}
        </div>
      )}
    </div>
  );
}

/** `j` and `k` choose the next and the previous item, `Esc` closes the chosen one. */
export function useRowKeys(
  ids: readonly string[],
  chosen: string | undefined,
  choose: (id: string) => void,
  close: () => void,
): void {
  const move = (by: number) => {
    const index = chosen === undefined ? (by > 0 ? -1 : 0) : ids.indexOf(chosen);
    const next = ids[Math.min(Math.max(index + by, 0), ids.length - 1)];
    if (next !== undefined) choose(next);
  };
  useKeys({ j: () => move(1), k: () => move(-1), Escape: chosen === undefined ? undefined : close });
}
