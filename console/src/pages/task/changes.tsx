import { useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef } from "react";
import type { Schema } from "../../api/client";
import { Problem } from "../../api/problem";
import { taskDiffQuery, taskFileDiffQuery } from "../../api/queries";
import { type DiffRow, parseDiff } from "../../logic/diff";
import { formatCount } from "../../logic/format";
import type { Task, Timeline } from "../../logic/state";
import { cx, Empty, Foreign, Loaded } from "../../ui/basic";

/** Files whose changes a person rarely reads. They are shown when they are asked for. */
const LOCK_FILES = /(^|\/)(package-lock\.json|Cargo\.lock|yarn\.lock|pnpm-lock\.yaml|poetry\.lock|uv\.lock|go\.sum)$/;

export function Changes({ task, timeline }: { task: Task; timeline: Timeline }) {
  const diff = useQuery(taskDiffQuery(task.id));
  const { file } = useSearch({ from: "/tasks/$task" });
  if (diff.error instanceof Problem && diff.error.status === 404)
    return <Empty title="Nothing has been changed yet." />;
  return (
    <Loaded query={diff}>
      {(data) => {
        const files = data.files.files;
        if (files.length === 0) return <Empty title="Nothing has been changed yet." />;
        const chosen =
          files.find((entry) => entry.path === file) ?? files.find((entry) => !LOCK_FILES.test(entry.path)) ?? files[0];
        return (
          <div className="grid gap-3">
            <p className="text-muted">
              {formatCount(files.length, "file")} · attempt {data.attempt} of{" "}
              <code className="font-mono">{data.unit}</code> · {data.checks_passed} of{" "}
              {formatCount(data.checks, "check")} passed
              {timeline.pull_request &&
                ` · pull request #${timeline.pull_request.number}, ${timeline.pull_request.state}`}
            </p>
            <div className="grid grid-cols-1 gap-4 medium:grid-cols-[260px_minmax(0,1fr)]">
              <nav aria-label="Files">
                <ul className="border-line border-t">
                  {files.map((entry) => (
                    <li key={entry.path}>
                      <Link
                        to="."
                        search={(previous: object) => ({ ...previous, file: entry.path })}
                        replace
                        aria-current={entry.path === chosen?.path ? "true" : undefined}
                        className={cx(
                          "flex min-h-8 items-center gap-2 border-line border-b px-2 -outline-offset-2 hover:bg-surface max-small:min-h-10",
                          entry.path === chosen?.path && "bg-select",
                        )}
                      >
                        <span className="min-w-0 flex-1 truncate font-mono text-code" title={entry.path}>
                          <Foreign text={entry.path} />
                        </span>
                        <span className="shrink-0 text-meta">
                          {entry.insertions != null && <span className="text-ok">+{entry.insertions}</span>}{" "}
                          {entry.deletions != null && <span className="text-bad">−{entry.deletions}</span>}
                        </span>
                      </Link>
                    </li>
                  ))}
                </ul>
                {data.files.truncated && (
                  <p className="py-2 text-meta text-warn">! More files were changed than are listed.</p>
                )}
              </nav>
              {chosen && (
                <FileDiffView task={task.id} path={chosen.path} whole={data.diff.truncated ? null : data.diff} />
              )}
            </div>
          </div>
        );
      }}
    </Loaded>
  );
}

/** The changes of one file: out of the whole diff if that was short enough to be sent, else asked for. */
function FileDiffView({ task, path, whole }: { task: string; path: string; whole: Schema["DiffView"] | null }) {
  const own = useQuery({ ...taskFileDiffQuery(task, path), enabled: whole === null });
  const diff = whole ? { ...own, data: { diff: whole }, error: null } : own;
  const text = diff.data?.diff.text ?? "";
  const rows = useMemo(
    () =>
      parseDiff(text)
        .filter((file) => file.path === path || file.path === "")
        .flatMap((file) => file.rows),
    [text, path],
  );
  return (
    <section aria-label={`Changes of ${path}`} className="min-w-0">
      <Loaded query={diff}>
        {(data) => (
          <>
            {rows.length === 0 ? (
              <p className="text-muted">Only its name or its rights were changed.</p>
            ) : (
              <DiffRows rows={rows} path={path} />
            )}
            {data.diff.truncated && (
              <p className="pt-2 text-meta text-warn">
                ! The diff is longer than what is shown: `cynork task diff` has it whole.
              </p>
            )}
          </>
        )}
      </Loaded>
    </section>
  );
}

const ROW_HEIGHT = 20;

const DIFF_TONES: Record<DiffRow["kind"], string> = {
  hunk: "bg-surface text-faint",
  context: "",
  add: "bg-added",
  delete: "bg-removed",
  note: "text-faint italic",
};

const DIFF_SIGNS: Record<DiffRow["kind"], string> = { hunk: " ", context: " ", add: "+", delete: "−", note: " " };

function DiffRows({ rows, path }: { rows: DiffRow[]; path: string }) {
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
      className="max-h-[75vh] overflow-auto rounded-box border border-line font-mono text-code"
    >
      <div className="relative min-w-max" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (!row) return null;
          return (
            <div
              key={item.key}
              className={cx("absolute left-0 flex h-5 w-full min-w-full whitespace-pre", DIFF_TONES[row.kind])}
              style={{ top: item.start }}
            >
              <span aria-hidden="true" className="w-11 shrink-0 pr-2 text-right text-faint select-none">
                {row.before ?? ""}
              </span>
              <span aria-hidden="true" className="w-11 shrink-0 pr-2 text-right text-faint select-none">
                {row.after ?? ""}
              </span>
              <span
                className={cx(
                  "w-4 shrink-0 select-none",
                  row.kind === "add" && "text-ok",
                  row.kind === "delete" && "text-bad",
                )}
              >
                {DIFF_SIGNS[row.kind]}
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
