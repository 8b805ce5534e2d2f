import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useEffect, useMemo, useRef, useState } from "react";
import type { Schema } from "../../api/client";
import { Problem } from "../../api/problem";
import { pullRequestQuery, taskDiffQuery, taskFileDiffQuery } from "../../api/queries";
import { type DiffRow, parseDiff } from "../../logic/diff";
import { type ChangedFile, isLockFile, toTreeRows } from "../../logic/file-tree";
import { formatCount } from "../../logic/format";
import { colourLine, patternOf } from "../../logic/highlight";
import type { Remark } from "../../logic/remarks";
import type { Task, Timeline } from "../../logic/state";
import { Action, Age, cx, Empty, Foreign, Loaded } from "../../ui/basic";
import { Field } from "../../ui/fields";
import { useKeys } from "../../ui/keys";
import { type RemarkActions, RemarkBar, useRemarks } from "./remarks";

export function Changes({ task, timeline }: { task: Task; timeline: Timeline }) {
  const diff = useQuery(taskDiffQuery(task.id));
  if (diff.error instanceof Problem && diff.error.status === 404) return <NoChanges />;
  return (
    <Loaded query={diff}>
      {(data) =>
        data.files.files.length === 0 ? <NoChanges /> : <ChangedFiles task={task} timeline={timeline} data={data} />
      }
    </Loaded>
  );
}

function NoChanges() {
  return (
    <Empty title="Nothing has been changed yet.">
      <p className="text-muted">
        When an agent has left its first commit, its changes can be read and remarked on here.
      </p>
    </Empty>
  );
}

function ChangedFiles({ task, timeline, data }: { task: Task; timeline: Timeline; data: Schema["TaskDiff"] }) {
  const file = useSearch({ from: "/tasks/$task", select: (search) => search.file });
  const navigate = useNavigate({ from: "/tasks/$task" });
  const remarks = useRemarks(task.id);
  const [viewed, setViewed] = useState<ReadonlySet<string>>(new Set());
  const rows = useMemo(() => toTreeRows(data.files.files), [data.files.files]);
  const files = useMemo(() => rows.flatMap((row) => (row.kind === "file" ? [row.file] : [])), [rows]);
  const request = timeline.pull_request;
  const detail = useQuery({ ...pullRequestQuery(task.id, request?.id ?? ""), enabled: Boolean(request) });
  // The whole diff is taken apart once, not each time that another file is chosen.
  const parsed = useMemo(
    () => (data.diff.truncated ? null : new Map(parseDiff(data.diff.text).map((it) => [it.path, it.rows]))),
    [data.diff],
  );
  const chosen =
    files.find((entry) => entry.path === file) ?? files.find((entry) => !isLockFile(entry.path)) ?? files[0];
  const choose = (path: string) =>
    void navigate({ search: (previous) => ({ ...previous, file: path }), replace: true });
  const move = (by: number) => {
    const index = files.findIndex((entry) => entry.path === chosen?.path) + by;
    const next = files[Math.min(Math.max(index, 0), files.length - 1)];
    if (next) choose(next.path);
  };
  useKeys({ j: () => move(1), k: () => move(-1) });
  const toggleViewed = (path: string) =>
    setViewed((previous) => {
      const next = new Set(previous);
      if (!next.delete(path)) next.add(path);
      return next;
    });
  return (
    <div className="grid grid-cols-1 gap-3">
      <p className="text-muted">
        {formatCount(files.length, "file")} · attempt {data.attempt} of “
        <Foreign text={timeline.units.find((unit) => unit.key === data.unit)?.title ?? data.unit} />” ·{" "}
        {data.checks_passed} of {formatCount(data.checks, "check")} passed
        {request && ` · pull request #${request.number}, ${request.state}`}
        {viewed.size > 0 && ` · ${viewed.size} viewed`}
      </p>
      <div className="grid grid-cols-1 gap-4 medium:grid-cols-[280px_minmax(0,1fr)]">
        <FileTree
          files={data.files.files}
          chosen={chosen?.path ?? ""}
          viewed={viewed}
          remarks={remarks.written}
          truncated={data.files.truncated}
        />
        {chosen && (
          <FileDiffView
            key={chosen.path}
            task={task.id}
            file={chosen}
            known={parsed ? (parsed.get(chosen.path) ?? []) : null}
            remarks={remarks}
            comments={(detail.data?.comments ?? []).filter((comment) => comment.path === chosen.path)}
            isViewed={viewed.has(chosen.path)}
            onViewed={() => toggleViewed(chosen.path)}
          />
        )}
      </div>
      <RemarkBar task={task} request={request ?? null} remarks={remarks} />
    </div>
  );
}

