import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { logQuery } from "../../api/queries";
import { formatDuration } from "../../logic/format";
import { type LogRow, toLogRows } from "../../logic/log";
import type { Timeline } from "../../logic/state";
import { CopyButton, cx, Empty, Foreign, Loaded } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { useKeys } from "../../ui/keys";

export function Logs({ timeline }: { timeline: Timeline }) {
  const search = useSearch({ from: "/tasks/$task" });
  const navigate = useNavigate({ from: "/tasks/$task" });
  const titles = new Map(timeline.units.map((unit) => [unit.key, unit.title]));
  const job =
    timeline.jobs.find((entry) => entry.job_id === search.job) ??
    timeline.jobs.findLast((entry) => entry.state === "running") ??
    timeline.jobs.at(-1);
  if (!job) return <Empty title="Nothing has been run yet." />;
  const choose = (id: string) => void navigate({ search: (previous) => ({ ...previous, job: id }), replace: true });
  return (
    <JobLog
      key={job.job_id}
      task={timeline.task_id}
      job={job.job_id}
      runs={job.state === "running" || job.state === "queued"}
      picker={
        <Choice
          label="Job"
          value={job.job_id}
          onChange={choose}
          options={timeline.jobs.map((entry) => ({
            value: entry.job_id,
            name: `${titles.get(entry.unit) ?? entry.unit}, attempt ${entry.attempt}, ${entry.state}`,
          }))}
        />
      }
    />
  );
}

const ROW_HEIGHT = 20;

const ROW_TONES: Record<LogRow["kind"], string> = {
  phase: "text-faint",
  command: "font-semibold",
  output: "text-muted",
  error: "text-warn",
  said: "",
  other: "text-faint",
};

function JobLog({ task, job, runs, picker }: { task: string; job: string; runs: boolean; picker: React.ReactNode }) {
  const log = useQuery(logQuery(task, job, runs));
  const [words, setWords] = useState("");
  const rows = useMemo(() => toLogRows(log.data ?? []), [log.data]);
  const shown = useMemo(() => {
    const wanted = words.trim().toLowerCase();
    return wanted === "" ? rows : rows.filter((row) => row.text.toLowerCase().includes(wanted));
  }, [rows, words]);
  useKeys({ "/": () => document.querySelector<HTMLElement>("#log-search input")?.focus() });
  return (
    <div className="grid gap-3">
      <div className="grid grid-cols-[minmax(0,1fr)_260px_auto] items-end gap-3 max-small:grid-cols-1">
        {picker}
        <div id="log-search">
          <Field label="Find in the log" value={words} onChange={setWords} type="search" />
        </div>
        <div className="flex min-h-8 items-center gap-2 text-meta text-muted">
          {words.trim() ? `${shown.length.toLocaleString("en-US")} of ` : ""}
          {rows.length.toLocaleString("en-US")} lines
          <CopyButton text={rows.map((row) => row.text).join("\n")} label="Copy the whole log" />
        </div>
      </div>
      <Loaded query={log}>
        {() =>
          shown.length === 0 ? (
            <Empty title={words ? "No line has these words." : "The log is empty."} />
          ) : (
            <Rows rows={shown} runs={runs} />
          )
        }
      </Loaded>
    </div>
  );
}

function Rows({ rows, runs }: { rows: LogRow[]; runs: boolean }) {
  const scroller = useRef<HTMLDivElement>(null);
  const atEnd = useRef(runs);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 30,
  });
  useEffect(() => {
    if (atEnd.current && rows.length > 0) virtual.scrollToIndex(rows.length - 1, { align: "end" });
  }, [rows.length, virtual]);
  return (
    <section
      ref={scroller}
      tabIndex={0}
      aria-label="Log"
      onScroll={(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        atEnd.current = scrollHeight - scrollTop - clientHeight < 2 * ROW_HEIGHT;
      }}
      className="max-h-[70vh] overflow-auto rounded-box border border-line bg-surface font-mono text-code"
    >
      <div className="relative min-w-max" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (!row) return null;
          return (
            <div
              key={row.key}
              className={cx("absolute left-0 flex h-5 w-full gap-3 px-3 whitespace-pre", ROW_TONES[row.kind])}
              style={{ top: item.start }}
            >
              <span aria-hidden="true" className="w-16 shrink-0 text-right text-faint select-none">
                {formatDuration(row.at)}
              </span>
              <LogText row={row} />
            </div>
          );
        })}
      </div>
    </section>
  );
}

function LogText({ row }: { row: LogRow }) {
  if (row.kind === "phase") return <span>── {row.text}</span>;
  if (row.kind !== "command") return <Foreign text={row.text || " "} />;
  const sign = row.state === "completed" ? "✓" : row.state === "failed" ? "✗" : "▸";
  return (
    <span>
      <span className={row.state === "failed" ? "text-bad" : row.state === "completed" ? "text-ok" : "text-accent"}>
        {sign}
      </span>{" "}
      <Foreign text={row.text} />
      {row.milliseconds !== undefined && (
        <span className="font-normal text-faint"> {formatDuration(row.milliseconds)}</span>
      )}
    </span>
  );
}
