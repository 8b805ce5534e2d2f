import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Schema } from "../../api/client";
import { handoffsQuery, meQuery } from "../../api/queries";
import { handoffQuery, promptQuery } from "../../api/queries-task";
import { formatCost, formatCount, formatDuration, toWords } from "../../logic/format";
import type { Standing, Task } from "../../logic/state";
import { Action, Age, CopyButton, Empty, Foreign, Id, Loaded, Sign } from "../../ui/basic";
import { Replays } from "../../ui/replays";

const STATES: Record<string, Standing> = {
  queued: "waits",
  claimed: "works",
  delegated: "works",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
};

/** The words of the steps, where a step hands over to the project manager. */
const KIND_WORDS: Record<Schema["HandoffKind"], string> = {
  chat: "Chat",
  plan: "Plan",
  dispatch: "Start work",
  verify: "Check work",
  analyse: "Review work",
  failure: "Handle failure",
  report: "Report",
  summarise: "Sum up",
  schedule: "Schedule",
};

export function Decisions({ task }: { task: Task }) {
  const handoffs = useQuery(handoffsQuery(task.project_id, task.id));
  const me = useQuery(meQuery);
  return (
    <Loaded query={handoffs}>
      {(data) => {
        if (data.items.length === 0) {
          return (
            <Empty title="The project manager has decided nothing yet.">
              <p className="text-muted">
                Each question to a model appears here: its answer, the model, what it cost, and what the model was
                given.
              </p>
            </Empty>
          );
        }
        const cost = data.items.reduce((sum, handoff) => sum + handoff.cost_micros, 0);
        const asked = data.items.reduce((sum, handoff) => sum + handoff.decisions.length, 0);
        return (
          <div className="grid grid-cols-1 gap-3">
            <p className="text-muted">
              {formatCount(data.items.length, "handoff")} · {formatCount(asked, "decision")} ·{" "}
              {formatCost(cost, me.data?.currency)}
            </p>
            <ol className="border-line border-t">
              {data.items.map((handoff) => (
                <HandoffRow
                  key={handoff.handoff_id}
                  task={task}
                  handoff={handoff}
                  currency={me.data?.currency ?? "USD"}
                />
              ))}
            </ol>
            {data.next_cursor && (
              <p className="text-meta text-muted">
                These are the newest; <code className="font-mono">cynork handoff list</code> has all of them.
              </p>
            )}
          </div>
        );
      }}
    </Loaded>
  );
}

function HandoffRow({ task, handoff, currency }: { task: Task; handoff: Schema["HandoffView"]; currency: string }) {
  const [isOpen, setOpen] = useState(false);
  const took = handoff.ended_at
    ? formatDuration(new Date(handoff.ended_at).getTime() - new Date(handoff.created_at).getTime())
    : null;
  return (
    <li className="grid grid-cols-1 border-line border-b py-2 [contain-intrinsic-size:auto_64px] [content-visibility:auto]">
      <div className="flex items-baseline gap-x-1.5">
        <Sign standing={STATES[handoff.state] ?? "waits"} />
        <div className="flex min-w-0 flex-1 flex-wrap items-baseline gap-x-3 gap-y-0.5">
          <span className="font-medium">{KIND_WORDS[handoff.kind]}</span>
          <span className="text-meta text-muted">
            {[
              toWords(handoff.role),
              took,
              handoff.cost_micros > 0 ? formatCost(handoff.cost_micros, currency) : null,
              handoff.attempt > 1 ? `begun ${handoff.attempt} times` : null,
            ]
              .filter(Boolean)
              .join(" · ")}
          </span>
        </div>
        <Age at={handoff.created_at} className="shrink-0 text-meta text-faint" />
      </div>
      {handoff.failure && (
        <p className="pl-6 text-bad">
          <Foreign text={handoff.failure} />
        </p>
      )}
      {handoff.decisions.map((decision) => (
        <DecisionRow key={decision.step} task={task} handoff={handoff.handoff_id} decision={decision} />
      ))}
      <details className="pl-6" onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary className="cursor-default py-1 text-muted">What was given, and what came back</summary>
        {isOpen && <Given task={task.id} handoff={handoff.handoff_id} />}
      </details>
    </li>
  );
}

