import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { useJobLog } from "../../api/job-log";
import { evidenceQuery, reportsQuery } from "../../api/queries";
import { artifactsQuery } from "../../api/queries-task";
import { formatBytes, toWords } from "../../logic/format";
import { placeOf } from "../../logic/log";
import {
  describeSteps,
  PULL_REQUEST_STANDINGS,
  type StepState,
  type Task,
  type Timeline,
  withoutDelivery,
} from "../../logic/state";
import { describeCommand } from "../../logic/text";
import { Age, cx, Facts, Foreign, Id, Inline, ProblemNote, Prose, SectionHead, Sign } from "../../ui/basic";
import { Criteria, PlanGraph } from "../../ui/plan";
import { toPlanUnits } from "./units";

export function Overview({ task, timeline }: { task: Task; timeline: Timeline }) {
  const units = useMemo(() => toPlanUnits(timeline), [timeline]);
  return (
    <div className="grid grid-cols-1 gap-6">
      <Steps steps={describeSteps(timeline)} />
      {timeline.units.length > 0 && (
        <section className="grid grid-cols-1 gap-3">
          <SectionHead
            aside={`${timeline.units.filter((unit) => unit.state === "done").length} of ${timeline.units.length} done`}
          >
            Plan
          </SectionHead>
          <PlanGraph units={units} />
        </section>
      )}
      <div className="grid grid-cols-1 gap-6 medium:grid-cols-2">
        <section className="grid content-start gap-3">
          <SectionHead>What was asked</SectionHead>
          <Prose text={task.description} />
          <Facts
            rows={[
              task.acceptance_criteria.length > 0 && [
                "Must hold",
                <Criteria key="must" criteria={task.acceptance_criteria} />,
              ],
              (task.refinement?.assumptions.length ?? 0) > 0 && [
                "Assumed",
                <ul key="assumed">
                  {task.refinement?.assumptions.map((line) => (
                    <li key={line}>
                      <Inline text={line} />
                    </li>
                  ))}
                </ul>,
              ],
              ["Created", <Age key="created" at={task.created_at} ago />],
              ["Trace", <Id key="trace" id={timeline.trace_id} />],
            ]}
          />
        </section>
        <div className="grid content-start gap-6">
          {timeline.summary && (
            <section className="grid gap-3">
              <SectionHead>Summary</SectionHead>
              <Prose text={timeline.pull_request ? withoutDelivery(timeline.summary) : timeline.summary} />
            </section>
          )}
          {timeline.pull_request && <PullRequest timeline={timeline} />}
          <LastEvidence task={task.id} />
          <Tail timeline={timeline} />
          <Reports task={task.id} />
          <Artifacts task={task.id} />
        </div>
      </div>
    </div>
  );
}

const STEP_TONES: Record<StepState["state"], string> = {
  before: "border-line text-faint",
  now: "border-accent font-medium",
  passed: "border-ok text-muted",
  failed: "border-bad text-bad",
};

/** The steps of every task. */
function Steps({ steps }: { steps: StepState[] }) {
  return (
    <ol
      aria-label="Steps"
      className="grid gap-1.5 max-small:grid-cols-3 max-small:gap-y-3 small:auto-cols-fr small:grid-flow-col"
    >
      {steps.map((step) => (
        <li
          key={step.node}
          aria-current={step.state === "now" ? "step" : undefined}
          className={cx("min-w-0 border-t-2 pt-1.5 text-meta", STEP_TONES[step.state])}
        >
          <span aria-hidden="true" className="mr-1 font-mono">
            {{ before: "○", now: "▸", passed: "✓", failed: "✗" }[step.state]}
          </span>
          {step.words}
          {step.visits > 1 && <span className="text-faint"> ×{step.visits}</span>}
        </li>
      ))}
    </ol>
  );
}

function PullRequest({ timeline }: { timeline: Timeline }) {
  const request = timeline.pull_request;
  if (!request) return null;
  return (
    <section className="grid gap-2">
      <SectionHead aside={<Sign standing={PULL_REQUEST_STANDINGS[request.state]} word={toWords(request.state)} />}>
        Pull request #{request.number}
      </SectionHead>
      <p>
        <Foreign text={request.title} />
      </p>
      <p className="text-meta text-muted">
        <code className="font-mono">{request.branch}</code>
        {request.commit && (
          <>
            {" "}
            at <code className="font-mono">{request.commit.slice(0, 10)}</code>
          </>
        )}
      </p>
      {request.failure && (
        <p className="text-bad">
          <Foreign text={request.failure} />
        </p>
      )}
      <p>
        <Link
          to="."
          search={(previous) => ({ ...previous, tab: "changes" as const })}
          className="text-accent underline"
        >
          Review the changes
        </Link>
        {/^https?:\/\//.test(request.url) && (
          <>
            {" · "}
            <a href={request.url} target="_blank" rel="noreferrer noopener" className="text-accent underline">
              Open at the forge
            </a>
          </>
        )}
      </p>
    </section>
  );
}

