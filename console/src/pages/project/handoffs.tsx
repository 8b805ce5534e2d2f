/** What was handed to the project manager and its analysts, and what they decided. */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import type { Schema } from "../../api/client";
import { meQuery } from "../../api/queries";
import { handoffQuery, projectHandoffsQuery, promptQuery } from "../../api/queries-places";
import { formatCost, formatDuration, toWords } from "../../logic/format";
import type { Standing } from "../../logic/state";
import { Action, Age, Command, Empty, Facts, Foreign, Id, Loaded, SectionHead, Sign } from "../../ui/basic";
import { Person } from "../../ui/person";
import { Replays } from "../../ui/replays";
import { RowLines, RowLink } from "../../ui/rows";
import { Split, useRowKeys } from "../../ui/split";
import { TaskName, useTaskNames } from "../../ui/task-name";
import type { Project } from "./use-project-change";

const STATES: Record<Schema["HandoffState"], Standing> = {
  queued: "waits",
  claimed: "works",
  delegated: "works",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
};

export function HandoffsTab({ project }: { project: Project }) {
  const { handoff } = useSearch({ from: "/projects/$project" });
  const navigate = useNavigate({ from: "/projects/$project" });
  const handoffs = useInfiniteQuery(projectHandoffsQuery(project.id));
  const me = useQuery(meQuery);
  const nameTask = useTaskNames();
  const items = useMemo(() => handoffs.data?.pages.flatMap((page) => page.items) ?? [], [handoffs.data]);
  const close = () => void navigate({ search: (previous) => ({ ...previous, handoff: undefined }), replace: true });
  useRowKeys(
    items.map((item) => item.handoff_id),
    handoff,
    (next) => void navigate({ search: (previous) => ({ ...previous, handoff: next }), replace: true }),
    close,
  );
  return (
    <Loaded query={handoffs}>
      {() =>
        items.length === 0 ? (
          <Empty title="Nothing was handed to the project manager yet.">
            <p className="text-muted">
              Each plan, verdict and summary of a task is a handoff, with its model and its cost.
            </p>
            <Command line={`cynork handoff list --project ${project.slug}`} />
          </Empty>
        ) : (
          <Split
            back="Handoffs"
            onClose={close}
            list={
              <div className="grid grid-cols-1 gap-3">
                <ul aria-label="Handoffs" className="border-line border-t">
                  {items.map((item) => (
                    <RowLink
                      key={item.handoff_id}
                      parameter="handoff"
                      id={item.handoff_id}
                      isChosen={item.handoff_id === handoff}
                    >
                      <RowLines
                        sign={<Sign standing={STATES[item.state]} />}
                        name={toWords(item.kind)}
                        end={<Age at={item.created_at} />}
                        below={[
                          toWords(item.role),
                          item.cost_micros > 0 ? formatCost(item.cost_micros, me.data?.currency) : null,
                          item.task_id ? `task ${nameTask(item.task_id)}` : null,
                        ]
                          .filter(Boolean)
                          .join(" · ")}
                      />
                    </RowLink>
                  ))}
                </ul>
                {handoffs.hasNextPage && (
                  <div>
                    <Action
                      onPress={() => void handoffs.fetchNextPage()}
                      reason={handoffs.isFetchingNextPage ? "They are being read" : null}
                    >
                      Show more handoffs
                    </Action>
                  </div>
                )}
              </div>
            }
            detail={handoff ? <HandoffDetail key={handoff} project={project} id={handoff} /> : null}
          />
        )
      }
    </Loaded>
  );
}

