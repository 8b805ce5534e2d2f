/** One call as it was recorded, and the proof of it. */

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Schema } from "../api/client";
import { Problem } from "../api/problem";
import { callRecordsQuery } from "../api/queries-policy";
import { type VerifiedCall, verifiedCallQuery } from "../api/witness";
import type { CheckName } from "../logic/audit";
import { describeDecision, describeEnd } from "../logic/explain";
import { formatCount, formatDuration, formatTime, shortenId, toWords } from "../logic/format";
import { Age, CopyButton, cx, Empty, Facts, Foreign, Id, Loaded, ProblemNote, SectionHead } from "../ui/basic";
import { TaskName } from "../ui/task-name";

type AuditRow = Schema["AuditView"];

export function AuditDetail({ call, projects }: { call: string; projects: ReadonlyMap<string, string> }) {
  const records = useQuery(callRecordsQuery(call));
  return (
    <article className="grid grid-cols-1 gap-5">
      <Loaded query={records}>
        {(data) => {
          const decision = data.items.find((it) => it.phase === "decision") ?? data.items[0];
          if (!decision) {
            return (
              <Empty title="No such call is recorded.">
                <p className="text-muted">
                  It may be of a project that you cannot see, or its record was removed when its time was over.
                </p>
              </Empty>
            );
          }
          return (
            <>
              <Recorded
                decision={decision}
                outcome={data.items.find((it) => it.phase === "outcome")}
                projects={projects}
              />
              <ProofPanel call={call} />
            </>
          );
        }}
      </Loaded>
    </article>
  );
}

const LINK = "text-accent underline underline-offset-2";

function Recorded({
  decision,
  outcome,
  projects,
}: {
  decision: AuditRow;
  outcome: AuditRow | undefined;
  projects: ReadonlyMap<string, string>;
}) {
  const words = describeDecision(decision.decision);
  const project = decision.project_id ? (projects.get(decision.project_id) ?? shortenId(decision.project_id)) : null;
  return (
    <>
      <header className="grid gap-1">
        <div className="flex flex-wrap items-baseline justify-between gap-x-4">
          <h2 className="font-mono text-lead">
            <Foreign text={decision.tool ?? decision.method} />
          </h2>
          <span className="text-meta text-muted" title={formatTime(decision.at)}>
            <Age at={decision.at} ago />
          </span>
        </div>
        <p>
          <span className={words.tone}>
            <span aria-hidden="true">{words.sign}</span> {words.words}
          </span>
          {decision.reason !== "allowed" && (
            <>
              : <Foreign text={toWords(decision.reason).toLowerCase()} />
            </>
          )}
          {outcome
            ? `, ${describeEnd(outcome.outcome)} after ${formatDuration(outcome.duration_us / 1000)}`
            : decision.decision === "allow"
              ? ", and has not ended yet"
              : ", and was not made"}
          .{" "}
          <Link to="/tools/explain" search={{ call: decision.call_id }} className={cx("whitespace-nowrap", LINK)}>
            Why, question by question
          </Link>
        </p>
      </header>
      <Facts
        rows={[
          ["Call", <Id key="call" id={decision.call_id} />],
          [
            "Agent",
            <Foreign
              key="agent"
              text={`${toWords(decision.agent_role ?? "unknown caller")}${decision.agent_kind ? "" : ", no token"}`}
            />,
          ],
          decision.agent_token_id ? ["Token", <Id key="token" id={decision.agent_token_id} />] : null,
          project && decision.project_id
            ? [
                "Project",
                <Link key="project" to="/projects/$project" params={{ project: decision.project_id }} className={LINK}>
                  <Foreign text={project} />
                </Link>,
              ]
            : null,
          decision.task_id ? ["Task", <TaskName key="task" id={decision.task_id} />] : null,
          decision.rules.length > 0 && ["Decided by", <Rules key="rules" names={decision.rules} />],
          decision.shadow.length > 0 && ["In shadow", <Rules key="shadow" names={decision.shadow} />],
          [
            "Arguments",
            <span key="arguments">
              {formatCount(decision.arguments_size, "byte")}, kept as a digest{" "}
              {decision.arguments_digest && <Id id={decision.arguments_digest} />}
            </span>,
          ],
          outcome && ["Result", formatCount(outcome.result_size, "byte")],
          decision.server_id ? ["Server", <Id key="server" id={decision.server_id} />] : null,
          ["Policy", <Id key="policy" id={decision.policy_hash} />],
          ["Trace", <Id key="trace" id={decision.trace_id} />],
        ]}
      />
    </>
  );
}

function Rules({ names }: { names: readonly string[] }) {
  return (
    <>
      {names.map((rule, index) => (
        <span key={rule}>
          {index > 0 && ", "}
          <Link to="/tools/rules" search={{ rule }} className={LINK}>
            <Foreign text={rule} />
          </Link>
        </span>
      ))}
    </>
  );
}

const SIGNING_MS = 10_000;

function isUnsigned(error: unknown): boolean {
  return error instanceof Problem && error.status === 409;
}

