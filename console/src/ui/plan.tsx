/** The units of a plan as a graph from left to right, of which only what is in view is drawn; on a phone as a list. */

import { type RefObject, useEffect, useMemo, useRef, useState } from "react";
import type { Schema } from "../api/client";
import { cullPlan, layoutPlan, type PlanLayout, type PlanWindow } from "../logic/plan";
import { SIGNS, type Standing } from "../logic/state";
import { describeCommand } from "../logic/text";
import { cx, Foreign, Inline, Sign } from "./basic";

export interface PlanUnit {
  key: string;
  title: string;
  depends_on: readonly string[];
  standing: Standing;
  /** A few words below the title, such as the attempts. */
  note?: string;
  /** How each attempt stands, the first one first. */
  attempts?: readonly Standing[];
}

const CELL_WIDTH = 212;
const CELL_HEIGHT = 64;
const GAP_X = 36;
const GAP_Y = 14;
const STEP_X = CELL_WIDTH + GAP_X;
const STEP_Y = CELL_HEIGHT + GAP_Y;
/** Columns and rows that are drawn beyond the edge of the view, so that scrolling shows no gaps. */
const DRAWN_BEYOND = 1;
/** Above this many units a small map shows where one is. */
const MAX_UNITS_WITHOUT_MAP = 30;
const MAX_ATTEMPT_SIGNS = 6;

const EVERYTHING: PlanWindow = { firstColumn: 0, lastColumn: 8, firstRow: 0, lastRow: 12 };

export function PlanGraph({ units }: { units: readonly PlanUnit[] }) {
  const layout = useMemo(() => layoutPlan(units), [units]);
  const scroller = useRef<HTMLElement>(null);
  const view = usePlanWindow(scroller, layout);
  const drawn = useMemo(() => cullPlan(layout, view), [layout, view]);
  const width = layout.columns * STEP_X - GAP_X;
  const height = layout.rows * STEP_Y - GAP_Y;
  return (
    <>
      {units.length > MAX_UNITS_WITHOUT_MAP ? (
        <section tabIndex={0} aria-label="Units of the plan" className="max-h-[60vh] overflow-y-auto small:hidden">
          <PlanList units={units} />
        </section>
      ) : (
        <div className="small:hidden">
          <PlanList units={units} />
        </div>
      )}
      <div className="relative max-small:hidden">
        <section
          ref={scroller}
          className="-m-0.5 max-h-[62vh] overflow-auto p-0.5"
          aria-label={`Plan, ${units.length} ${units.length === 1 ? "unit" : "units"}`}
          tabIndex={0}
        >
          <div className="relative" style={{ width, height }}>
            <svg aria-hidden="true" width={width} height={height} className="absolute inset-0 overflow-visible">
              {drawn.edges.map(({ from, to }) => {
                const startX = from.column * STEP_X + CELL_WIDTH;
                const startY = from.row * STEP_Y + CELL_HEIGHT / 2;
                const endX = to.column * STEP_X;
                const endY = to.row * STEP_Y + CELL_HEIGHT / 2;
                const bend = Math.min((endX - startX) / 2, STEP_X / 2);
                return (
                  <path
                    key={`${from.node.key} ${to.node.key}`}
                    d={`M${startX} ${startY}C${startX + bend} ${startY} ${endX - bend} ${endY} ${endX} ${endY}`}
                    className="fill-none stroke-control"
                    strokeWidth={1.25}
                  />
                );
              })}
            </svg>
            <ol>
              {drawn.nodes.map(({ node, column, row }) => (
                <li
                  key={node.key}
                  className={cx(
                    "absolute grid content-center gap-0.5 overflow-hidden rounded-box border bg-bg px-2.5",
                    node.standing === "works" || node.standing === "judged" ? "border-accent" : "border-line",
                  )}
                  style={{ left: column * STEP_X, top: row * STEP_Y, width: CELL_WIDTH, height: CELL_HEIGHT }}
                  title={node.title}
                >
                  <span className="flex min-w-0 gap-1">
                    <Sign standing={node.standing} />
                    <span className="line-clamp-2 leading-tight">
                      <Foreign text={node.title} />
                    </span>
                  </span>
                  <span className="flex min-w-0 items-baseline gap-2 pl-[18px] text-meta text-faint">
                    {node.note && <span className="truncate">{node.note}</span>}
                    <Attempts attempts={node.attempts ?? []} />
                  </span>
                </li>
              ))}
            </ol>
          </div>
        </section>
        {units.length > MAX_UNITS_WITHOUT_MAP && <PlanMap layout={layout} scroller={scroller} />}
      </div>
    </>
  );
}

/** A sign for each attempt, when there was more than one. */
function Attempts({ attempts }: { attempts: readonly Standing[] }) {
  if (attempts.length < 2) return null;
  return (
    <span aria-hidden="true" className="shrink-0 font-mono">
      {attempts.slice(-MAX_ATTEMPT_SIGNS).map((standing, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: an attempt is its number
        <span key={index} className={SIGNS[standing].tone}>
          {SIGNS[standing].sign}
        </span>
      ))}
    </span>
  );
}