const TREE_ROW_HEIGHT = 30;
/** Above this many files a field finds one. */
const MAX_FILES_WITHOUT_SEARCH = 20;

const FileTree = memo(function FileTree({
  files,
  chosen,
  viewed,
  remarks,
  truncated,
}: {
  files: readonly ChangedFile[];
  chosen: string;
  viewed: ReadonlySet<string>;
  remarks: readonly Remark[];
  truncated: boolean;
}) {
  const [words, setWords] = useState("");
  const rows = useMemo(() => {
    const wanted = words.trim().toLowerCase();
    return toTreeRows(wanted === "" ? files : files.filter((file) => file.path.toLowerCase().includes(wanted)));
  }, [files, words]);
  const scroller = useRef<HTMLElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => TREE_ROW_HEIGHT,
    overscan: 8,
  });
  const index = rows.findIndex((row) => row.kind === "file" && row.file.path === chosen);
  useEffect(() => {
    if (index >= 0) virtual.scrollToIndex(index, { align: "auto" });
  }, [index, virtual]);
  const counts = new Map<string, number>();
  for (const remark of remarks) counts.set(remark.path, (counts.get(remark.path) ?? 0) + 1);
  return (
    <div className="grid grid-cols-1 content-start gap-2">
      {files.length > MAX_FILES_WITHOUT_SEARCH && (
        <Field label="Find a file" value={words} onChange={setWords} type="search" />
      )}
      <nav
        ref={scroller}
        aria-label="Files"
        className="max-h-[30vh] overflow-y-auto border-line border-t medium:max-h-[75vh]"
      >
        <ul className="relative" style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map((item) => {
            const row = rows[item.index];
            if (!row) return null;
            const place = { top: item.start, height: TREE_ROW_HEIGHT, paddingLeft: 8 + row.depth * 12 };
            if (row.kind === "directory") {
              return (
                <li
                  key={`${row.path}/`}
                  className="absolute left-0 w-full content-center truncate text-meta text-faint"
                  style={place}
                >
                  <Foreign text={`${row.name}/`} />
                </li>
              );
            }
            const { file } = row;
            const remarked = counts.get(file.path);
            return (
              <li
                key={file.path}
                className="absolute left-0 w-full"
                style={{ top: item.start, height: TREE_ROW_HEIGHT }}
              >
                <Link
                  to="."
                  search={(previous: object) => ({ ...previous, file: file.path })}
                  replace
                  aria-current={file.path === chosen ? "true" : undefined}
                  className={cx(
                    "flex h-full items-center gap-2 border-line border-b pr-2 -outline-offset-2 hover:bg-surface",
                    file.path === chosen && "bg-select",
                  )}
                  style={{ paddingLeft: place.paddingLeft }}
                >
                  <span
                    className={cx("min-w-0 flex-1 truncate font-mono text-code", viewed.has(file.path) && "text-faint")}
                    title={file.path}
                  >
                    <Foreign text={row.name} />
                  </span>
                  {viewed.has(file.path) && (
                    <span className="text-meta text-ok" title="viewed">
                      ✓<span className="sr-only"> viewed</span>
                    </span>
                  )}
                  {remarked !== undefined && (
                    <span className="rounded-chip px-1 text-meta text-accent ring-1 ring-accent">
                      {remarked}
                      <span className="sr-only"> remarks</span>
                    </span>
                  )}
                  <span className="shrink-0 text-meta">
                    {file.insertions != null && <span className="text-ok">+{file.insertions}</span>}{" "}
                    {file.deletions != null && <span className="text-bad">−{file.deletions}</span>}
                  </span>
                </Link>
              </li>
            );
          })}
        </ul>
      </nav>
      {truncated && <p className="text-meta text-warn">! More files were changed than are listed.</p>}
    </div>
  );
});