function Given({ task, handoff }: { task: string; handoff: string }) {
  const query = useQuery(handoffQuery(task, handoff));
  return (
    <Loaded query={query} lines={3}>
      {(data) => (
        <div className="grid grid-cols-1 gap-2 py-1">
          <p className="flex flex-wrap items-center gap-x-3 text-meta text-muted">
            handoff <Id id={data.handoff_id} /> trace <Id id={data.trace_id} />
          </p>
          <Json name="Given" value={data.request ?? null} />
          <Json name="Answer" value={data.answer ?? null} />
          {(data.planning?.length ?? 0) > 0 && (
            <ol className="grid gap-1 text-meta">
              {data.planning?.map((event) => (
                <li
                  key={`${event.fencing_token} ${event.number}`}
                  className="grid grid-cols-[120px_minmax(0,1fr)] gap-2"
                >
                  <span className="text-muted">{toWords(event.event.replace("plan:", ""))}</span>
                  <code className="line-clamp-3 font-mono">
                    <Foreign text={JSON.stringify(event.data)} />
                  </code>
                </li>
              ))}
            </ol>
          )}
        </div>
      )}
    </Loaded>
  );
}

function DecisionRow({ task, handoff, decision }: { task: Task; handoff: string; decision: Schema["ModelDecision"] }) {
  const [asksPrompt, setAsksPrompt] = useState(false);
  const [compares, setCompares] = useState(false);
  const tokens = `${decision.input_tokens.toLocaleString("en-US")} tokens in, ${decision.output_tokens.toLocaleString("en-US")} out`;
  return (
    <details className="pl-6">
      <summary className="cursor-default py-1">
        {toWords(decision.kind)}{" "}
        <span className="text-meta text-faint">
          by <Foreign text={decision.model} /> · {tokens} · {formatDuration(decision.latency_ms)}
          {decision.attempts > 1 && ` · ${formatCount(decision.attempts, "attempt")}`}
        </span>
      </summary>
      <div className="grid grid-cols-1 gap-2 py-1">
        <Json name="Answer" value={decision.output ?? null} />
        {(decision.validation_errors?.length ?? 0) > 0 && (
          <ul className="grid gap-1 text-warn">
            {decision.validation_errors?.map((line) => (
              <li key={line}>
                ! an answer was not taken: <Foreign text={line} />
              </li>
            ))}
          </ul>
        )}
        {!(asksPrompt && compares) && (
          <div className="flex flex-wrap gap-2">
            {!asksPrompt && (
              <Action tone="quiet" onPress={() => setAsksPrompt(true)}>
                Show the prompt
              </Action>
            )}
            {!compares && (
              <Action tone="quiet" onPress={() => setCompares(true)}>
                Replay and compare
              </Action>
            )}
          </div>
        )}
        {asksPrompt && <Prompt task={task.id} handoff={handoff} step={decision.step} />}
        {compares && <Replays project={task.project_id} task={task.id} handoff={handoff} decision={decision} />}
      </div>
    </details>
  );
}

/** The whole request to the model, as long as it is stored. */
function Prompt({ task, handoff, step }: { task: string; handoff: string; step: number }) {
  const prompt = useQuery(promptQuery(task, handoff, step));
  return (
    <Loaded query={prompt} lines={3}>
      {(data) => <Json name="Prompt" value={data} />}
    </Loaded>
  );
}

function Json({ name, value }: { name: string; value: unknown }) {
  const text = JSON.stringify(value, null, 2);
  return (
    <section aria-label={name} className="grid grid-cols-1 gap-0.5">
      <p className="flex items-center gap-1 text-meta text-muted">
        {name} <CopyButton text={text} label={`Copy: ${name}`} />
      </p>
      <pre
        tabIndex={0}
        className="max-h-96 overflow-auto rounded-box border border-line bg-surface p-2.5 font-mono text-code whitespace-pre-wrap"
      >
        <Foreign text={text} />
      </pre>
    </section>
  );
}
