/** The pull requests of a project: what they change, what people say about them, and how they end. */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { api, type Schema, unwrap } from "../../api/client";
import {
  projectPullRequestQuery,
  pullRequestDiffQuery,
  pullRequestFilesQuery,
  pullRequestsQuery,
} from "../../api/queries-places";
import { parseDiff } from "../../logic/diff";
import { formatCount, shortenId, toWords } from "../../logic/format";
import { parseCount } from "../../logic/places";
import { PULL_REQUEST_STANDINGS, type Standing } from "../../logic/state";
import { PULL_STATES } from "../../router";
import {
  Action,
  Age,
  cx,
  Empty,
  Facts,
  Foreign,
  Id,
  Loaded,
  ProblemNote,
  Prose,
  SectionHead,
  Sign,
} from "../../ui/basic";
import { DiffRows } from "../../ui/diff-rows";
import { Choice, Field } from "../../ui/fields";
import { Person } from "../../ui/person";
import { ConfirmLayer, RowLines, RowLink } from "../../ui/rows";
import { Split, useRowKeys } from "../../ui/split";
import { type Project, useProjectChange } from "./use-project-change";

const FILTERS = [
  { value: "", name: "Every state" },
  ...PULL_STATES.map((state) => ({ value: state, name: toWords(state) })),
] as const;

export function PullsTab({ project }: { project: Project }) {
  const { state, pull } = useSearch({ from: "/projects/$project" });
  const navigate = useNavigate({ from: "/projects/$project" });
  const pulls = useInfiniteQuery(pullRequestsQuery(project.id, state));
  const items = useMemo(() => pulls.data?.pages.flatMap((page) => page.items) ?? [], [pulls.data]);
  const close = () =>
    void navigate({ search: (previous) => ({ ...previous, pull: undefined, file: undefined }), replace: true });
  useRowKeys(
    items.map((item) => item.id),
    pull,
    (next) => void navigate({ search: (previous) => ({ ...previous, pull: next, file: undefined }), replace: true }),
    close,
  );
  return (
    <Loaded query={pulls}>
      {() =>
        items.length === 0 && !state ? (
          <Empty title="There is no pull request yet.">
            <p className="text-muted">A task that is done opens one, with its evidence, for you to review.</p>
            <p>
              <Link to="/tasks/new" search={{ project: project.id }} className="font-medium text-accent underline">
                Start a task
              </Link>
            </p>
          </Empty>
        ) : (
          <Split
            back="Pull requests"
            onClose={close}
            list={
              <div className="grid grid-cols-1 gap-3">
                <div className="w-48">
                  <Choice
                    label="State"
                    hideLabel
                    value={state ?? ""}
                    onChange={(value) =>
                      void navigate({ search: (previous) => ({ ...previous, state: value || undefined }) })
                    }
                    options={FILTERS}
                  />
                </div>
                {items.length === 0 && <p className="text-muted">None is in this state.</p>}
                <ul aria-label="Pull requests" className="border-line border-t">
                  {items.map((item) => (
                    <RowLink key={item.id} parameter="pull" id={item.id} isChosen={item.id === pull}>
                      <RowLines
                        name={<Foreign text={`#${item.number} ${item.title}`} />}
                        end={<Age at={item.updated_at} />}
                        below={
                          <span className="flex flex-wrap gap-x-3">
                            <Sign standing={PULL_REQUEST_STANDINGS[item.state]} word={toWords(item.state)} />
                            <Foreign text={`${item.branch} → ${item.base_branch}`} />
                          </span>
                        }
                      />
                    </RowLink>
                  ))}
                </ul>
                {pulls.hasNextPage && (
                  <div>
                    <Action
                      onPress={() => void pulls.fetchNextPage()}
                      reason={pulls.isFetchingNextPage ? "They are being read" : null}
                    >
                      Show more pull requests
                    </Action>
                  </div>
                )}
              </div>
            }
            detail={pull ? <PullDetail key={pull} project={project} id={pull} /> : null}
          />
        )
      }
    </Loaded>
  );
}