/** The changes of one file: out of the whole diff if that was short enough to be sent, else asked for. */
function FileDiffView({
  task,
  file,
  known,
  remarks,
  comments,
  isViewed,
  onViewed,
}: {
  task: string;
  file: ChangedFile;
  known: DiffRow[] | null;
  remarks: RemarkActions;
  comments: readonly Schema["CommentView"][];
  isViewed: boolean;
  onViewed: () => void;
}) {
  const { path } = file;
  const [asked, setAsked] = useState(!isLockFile(path));
  const own = useQuery({ ...taskFileDiffQuery(task, path), enabled: known === null && asked });
  const text = own.data?.diff.text;
  const rows = useMemo(
    () =>
      known ?? parseDiff(text ?? "").flatMap((entry) => (entry.path === path || entry.path === "" ? entry.rows : [])),
    [known, text, path],
  );
  const query = known ? { ...own, data: { truncated: false }, error: null } : { ...own, data: own.data?.diff };
  return (
    <section aria-label={`Changes of ${path}`} className="grid min-w-0 grid-cols-1 content-start gap-2">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <h2 className="min-w-0 flex-1 font-mono text-code">
          <Foreign text={path} />
        </h2>
        <Action tone="quiet" onPress={() => remarks.open({ path, line: null, quote: "", isRemoved: false })}>
          Remark on the file
        </Action>
        <label className="inline-flex min-h-8 items-center gap-1.5 text-meta text-muted">
          <input type="checkbox" checked={isViewed} onChange={onViewed} className="size-4 accent-accent" />
          Viewed
        </label>
      </div>
      {asked ? (
        <Loaded query={query}>
          {(data) => (
            <>
              {rows.length === 0 && <p className="text-muted">Only its name or its rights were changed.</p>}
              <DiffRows rows={rows} path={path} remarks={remarks} comments={comments} />
              {data.truncated && (
                <p className="text-meta text-warn">
                  ! The diff is longer than what is shown: `cynork task diff` has it whole.
                </p>
              )}
            </>
          )}
        </Loaded>
      ) : (
        <div className="grid justify-items-start gap-2">
          <p className="text-muted">A program that resolves packages wrote this file.</p>
          <Action onPress={() => setAsked(true)}>Show its changes</Action>
        </div>
      )}
    </section>
  );
}

const ROW_HEIGHT = 20;
const REMARK_HEIGHT = 72;

const DIFF_TONES: Record<DiffRow["kind"], string> = {
  hunk: "bg-surface text-faint",
  context: "",
  add: "bg-added",
  delete: "bg-removed",
  note: "text-faint italic",
};

const DIFF_SIGNS: Record<DiffRow["kind"], string> = { hunk: " ", context: " ", add: "+", delete: "−", note: " " };

type DiffItem =
  | { kind: "row"; row: DiffRow; index: number }
  | { kind: "remark"; remark: Remark }
  | { kind: "comment"; comment: Schema["CommentView"] };

/** Puts remarks and comments below the lines that they are about; those about the file come first. */
function mixRemarks(
  rows: readonly DiffRow[],
  remarks: readonly Remark[],
  comments: readonly Schema["CommentView"][],
): DiffItem[] {
  const below = new Map<number, DiffItem[]>();
  const put = (index: number, item: DiffItem) => below.set(index, [...(below.get(index) ?? []), item]);
  for (const comment of comments) {
    const index = comment.line == null ? -1 : rows.findIndex((row) => row.after === comment.line);
    put(index, { kind: "comment", comment });
  }
  for (const remark of remarks) {
    const index = remark.isRemoved
      ? rows.findIndex((row) => row.kind === "delete" && row.text === remark.quote)
      : remark.line === null
        ? -1
        : rows.findIndex((row) => row.after === remark.line);
    put(index, { kind: "remark", remark });
  }
  const items: DiffItem[] = [...(below.get(-1) ?? [])];
  rows.forEach((row, index) => {
    items.push({ kind: "row", row, index }, ...(below.get(index) ?? []));
  });
  return items;
}

function DiffRows({
  rows,
  path,
  remarks,
  comments,
}: {
  rows: readonly DiffRow[];
  path: string;
  remarks: RemarkActions;
  comments: readonly Schema["CommentView"][];
}) {
  const scroller = useRef<HTMLElement>(null);
  const [active, setActive] = useState(-1);
  const own = useMemo(() => remarks.all.filter((remark) => remark.path === path), [remarks.all, path]);
  const items = useMemo(() => mixRemarks(rows, own, comments), [rows, own, comments]);
  const pattern = useMemo(() => patternOf(path), [path]);
  const virtual = useVirtualizer({
    count: items.length,
    getScrollElement: () => scroller.current,
    estimateSize: (index) => (items[index]?.kind === "row" ? ROW_HEIGHT : REMARK_HEIGHT),
    getItemKey: (index) => {
      const item = items[index];
      if (item?.kind === "remark") return item.remark.id;
      return item?.kind === "comment" ? item.comment.id : `row ${item?.index ?? index}`;
    },
    overscan: 20,
  });
  const write = (row: DiffRow | undefined) => {
    if (!row || row.kind === "hunk" || row.kind === "note") return;
    remarks.open({ path, line: row.after, quote: row.text, isRemoved: row.kind === "delete" });
  };
  const move = (by: number) => {
    const next = Math.min(Math.max(active + by, 0), rows.length - 1);
    setActive(next);
    virtual.scrollToIndex(
      items.findIndex((item) => item.kind === "row" && item.index === next),
      { align: "auto" },
    );
  };
  const activeRow = rows[active];
  if (items.length === 0) return null;
  return (
    <>
      <section
        ref={scroller}
        tabIndex={0}
        aria-label={`${path}: arrow keys choose a line, Enter writes a remark on it`}
        onKeyDown={(event) => {
          if (event.target !== event.currentTarget) return;
          if (event.key === "ArrowDown") move(1);
          else if (event.key === "ArrowUp") move(-1);
          else if (event.key === "Enter") write(activeRow);
          else return;
          event.preventDefault();
        }}
        className="max-h-[75vh] overflow-auto rounded-box border border-line font-mono text-code"
      >
        <div className="relative min-w-max" style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map((place) => {
            const item = items[place.index];
            if (!item) return null;
            if (item.kind !== "row") {
              return (
                <div
                  key={place.key}
                  ref={virtual.measureElement}
                  data-index={place.index}
                  className="absolute left-0 w-full font-sans"
                  style={{ top: place.start }}
                >
                  {item.kind === "remark" ? (
                    <RemarkEditor remark={item.remark} remarks={remarks} />
                  ) : (
                    <Comment comment={item.comment} />
                  )}
                </div>
              );
            }
            return (
              <DiffLine
                key={place.key}
                row={item.row}
                top={place.start}
                isActive={item.index === active}
                pattern={pattern}
                onWrite={() => write(item.row)}
              />
            );
          })}
        </div>
      </section>
      <p aria-live="polite" className="sr-only">
        {activeRow ? `Line ${activeRow.after ?? activeRow.before ?? ""} ${activeRow.kind}: ${activeRow.text}` : ""}
      </p>
    </>
  );
}

