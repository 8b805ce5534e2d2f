import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, type ReactNode, type RefObject, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { handoffsQuery, meQuery, taskBudgetsQuery } from "../../api/queries";
import { taskCallsQuery } from "../../api/queries-task";
import { formatCost, formatCount, formatDuration, formatTime } from "../../logic/format";
import {
  accumulateCosts,
  type CostPoint,
  costAt,
  entryAt,
  forecastCost,
  type Lane,
  type Lanes,
  listEntries,
  placeLanes,
  type Span,
  type TimelineEntry,
} from "../../logic/lanes";
import { isAlive, type Task, type Timeline } from "../../logic/state";
import { cx, Foreign, Inline, SectionHead, useNow } from "../../ui/basic";

const SPAN_TONES: Record<Span["kind"], string> = {
  work: "bg-accent",
  check: "bg-info",
  failed: "bg-bad",
  wait: "hatched",
  person: "bg-warn",
};

const SPAN_FILLS: Record<Span["kind"], string> = {
  work: "fill-accent",
  check: "fill-info",
  failed: "fill-bad",
  wait: "fill-line",
  person: "fill-warn",
};

/** Where the axis begins: right of the names of the lanes, on a phone below them. */
const AXIS = "[--label:200px] max-small:[--label:0px]";
const LABELLED = "grid grid-cols-[var(--label)_minmax(0,1fr)] max-small:grid-cols-1";
const axisLeft = (fraction: number) => `calc(var(--label) + (100% - var(--label)) * ${fraction})`;

/** Moves the one cursor. It is drawn straight into the page: moving it renders nothing. */
interface Cursor {
  move(at: number | null): void;
}

export function TimelineTab({ task, timeline }: { task: Task; timeline: Timeline }) {
  const now = useNow();
  const until = isAlive(timeline.state) ? now : 0;
  const pinnedOffset = useSearch({ from: "/tasks/$task", select: (search) => search.at });
  const navigate = useNavigate({ from: "/tasks/$task" });
  const me = useQuery(meQuery);
  const calls = useQuery(taskCallsQuery(task.id));
  const budgets = useQuery(taskBudgetsQuery(task.id));
  const handoffs = useQuery(handoffsQuery(task.project_id, task.id)).data?.items;
  const lanes = useMemo(() => placeLanes(timeline, until, handoffs), [timeline, until, handoffs]);
  const entries = useMemo(() => listEntries(timeline, handoffs), [timeline, handoffs]);
  const cost = useMemo(() => {
    const known = (calls.data ?? []).filter((call) => call.cost_micros > 0);
    if (known.length === 0) return lanes.cost;
    const toCost = (call: (typeof known)[number]) => ({
      at: new Date(call.at).getTime() + (call.duration_ms ?? 0),
      micros: call.cost_micros,
    });
    return accumulateCosts(known.map(toCost));
  }, [calls.data, lanes.cost]);
  const currency = me.data?.currency ?? "USD";
  const pinned = pinnedOffset === undefined ? null : lanes.start + pinnedOffset;
  const line = useRef<HTMLDivElement>(null);
  const words = useRef<HTMLParagraphElement>(null);
  const { start, end } = lanes;
  const draw = useCallback(
    (at: number | null) => {
      if (!line.current || !words.current) return;
      line.current.hidden = at === null;
      words.current.textContent = at === null ? "" : describeMoment(at, start, cost, currency);
      if (at !== null) line.current.style.left = axisLeft(clampFraction((at - start) / (end - start)));
    },
    [start, end, cost, currency],
  );
  // Without a hand on the axis the cursor is where it was put.
  const cursor = useMemo<Cursor>(() => ({ move: (at) => draw(at ?? pinned) }), [draw, pinned]);
  useEffect(() => cursor.move(null), [cursor]);
  const pin = useCallback(
    (at: number | null) =>
      void navigate({
        search: (previous) => ({ ...previous, at: at === null ? undefined : Math.max(0, Math.round(at - start)) }),
        replace: true,
      }),
    [navigate, start],
  );
  const budget = budgets.data?.items[0];
  const spent = Math.max(cost.at(-1)?.micros ?? 0, timeline.cost_micros, budget?.spent_micros ?? 0);
  return (
    <div className="grid grid-cols-1 gap-6">
      <section className="grid grid-cols-1 gap-2" aria-label="Time">
        <div className={cx("flex justify-between gap-4 pl-[var(--label)] text-meta text-faint", AXIS)}>
          <span>{formatTime(lanes.start)}</span>
          <span>{formatDuration(lanes.end - lanes.start)}</span>
        </div>
        <Axis lanes={lanes} entries={entries} pinned={pinned} cursor={cursor} pin={pin} line={line}>
          <LaneRows lanes={lanes} />
          <CostBurn
            cost={cost}
            lanes={lanes}
            spent={spent}
            reserved={isAlive(timeline.state) ? (budget?.reserved_micros ?? 0) : 0}
            limit={budget?.max_cost_micros ?? task.budget.max_cost_micros ?? null}
            forecast={forecastCost(timeline, spent)}
            currency={currency}
          />
        </Axis>
        <p ref={words} aria-hidden="true" className="min-h-4 text-meta text-muted" />
        <Marks lanes={lanes} pin={pin} />
      </section>
      <Entries entries={entries} start={lanes.start} pinned={pinned} cursor={cursor} pin={pin} currency={currency} />
    </div>
  );
}