function PullDetail({ project, id }: { project: Project; id: string }) {
  const pull = useQuery(projectPullRequestQuery(project.id, id));
  return (
    <Loaded query={pull}>
      {(data) => (
        <article className="grid grid-cols-1 gap-6">
          <div className="grid grid-cols-1 gap-3">
            <h2 className="text-lead">
              <Foreign text={`#${data.number} ${data.title}`} />
            </h2>
            <Sign
              standing={PULL_REQUEST_STANDINGS[data.state]}
              word={data.state === "open" ? "Waits for your review" : toWords(data.state)}
            />
            {data.failure && (
              <p className="border-bad border-l-2 py-1 pl-3">
                <Foreign text={data.failure} />
              </p>
            )}
            <Prose text={data.body} />
            <Facts
              rows={[
                ["Branch", <Foreign key="branch" text={`${data.branch} → ${data.base_branch}`} />],
                data.head_commit ? ["Commit", <Id key="commit" id={data.head_commit} />] : null,
                [
                  "Task",
                  <Link
                    key="task"
                    to="/tasks/$task"
                    params={{ task: data.task_id }}
                    search={{ tab: "changes" }}
                    className="text-accent underline"
                  >
                    {shortenId(data.task_id)}
                  </Link>,
                ],
                data.forge === "local"
                  ? null
                  : [
                      toWords(data.forge),
                      <a
                        key="url"
                        href={data.url}
                        target="_blank"
                        rel="noreferrer noopener"
                        className="text-accent underline"
                      >
                        <Foreign text={data.url} />
                      </a>,
                    ],
                data.merged_at
                  ? [
                      "Merged",
                      <span key="merged">
                        <Age at={data.merged_at} ago />
                        {data.merged_by && (
                          <>
                            {" by "}
                            <Person id={data.merged_by} />
                          </>
                        )}
                      </span>,
                    ]
                  : null,
              ]}
            />
          </div>
          <PullActions key={data.head_commit ?? ""} project={project} pull={data} />
          {data.checks.length > 0 && <Checks checks={data.checks} />}
          <PullChanges project={project} pull={data} />
          <Conversation pull={data} />
        </article>
      )}
    </Loaded>
  );
}

type Pull = Schema["PullRequestDetail"];

const VERDICTS: readonly { value: Schema["ReviewVerdict"]; name: string }[] = [
  { value: "approve", name: "Approve" },
  { value: "changes", name: "Ask for changes" },
  { value: "comment", name: "Only say something" },
];

function PullActions({ project, pull }: { project: Project; pull: Pull }) {
  const [verdict, setVerdict] = useState<Schema["ReviewVerdict"]>("approve");
  const [note, setNote] = useState("");
  const [closes, setCloses] = useState(false);
  const params = { path: { pull_request: pull.id } };
  const merge = useProjectChange(project.id, () =>
    unwrap(api.POST("/v1/pull-requests/{pull_request}/merge", { params })),
  );
  const close = useProjectChange(
    project.id,
    () => unwrap(api.POST("/v1/pull-requests/{pull_request}/close", { params })),
    () => setCloses(false),
  );
  const review = useProjectChange(
    project.id,
    () =>
      unwrap(
        api.POST("/v1/pull-requests/{pull_request}/reviews", {
          params,
          body: {
            verdict,
            ...(note.trim() === "" ? {} : { note: note.trim() }),
            ...(pull.head_commit ? { commit: pull.head_commit } : {}),
          },
        }),
      ),
    () => setNote(""),
  );
  const busy = merge.isPending || close.isPending || review.isPending ? "It is being sent" : null;
  const receipt = review.data;
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead>Decide</SectionHead>
      {pull.state === "open" && (
        <>
          <div className="grid max-w-[640px] gap-3">
            <Choice label="Review" value={verdict} onChange={setVerdict} options={VERDICTS} />
            <Field
              label={verdict === "approve" ? "Note" : "What should be different?"}
              value={note}
              onChange={setNote}
              lines={3}
              description={
                verdict === "changes" ? "A follow-up task works on it and comes back with new commits." : undefined
              }
            />
          </div>
          <div className="flex flex-wrap gap-2">
            <Action
              onPress={() => review.mutate(undefined)}
              reason={busy ?? (verdict !== "approve" && note.trim() === "" ? "Write what you think" : null)}
            >
              Send review
            </Action>
            <Action
              tone="primary"
              onPress={() => merge.mutate(undefined)}
              reason={
                busy ??
                (pull.forge === "local" ? null : "It is merged on its forge; this console follows what happens there")
              }
            >
              Merge pull request
            </Action>
            <Action tone="danger" onPress={() => setCloses(true)} reason={busy}>
              Close pull request…
            </Action>
          </div>
        </>
      )}
      {pull.state !== "open" && <p className="text-muted">Nothing is left to decide: it is {pull.state}.</p>}
      {(review.error || merge.error) && <ProblemNote error={review.error ?? merge.error} />}
      {receipt && (
        <p role="status" className="border-ok border-l-2 py-1 pl-3">
          The review was sent.{" "}
          {receipt.follow_up && (
            <Link to="/tasks/$task" params={{ task: receipt.follow_up }} className="text-accent underline">
              A follow-up task works on it
            </Link>
          )}
          {receipt.no_follow_up && <Foreign text={receipt.no_follow_up} />}
        </p>
      )}
      {closes && (
        <ConfirmLayer
          title={`Close #${pull.number} without merging?`}
          action="Close pull request"
          keep="Keep it open"
          pending={close.isPending}
          error={close.error}
          onConfirm={() => close.mutate(undefined)}
          onClose={() => setCloses(false)}
        >
          <p>The work of its task is not merged. The commits stay readable; it cannot be opened again.</p>
        </ConfirmLayer>
      )}
    </section>
  );
}