function ProofPanel({ call }: { call: string }) {
  // A call is covered by the next head that the server signs; there is no event for that.
  const verified = useQuery({
    ...verifiedCallQuery(call),
    refetchInterval: ({ state }) => (isUnsigned(state.error) ? SIGNING_MS : false),
  });
  return (
    <section className="grid gap-3">
      <SectionHead aside="computed here, not by the server">Proof</SectionHead>
      {isUnsigned(verified.error) && !verified.data ? (
        <p role="status" className="text-muted">
          ◌ Not signed yet. The server signs what it recorded at least once a minute; it is checked here as soon as it
          is.
        </p>
      ) : verified.error && !verified.data ? (
        <ProblemNote error={verified.error} onRetry={() => void verified.refetch()} />
      ) : verified.data ? (
        <Proofs data={verified.data} />
      ) : (
        <p role="status" aria-busy="true" className="text-muted">
          ◌ Checking hashes and the signature
        </p>
      )}
    </section>
  );
}

function Proofs({ data }: { data: VerifiedCall }) {
  if (data.unable) {
    return (
      <p role="status" className="border-warn border-l-2 py-1 pl-3">
        <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
          !
        </span>
        Not verified. <Foreign text={data.unable} />
      </p>
    );
  }
  const isGood = data.proofs.length > 0 && data.proofs.every((proof) => proof.passed && proof.relation.passed);
  const isBroken = data.proofs.some((proof) => !proof.passed);
  return (
    <>
      <p
        role={isBroken ? "alert" : "status"}
        className={cx(
          "text-lead",
          isGood ? "text-ok" : isBroken ? "rounded-box border-2 border-bad bg-removed p-3 text-bad" : "text-warn",
        )}
      >
        {isGood
          ? "✓ Verified in this browser"
          : isBroken
            ? "✗ This is not what was signed. Do not rely on this record."
            : "! Signed, but not compared with what this browser saw"}
      </p>
      {data.proofs.map((proof) => (
        <ProofSteps key={proof.proof.record.hash} proof={proof} />
      ))}
    </>
  );
}

const CHECKS: Record<CheckName, string> = {
  record: "Record",
  place: "Path",
  signature: "Signed head",
};

function ProofSteps({ proof: checked }: { proof: VerifiedCall["proofs"][number] }) {
  const { record, checkpoint, inclusion } = checked.proof;
  const details: Record<CheckName, ReactNode> = {
    record: (
      <>
        record {record.seq} of chain {shortenId(record.chain)} hashes to <Hash value={record.hash} /> and as a leaf to{" "}
        <Hash value={checked.leaf} />
      </>
    ),
    place: (
      <>
        {inclusion.path.length} {inclusion.path.length === 1 ? "hash leads" : "hashes lead"} to the root{" "}
        <Hash value={checkpoint.root} />
        {inclusion.path.length > 0 && (
          <details>
            <summary className="cursor-default text-muted">Each of them</summary>
            <ol className="grid gap-0.5 pt-1 font-mono text-meta break-all">
              {inclusion.path.map((hash) => (
                <li key={hash}>{hash}</li>
              ))}
            </ol>
          </details>
        )}
      </>
    ),
    signature: (
      <>
        over {formatCount(checkpoint.size, "record")} at {formatTime(checkpoint.at)}
        {checkpoint.closed && ", the chain is closed"}, by key <Hash value={checked.proof.public_key} />
      </>
    ),
  };
  return (
    <div className="grid gap-2">
      <h3 className="text-meta text-muted">{record.entry.phase === "outcome" ? "Outcome" : "Decision"}</h3>
      <ol className="grid gap-2">
        {checked.checks.map((check) => (
          <Check key={check.name} name={CHECKS[check.name]} passed={check.passed} problem={check.problem}>
            {details[check.name]}
          </Check>
        ))}
        <Check
          name="Seen before"
          passed={checked.relation.passed}
          problem={checked.relation.passed ? null : checked.relation.words}
        >
          {checked.relation.words}
          {checked.relation.seen && (
            <span className="text-muted">
              {" "}
              Last seen <Age at={checked.relation.seen.seen_at} ago /> with{" "}
              {formatCount(checked.relation.seen.size, "record")}.
            </span>
          )}
        </Check>
      </ol>
    </div>
  );
}

function Check({
  name,
  passed,
  problem,
  children,
}: {
  name: string;
  passed: boolean;
  problem: string | null;
  children: ReactNode;
}) {
  return (
    <li className="grid grid-cols-[110px_1fr] gap-x-3 max-small:grid-cols-1">
      <span className={cx("whitespace-nowrap font-medium", passed ? "text-ok" : "text-bad")}>
        <span aria-hidden="true">{passed ? "✓" : "✗"}</span> {name}
        <span className="sr-only">{passed ? " fits" : " does not fit"}</span>
      </span>
      <div className="min-w-0">{problem ? <Foreign text={problem} /> : children}</div>
    </li>
  );
}

function Hash({ value }: { value: string }) {
  return (
    <span className="inline-flex items-center whitespace-nowrap font-mono text-code">
      <span title={value}>{value.slice(0, 12)}…</span>
      <CopyButton text={value} label={`Copy ${value}`} />
    </span>
  );
}