function clampFraction(fraction: number): number {
  return Math.min(1, Math.max(0, fraction));
}

function describeMoment(at: number, start: number, cost: readonly CostPoint[], currency: string): string {
  return `${formatTime(at)} · ${formatDuration(at - start)} after the start · ${formatCost(costAt(cost, at), currency)} spent by then`;
}

/** The axis with everything on it. By keyboard the cursor goes from entry to entry. */
function Axis({
  lanes,
  entries,
  pinned,
  cursor,
  pin,
  line,
  children,
}: {
  lanes: Lanes;
  entries: readonly TimelineEntry[];
  pinned: number | null;
  cursor: Cursor;
  pin: (at: number | null) => void;
  line: RefObject<HTMLDivElement | null>;
  children: ReactNode;
}) {
  const handle = useRef<HTMLDivElement>(null);
  const length = lanes.end - lanes.start;
  const timeAt = (clientX: number) => {
    const box = handle.current?.getBoundingClientRect();
    return box ? lanes.start + clampFraction((clientX - box.left) / box.width) * length : lanes.start;
  };
  const step = (by: number) => {
    const index = pinned === null ? (by > 0 ? 0 : entries.length - 1) : entryAt(entries, pinned) + by;
    const next = entries[Math.min(Math.max(index, 0), entries.length - 1)];
    if (next) pin(next.at);
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the slider in it does the same by keyboard
    // biome-ignore lint/a11y/useKeyWithClickEvents: the slider in it does the same by keyboard
    <div
      className={cx("relative", AXIS)}
      onPointerMove={(event) => cursor.move(timeAt(event.clientX))}
      onPointerLeave={() => cursor.move(null)}
      onClick={(event) => {
        const box = handle.current?.getBoundingClientRect();
        if (box && event.clientX >= box.left) pin(timeAt(event.clientX));
      }}
    >
      <div
        ref={handle}
        role="slider"
        tabIndex={0}
        onKeyDown={(event) => {
          if (event.key === "ArrowRight") step(1);
          else if (event.key === "ArrowLeft") step(-1);
          else if (event.key === "Home") pin(lanes.start);
          else if (event.key === "End") pin(lanes.end);
          else return;
          event.preventDefault();
        }}
        aria-label="Time, from entry to entry with the arrow keys"
        aria-valuemin={0}
        aria-valuemax={Math.round(length / 1000)}
        aria-valuenow={pinned === null ? 0 : Math.round((pinned - lanes.start) / 1000)}
        aria-valuetext={pinned === null ? "at the start" : `${formatDuration(pinned - lanes.start)} after the start`}
        className="ml-[var(--label)] h-2 cursor-ew-resize border-line border-x border-t"
      />
      {children}
      <div aria-hidden="true" className="pointer-events-none absolute inset-0">
        {lanes.marks.map((mark) => (
          <div
            key={mark.key}
            className="absolute inset-y-0 border-bad border-l border-dashed"
            style={{ left: axisLeft(clampFraction((mark.at - lanes.start) / length)) }}
          />
        ))}
        <div ref={line} hidden className="absolute inset-y-0 w-px bg-text" />
      </div>
    </div>
  );
}

