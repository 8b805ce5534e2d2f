import { useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useDeferredValue, useEffect, useMemo, useRef, useState } from "react";
import { useJobLog } from "../../api/job-log";
import { formatCount, formatDuration } from "../../logic/format";
import { nameTry, nameUnits } from "../../logic/lanes";
import { findRow, type LogRow, listFoldable, placeOf, selectRows, toRawLog } from "../../logic/log";
import { SIGNS, type Timeline } from "../../logic/state";
import { Action, copyText, cx, Empty, Foreign, ProblemNote, Skeleton } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { useKeys } from "../../ui/keys";

export function Logs({ timeline }: { timeline: Timeline }) {
  const chosen = useSearch({ from: "/tasks/$task", select: (search) => search.job });
  const line = useSearch({ from: "/tasks/$task", select: (search) => search.line });
  const navigate = useNavigate({ from: "/tasks/$task" });
  const nameUnit = nameUnits(timeline);
  const job =
    timeline.jobs.find((entry) => entry.job_id === chosen) ??
    timeline.jobs.findLast((entry) => entry.state === "running") ??
    timeline.jobs.at(-1);
  if (!job) {
    return (
      <Empty title="Nothing has been run yet.">
        <p className="text-muted">
          The log of a job appears here as soon as a node has taken it: what the agent says, each command, and what it
          writes.
        </p>
      </Empty>
    );
  }
  const choose = (id: string) =>
    void navigate({ search: (previous) => ({ ...previous, job: id, line: undefined }), replace: true });
  return (
    <JobLogView
      key={job.job_id}
      job={job.job_id}
      runs={job.state === "running" || job.state === "queued"}
      place={line ?? null}
      onPlace={(place) =>
        void navigate({ search: (previous) => ({ ...previous, job: job.job_id, line: place }), replace: true })
      }
      picker={
        <Choice
          label="Job"
          value={job.job_id}
          onChange={choose}
          options={timeline.jobs.map((entry) => ({
            value: entry.job_id,
            name: [`${JOB_SIGNS[entry.state]} ${nameUnit(entry.unit)}`, nameTry(entry.attempt), entry.state]
              .filter(Boolean)
              .join(", "),
          }))}
        />
      }
    />
  );
}

/** The signs of the states in a list that can show text only. */
const JOB_SIGNS: Record<Timeline["jobs"][number]["state"], string> = {
  queued: SIGNS.waits.sign,
  running: SIGNS.works.sign,
  succeeded: SIGNS.done.sign,
  failed: SIGNS.failed.sign,
  lost: SIGNS.trouble.sign,
  cancelled: SIGNS.cancelled.sign,
};

const ROW_HEIGHT = 20;
/** Room above the first and below the last row. */
const LOG_PADDING = 6;

const ROW_TONES: Record<LogRow["kind"], string> = {
  phase: "text-faint",
  command: "font-semibold",
  output: "text-muted",
  error: "text-warn",
  said: "",
  other: "text-faint",
};

function JobLogView({
  job,
  runs,
  place,
  onPlace,
  picker,
}: {
  job: string;
  runs: boolean;
  place: string | null;
  onPlace: (place: string | undefined) => void;
  picker: React.ReactNode;
}) {
  const log = useJobLog(job, runs);
  const { rows, version } = log;
  const [words, setWords] = useState("");
  const [onlyErrors, setOnlyErrors] = useState(false);
  const [folded, setFolded] = useState<ReadonlySet<number>>(new Set());
  const [copied, setCopied] = useState(false);
  const wanted = useDeferredValue(words);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the rows grow in place, the version says so
  const shown = useMemo(
    () => selectRows(rows, folded, wanted, onlyErrors),
    [rows, version, folded, wanted, onlyErrors],
  );
  const count = shown?.length ?? rows.length;
  const filters = wanted.trim() !== "" || onlyErrors;
  useKeys({ "/": () => document.querySelector<HTMLElement>("#log-search input")?.focus() });
  const toggle = (command: number) =>
    setFolded((previous) => {
      const next = new Set(previous);
      if (!next.delete(command)) next.add(command);
      return next;
    });
  return (
    <div className="grid grid-cols-1 gap-3">
      <div className="grid grid-cols-[minmax(0,1fr)_260px] items-end gap-3 max-small:grid-cols-1">
        {picker}
        <div id="log-search">
          <Field label="Find in the log" value={words} onChange={setWords} type="search" />
        </div>
      </div>
      <div className="flex flex-wrap items-center gap-x-2 gap-y-1 text-meta text-muted">
        <span className="mr-auto">
          {filters && `${count.toLocaleString("en-US")} of `}
          {formatCount(rows.length, "line")}
          {!log.isWhole && !log.error && ", more are being read"}
          {runs && log.isWhole && !log.error && ", live"}
        </span>
        <label className="inline-flex min-h-8 items-center gap-1.5">
          <input
            type="checkbox"
            checked={onlyErrors}
            onChange={(event) => setOnlyErrors(event.target.checked)}
            className="size-4 accent-accent"
          />
          Only errors
        </label>
        <div className="flex gap-2 max-small:-ml-3 max-small:w-full small:-mr-3">
          {folded.size === 0 ? (
            <Action tone="quiet" onPress={() => setFolded(new Set(listFoldable(rows)))}>
              Fold commands
            </Action>
          ) : (
            <Action tone="quiet" onPress={() => setFolded(new Set())}>
              Unfold commands
            </Action>
          )}
          <Action
            tone="quiet"
            onPress={() => void copyText(toRawLog(rows)).then(() => setCopied(true))}
            reason={rows.length === 0 ? "There is nothing to copy" : null}
          >
            {copied ? "Copied" : "Copy raw log"}
          </Action>
        </div>
      </div>
      {log.error && <ProblemNote error={log.error} onRetry={log.retry} />}
      {rows.length === 0 && !log.isWhole && !log.error ? (
        <Skeleton lines={8} />
      ) : count === 0 ? (
        <Empty title={filters ? "No line is like this." : "The log is empty."} />
      ) : (
        <Rows
          rows={rows}
          shown={shown}
          count={count}
          follows={runs && place === null}
          place={place}
          onPlace={onPlace}
          folded={folded}
          onToggle={toggle}
        />
      )}
    </div>
  );
}

