import { useQuery } from "@tanstack/react-query";
import { handoffsQuery, meQuery } from "../../api/queries";
import { formatCost, formatDuration, toWords } from "../../logic/format";
import type { Standing, Task } from "../../logic/state";
import { Age, Empty, Foreign, Loaded, Sign } from "../../ui/basic";

const STATES: Record<string, Standing> = {
  queued: "waits",
  claimed: "works",
  delegated: "works",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
};

export function Decisions({ task }: { task: Task }) {
  const handoffs = useQuery(handoffsQuery(task.project_id, task.id));
  const me = useQuery(meQuery);
  return (
    <Loaded query={handoffs}>
      {(data) =>
        data.items.length === 0 ? (
          <Empty title="The project manager has decided nothing yet." />
        ) : (
          <ol className="border-line border-t">
            {data.items.map((handoff) => (
              <li key={handoff.handoff_id} className="grid gap-1 border-line border-b py-2">
                <div className="flex flex-wrap items-baseline gap-x-3 gap-y-0.5">
                  <Sign standing={STATES[handoff.state] ?? "waits"} word={toWords(handoff.kind)} />
                  <span className="text-meta text-muted">
                    {toWords(handoff.role)}
                    {handoff.ended_at &&
                      ` · ${formatDuration(new Date(handoff.ended_at).getTime() - new Date(handoff.created_at).getTime())}`}
                    {handoff.cost_micros > 0 && ` · ${formatCost(handoff.cost_micros, me.data?.currency)}`}
                  </span>
                  <Age at={handoff.created_at} className="ml-auto text-meta text-faint" />
                </div>
                {handoff.failure && (
                  <p className="pl-6 text-bad">
                    <Foreign text={handoff.failure} />
                  </p>
                )}
                {handoff.decisions.map((decision) => (
                  <details key={decision.step} className="pl-6">
                    <summary className="min-h-7 cursor-default text-muted">
                      {toWords(decision.kind)} <span className="text-meta text-faint">by {decision.model}</span>
                      <span className="text-meta text-faint">
                        {` · ${decision.input_tokens.toLocaleString("en-US")} tokens in, ${decision.output_tokens.toLocaleString("en-US")} out · ${formatDuration(decision.latency_ms)}`}
                        {decision.attempts > 1 && ` · ${decision.attempts} attempts`}
                      </span>
                    </summary>
                    <pre className="max-h-96 overflow-auto rounded-box border border-line bg-surface p-2.5 font-mono text-code whitespace-pre-wrap">
                      <Foreign text={JSON.stringify(decision.output ?? null, null, 2)} />
                    </pre>
                  </details>
                ))}
              </li>
            ))}
          </ol>
        )
      }
    </Loaded>
  );
}