function HandoffDetail({ project, id }: { project: Project; id: string }) {
  const handoff = useQuery(handoffQuery(project.id, id));
  const me = useQuery(meQuery);
  return (
    <Loaded query={handoff}>
      {(data) => (
        <article className="grid grid-cols-1 gap-5">
          <div className="flex flex-wrap items-baseline gap-x-3">
            <h2 className="text-lead">{toWords(data.kind)}</h2>
            <Sign standing={STATES[data.state]} word={toWords(data.state)} />
          </div>
          {data.failure && (
            <p className="border-bad border-l-2 py-1 pl-3">
              <Foreign text={data.failure} />
            </p>
          )}
          <Facts
            rows={[
              data.task_id ? ["Task", <TaskName key="task" id={data.task_id} tab="decisions" />] : null,
              ["To", toWords(data.role)],
              ["For", <Person key="user" id={data.user_id} />],
              ["Attempt", String(data.attempt)],
              data.ended_at
                ? ["Took", formatDuration(new Date(data.ended_at).getTime() - new Date(data.created_at).getTime())]
                : null,
              ["Cost", formatCost(data.cost_micros, me.data?.currency)],
              data.worker ? ["Worker", <Foreign key="worker" text={data.worker} />] : null,
              ["Trace", <Id key="trace" id={data.trace_id} />],
            ]}
          />
          {data.answer && (
            <section className="grid grid-cols-1 gap-2">
              <SectionHead>Answer</SectionHead>
              <Json value={data.answer} />
            </section>
          )}
          {data.decisions.length > 0 && (
            <section className="grid grid-cols-1 gap-1">
              <SectionHead>Decisions</SectionHead>
              <ol>
                {data.decisions.map((decision) => (
                  <Decision key={decision.step} handoff={data} decision={decision} />
                ))}
              </ol>
            </section>
          )}
          {data.request && (
            <details>
              <summary className="cursor-default font-medium">What was handed over</summary>
              <div className="pt-2">
                <Json value={data.request} />
              </div>
            </details>
          )}
        </article>
      )}
    </Loaded>
  );
}

function Decision({ handoff, decision }: { handoff: Schema["HandoffView"]; decision: Schema["ModelDecision"] }) {
  const [shows, setShows] = useState(false);
  const [compares, setCompares] = useState(false);
  const prompt = useQuery({ ...promptQuery(handoff.handoff_id, decision.step), enabled: shows });
  return (
    <li className="grid grid-cols-1 gap-2 border-line border-b py-2">
      <div className="flex flex-wrap items-baseline gap-x-3 gap-y-0.5">
        <span className="font-medium">{toWords(decision.kind)}</span>
        <span className="text-meta text-muted">
          <Foreign
            text={`${decision.model} · ${decision.input_tokens.toLocaleString("en-US")} tokens in, ${decision.output_tokens.toLocaleString("en-US")} out · ${formatDuration(decision.latency_ms)}${decision.attempts > 1 ? ` · ${decision.attempts} attempts` : ""}`}
          />
        </span>
      </div>
      {(decision.validation_errors ?? []).map((error) => (
        <p key={error} className="border-warn border-l-2 pl-3 text-muted">
          An answer was not taken: <Foreign text={error} />
        </p>
      ))}
      <Json value={decision.output ?? null} />
      <div className="flex flex-wrap gap-2">
        <Action tone="quiet" onPress={() => setShows(!shows)} aria-expanded={shows}>
          {shows ? "Hide the request" : "Show the whole request"}
        </Action>
        <Action tone="quiet" onPress={() => setCompares(!compares)} aria-expanded={compares}>
          {compares ? "Hide the replays" : "Replay and compare"}
        </Action>
      </div>
      {shows && <Loaded query={prompt}>{(data) => <Json value={data} />}</Loaded>}
      {compares && (
        <Replays
          project={handoff.project_id}
          task={handoff.task_id ?? null}
          handoff={handoff.handoff_id}
          decision={decision}
        />
      )}
    </li>
  );
}

function Json({ value }: { value: unknown }) {
  return (
    <pre
      tabIndex={0}
      className="max-h-96 overflow-auto rounded-box border border-line bg-surface p-2.5 font-mono text-code whitespace-pre-wrap"
    >
      <Foreign text={JSON.stringify(value, null, 2)} />
    </pre>
  );
}