const LANE_HEIGHT = 22;
/** On a phone the name of a lane stands above it, whole. */
const TALL_LANE_HEIGHT = 38;

const LaneRows = memo(function LaneRows({ lanes }: { lanes: Lanes }) {
  const scroller = useRef<HTMLUListElement>(null);
  const height = useLaneHeight();
  const virtual = useVirtualizer({
    count: lanes.lanes.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => height,
    overscan: 6,
  });
  // biome-ignore lint/correctness/useExhaustiveDependencies: another height has other places
  useEffect(() => virtual.measure(), [virtual, height]);
  return (
    <ul
      ref={scroller}
      tabIndex={0}
      aria-label="Lanes"
      className="relative max-h-[46vh] overflow-y-auto [scrollbar-width:none]"
    >
      <li aria-hidden="true" style={{ height: virtual.getTotalSize() }} />
      {virtual.getVirtualItems().map((item) => {
        const lane = lanes.lanes[item.index];
        return lane ? <LaneRow key={lane.name} lane={lane} lanes={lanes} top={item.start} height={height} /> : null;
      })}
    </ul>
  );
});

const SMALL = "(max-width: 639px)";

/** Returns how high a lane is in a window of this width. */
function useLaneHeight(): number {
  const [isSmall, setSmall] = useState(() => window.matchMedia(SMALL).matches);
  useEffect(() => {
    const media = window.matchMedia(SMALL);
    const look = () => setSmall(media.matches);
    media.addEventListener("change", look);
    return () => media.removeEventListener("change", look);
  }, []);
  return isSmall ? TALL_LANE_HEIGHT : LANE_HEIGHT;
}

/** Above this many spans a lane is drawn as one picture, without words for each span. */
const MAX_SPANS_WITH_WORDS = 60;

const LaneRow = memo(function LaneRow({
  lane,
  lanes,
  top,
  height,
}: {
  lane: Lane;
  lanes: Lanes;
  top: number;
  height: number;
}) {
  const length = lanes.end - lanes.start;
  return (
    <li className={cx("absolute left-0 w-full content-center items-center", LABELLED)} style={{ top, height }}>
      <span className="truncate pr-3 text-meta text-muted" title={lane.name}>
        <Foreign text={lane.name} />
      </span>
      {lane.spans.length > MAX_SPANS_WITH_WORDS ? (
        <LanePicture lane={lane} lanes={lanes} />
      ) : (
        <ul className="relative h-4 bg-surface">
          {lane.spans.map((span) => (
            <li
              key={span.key}
              className={cx("absolute top-0.5 h-3 min-w-0.5 rounded-[2px]", SPAN_TONES[span.kind])}
              style={{
                left: `${((span.start - lanes.start) / length) * 100}%`,
                width: `${((span.end - span.start) / length) * 100}%`,
              }}
              title={`${span.words}, ${formatDuration(span.end - span.start)}`}
            >
              <span className="sr-only">
                {span.words}, {formatDuration(span.end - span.start)}
              </span>
            </li>
          ))}
        </ul>
      )}
    </li>
  );
});

const PICTURE_WIDTH = 2000;

function LanePicture({ lane, lanes }: { lane: Lane; lanes: Lanes }) {
  const scale = PICTURE_WIDTH / (lanes.end - lanes.start);
  const paths = new Map<Span["kind"], string[]>();
  for (const span of lane.spans) {
    const x = ((span.start - lanes.start) * scale).toFixed(1);
    const width = Math.max(2, (span.end - span.start) * scale).toFixed(1);
    const path = paths.get(span.kind) ?? [];
    path.push(`M${x} 2h${width}v12h-${width}z`);
    paths.set(span.kind, path);
  }
  return (
    <svg
      role="img"
      aria-label={`${lane.name}: ${formatCount(lane.spans.length, "span")}`}
      viewBox={`0 0 ${PICTURE_WIDTH} 16`}
      preserveAspectRatio="none"
      className="h-4 w-full bg-surface"
    >
      {[...paths].map(([kind, path]) => (
        <path key={kind} d={path.join("")} className={SPAN_FILLS[kind]} />
      ))}
    </svg>
  );
}