function LastEvidence({ task }: { task: string }) {
  const evidence = useQuery(evidenceQuery(task));
  const last = evidence.data?.evidence.findLast((entry) => !entry.stale);
  if (!last) return null;
  return (
    <section className="grid gap-2">
      <SectionHead aside={last.commit ? `of commit ${last.commit.slice(0, 10)}` : undefined}>Last evidence</SectionHead>
      <ul className="grid gap-1">
        {last.checks.map((check) => (
          <li
            key={check.check.argv.join("\u0000")}
            className="grid grid-cols-[5rem_minmax(0,1fr)] items-baseline gap-2"
          >
            <Sign standing={check.tally === "passed" ? "done" : "failed"} word={toWords(check.tally)} />
            <code className="font-mono text-code">
              <Foreign text={describeCommand(check.check.argv)} />
            </code>
          </li>
        ))}
      </ul>
    </section>
  );
}

const TAIL_ROWS = 8;

function Tail({ timeline }: { timeline: Timeline }) {
  const job = timeline.jobs.findLast((entry) => entry.state === "running");
  const log = useJobLog(job?.job_id ?? null, true);
  if (!job || log.rows.length === 0) return null;
  return (
    <section className="grid gap-2">
      <SectionHead
        aside={
          <Link to="." search={(previous: object) => ({ ...previous, tab: "logs" as const })} className="underline">
            {job.setup_step
              ? `sets up ${job.setup_step}`
              : (timeline.units.find((unit) => unit.key === job.unit)?.title ?? job.unit)}
          </Link>
        }
      >
        Now
      </SectionHead>
      <pre className="overflow-hidden font-mono text-code text-muted">
        {log.rows.slice(-TAIL_ROWS).map((row) => (
          <div key={placeOf(row)} className="overflow-hidden text-ellipsis whitespace-pre">
            <Foreign text={row.text} />
          </div>
        ))}
      </pre>
    </section>
  );
}

function Reports({ task }: { task: string }) {
  const reports = useQuery(reportsQuery(task));
  if (!reports.data || reports.data.items.length === 0) return null;
  return (
    <section className="grid gap-2">
      <SectionHead aside="claims of agents, not checked">Reports</SectionHead>
      <ul className="grid gap-2">
        {reports.data.items.slice(-6).map((report) => (
          <li key={report.report_id}>
            <p className="text-meta text-muted">
              {toWords(report.agent_role)} · {toWords(report.kind).toLowerCase()} · <Age at={report.reported_at} ago />
            </p>
            <Foreign text={report.summary} />
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Files that agents left. They are downloaded, never shown: nobody has checked what is in them. */
function Artifacts({ task }: { task: string }) {
  const artifacts = useQuery(artifactsQuery(task));
  if (artifacts.error) return <ProblemNote error={artifacts.error} onRetry={() => void artifacts.refetch()} />;
  if (!artifacts.data || artifacts.data.length === 0) return null;
  return (
    <section className="grid gap-2">
      <SectionHead aside="left by agents, not checked">Artifacts</SectionHead>
      <ul>
        {artifacts.data.map((artifact) => (
          <li
            key={artifact.id}
            className="flex min-h-9 flex-wrap items-center gap-x-3 border-line border-b py-1 text-meta text-muted"
          >
            {__DEMO__ ? (
              <span className="min-w-0 flex-1 text-body" title="The recording has no files">
                <Foreign text={artifact.name} />
              </span>
            ) : (
              <a
                href={`/v1/artifacts/${encodeURIComponent(artifact.id)}`}
                download={artifact.name}
                className="min-w-0 flex-1 text-body text-accent underline"
              >
                <Foreign text={artifact.name} />
              </a>
            )}
            <span title={artifact.media_type}>{formatBytes(artifact.bytes)}</span>
            <code className="font-mono" title={`SHA-256 ${artifact.sha256}`}>
              {artifact.sha256.slice(0, 10)}
            </code>
            <Age at={artifact.created_at} ago />
          </li>
        ))}
      </ul>
    </section>
  );
}
