import { useQuery } from "@tanstack/react-query";
import { Fragment, useState } from "react";
import { meQuery } from "../../api/queries";
import { formatCost, formatCount, formatDuration, formatTime, toWords } from "../../logic/format";
import { type Lanes, placeLanes, type Span } from "../../logic/lanes";
import { STEPS, type Timeline } from "../../logic/state";
import { cx, Foreign, Inline, SectionHead, useNow } from "../../ui/basic";

const SPAN_TONES: Record<Span["kind"], string> = {
  work: "bg-accent",
  failed: "bg-bad",
  wait: "hatched",
  person: "bg-warn",
};

export function TimelineTab({ timeline }: { timeline: Timeline }) {
  const now = useNow();
  const me = useQuery(meQuery);
  const lanes = placeLanes(timeline, now);
  // A wait without words says only that the one before it goes on.
  const shownSteps = timeline.steps.filter((step) => step.verdict !== "wait" || step.note);
  return (
    <div className="grid gap-6">
      <Gantt lanes={lanes} currency={me.data?.currency ?? "USD"} />
      <section className="grid gap-1">
        <SectionHead aside={formatCount(shownSteps.length, "step")}>Steps</SectionHead>
        <ol>
          {shownSteps.map((step) => {
            const words = STEPS.find((entry) => entry.node === step.node)?.words ?? toWords(step.node);
            return (
              <li
                key={step.sequence}
                className="grid grid-cols-[72px_116px_64px_1fr_auto] items-baseline gap-x-3 border-line border-b py-1.5 text-meta max-small:grid-cols-[64px_1fr_auto]"
              >
                <time dateTime={step.at} title={formatTime(step.at)} className="text-faint">
                  +{formatDuration(new Date(step.at).getTime() - lanes.start)}
                </time>
                <span>{words}</span>
                <span
                  className={
                    step.verdict === "pass" || step.verdict === "done"
                      ? "text-ok"
                      : step.verdict === "wait"
                        ? "text-faint"
                        : "text-warn"
                  }
                >
                  {step.verdict}
                </span>
                <span className="min-w-0 text-muted max-small:col-span-3 max-small:pl-[76px]">
                  {step.unit && <code className="block font-mono">{step.unit}</code>}
                  {step.note && (
                    <span className="line-clamp-3" title={step.note}>
                      <Inline text={step.note} />
                    </span>
                  )}
                </span>
                <span className="text-right text-muted max-small:row-start-1 max-small:col-start-3 max-small:hidden">
                  {step.cost_micros > 0 ? formatCost(step.cost_micros, me.data?.currency) : ""}
                </span>
              </li>
            );
          })}
        </ol>
      </section>
    </div>
  );
}

/** Lanes and cost on one axis, with one cursor through all of them. */
function Gantt({ lanes, currency }: { lanes: Lanes; currency: string }) {
  const [cursor, setCursor] = useState<number | null>(null);
  const length = lanes.end - lanes.start;
  const percent = (at: number) => `${((at - lanes.start) / length) * 100}%`;
  const spent = lanes.cost.at(-1)?.micros ?? 0;
  const points = lanes.cost.map(({ at, micros }, index) => {
    const x = ((at - lanes.start) / length) * 100;
    const before = lanes.cost[index - 1]?.micros ?? 0;
    return `${x},${30 - (before / spent) * 28} ${x},${30 - (micros / spent) * 28}`;
  });
  const atCursor = cursor === null ? null : lanes.start + cursor * length;
  const costAtCursor = atCursor === null ? 0 : (lanes.cost.findLast((entry) => entry.at <= atCursor)?.micros ?? 0);
  return (
    <section className="grid gap-2" aria-label="Time">
      <div className="flex justify-between text-meta text-faint">
        <span>{formatTime(lanes.start)}</span>
        <span>{formatDuration(length)}</span>
      </div>
      <div
        className="relative grid grid-cols-[200px_1fr] gap-y-1.5 max-small:grid-cols-1 max-small:gap-y-0.5"
        onPointerLeave={() => setCursor(null)}
        onPointerMove={(event) => {
          const axis = event.currentTarget.querySelector("[data-axis]")?.getBoundingClientRect();
          if (axis) setCursor(Math.min(1, Math.max(0, (event.clientX - axis.left) / axis.width)));
        }}
      >
        {lanes.lanes.map((lane) => (
          <Fragment key={lane.name}>
            <span className="truncate pr-3 text-meta text-muted" title={lane.name}>
              <Foreign text={lane.name} />
            </span>
            <ul data-axis className="relative h-4 bg-surface" aria-label={lane.name}>
              {lane.spans.map((span) => (
                <li
                  key={span.key}
                  className={cx("absolute top-0.5 h-3 min-w-0.5 rounded-[2px]", SPAN_TONES[span.kind])}
                  style={{ left: percent(span.start), width: `${((span.end - span.start) / length) * 100}%` }}
                  title={`${span.words}, ${formatDuration(span.end - span.start)}`}
                >
                  <span className="sr-only">
                    {span.words}, {formatDuration(span.end - span.start)}
                  </span>
                </li>
              ))}
              {cursor !== null && (
                <li
                  aria-hidden="true"
                  className="absolute inset-y-0 w-px bg-text"
                  style={{ left: `${cursor * 100}%` }}
                />
              )}
            </ul>
          </Fragment>
        ))}
        {spent > 0 && (
          <>
            <span className="pr-3 text-meta text-muted">
              Cost {atCursor === null ? formatCost(spent, currency) : formatCost(costAtCursor, currency)}
            </span>
            <div className="relative h-8 bg-surface">
              <svg aria-hidden="true" viewBox="0 0 100 32" preserveAspectRatio="none" className="size-full">
                <polyline
                  points={`0,30 ${points.join(" ")} 100,2`}
                  className="fill-none stroke-accent"
                  strokeWidth={1.5}
                  vectorEffect="non-scaling-stroke"
                />
              </svg>
              {cursor !== null && (
                <div className="absolute inset-y-0 w-px bg-text" style={{ left: `${cursor * 100}%` }} />
              )}
            </div>
          </>
        )}
      </div>
      <p className="h-4 text-meta text-muted">
        {atCursor !== null && `${formatTime(atCursor)}, ${formatDuration(atCursor - lanes.start)} after the start`}
      </p>
    </section>
  );
}