const BURN_HEIGHT = 72;
/** A limit that is so many times what was spent would press the curve flat; then it is only written. */
const MAX_LIMIT_RATIO = 5;

/** Money over time: spent, reserved now, the limit, and what the rest of the plan will need at this rate. */
const CostBurn = memo(function CostBurn({
  cost,
  lanes,
  spent,
  reserved,
  limit,
  forecast,
  currency,
}: {
  cost: readonly CostPoint[];
  lanes: Lanes;
  spent: number;
  reserved: number;
  limit: number | null;
  forecast: number | null;
  currency: string;
}) {
  if (spent + reserved === 0) return null;
  const used = Math.max(spent + reserved, forecast ?? 0);
  const showsLimit = limit !== null && limit <= used * MAX_LIMIT_RATIO;
  const top = Math.max(used, showsLimit ? limit : 0) * 1.08;
  const length = lanes.end - lanes.start;
  const y = (micros: number) => BURN_HEIGHT - (micros / top) * BURN_HEIGHT;
  let before = 0;
  const points = cost.map(({ at, micros }) => {
    const x = (clampFraction((at - lanes.start) / length) * PICTURE_WIDTH).toFixed(1);
    const point = `L${x} ${y(before).toFixed(1)}V${y(micros).toFixed(1)}`;
    before = micros;
    return point;
  });
  const curve = `M0 ${BURN_HEIGHT}${points.join("")}H${PICTURE_WIDTH}`;
  const words = [
    `${formatCost(spent, currency)} spent`,
    reserved > 0 ? `${formatCost(reserved, currency)} reserved` : null,
    forecast === null ? null : `${formatCost(forecast, currency)} forecast`,
    limit === null ? "no limit of its own" : `limit ${formatCost(limit, currency)}`,
  ].filter((part) => part !== null);
  return (
    <div className={cx("pt-2", LABELLED)}>
      <div className="pr-3 text-meta max-small:flex max-small:flex-wrap max-small:gap-x-3 max-small:pb-1">
        <p className="text-muted">Cost</p>
        {words.map((part) => (
          <p key={part} className="text-faint">
            {part}
          </p>
        ))}
      </div>
      <div className="relative bg-surface" style={{ height: BURN_HEIGHT }}>
        <svg
          role="img"
          aria-label={`Cost: ${words.join(", ")}`}
          viewBox={`0 0 ${PICTURE_WIDTH} ${BURN_HEIGHT}`}
          preserveAspectRatio="none"
          className="size-full"
        >
          <path d={`${curve}V${BURN_HEIGHT}Z`} className="fill-select" />
          <path d={curve} className="fill-none stroke-accent" strokeWidth={1.5} vectorEffect="non-scaling-stroke" />
        </svg>
        {reserved > 0 && (
          <div
            className="hatched absolute right-0 w-[4%] border-accent border-t"
            style={{ top: y(spent + reserved), height: (reserved / top) * BURN_HEIGHT }}
          />
        )}
        {forecast !== null && (
          <Level at={y(forecast)} name="forecast" className="border-accent border-dashed text-accent" />
        )}
        {showsLimit && limit !== null && <Level at={y(limit)} name="limit" className="border-warn text-warn" />}
      </div>
    </div>
  );
});

function Level({ at, name, className }: { at: number; name: string; className: string }) {
  return (
    <div aria-hidden="true" className={cx("absolute inset-x-0 border-t text-meta", className)} style={{ top: at }}>
      <span className="absolute left-1 bg-surface px-0.5">{name}</span>
    </div>
  );
}

/** Where processes were replaced, in words. */
function Marks({ lanes, pin }: { lanes: Lanes; pin: (at: number) => void }) {
  if (lanes.marks.length === 0) return null;
  return (
    <ul aria-label="Recoveries" className="grid gap-0.5 text-meta">
      {lanes.marks.slice(-6).map((mark) => (
        <li key={mark.key}>
          <button type="button" onClick={() => pin(mark.at)} className="min-h-6 text-left hover:underline">
            <span aria-hidden="true" className="mr-1.5 font-mono text-bad">
              ┆
            </span>
            <span className="text-faint">+{formatDuration(mark.at - lanes.start)}</span> <Foreign text={mark.words} />
          </button>
        </li>
      ))}
    </ul>
  );
}

