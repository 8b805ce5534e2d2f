/** Whether the audit log is still what this browser saw of it. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { forgetWitness, readWitness, type WitnessReport, witnessQuery } from "../api/witness";
import { formatCount, formatTime, shortenId } from "../logic/format";
import { ALARMS, type HeadState } from "../logic/witness";
import { Action, Age, Command, CopyButton, cx, Facts, Foreign, ProblemNote } from "../ui/basic";
import { Field } from "../ui/fields";
import { Layer } from "../ui/layer";

const STATES: Record<HeadState, { sign: string; words: string; tone: string }> = {
  first: { sign: "○", words: "Seen for the first time", tone: "text-muted" },
  same: { sign: "✓", words: "Unchanged", tone: "text-ok" },
  grown: { sign: "✓", words: "Only grown", tone: "text-ok" },
  pruned: { sign: "–", words: "Pruned", tone: "text-muted" },
  cut_off: { sign: "✗", words: "Cut off", tone: "text-bad" },
  rewritten: { sign: "✗", words: "Rewritten", tone: "text-bad" },
  forged: { sign: "✗", words: "Not signed", tone: "text-bad" },
  other_key: { sign: "✗", words: "Another key", tone: "text-bad" },
  unproven: { sign: "!", words: "Not proven", tone: "text-warn" },
};

export function WitnessPanel() {
  const look = useQuery(witnessQuery);
  if (look.error && !look.data) return <ProblemNote error={look.error} onRetry={() => void look.refetch()} />;
  if (!look.data) {
    return (
      <p role="status" aria-busy="true" className="text-muted">
        ◌ Comparing the signed heads with what this browser saw
      </p>
    );
  }
  return <Report report={look.data} />;
}

function Report({ report }: { report: WitnessReport }) {
  const alarms = report.verdicts.filter((verdict) => ALARMS.has(verdict.state));
  const unproven = report.verdicts.filter((verdict) => verdict.state === "unproven");
  if (report.unable) {
    return (
      <p role="status" className="border-warn border-l-2 py-1 pl-3">
        <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
          !
        </span>
        Nothing is verified here. <Foreign text={report.unable} />
      </p>
    );
  }
  if (alarms.length > 0 || report.alarms.length > 0) {
    return (
      <div role="alert" className="grid gap-3 rounded-box border-2 border-bad bg-removed p-4">
        <h2 className="text-lead text-bad">
          <span aria-hidden="true">✗</span> The audit log is not what this browser saw.
        </h2>
        <ul className="grid gap-2">
          {report.alarms.map((words) => (
            <li key={words}>{words}</li>
          ))}
          {alarms.map((verdict) => (
            <li key={verdict.chain}>
              <span className="font-mono text-code">chain {shortenId(verdict.chain)}</span>: {verdict.words}
              {verdict.seen && (
                <span className="block text-meta text-muted">
                  Last seen {formatTime(verdict.seen.seen_at)} with {formatCount(verdict.seen.size, "record")}, root{" "}
                  <code className="font-mono">{shortenId(verdict.seen.root)}</code>
                </span>
              )}
            </li>
          ))}
        </ul>
        <p>
          Do not rely on this log until it is known why. A backup that was restored does this, and so does an attacker
          who hides calls. What this browser saw is kept: it is signed, and proves what was there.
        </p>
        <Command line="cynode audit verify" />
        <div className="flex flex-wrap items-center gap-2">
          <span className="inline-flex items-center gap-1">
            Copy what was seen, as evidence
            <CopyButton text={JSON.stringify(report.witness, null, 2)} label="Copy what this browser saw" />
          </span>
          <Forget />
        </div>
        <Chains report={report} />
      </div>
    );
  }
  const checked = report.verdicts.filter((verdict) => verdict.state === "same" || verdict.state === "grown").length;
  const first = report.verdicts.filter((verdict) => verdict.state === "first").length;
  return (
    <div className={cx("grid gap-1 border-l-2 py-1 pl-3", unproven.length > 0 ? "border-warn" : "border-ok")}>
      <p role="status">
        {unproven.length > 0 ? (
          <>
            <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
              !
            </span>
            {formatCount(unproven.length, "chain")} could not be compared with what this browser saw. What was seen is
            kept.
          </>
        ) : checked > 0 ? (
          <>
            <span className="text-ok">
              <span aria-hidden="true">✓</span> Nothing was removed or changed
            </span>{" "}
            since this browser last looked
            {report.before && (
              <>
                {" "}
                (<Age at={report.before} ago />)
              </>
            )}
            : {formatCount(checked, "chain")} verified here
            {first > 0 && `, ${first} new`}.
          </>
        ) : report.verdicts.length === 0 ? (
          "Nothing is signed yet: a head is signed within a minute after the first call."
        ) : (
          `This browser sees this log for the first time. It keeps ${formatCount(first, "signed head")}, and will demand a proof that nothing before them was changed.`
        )}
      </p>
      {!report.isKept && <p className="text-warn">! This browser stores nothing, so it cannot compare next time.</p>}
      <Chains report={report} />
    </div>
  );
}

function Chains({ report }: { report: WitnessReport }) {
  const byChain = new Map(report.heads.map((head) => [head.chain_id.slice(4), head]));
  return (
    <details>
      <summary className="cursor-default text-meta text-muted">
        {formatCount(report.verdicts.length, "chain")} and their heads
      </summary>
      <div className="grid gap-3 pt-2">
        <ul aria-label="Chains" className="max-h-72 overflow-auto border-line border-t">
          {report.verdicts.map((verdict) => {
            const state = STATES[verdict.state];
            const head = byChain.get(verdict.chain.replaceAll("-", ""));
            const shown = verdict.offered ?? verdict.seen;
            return (
              <li key={verdict.chain} className="grid gap-0.5 border-line border-b py-1.5">
                <span className="flex flex-wrap items-baseline gap-x-3">
                  <span className={cx("whitespace-nowrap", state.tone)}>
                    <span aria-hidden="true">{state.sign}</span> {state.words}
                  </span>
                  <span className="font-mono text-code">{shortenId(verdict.chain)}</span>
                  {head && (
                    <span className="text-meta text-muted">
                      <Foreign text={`number ${head.number}, ${head.writer}`} />
                    </span>
                  )}
                  {shown && (
                    <span className="ml-auto text-meta text-muted">
                      {formatCount(shown.size, "record")}
                      {shown.closed ? ", closed" : ""} · signed <Age at={shown.at} ago />
                    </span>
                  )}
                </span>
                <span className="text-meta text-muted">{verdict.words}</span>
              </li>
            );
          })}
        </ul>
        <ServerVerification />
      </div>
    </details>
  );
}

/** The server reads all of its records and says what it finds. This is its own word. */
function ServerVerification() {
  const me = useQuery(meQuery);
  const verify = useMutation({ mutationFn: () => unwrap(api.GET("/v1/audit/verify")) });
  return (
    <div className="grid gap-2">
      <div className="flex flex-wrap items-center gap-2">
        <Action
          onPress={() => verify.mutate()}
          reason={
            me.data?.installation_role !== "admin"
              ? "Only admins of the installation verify every record"
              : verify.isPending
                ? "The server reads every record; this may take minutes"
                : null
          }
        >
          Verify every record on the server
        </Action>
        {verify.isPending && (
          <span role="status" className="text-muted">
            The server reads every record
          </span>
        )}
      </div>
      {verify.error && <ProblemNote error={verify.error} />}
      {verify.data && (
        <div role="status" className="grid gap-2">
          <p className={verify.data.problems.length > 0 ? "text-bad" : "text-ok"}>
            {verify.data.problems.length > 0
              ? `✗ ${formatCount(verify.data.problems.length, "problem")}`
              : "✓ The server finds every record there and unchanged."}
          </p>
          {verify.data.problems.map((problem) => (
            <p key={problem} className="border-bad border-l-2 pl-3">
              <Foreign text={problem} />
            </p>
          ))}
          <Facts
            rows={[
              [
                "Records",
                `${verify.data.records.toLocaleString("en-US")}, ${verify.data.covered.toLocaleString("en-US")} of them under a signed head`,
              ],
              ["Chains", `${verify.data.chains}, ${verify.data.closed} closed, ${verify.data.pruned} pruned`],
              [
                "Head",
                <span key="head" className="inline-flex items-center gap-1 font-mono text-code">
                  {verify.data.head.slice(0, 24)}…
                  <CopyButton text={verify.data.head} label="Copy the head of the list of chains" />
                </span>,
              ],
            ]}
          />
        </div>
      )}
    </div>
  );
}

/** The end of an alarm whose cause is known. It cannot be undone, so it asks for a word. */
function Forget() {
  const client = useQueryClient();
  const [isOpen, setOpen] = useState(false);
  const [word, setWord] = useState("");
  const count = Object.keys(readWitness().chains).length;
  const forget = () => {
    forgetWitness();
    setOpen(false);
    void client.invalidateQueries({ queryKey: ["audit"] });
  };
  return (
    <>
      <Action tone="danger" onPress={() => setOpen(true)}>
        Forget what was seen…
      </Action>
      <Layer title="Forget what this browser saw?" isOpen={isOpen} onClose={() => setOpen(false)}>
        <p>
          {formatCount(count, "signed head")} and the known key are lost. They are the proof of what was in the log;
          copy them first. After that this browser trusts what the server shows now.
        </p>
        <Field label="Write forget to go on" value={word} onChange={setWord} mono />
        <div className="flex gap-2">
          <Action tone="danger" onPress={forget} reason={word.trim() === "forget" ? null : "Write forget"}>
            Forget what was seen
          </Action>
          <Action tone="quiet" onPress={() => setOpen(false)}>
            Keep it
          </Action>
        </div>
      </Layer>
    </>
  );
}
