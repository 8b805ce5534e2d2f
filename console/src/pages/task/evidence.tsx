import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, type Schema, unwrap } from "../../api/client";
import { evidenceQuery } from "../../api/queries";
import { formatCount, formatDuration, toWords } from "../../logic/format";
import { isAlive, type Standing, type Task, type Timeline } from "../../logic/state";
import { groupTests, listTestDoubts } from "../../logic/tests";
import { describeCommand, stripTerminal } from "../../logic/text";
import { Action, Age, CopyButton, cx, Empty, Foreign, Loaded, ProblemNote, SectionHead, Sign } from "../../ui/basic";

const STATES: Record<Schema["EvidenceState"], Standing> = {
  gathering: "works",
  passed: "done",
  failed: "failed",
  unable: "trouble",
};

const STATE_WORDS: Record<Schema["EvidenceState"], string> = {
  gathering: "Checks run",
  passed: "Passed",
  failed: "Failed",
  unable: "Could not run",
};

/** A result, its command below the other commands, and on a phone the rest below that. */
const RESULT = "grid grid-cols-[5.5rem_minmax(0,1fr)] items-center gap-x-3 small:grid-cols-[5.5rem_minmax(0,1fr)_auto]";

export function Evidence({ task, timeline }: { task: Task; timeline: Timeline }) {
  const evidence = useQuery(evidenceQuery(task.id));
  const titles = new Map(timeline.units.map((unit) => [unit.key, unit.title]));
  return (
    <Loaded query={evidence}>
      {(data) => {
        if (data.evidence.length === 0 && !data.base) {
          return (
            <Empty title="There is no evidence yet.">
              <p className="text-muted">
                When an agent has finished a unit, its checks run from the commit in a fresh sandbox. Their results
                appear here.
              </p>
            </Empty>
          );
        }
        return (
          <div className="grid grid-cols-1 gap-6">
            <Rerun task={task} evidence={data.evidence} />
            {data.evidence.toReversed().map((entry) => (
              <section key={entry.evidence_id} className={cx("grid gap-1", entry.stale && "text-faint")}>
                <SectionHead
                  aside={
                    <>
                      {entry.commit && (
                        <>
                          <code className="font-mono">{entry.commit.slice(0, 10)}</code> ·{" "}
                        </>
                      )}
                      <Age at={entry.ended_at ?? entry.opened_at} ago />
                    </>
                  }
                >
                  <span className={entry.stale ? "line-through" : ""}>
                    <Foreign text={titles.get(entry.unit) ?? entry.unit} />, attempt {entry.attempt}
                  </span>{" "}
                  <Sign standing={STATES[entry.state]} word={STATE_WORDS[entry.state]} />
                  {entry.stale && (
                    <span className="font-normal text-faint">
                      {data.evidence.some((it) => !it.stale && it.commit === entry.commit)
                        ? " · was run again later"
                        : " · a later commit made it void"}
                    </span>
                  )}
                </SectionHead>
                {entry.error && (
                  <p className="text-bad">
                    <Foreign text={entry.error} />
                  </p>
                )}
                {entry.waived && (
                  <p className="text-warn">
                    Waived: <Foreign text={entry.waived} />
                  </p>
                )}
                <ul>
                  {entry.checks.map((check) => (
                    <CheckRow key={check.check.argv.join("\u0000")} check={check} isStale={entry.stale} />
                  ))}
                </ul>
              </section>
            ))}
            {data.base && (
              <section className="grid gap-1">
                <SectionHead
                  aside={data.base.commit ? <code className="font-mono">{data.base.commit.slice(0, 10)}</code> : null}
                >
                  Before any change
                </SectionHead>
                <ul>
                  {data.base.checks.map((check) => (
                    <li
                      key={check.check.argv.join("\u0000")}
                      className={cx(RESULT, "min-h-9 border-line border-b py-1.5")}
                    >
                      <Sign standing={check.outcome === "passes" ? "done" : "failed"} word={toWords(check.outcome)} />
                      <code className="font-mono text-code">
                        <Foreign text={describeCommand(check.check.argv)} />
                      </code>
                    </li>
                  ))}
                </ul>
              </section>
            )}
            <Findings feedback={data.feedback} />
          </div>
        );
      }}
    </Loaded>
  );
}