const ENTRY_TONES: Record<TimelineEntry["tone"], string> = {
  ok: "text-ok",
  bad: "text-bad",
  warn: "text-warn",
  muted: "text-faint",
  mark: "text-bad",
};

const ENTRY_HEIGHT = 30;

const Entries = memo(function Entries({
  entries,
  start,
  pinned,
  cursor,
  pin,
  currency,
}: {
  entries: readonly TimelineEntry[];
  start: number;
  pinned: number | null;
  cursor: Cursor;
  pin: (at: number | null) => void;
  currency: string;
}) {
  const navigate = useNavigate({ from: "/tasks/$task" });
  const openLog = (job: string) =>
    void navigate({ search: (previous) => ({ ...previous, tab: "logs" as const, job, line: undefined }) });
  const scroller = useRef<HTMLElement>(null);
  const virtual = useVirtualizer({
    count: entries.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ENTRY_HEIGHT,
    getItemKey: (index) => entries[index]?.key ?? index,
    overscan: 12,
  });
  const chosen = pinned === null ? -1 : entryAt(entries, pinned);
  useEffect(() => {
    if (chosen >= 0) virtual.scrollToIndex(chosen, { align: "auto" });
  }, [chosen, virtual]);
  return (
    <section className="grid grid-cols-1 gap-1">
      <SectionHead aside={`${entries.length.toLocaleString("en-US")} ${entries.length === 1 ? "entry" : "entries"}`}>
        What happened
      </SectionHead>
      <section
        ref={scroller}
        tabIndex={0}
        aria-label="What happened"
        className="max-h-[60vh] overflow-y-auto pr-2"
        onPointerLeave={() => cursor.move(null)}
      >
        <ol className="relative" style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map((item) => {
            const entry = entries[item.index];
            if (!entry) return null;
            return (
              <li
                key={item.key}
                ref={virtual.measureElement}
                data-index={item.index}
                aria-current={item.index === chosen ? "true" : undefined}
                onPointerEnter={() => cursor.move(entry.at)}
                className={cx(
                  "absolute left-0 grid w-full grid-cols-[76px_104px_84px_minmax(0,1fr)_auto] items-baseline gap-x-3 border-line border-b py-1.5 text-meta max-small:grid-cols-[68px_minmax(0,1fr)_auto]",
                  item.index === chosen && "bg-select",
                )}
                style={{ top: item.start }}
              >
                <button
                  type="button"
                  onClick={() => pin(entry.at)}
                  title={formatTime(entry.at)}
                  className="text-left text-faint hover:underline"
                >
                  +{formatDuration(entry.at - start)}
                </button>
                <span>{entry.what}</span>
                <span className={ENTRY_TONES[entry.tone]}>{entry.state}</span>
                <span className="min-w-0 text-muted max-small:col-span-3 max-small:pl-[80px]">
                  {entry.unit && (
                    <span className="block truncate">
                      <Foreign text={entry.unit} />
                    </span>
                  )}
                  {entry.note && (
                    <span className="line-clamp-3 whitespace-pre-line" title={entry.note}>
                      <Inline text={entry.note} />
                    </span>
                  )}
                </span>
                <span className="text-right text-muted empty:hidden max-small:col-span-3 max-small:pl-[80px] max-small:text-left">
                  {entry.micros > 0 && formatCost(entry.micros, currency)}
                  {entry.job && (
                    // A plain link: thirty of the router's own cost more than everything else of a row.
                    <a
                      href={`?tab=logs&job=${entry.job}`}
                      onClick={(event) => {
                        if (event.metaKey || event.ctrlKey || event.shiftKey) return;
                        event.preventDefault();
                        openLog(entry.job ?? "");
                      }}
                      className="text-accent underline"
                    >
                      Log
                    </a>
                  )}
                </span>
              </li>
            );
          })}
        </ol>
      </section>
    </section>
  );
});