/** Returns the columns and rows that are in view. It changes when a cell comes into view, not with each pixel. */
function usePlanWindow(scroller: RefObject<HTMLElement | null>, layout: PlanLayout<PlanUnit>): PlanWindow {
  const [view, setView] = useState(EVERYTHING);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another layout has another size
  useEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const look = () => {
      const { scrollLeft, scrollTop, clientWidth, clientHeight } = element;
      const next = {
        firstColumn: Math.floor(scrollLeft / STEP_X) - DRAWN_BEYOND,
        lastColumn: Math.floor((scrollLeft + clientWidth) / STEP_X) + DRAWN_BEYOND,
        firstRow: Math.floor(scrollTop / STEP_Y) - DRAWN_BEYOND,
        lastRow: Math.floor((scrollTop + clientHeight) / STEP_Y) + DRAWN_BEYOND,
      };
      setView((previous) =>
        previous.firstColumn === next.firstColumn &&
        previous.lastColumn === next.lastColumn &&
        previous.firstRow === next.firstRow &&
        previous.lastRow === next.lastRow
          ? previous
          : next,
      );
    };
    look();
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      sizes.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, [scroller, layout]);
  return view;
}

const MAP_WIDTH = 168;
const MIN_MAP_HEIGHT = 48;
const MAX_MAP_HEIGHT = 112;

/** The whole plan, small, with a frame around what is in view. A press moves the view. */
function PlanMap({ layout, scroller }: { layout: PlanLayout<PlanUnit>; scroller: RefObject<HTMLElement | null> }) {
  const frame = useRef<SVGRectElement>(null);
  const width = layout.columns * STEP_X;
  const height = layout.rows * STEP_Y;
  const mapHeight = Math.min(Math.max(MIN_MAP_HEIGHT, (MAP_WIDTH / width) * height), MAX_MAP_HEIGHT);
  const cells = useMemo(
    () =>
      layout.nodes.map(({ node, column, row }) => (
        <rect
          key={node.key}
          x={column * STEP_X}
          y={row * STEP_Y}
          width={CELL_WIDTH}
          height={CELL_HEIGHT}
          className={MAP_TONES[node.standing]}
        />
      )),
    [layout],
  );
  useEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    // Straight to the drawing: a frame that moves with the scroll needs no rendering of the page.
    const follow = () => {
      frame.current?.setAttribute("x", String(element.scrollLeft));
      frame.current?.setAttribute("y", String(element.scrollTop));
      frame.current?.setAttribute("width", String(element.clientWidth));
      frame.current?.setAttribute("height", String(element.clientHeight));
    };
    follow();
    const sizes = new ResizeObserver(follow);
    sizes.observe(element);
    element.addEventListener("scroll", follow, { passive: true });
    return () => {
      sizes.disconnect();
      element.removeEventListener("scroll", follow);
    };
  }, [scroller]);
  const move = (event: React.PointerEvent<SVGSVGElement>) => {
    if (event.buttons === 0) return;
    const box = event.currentTarget.getBoundingClientRect();
    const element = scroller.current;
    element?.scrollTo({
      left: ((event.clientX - box.left) / MAP_WIDTH) * width - element.clientWidth / 2,
      top: ((event.clientY - box.top) / mapHeight) * height - element.clientHeight / 2,
    });
  };
  return (
    <svg
      aria-hidden="true"
      viewBox={`0 0 ${width} ${height}`}
      preserveAspectRatio="none"
      width={MAP_WIDTH}
      height={mapHeight}
      onPointerDown={move}
      onPointerMove={move}
      className="absolute right-5 bottom-5 touch-none rounded-chip border border-line bg-raised shadow-float"
    >
      {cells}
      <rect ref={frame} className="fill-none stroke-text" strokeWidth={2} vectorEffect="non-scaling-stroke" />
    </svg>
  );
}

const MAP_TONES: Record<Standing, string> = {
  waits: "fill-line",
  works: "fill-accent",
  judged: "fill-info",
  person: "fill-warn",
  done: "fill-ok",
  failed: "fill-bad",
  cancelled: "fill-line",
  trouble: "fill-bad",
};

export function PlanList({ units }: { units: readonly PlanUnit[] }) {
  const titles = new Map(units.map((unit) => [unit.key, unit.title]));
  return (
    <ol className="grid">
      {units.map((unit) => (
        <li key={unit.key} className="flex gap-1.5 border-line border-b py-2 last:border-b-0">
          <Sign standing={unit.standing} />
          <span className="min-w-0">
            <Foreign text={unit.title} />
            {(unit.note || unit.depends_on.length > 0) && (
              <span className="block text-meta text-faint">
                {[
                  unit.note,
                  unit.depends_on.length > 0 &&
                    `after ${unit.depends_on.map((key) => titles.get(key) ?? key).join(", ")}`,
                ]
                  .filter(Boolean)
                  .join(" · ")}
              </span>
            )}
          </span>
        </li>
      ))}
    </ol>
  );
}

/** What must hold in the end, each with the command that shows it. */
export function Criteria({ criteria }: { criteria: readonly Schema["Criterion"][] }) {
  return (
    <ul className="grid gap-1">
      {criteria.map((criterion) => {
        const command = criterion.check ? describeCommand(criterion.check.argv) : null;
        return (
          <li key={criterion.text}>
            {criterion.text !== command && <Inline text={criterion.text} />}
            {command && (
              <code className="block font-mono text-code text-muted">
                <Foreign text={command} />
              </code>
            )}
          </li>
        );
      })}
    </ul>
  );
}
