/** A decision asked again, beside the recorded one. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery, modelsQuery } from "../api/queries";
import { replaysQuery } from "../api/queries-task";
import { formatTime } from "../logic/format";
import {
  compareFigures,
  describeReplay,
  type FieldDifference,
  listReplayModels,
  type Replays as RecordedReplays,
  type Replay,
  writeAnswerValue,
} from "../logic/replays";
import { Action, Command, cx, Foreign, Loaded, ProblemNote } from "./basic";
import { Choice } from "./fields";

export function Replays({
  project,
  task,
  handoff,
  decision,
}: {
  project: string;
  /** The task of the handoff, if it has one. */
  task: string | null;
  handoff: string;
  decision: Schema["ModelDecision"];
}) {
  const query = replaysQuery(project, task, handoff, decision.step);
  const replays = useQuery(query);
  const client = useQueryClient();
  const [model, setModel] = useState("");
  const [chosen, setChosen] = useState<string | null>(null);
  const models = useQuery(modelsQuery);
  const options = listReplayModels(models.data?.items ?? [], project, decision.model);
  const replay = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/handoffs/{handoff}/decisions/{step}/replays", {
          params: { path: { handoff, step: decision.step } },
          body: model === "" ? {} : { model },
        }),
      ),
    onSuccess: (made) => setChosen(made.replay_id),
    onSettled: () => void client.invalidateQueries({ queryKey: query.queryKey }),
  });
  const reason = replay.isPending
    ? "The model is being asked"
    : replays.data && !replays.data.prompt_held
      ? "The prompt of this decision is no longer stored"
      : null;
  return (
    <section aria-label="Replays" className="grid grid-cols-1 gap-2">
      <div className="flex flex-wrap items-end gap-2">
        <Choice label="Model to ask" value={model} onChange={setModel} options={options} />
        <Action onPress={() => replay.mutate()} reason={reason}>
          {replay.isPending ? "Asking the model" : "Replay decision"}
        </Action>
      </div>
      <p className="text-meta text-muted">
        The model gets the recorded prompt, in which secrets are redacted. The project pays for it, and nothing else
        changes.
      </p>
      {replay.error && <ProblemNote error={replay.error} />}
      <Loaded query={replays} lines={3}>
        {(data) => <Comparison data={data} chosen={chosen} onChoose={setChosen} />}
      </Loaded>
      <Command line={`cynork handoff replay ${handoff} ${decision.step}${model ? ` --model ${model}` : ""}`} />
    </section>
  );
}

function Comparison({
  data,
  chosen,
  onChoose,
}: {
  data: RecordedReplays;
  chosen: string | null;
  onChoose: (replay: string) => void;
}) {
  const me = useQuery(meQuery);
  const shown = data.replays.find((replay) => replay.replay_id === chosen) ?? data.replays[0];
  if (!shown) return <p className="text-muted">Nobody has asked this again yet.</p>;
  return (
    <div className="grid grid-cols-1 gap-2">
      {data.replays.length > 1 && (
        <Choice
          label="Compare with"
          value={shown.replay_id}
          onChange={onChoose}
          options={data.replays.map((replay) => ({
            value: replay.replay_id,
            name: `${replay.model}, ${formatTime(replay.created_at)}`,
          }))}
        />
      )}
      <p className={cx("font-medium", shown.state === "failed" || shown.state === "invalid" ? "text-warn" : null)}>
        {describeReplay(shown)}
      </p>
      {shown.error && (
        <p className="text-warn">
          <Foreign text={shown.error} />
        </p>
      )}
      <table className="w-full max-w-[760px] table-fixed border-line border-t text-left">
        <Columns first="What it took" />
        <tbody>
          {compareFigures(data, shown, me.data?.currency ?? "USD").map((row) => (
            <tr key={row.name} className="border-line border-b align-baseline">
              <th scope="row" className="py-1 pr-3 font-normal text-muted">
                {row.name}
              </th>
              <td className="py-1 pr-3">
                <Foreign text={row.recorded} />
              </td>
              <td className={cx("py-1", row.recorded !== row.replay && "font-medium")}>
                <Foreign text={row.replay} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {(shown.differences?.length ?? 0) > 0 && <Differences differences={shown.differences ?? []} />}
      <Answers recorded={data.decision.output} replay={shown} />
    </div>
  );
}

function Columns({ first }: { first: string }) {
  return (
    <thead className="text-meta text-faint">
      <tr>
        <th scope="col" className="w-[26%] py-1 pr-3 font-normal">
          {first}
        </th>
        <th scope="col" className="py-1 pr-3 font-normal">
          Recorded
        </th>
        <th scope="col" className="py-1 font-normal">
          Replay
        </th>
      </tr>
    </thead>
  );
}

function Differences({ differences }: { differences: readonly FieldDifference[] }) {
  return (
    <table className="w-full table-fixed border-line border-t text-left">
      <Columns first="Field" />
      <tbody>
        {differences.map((difference) => (
          <tr key={difference.path} className="border-line border-b align-top">
            <th scope="row" className="break-all py-1 pr-3 font-mono font-normal text-code">
              <Foreign text={difference.path || "the whole answer"} />
            </th>
            <DifferingValue sign="−" value={difference.original} className="pr-3 text-bad" />
            <DifferingValue sign="+" value={difference.replay} className="text-ok" />
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function DifferingValue({ sign, value, className }: { sign: string; value: unknown; className: string }) {
  const text = writeAnswerValue(value);
  return (
    <td className={cx("whitespace-pre-wrap py-1 font-mono text-code [overflow-wrap:anywhere]", className)}>
      {text === "" ? (
        <span className="text-faint">–</span>
      ) : (
        <>
          <span aria-hidden="true">{sign} </span>
          <Foreign text={text} />
        </>
      )}
    </td>
  );
}

/** Both answers whole. */
function Answers({ recorded, replay }: { recorded: unknown; replay: Replay }) {
  return (
    <details>
      <summary className="min-h-7 cursor-default text-muted">Both answers, whole</summary>
      <div className="grid grid-cols-1 gap-3 medium:grid-cols-2">
        <Answer name="Recorded" text={writeAnswerValue(recorded)} />
        <Answer name="Replay" text={replay.answer_text ?? writeAnswerValue(replay.output)} />
      </div>
    </details>
  );
}

function Answer({ name, text }: { name: string; text: string }) {
  return (
    <section aria-label={name} className="grid min-w-0 grid-cols-1 gap-0.5">
      <p className="text-meta text-muted">{name}</p>
      <pre
        tabIndex={0}
        className="max-h-96 overflow-auto whitespace-pre-wrap rounded-box border border-line bg-surface p-2.5 font-mono text-code"
      >
        <Foreign text={text || "nothing"} />
      </pre>
    </section>
  );
}