const CODE_TONES = { plain: "", comment: "text-faint", string: "text-ok", keyword: "text-info" } as const;

function DiffLine({
  row,
  top,
  isActive,
  pattern,
  onWrite,
}: {
  row: DiffRow;
  top: number;
  isActive: boolean;
  pattern: RegExp | null;
  onWrite: () => void;
}) {
  const isCode = row.kind !== "hunk" && row.kind !== "note";
  return (
    <div
      className={cx(
        "absolute left-0 flex h-5 w-full min-w-full leading-5 whitespace-pre",
        DIFF_TONES[row.kind],
        isActive && "outline outline-accent -outline-offset-1",
      )}
      style={{ top }}
    >
      <span aria-hidden="true" className="w-11 shrink-0 pr-2 text-right text-faint select-none max-small:hidden">
        {row.before ?? ""}
      </span>
      {isCode ? (
        <button
          type="button"
          tabIndex={-1}
          aria-label={`Remark on line ${row.after ?? row.before ?? ""}`}
          onClick={onWrite}
          className="w-11 shrink-0 pr-2 text-right leading-5 text-faint select-none hover:bg-accent hover:text-on-accent"
        >
          {row.after ?? <span className="small:sr-only">{row.before}</span>}
        </button>
      ) : (
        <span className="w-11 shrink-0" />
      )}
      <span
        className={cx("w-4 shrink-0 select-none", row.kind === "add" && "text-ok", row.kind === "delete" && "text-bad")}
      >
        {DIFF_SIGNS[row.kind]}
      </span>
      <span className="pr-4">
        {isCode ? (
          colourLine(row.text, pattern).map((piece, index) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a line never move
            <span key={index} className={CODE_TONES[piece.tone]}>
              <Foreign text={piece.text} />
            </span>
          ))
        ) : (
          <Foreign text={row.text} />
        )}
      </span>
    </div>
  );
}

/** A draft. What is typed is kept at once. */
function RemarkEditor({ remark, remarks }: { remark: Remark; remarks: RemarkActions }) {
  return (
    <div className="sticky left-0 grid max-w-[640px] gap-2 border-accent border-l-2 bg-bg p-3">
      <Field
        label={remark.line === null ? "Remark on the file" : `Remark on line ${remark.line}`}
        value={remark.body}
        onChange={(body) => remarks.change(remark.id, body)}
        lines={2}
        autoFocus={remark.body === ""}
        description="A draft: nothing is sent before you send all remarks together."
      />
      <div>
        <Action tone="quiet" onPress={() => remarks.remove(remark.id)}>
          Delete draft
        </Action>
      </div>
    </div>
  );
}

/** What was said before. */
function Comment({ comment }: { comment: Schema["CommentView"] }) {
  return (
    <div className="sticky left-0 grid max-w-[640px] gap-0.5 border-line border-l-2 bg-surface p-3">
      <p className="text-meta text-muted">
        {comment.author_role ? comment.author_role.replaceAll("_", " ") : "a person"} ·{" "}
        <Age at={comment.created_at} ago />
      </p>
      <p className="whitespace-pre-wrap">
        <Foreign text={comment.body} />
      </p>
    </div>
  );
}
