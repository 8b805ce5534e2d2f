/** One task, live: where it stands, what happened, what it cost, and how to steer it. */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { Fragment, memo, useDeferredValue, useState } from "react";
import type { Schema } from "../../api/client";
import { Problem } from "../../api/problem";
import { meQuery, parkQuery, projectQuery, taskBudgetsQuery, taskQuery, timelineQuery } from "../../api/queries";
import { formatCost } from "../../logic/format";
import { forecastCost } from "../../logic/lanes";
import {
  describeStanding,
  findPersonWait,
  isAlive,
  isPaused,
  standingOf,
  type Task,
  type Timeline,
} from "../../logic/state";
import {
  Action,
  Command,
  Empty,
  Foreign,
  Id,
  Inline,
  Loaded,
  Page,
  ProblemNote,
  Sign,
  Skeleton,
  SpendBar,
  useNow,
} from "../../ui/basic";
import { usePageCommand } from "../../ui/copy";
import { Field } from "../../ui/fields";
import { useKeys } from "../../ui/keys";
import { Layer } from "../../ui/layer";
import { useSteer } from "../../ui/steer";
import { TabBar } from "../../ui/tabs";
import { Changes } from "./changes";
import { Decisions } from "./decisions";
import { Evidence } from "./evidence";
import { Logs } from "./logs";
import { Overview } from "./overview";
import { PlanTab } from "./plan";
import { TimelineTab } from "./timeline";

export function TaskPage() {
  const { task: id } = useParams({ from: "/tasks/$task" });
  // Only the tab: a file, a line or a moment in the address concerns a tab alone.
  const tab = useSearch({ from: "/tasks/$task", select: (search) => search.tab ?? "overview" });
  // The chosen tab is marked at once; a large part is drawn in pieces behind it.
  const drawnTab = useDeferredValue(tab);
  const task = useQuery(taskQuery(id));
  const timeline = useQuery(timelineQuery(id));
  usePageCommand(`cynork task show ${id}`, `/v1/tasks/${id}/timeline`);
  if (task.error instanceof Problem && MISSING.has(task.error.status)) return <NoTask />;
  return (
    <Page wide>
      <Loaded query={task} lines={6}>
        {(data) => (
          <div className="grid grid-cols-1 gap-5">
            <TaskHead task={data} timeline={timeline.data ?? null} />
            <TabBar
              label="Parts of the task"
              parameter="tab"
              value={tab}
              tabs={[
                { id: "overview", name: "Overview" },
                { id: "plan", name: "Plan", count: timeline.data?.units.length },
                { id: "timeline", name: "Timeline" },
                { id: "logs", name: "Logs" },
                { id: "changes", name: "Changes" },
                { id: "evidence", name: "Evidence" },
                { id: "decisions", name: "Decisions" },
              ]}
            />
            {timeline.error && !timeline.data ? (
              <ProblemNote error={timeline.error} onRetry={() => void timeline.refetch()} />
            ) : timeline.isPending ? (
              <Skeleton lines={6} />
            ) : (
              <TaskBody tab={drawnTab} task={data} timeline={timeline.data ?? null} />
            )}
          </div>
        )}
      </Loaded>
    </Page>
  );
}

/** No task has this id, or it is no id. The server does not say which task one may not see. */
const MISSING: ReadonlySet<number> = new Set([400, 404, 422]);

function NoTask() {
  return (
    <Page>
      <Empty title="There is no task at this address.">
        <p className="text-muted">It was deleted, or it belongs to a project that you may not see.</p>
        <p>
          <Link to="/tasks" className="font-medium text-accent underline">
            Show every task
          </Link>
        </p>
      </Empty>
    </Page>
  );
}