const CHECK_STATES: Record<string, Standing> = {
  passed: "done",
  success: "done",
  failed: "failed",
  failure: "failed",
  error: "trouble",
  pending: "waits",
  running: "works",
};

function Checks({ checks }: { checks: Pull["checks"] }) {
  return (
    <section className="grid grid-cols-1 gap-1">
      <SectionHead>Checks</SectionHead>
      <ul>
        {checks.map((check) => (
          <li key={check.name} className="flex flex-wrap items-baseline gap-x-3 border-line border-b py-1.5">
            <Sign standing={CHECK_STATES[check.state] ?? "waits"} word={toWords(check.state)} />
            <code className="font-mono text-code">
              <Foreign text={check.name} />
            </code>
            {check.summary && (
              <span className="text-meta text-muted">
                <Foreign text={check.summary} />
              </span>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

function PullChanges({ project, pull }: { project: Project; pull: Pull }) {
  const { file } = useSearch({ from: "/projects/$project" });
  const files = useQuery(pullRequestFilesQuery(project.id, pull.id));
  const [line, setLine] = useState("");
  const chosen = files.data?.files.find((entry) => entry.path === file) ?? files.data?.files[0];
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead aside={files.data && formatCount(files.data.files.length, "file")}>Changes</SectionHead>
      <Loaded query={files}>
        {(data) => (
          <>
            <nav aria-label="Files" className="max-h-60 overflow-y-auto p-0.5">
              <ul className="border-line border-t">
                {data.files.map((entry) => (
                  <li key={entry.path}>
                    <Link
                      to="."
                      search={(previous: object) => ({ ...previous, file: entry.path })}
                      replace
                      aria-current={entry === chosen ? "true" : undefined}
                      onClick={() => setLine("")}
                      className={cx(
                        "flex min-h-8 items-center gap-2 border-line border-b px-2 -outline-offset-2 hover:bg-surface max-small:min-h-10",
                        entry === chosen && "bg-select",
                      )}
                    >
                      <span className="min-w-0 flex-1 truncate font-mono text-code" title={entry.path}>
                        <Foreign text={entry.path} />
                      </span>
                      <span className="shrink-0 text-meta">
                        {entry.insertions != null && <span className="text-ok">+{entry.insertions}</span>}{" "}
                        {entry.deletions != null && <span className="text-bad">−{entry.deletions}</span>}
                      </span>
                    </Link>
                  </li>
                ))}
              </ul>
            </nav>
            {data.truncated && <p className="text-meta text-warn">! More files were changed than are listed.</p>}
            {chosen && (
              <FileChanges
                project={project}
                pull={pull.id}
                path={chosen.path}
                line={parseCount(line)}
                onLine={(chosenLine) => setLine(String(chosenLine))}
              />
            )}
          </>
        )}
      </Loaded>
      <CommentForm project={project} pull={pull.id} path={chosen?.path ?? null} line={line} onLine={setLine} />
    </section>
  );
}

function FileChanges({
  project,
  pull,
  path,
  line,
  onLine,
}: {
  project: Project;
  pull: string;
  path: string;
  line: number | null;
  onLine: (line: number) => void;
}) {
  const diff = useQuery(pullRequestDiffQuery(project.id, pull, path));
  const rows = useMemo(() => parseDiff(diff.data?.text ?? "").flatMap((entry) => entry.rows), [diff.data]);
  return (
    <Loaded query={diff}>
      {(data) => (
        <>
          {rows.length === 0 ? (
            <p className="text-muted">Only its name or its rights were changed.</p>
          ) : (
            <DiffRows rows={rows} path={path} line={line} onLine={onLine} />
          )}
          {data.truncated && (
            <p className="text-meta text-warn">
              ! The diff is longer than what is shown: `cynork pr diff` has it whole.
            </p>
          )}
        </>
      )}
    </Loaded>
  );
}

function CommentForm({
  project,
  pull,
  path,
  line,
  onLine,
}: {
  project: Project;
  pull: string;
  path: string | null;
  line: string;
  onLine: (line: string) => void;
}) {
  const [body, setBody] = useState("");
  const number = line.trim() === "" ? undefined : parseCount(line);
  const comment = useProjectChange(
    project.id,
    () =>
      unwrap(
        api.POST("/v1/pull-requests/{pull_request}/comments", {
          params: { path: { pull_request: pull } },
          body: { body: body.trim(), ...(number && path ? { path, line: number } : {}) },
        }),
      ),
    () => {
      setBody("");
      onLine("");
    },
  );
  const reason = comment.isPending
    ? "It is being sent"
    : body.trim() === ""
      ? "Write a comment"
      : number === null
        ? "Write the line as a number"
        : null;
  return (
    <div className="grid max-w-[640px] gap-3">
      <div className="grid grid-cols-1 gap-3 items-start small:grid-cols-[1fr_120px]">
        <Field label="Comment" value={body} onChange={setBody} lines={2} />
        <Field
          label="Line"
          value={line}
          onChange={onLine}
          inputMode="numeric"
          description={path ? "Of this file, or empty." : undefined}
        />
      </div>
      {comment.error && <ProblemNote error={comment.error} />}
      <div>
        <Action onPress={() => comment.mutate(undefined)} reason={reason}>
          {number && path ? `Comment on line ${number}` : "Comment on pull request"}
        </Action>
      </div>
    </div>
  );
}

const VERDICT_WORDS: Record<Schema["ReviewVerdict"], readonly [Standing, string]> = {
  approve: ["done", "Approved"],
  changes: ["person", "Asked for changes"],
  comment: ["judged", "Reviewed"],
};

/** Comments, reviews, deliveries and follow-ups in the order in which they happened. */
function Conversation({ pull }: { pull: Pull }) {
  const entries = [
    ...pull.comments.map((it) => ({ at: it.created_at, key: it.id, node: <CommentEntry comment={it} /> })),
    ...pull.reviews.map((it) => ({ at: it.created_at, key: it.id, node: <ReviewEntry review={it} /> })),
    ...pull.deliveries.map((it) => ({
      at: it.created_at,
      key: `${it.task_id} ${it.created_at}`,
      node: (
        <p>
          <Foreign text={`${toWords(it.source)}: ${it.title}`} /> {it.commit && <Id id={it.commit} />}{" "}
          <TaskLink task={it.task_id} />
        </p>
      ),
    })),
    ...pull.follow_ups.map((it) => ({
      at: it.created_at,
      key: `follow-up ${it.task_id}`,
      node: (
        <p>
          Follow-up {it.number} after {toWords(it.source).toLowerCase()} <TaskLink task={it.task_id} />
        </p>
      ),
    })),
  ].sort((left, right) => left.at.localeCompare(right.at));
  if (entries.length === 0) return null;
  return (
    <section className="grid grid-cols-1 gap-1">
      <SectionHead>What happened</SectionHead>
      <ol>
        {entries.map((entry) => (
          <li key={entry.key} className="grid grid-cols-[1fr_auto] gap-x-3 border-line border-b py-2">
            <div className="min-w-0">{entry.node}</div>
            <Age at={entry.at} className="text-meta text-faint" />
          </li>
        ))}
      </ol>
    </section>
  );
}

function TaskLink({ task }: { task: string }) {
  return (
    <Link to="/tasks/$task" params={{ task }} className="text-accent underline">
      task {shortenId(task)}
    </Link>
  );
}

function CommentEntry({ comment }: { comment: Schema["CommentView"] }) {
  return (
    <div className="grid gap-0.5">
      <p className="text-meta text-muted">
        {comment.author_id ? <Person id={comment.author_id} /> : toWords(comment.author_role ?? "system")}
        {comment.path && (
          <>
            {" on "}
            <code className="font-mono">
              <Foreign text={`${comment.path}${comment.line ? `:${comment.line}` : ""}`} />
            </code>
          </>
        )}
      </p>
      <Prose text={comment.body} />
    </div>
  );
}

function ReviewEntry({ review }: { review: Schema["ReviewView"] }) {
  const [standing, words] = VERDICT_WORDS[review.verdict];
  return (
    <div className="grid gap-0.5">
      <p className="flex flex-wrap items-baseline gap-x-3">
        <Sign standing={standing} word={words} />
        <span className="text-meta text-muted">
          <Person id={review.user_id} />
          {!review.current && " · of an older commit"}
        </span>
      </p>
      {review.note && <Prose text={review.note} />}
    </div>
  );
}
