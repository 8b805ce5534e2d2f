/** The units of a plan as a graph from left to right; on a phone as a list. */

import type { Schema } from "../api/client";
import { layoutPlan } from "../logic/plan";
import type { Standing } from "../logic/state";
import { describeCommand } from "../logic/text";
import { cx, Foreign, Inline, Sign } from "./basic";

export interface PlanUnit {
  key: string;
  title: string;
  depends_on: readonly string[];
  standing: Standing;
  /** A few words below the title, such as the attempts. */
  note?: string;
}

const CELL_WIDTH = 212;
const CELL_HEIGHT = 60;
const GAP_X = 36;
const GAP_Y = 14;
/** Above this many units the list is easier to read. */
const MAX_DRAWN_UNITS = 60;

export function PlanGraph({ units }: { units: readonly PlanUnit[] }) {
  const layout = layoutPlan(units);
  if (units.length > MAX_DRAWN_UNITS) return <PlanList units={units} />;
  const x = (column: number) => column * (CELL_WIDTH + GAP_X);
  const y = (row: number) => row * (CELL_HEIGHT + GAP_Y);
  const width = x(layout.columns) - GAP_X;
  const height = y(layout.rows) - GAP_Y;
  return (
    <>
      <div className="small:hidden">
        <PlanList units={units} />
      </div>
      <section className="overflow-x-auto p-0.5 max-small:hidden" aria-label="Plan" tabIndex={0}>
        <div className="relative" style={{ width, height }}>
          <svg aria-hidden="true" width={width} height={height} className="absolute inset-0 overflow-visible">
            {layout.edges.map(({ from, to }) => {
              const startX = x(from.column) + CELL_WIDTH;
              const startY = y(from.row) + CELL_HEIGHT / 2;
              const endX = x(to.column);
              const endY = y(to.row) + CELL_HEIGHT / 2;
              const bend = (endX - startX) / 2;
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
            {layout.nodes.map(({ node, column, row }) => (
              <li
                key={node.key}
                className={cx(
                  "absolute grid content-center gap-0.5 overflow-hidden rounded-box border bg-bg px-2.5",
                  node.standing === "works" || node.standing === "judged" ? "border-accent" : "border-line",
                )}
                style={{ left: x(column), top: y(row), width: CELL_WIDTH, height: CELL_HEIGHT }}
                title={node.title}
              >
                <span className="flex min-w-0 gap-1">
                  <Sign standing={node.standing} />
                  <span className="line-clamp-2 leading-tight">
                    <Foreign text={node.title} />
                  </span>
                </span>
                {node.note && <span className="truncate pl-[22px] text-meta text-faint">{node.note}</span>}
              </li>
            ))}
          </ol>
        </div>
      </section>
    </>
  );
}

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
            {command && <code className="block font-mono text-code text-muted">{command}</code>}
          </li>
        );
      })}
    </ul>
  );
}