const TaskBody = memo(function TaskBody({
  tab,
  task,
  timeline,
}: {
  tab: string;
  task: Task;
  timeline: Timeline | null;
}) {
  if (!timeline) return <p className="text-muted">Nothing has happened yet.</p>;
  switch (tab) {
    case "plan":
      return <PlanTab task={task} timeline={timeline} />;
    case "timeline":
      return <TimelineTab task={task} timeline={timeline} />;
    case "logs":
      return <Logs timeline={timeline} />;
    case "changes":
      return <Changes task={task} timeline={timeline} />;
    case "evidence":
      return <Evidence task={task} timeline={timeline} />;
    case "decisions":
      return <Decisions task={task} />;
    default:
      return <Overview task={task} timeline={timeline} />;
  }
});

function TaskHead({ task, timeline }: { task: Task; timeline: Timeline | null }) {
  const now = useNow();
  const project = useQuery(projectQuery(task.project_id));
  const sentence = describeStanding(task, timeline, now);
  const standing = standingOf(task, timeline);
  const stall = timeline?.stalls?.[0];
  return (
    <header className="grid gap-3">
      <div className="grid items-start gap-x-6 gap-y-3 medium:grid-cols-[minmax(0,1fr)_auto]">
        <div className="grid min-w-0 gap-1">
          <div className="flex flex-wrap items-baseline gap-x-3 gap-y-1">
            <h1 className="text-title">
              <Foreign text={task.name} />
            </h1>
            <Sign standing={standing} word />
            <span className="text-meta text-muted">
              {project.data && (
                <Link to="/projects/$project" params={{ project: task.project_id }} className="hover:underline">
                  {project.data.slug}
                </Link>
              )}
            </span>
            <Id id={task.id} />
          </div>
          <p className="max-w-[760px] text-lead text-pretty">
            <Inline text={sentence.text} /> <span className="text-muted">{sentence.need}</span>
          </p>
        </div>
        <Steering task={task} timeline={timeline} />
      </div>
      {stall?.commands.map((line) => (
        <Command key={line} line={line} />
      ))}
      {task.unreviewed && <Unreviewed task={task} />}
      <Park task={task} />
      {timeline && <Cost task={task} timeline={timeline} />}
    </header>
  );
}

/** A task that an agent wrote is read by a person. */
function Unreviewed({ task }: { task: Task }) {
  const steer = useSteer(task.id);
  return (
    <div className="flex flex-wrap items-center gap-3 border-warn border-l-2 py-1 pl-3">
      <p>
        <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
          !
        </span>
        An agent wrote this task, and no person has reviewed it.
      </p>
      <Action onPress={() => steer.mutate({ do: "review" })} reason={steer.isPending ? "It is being sent" : null}>
        Mark task as reviewed
      </Action>
      {steer.error && <ProblemNote error={steer.error} />}
    </div>
  );
}

function Park({ task }: { task: Task }) {
  const park = useQuery({ ...parkQuery(task.id), enabled: isAlive(task.state) });
  const steer = useSteer(task.id);
  if (!park.data) return null;
  return (
    <div className="flex flex-wrap items-center gap-3 border-warn border-l-2 py-1 pl-3">
      <p>
        <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
          !
        </span>
        Parked, it calls no models: <Foreign text={park.data.reason} />
      </p>
      <Action onPress={() => steer.mutate({ do: "unpark" })}>Let it go on</Action>
      {steer.error && <ProblemNote error={steer.error} />}
    </div>
  );
}

function Cost({ task, timeline }: { task: Task; timeline: Timeline }) {
  const me = useQuery(meQuery);
  const budgets = useQuery(taskBudgetsQuery(task.id));
  const money = (micros: number) => formatCost(micros, me.data?.currency);
  const budget: Schema["BudgetStatusView"] | undefined = budgets.data?.items[0];
  const spent = Math.max(timeline.cost_micros, budget?.spent_micros ?? 0);
  const reserved = budget?.reserved_micros ?? 0;
  const limit = budget?.max_cost_micros ?? task.budget.max_cost_micros ?? null;
  const forecast = forecastCost(timeline, spent);
  const words = [
    `${money(spent)} spent`,
    reserved > 0 ? `${money(reserved)} reserved` : null,
    forecast === null ? null : `${money(forecast)} forecast`,
    limit === null ? "no limit of its own" : `limit ${money(limit)}`,
  ].filter((part) => part !== null);
  return (
    <div className="flex max-w-[760px] flex-wrap items-center gap-x-3 gap-y-1">
      <div className="w-52 max-small:w-full">
        <SpendBar spent={spent} reserved={reserved} limit={limit} forecast={forecast} label={words.join(", ")} />
      </div>
      <span className="text-meta text-muted">
        {words.map((part, index) => (
          <Fragment key={part}>
            {index > 0 && " · "}
            <span className="whitespace-nowrap">{part}</span>
          </Fragment>
        ))}
      </span>
    </div>
  );
}

