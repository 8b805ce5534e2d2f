/** A task inside of something else: where it stands, its plan, and what a person can decide about it. */

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { inboxQuery, meQuery, taskQuery, timelineQuery } from "../api/queries";
import { formatCost } from "../logic/format";
import { describeStanding, standingOf } from "../logic/state";
import { InboxDetail } from "../pages/inbox-detail";
import { toPlanUnits } from "../pages/task/units";
import { Action, Foreign, Sign, useNow } from "./basic";
import { PlanGraph } from "./plan";

export function TaskCard({
  task: id,
  decides,
  onDecide,
}: {
  task: string;
  /** Whether its decision is open here. One decision is open at a time, because keys decide it. */
  decides: boolean;
  onDecide: (decides: boolean) => void;
}) {
  const task = useQuery({ ...taskQuery(id), retry: false });
  const timeline = useQuery(timelineQuery(id));
  const inbox = useQuery(inboxQuery);
  const me = useQuery(meQuery);
  const now = useNow();
  if (!task.data) return null;
  const standing = describeStanding(task.data, timeline.data ?? null, now);
  const item = inbox.data?.items.find((it) => it.task_id === id);
  const units = timeline.data ? toPlanUnits(timeline.data) : [];
  return (
    <article
      aria-label={`Task ${task.data.name}`}
      className="grid max-w-[760px] grid-cols-1 gap-2 rounded-box border border-line p-3"
    >
      <div className="flex items-baseline gap-x-3">
        <Sign standing={standingOf(task.data, timeline.data)} />
        <Link
          to="/tasks/$task"
          params={{ task: id }}
          className="min-w-0 font-medium text-accent underline underline-offset-2"
        >
          <Foreign text={task.data.name} />
        </Link>
        {timeline.data && (
          <span className="ml-auto shrink-0 text-meta text-muted">
            {formatCost(timeline.data.cost_micros, me.data?.currency)}
          </span>
        )}
      </div>
      <p>
        <Foreign text={standing.text} /> <span className="text-muted">{standing.need}</span>
      </p>
      {units.length > 0 && (
        <details>
          <summary className="cursor-default text-muted">
            Plan: {units.filter((unit) => unit.standing === "done").length} of {units.length} done
          </summary>
          <div className="pt-2">
            <PlanGraph units={units} />
          </div>
        </details>
      )}
      {item &&
        (decides ? (
          <div className="border-line border-t pt-3">
            <InboxDetail item={item} project={item.project_slug ?? null} />
          </div>
        ) : (
          <div>
            <Action onPress={() => onDecide(true)}>Decide here</Action>
          </div>
        ))}
    </article>
  );
}