/** Runs the checks once more, from the present commit in a fresh sandbox. */
function Rerun({ task, evidence }: { task: Task; evidence: readonly Schema["EvidenceView"][] }) {
  const client = useQueryClient();
  const rerun = useMutation({
    mutationFn: () => {
      const params = { path: { task: task.id } };
      return unwrap(api.POST("/v1/tasks/{task}/evidence/rerun", { params }));
    },
    onSettled: () => void client.invalidateQueries({ queryKey: ["task", task.id] }),
  });
  const gathers = evidence.some((entry) => entry.state === "gathering");
  const current = evidence.findLast((entry) => !entry.stale);
  const reason = rerun.isPending
    ? "It is being sent"
    : gathers
      ? "The checks run right now"
      : isAlive(task.state)
        ? "The task goes by its checks until it has ended; then they can be run again"
        : current
          ? null
          : "There is no commit whose checks could be run again";
  return (
    <div className="grid gap-2">
      <div className="flex flex-wrap items-center gap-3">
        <Action onPress={() => rerun.mutate()} reason={reason}>
          Run checks again
        </Action>
        <p className="text-meta text-muted">
          {current?.commit
            ? `From commit ${current.commit.slice(0, 10)}, in a fresh sandbox; the result becomes new evidence.`
            : "Checks run from the commit, in a fresh sandbox that no agent has touched."}
        </p>
      </div>
      {rerun.isSuccess && !gathers && (
        <p role="status" className="border-ok border-l-2 py-1 pl-3">
          The checks were asked for. Their result appears here.
        </p>
      )}
      {rerun.error && <ProblemNote error={rerun.error} />}
    </div>
  );
}

function CheckRow({ check, isStale }: { check: Schema["CheckResult"]; isStale: boolean }) {
  const command = describeCommand(check.check.argv);
  const groups = check.tests ? groupTests(check.tests) : [];
  const doubts = check.tests ? listTestDoubts(check.tests) : [];
  return (
    <li className="border-line border-b">
      <details>
        <summary className={cx(RESULT, "min-h-9 cursor-default py-1.5 -outline-offset-2 hover:bg-surface")}>
          <Sign standing={check.tally === "passed" ? "done" : "failed"} word={toWords(check.tally)} />
          <code className={cx("font-mono text-code", isStale && "line-through")}>
            <Foreign text={command} />
          </code>
          <span className="text-meta text-muted max-small:col-start-2">
            {check.exit_code != null && `exit ${check.exit_code} · `}
            {check.milliseconds !== undefined && formatDuration(check.milliseconds)}
            {check.rounds > 1 && ` · ${formatCount(check.rounds, "run")}`}
            {check.tests && ` · ${check.tests.after.passed} passed, ${check.tests.after.failed} failed`}
          </span>
        </summary>
        <div className="grid gap-3 pb-3 pl-6">
          {doubts.map((words) => (
            <p key={words} className="text-warn">
              ! {words}
            </p>
          ))}
          {groups.map((group) => (
            <div key={group.words}>
              <p className={{ ok: "text-ok", bad: "text-bad", warn: "text-warn", muted: "text-muted" }[group.tone]}>
                {formatCount(group.total, "test")} {group.words}
              </p>
              <ul className="font-mono text-code">
                {group.names.map((name) => (
                  <li key={name}>
                    <Foreign text={name} />
                  </li>
                ))}
              </ul>
            </div>
          ))}
          {check.excerpt && (
            <div className="flex items-start gap-1">
              <pre className="max-h-80 min-w-0 flex-1 overflow-auto rounded-box border border-line bg-surface p-2.5 font-mono text-code whitespace-pre-wrap">
                <Foreign text={stripTerminal(check.excerpt)} />
              </pre>
              <CopyButton text={check.excerpt} label="Copy the output" />
            </div>
          )}
          {check.sha256 && (
            <p className="text-meta text-muted">
              SHA-256 of all it wrote: <code className="font-mono">{check.sha256.slice(0, 16)}</code>{" "}
              <CopyButton text={check.sha256} label="Copy the digest of the output" />
            </p>
          )}
          <p className="text-meta text-muted">
            Run it yourself: <code className="font-mono">{command}</code>{" "}
            <CopyButton text={command} label="Copy the command" />
          </p>
        </div>
      </details>
    </li>
  );
}

function Findings({ feedback }: { feedback: Schema["ReviewFeedback"] }) {
  const groups = [
    ["Critical", feedback.critical_issues ?? []],
    ["Major", feedback.major_issues ?? []],
    ["Minor", feedback.minor_issues ?? []],
  ] as const;
  if (groups.every(([, issues]) => issues.length === 0)) return null;
  return (
    <section className="grid gap-2">
      <SectionHead aside={feedback.verdict ? toWords(feedback.verdict) : null}>Findings of reviews</SectionHead>
      <ul className="grid gap-2">
        {groups.flatMap(([severity, issues]) =>
          issues.map((issue) => (
            <li key={`${severity} ${issue.file_location ?? ""} ${issue.description}`}>
              <span className={severity === "Minor" ? "text-muted" : "text-bad"}>{severity}</span>:{" "}
              <Foreign text={issue.description} />
              {issue.file_location && (
                <code className="ml-2 font-mono text-code text-faint">{issue.file_location}</code>
              )}
              {issue.how_to_fix && (
                <span className="block text-muted">
                  To do: <Foreign text={issue.how_to_fix} />
                </span>
              )}
            </li>
          )),
        )}
      </ul>
    </section>
  );
}