/** What a person does with a pull request: merge it, or close it. */
function DeliverActions({ task, request }: { task: string; request: Schema["PullRequestEntry"] }) {
  const steer = useSteer(task);
  const [asks, setAsks] = useState<"merge" | "close" | null>(null);
  const back = () => {
    setAsks(null);
    steer.reset();
  };
  const send = () => {
    if (asks) steer.mutate({ do: asks, pullRequest: request.id }, { onSuccess: back });
  };
  const button = asks === "close" ? "Close pull request" : "Merge pull request";
  return (
    <div className="flex flex-wrap gap-2">
      <Action tone="primary" onPress={() => setAsks("merge")}>
        Merge pull request…
      </Action>
      <Action tone="danger" onPress={() => setAsks("close")}>
        Close pull request…
      </Action>
      <Layer title={`${button} #${request.number}`} isOpen={asks !== null} onClose={back}>
        <p>
          <Foreign text={request.title} />
        </p>
        {asks === "close" ? (
          <p className="text-muted">
            Nothing of <code className="font-mono">{request.branch}</code> becomes part of the base branch. The branch
            stays, and a closed pull request is not opened again.
          </p>
        ) : (
          <p className="text-muted">
            The commit of <code className="font-mono">{request.branch}</code> becomes part of the base branch. A merge
            is not taken back here.
          </p>
        )}
        {steer.error && <ProblemNote error={steer.error} />}
        <div className="flex gap-2">
          <Action
            tone={asks === "close" ? "danger" : "primary"}
            onPress={send}
            reason={steer.isPending ? "It is being sent" : null}
          >
            {button}
          </Action>
          <Action tone="quiet" onPress={back}>
            Back
          </Action>
        </div>
      </Layer>
    </div>
  );
}

type Asking = "answer" | "send_back" | "revise" | "expand_scope" | "reduce_scope" | "cancel" | null;

const QUESTIONS: Record<Exclude<Asking, null>, { title: string; label: string; button: string }> = {
  answer: { title: "Answer the question", label: "Your answer", button: "Send answer" },
  send_back: { title: "Send the plan back", label: "What should be different?", button: "Send back" },
  revise: { title: "Revise the plan", label: "What should be different?", button: "Revise plan" },
  expand_scope: { title: "Expand the scope", label: "What should be done as well?", button: "Expand scope" },
  reduce_scope: { title: "Reduce the scope", label: "What should be left out?", button: "Reduce scope" },
  cancel: { title: "Stop the task", label: "", button: "Stop task" },
};