function Rows({
  rows,
  shown,
  count,
  follows,
  place,
  onPlace,
  folded,
  onToggle,
}: {
  rows: readonly LogRow[];
  shown: readonly number[] | null;
  count: number;
  follows: boolean;
  place: string | null;
  onPlace: (place: string | undefined) => void;
  folded: ReadonlySet<number>;
  onToggle: (command: number) => void;
}) {
  const scroller = useRef<HTMLElement>(null);
  const atEnd = useRef(follows);
  const virtual = useVirtualizer({
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_HEIGHT,
    paddingStart: LOG_PADDING,
    paddingEnd: LOG_PADDING,
    overscan: 30,
  });
  useEffect(() => {
    if (atEnd.current && count > 0) virtual.scrollToIndex(count - 1, { align: "end" });
  }, [count, virtual]);
  // The address names a row: it is shown once it has been read.
  // biome-ignore lint/correctness/useExhaustiveDependencies: the rows grow in place, the count says so
  const target = useMemo(() => (place === null ? -1 : findRow(rows, place)), [rows, place, count]);
  const reached = useRef<string | null>(null);
  useEffect(() => {
    if (target < 0 || reached.current === place) return;
    reached.current = place;
    const index = shown ? shown.indexOf(target) : target;
    if (index >= 0) virtual.scrollToIndex(index, { align: "center" });
  }, [target, place, shown, virtual]);
  return (
    <section
      ref={scroller}
      tabIndex={0}
      aria-label="Log"
      onScroll={(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        atEnd.current = follows && scrollHeight - scrollTop - clientHeight < 2 * ROW_HEIGHT;
      }}
      className="max-h-[70vh] overflow-auto rounded-box border border-line bg-surface font-mono text-code"
    >
      <div className="relative min-w-max" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const index = shown ? shown[item.index] : item.index;
          const row = index === undefined ? undefined : rows[index];
          if (!row || index === undefined) return null;
          const own = placeOf(row);
          const isTarget = index === target;
          return (
            <div
              key={own}
              className={cx(
                "absolute left-0 flex h-5 w-full items-baseline gap-2 pr-3 whitespace-pre",
                ROW_TONES[row.kind],
                isTarget && "bg-select",
              )}
              style={{ top: item.start }}
            >
              <button
                type="button"
                tabIndex={-1}
                title="Put this line into the address"
                aria-label={`Line ${own}, at ${formatDuration(row.at)}`}
                aria-pressed={isTarget}
                onClick={() => onPlace(isTarget ? undefined : own)}
                className="w-20 shrink-0 pr-1 text-right font-normal text-faint select-none hover:text-text hover:underline max-small:w-16"
              >
                {formatDuration(row.at)}
              </button>
              <LogText row={row} isFolded={folded.has(index)} onToggle={() => onToggle(index)} />
            </div>
          );
        })}
      </div>
    </section>
  );
}

function LogText({ row, isFolded, onToggle }: { row: LogRow; isFolded: boolean; onToggle: () => void }) {
  if (row.kind === "phase") return <span>── {row.text}</span>;
  if (row.kind !== "command") return <Foreign text={row.text || " "} />;
  const sign = row.state === "completed" ? "✓" : row.state === "failed" ? "✗" : "▸";
  const words = (
    <>
      <span
        aria-hidden="true"
        className={row.state === "failed" ? "text-bad" : row.state === "completed" ? "text-ok" : "text-accent"}
      >
        {sign}
      </span>{" "}
      <Foreign text={row.text} />
      <span className="font-normal text-faint">
        {row.state === "failed" && " failed"}
        {row.milliseconds !== undefined && ` ${formatDuration(row.milliseconds)}`}
        {(row.lines ?? 0) > 0 && ` · ${isFolded ? "▸" : "▾"} ${formatCount(row.lines ?? 0, "line")}`}
      </span>
    </>
  );
  if ((row.lines ?? 0) === 0) return <span>{words}</span>;
  return (
    <button type="button" aria-expanded={!isFolded} onClick={onToggle} className="text-left hover:underline">
      {words}
    </button>
  );
}