function Steering({ task, timeline }: { task: Task; timeline: Timeline | null }) {
  const navigate = useNavigate();
  const steer = useSteer(task.id);
  const [asking, setAsking] = useState<Asking>(null);
  const [text, setText] = useState("");
  const wait = timeline ? findPersonWait(timeline) : null;
  const paused = timeline ? isPaused(timeline) : false;
  const runs = task.state === "running";
  const busy = steer.isPending ? "It is being sent" : null;
  const approve = () => steer.mutate({ do: "approve", wait: wait?.wait_id ?? null });
  const togglePause = () => steer.mutate({ do: "instruct", kind: paused ? "resume" : "pause" });
  const goBack = () => void navigate({ to: "/tasks" });
  const isPlanWait = wait?.reason === "approval";
  useKeys({
    a: isPlanWait && !busy ? approve : undefined,
    d: isPlanWait ? () => setAsking("send_back") : undefined,
    r: runs ? () => setAsking("revise") : undefined,
    p: runs && !busy && !wait ? togglePause : undefined,
    Escape: goBack,
  });
  const close = () => {
    setAsking(null);
    steer.reset();
  };
  const submit = () => {
    const done = {
      onSuccess: () => {
        setText("");
        setAsking(null);
      },
    };
    const waitId = wait?.wait_id ?? null;
    if (asking === "answer") steer.mutate({ do: "answer", wait: waitId, text }, done);
    else if (asking === "send_back") steer.mutate({ do: "send_back", wait: waitId, note: text }, done);
    else if (asking === "cancel") steer.mutate({ do: "cancel" }, done);
    else if (asking) steer.mutate({ do: "instruct", kind: asking, text }, done);
  };
  const question = asking ? QUESTIONS[asking] : null;
  if (!isAlive(task.state)) {
    if (task.state === "completed") {
      return timeline?.pull_request?.state === "open" ? (
        <DeliverActions task={task.id} request={timeline.pull_request} />
      ) : null;
    }
    return (
      <div className="grid justify-items-start gap-2">
        <Action
          tone="primary"
          reason={busy}
          onPress={() =>
            steer.mutate(
              { do: "retry", task },
              {
                onSuccess: (made) => {
                  const { id } = made as Task;
                  void navigate({ to: "/tasks/$task", params: { task: id } });
                },
              },
            )
          }
        >
          Try task again
        </Action>
        {steer.error && <ProblemNote error={steer.error} />}
      </div>
    );
  }
  return (
    <div className="grid gap-2">
      <div className="flex flex-wrap items-center gap-2">
        {isPlanWait && (
          <>
            <Action tone="primary" hotkey="A" onPress={approve} reason={busy}>
              Approve plan
            </Action>
            <Action hotkey="D" onPress={() => setAsking("send_back")}>
              Send back…
            </Action>
          </>
        )}
        {wait && !isPlanWait && (
          <Action tone="primary" onPress={() => setAsking("answer")}>
            Answer…
          </Action>
        )}
        {runs && !wait && (
          <Action hotkey="P" onPress={togglePause} reason={busy}>
            {paused ? "Resume task" : "Pause task"}
          </Action>
        )}
        {runs && !isPlanWait && (
          <Action hotkey="R" onPress={() => setAsking("revise")}>
            Revise…
          </Action>
        )}
        {runs && !wait && (
          <>
            <Action tone="quiet" onPress={() => setAsking("expand_scope")}>
              Expand…
            </Action>
            <Action tone="quiet" onPress={() => setAsking("reduce_scope")}>
              Reduce…
            </Action>
          </>
        )}
        <Action tone="danger" onPress={() => setAsking("cancel")}>
          Stop task…
        </Action>
      </div>
      {steer.error && !asking && <ProblemNote error={steer.error} />}
      <Layer title={question?.title ?? ""} isOpen={asking !== null} onClose={close}>
        {asking === "answer" && wait?.question && (
          <p className="whitespace-pre-wrap text-lead">
            <Foreign text={wait.question} />
          </p>
        )}
        {asking === "cancel" ? (
          <p className="text-muted">
            Its sandboxes end, what was not delivered is lost, and the tasks that depend on it are cancelled too. It
            cannot be undone.
          </p>
        ) : (
          <Field label={question?.label ?? ""} value={text} onChange={setText} lines={4} autoFocus />
        )}
        {steer.error && <ProblemNote error={steer.error} />}
        <div className="flex gap-2">
          <Action
            tone={asking === "cancel" ? "danger" : "primary"}
            onPress={submit}
            reason={asking !== "cancel" && text.trim() === "" ? "Write it first" : busy}
          >
            {question?.button}
          </Action>
          <Action tone="quiet" onPress={close}>
            Back
          </Action>
        </div>
      </Layer>
    </div>
  );
}
