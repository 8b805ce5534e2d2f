/** One item of the inbox, whole, with what can be decided about it. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { type ReactNode, useCallback, useState } from "react";
import { api, unwrap } from "../api/client";
import { approvalQuery, meQuery, plannedQuery, taskQuery, timelineQuery } from "../api/queries";
import { estimateQuery } from "../api/queries-task";
import { formatCost, formatCount, formatTime, toWords } from "../logic/format";
import type { InboxAction, InboxItem } from "../logic/inbox";
import { describeEstimate, parseLimit } from "../logic/new-task";
import { directionOf } from "../logic/text";
import { Action, Age, Facts, Foreign, Id, Inline, Loaded, ProblemNote, Prose, SectionHead, useSeen } from "../ui/basic";
import { Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Layer } from "../ui/layer";
import { Criteria, PlanGraph } from "../ui/plan";
import { useDecideApproval, useSteer } from "../ui/steer";

export function InboxDetail({ item, project }: { item: InboxItem; project: string | null }) {
  switch (item.kind) {
    case "plan":
      return item.task_id ? (
        <PlanDetail item={item} task={item.task_id} project={project} />
      ) : (
        <OtherDetail item={item} project={project} />
      );
    case "question":
      return item.task_id ? (
        <QuestionDetail item={item} task={item.task_id} project={project} />
      ) : (
        <OtherDetail item={item} project={project} />
      );
    case "call":
      return <CallDetail item={item} project={project} />;
    default:
      return <OtherDetail item={item} project={project} />;
  }
}

function Head({ item, project, title }: { item: InboxItem; project: string | null; title: string }) {
  return (
    <header className="grid gap-1">
      <div className="flex flex-wrap items-baseline justify-between gap-x-4">
        <h2 className="text-lead">{title}</h2>
        <span className="text-meta text-muted">
          {project && <>{project} · </>}asked <Age at={item.since} ago />
        </span>
      </div>
    </header>
  );
}

/** The words of an item without those that stand in its title already. */
function bodyOf(item: InboxItem): string {
  return item.text.startsWith(item.title) ? item.text.slice(item.title.length).trim() : item.text;
}

/** The actions stay in reach at the bottom of a small screen. */
function Actions({ children }: { children: ReactNode }) {
  return (
    <div className="sticky bottom-0 z-10 -mx-4 flex flex-wrap items-center gap-2 border-line border-t bg-bg px-4 py-3 small:mx-0 small:px-0">
      {children}
    </div>
  );
}

function TaskLink({ task, children }: { task: string; children: ReactNode }) {
  return (
    <Link to="/tasks/$task" params={{ task }} className="text-accent underline underline-offset-2">
      {children}
    </Link>
  );
}

/** Letters of a title that the graph shows for sure. */
const MAX_TITLE_IN_GRAPH = 44;

function PlanDetail({ item, task: id, project }: { item: InboxItem; task: string; project: string | null }) {
  const task = useQuery(taskQuery(id));
  const me = useQuery(meQuery);
  const timeline = useQuery(timelineQuery(id));
  const planned = useQuery({ ...plannedQuery(task.data?.project_id ?? "", id), enabled: Boolean(task.data) });
  const steer = useSteer(id);
  const [sendsBack, setSendsBack] = useState(false);
  const [note, setNote] = useState("");
  const isRead = task.data !== undefined && !timeline.isPending && !planned.isPending;
  const estimate = useQuery({
    ...estimateQuery(task.data?.project_id ?? "", task.data?.description ?? ""),
    enabled: Boolean(task.data),
  });
  const [end, isSeen] = useSeenWhole(isRead);
  const wait = item.id;
  const approve = () => steer.mutate({ do: "approve", wait });
  const waitsFor = !isRead
    ? "The plan is being read"
    : steer.isPending
      ? "It is being sent"
      : isSeen
        ? null
        : "Read the plan to its end first";
  useKeys({ a: waitsFor ? undefined : approve, d: () => setSendsBack(true), r: () => setSendsBack(true) });
  return (
    <article className="grid grid-cols-1 gap-4">
      <Head item={item} project={project} title={item.title} />
      <Loaded query={task}>
        {(data) => (
          <>
            <p dir={directionOf(data.description)} className="max-w-[760px] text-lead">
              “<Foreign text={data.description} />”
            </p>
            {/* The graph cuts long titles, and nobody decides about half a title. */}
            {(!planned.data || planned.data.plan.steps.some((step) => step.title.length > MAX_TITLE_IN_GRAPH)) && (
              <Prose text={bodyOf(item)} className="text-muted" />
            )}
            {planned.data ? (
              <PlanGraph
                units={planned.data.plan.steps.map((step) => ({
                  key: step.key,
                  title: step.title,
                  depends_on: step.depends_on ?? [],
                  standing: "waits" as const,
                }))}
              />
            ) : planned.error ? (
              <ProblemNote error={planned.error} />
            ) : null}
            <Facts
              rows={[
                planned.data && [
                  "Scope",
                  `${toWords(planned.data.scope)} · ${formatCount(planned.data.plan.steps.length, "unit")}`,
                ],
                estimate.data && ["Estimate", describeEstimate(estimate.data, me.data?.currency ?? "USD")],
                [
                  "Limit",
                  <span key="limit" className="inline-flex flex-wrap items-baseline gap-x-1">
                    {data.budget.max_cost_micros != null
                      ? formatCost(data.budget.max_cost_micros, me.data?.currency)
                      : "none of its own"}
                    <EditLimit task={id} micros={data.budget.max_cost_micros ?? null} />
                  </span>,
                ],
                timeline.data && ["Spent", formatCost(timeline.data.cost_micros, me.data?.currency)],
                data.acceptance_criteria.length > 0 && [
                  "Must hold",
                  <Criteria key="must" criteria={data.acceptance_criteria} />,
                ],
                (planned.data?.plan.assumptions.length ?? 0) > 0 && [
                  "Assumed",
                  <ul key="assumed">
                    {planned.data?.plan.assumptions.map((line) => (
                      <li key={line}>
                        <Inline text={line} />
                      </li>
                    ))}
                  </ul>,
                ],
                [
                  "Task",
                  <TaskLink key="task" task={id}>
                    {data.name}
                  </TaskLink>,
                ],
              ]}
            />
            <div ref={end} />
          </>
        )}
      </Loaded>
      {steer.error && <ProblemNote error={steer.error} />}
      {sendsBack && (
        <Field label="What should be different?" value={note} onChange={setNote} lines={3} autoFocus isRequired />
      )}
      <Actions>
        {sendsBack ? (
          <>
            <Action
              tone="primary"
              onPress={() => steer.mutate({ do: "send_back", wait, note })}
              reason={
                note.trim() === "" ? "Write what should be different" : steer.isPending ? "It is being sent" : null
              }
            >
              Send back
            </Action>
            <Action tone="quiet" onPress={() => setSendsBack(false)}>
              Keep deciding
            </Action>
          </>
        ) : (
          <>
            <Action tone="primary" hotkey="A" onPress={approve} reason={waitsFor}>
              Approve plan
            </Action>
            <Action hotkey="D" onPress={() => setSendsBack(true)}>
              Send back…
            </Action>
            {item.actions.includes("cancel") && <StopTask task={id} />}
          </>
        )}
      </Actions>
    </article>
  );
}

function QuestionDetail({ item, task: id, project }: { item: InboxItem; task: string; project: string | null }) {
  const task = useQuery(taskQuery(id));
  const steer = useSteer(id);
  const [text, setText] = useState("");
  const wait = item.id;
  const reason = text.trim() === "" ? "Write an answer" : steer.isPending ? "It is being sent" : null;
  return (
    <article className="grid grid-cols-1 gap-4">
      <Head item={item} project={project} title={item.title} />
      <Prose text={item.text} className="text-lead" />
      {task.data && (
        <p className="text-muted">
          For <TaskLink task={id}>{task.data.name}</TaskLink>: “<Foreign text={task.data.description} />”
        </p>
      )}
      <Field label="Your answer" value={text} onChange={setText} lines={3} />
      {steer.error && <ProblemNote error={steer.error} />}
      <Actions>
        <Action tone="primary" onPress={() => steer.mutate({ do: "answer", wait, text })} reason={reason}>
          Send answer
        </Action>
        {item.actions.includes("cancel") && <StopTask task={id} />}
      </Actions>
    </article>
  );
}

/** Returns a mark for the end of what is decided about, and whether it was in view. */
function useSeenWhole(isRead: boolean) {
  const [isSeen, setSeen] = useState(false);
  const markSeen = useCallback(() => setSeen(true), []);
  return [useSeen(isRead, markSeen), isSeen] as const;
}

/** Sets what the model calls of a task may cost together. */
function EditLimit({ task, micros }: { task: string; micros: number | null }) {
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const [isOpen, setOpen] = useState(false);
  const [text, setText] = useState("");
  const limit = parseLimit(text);
  const set = useMutation({
    mutationFn: (max_cost_micros: number) =>
      unwrap(
        api.PUT("/v1/budgets", { body: { scope_type: "task", scope_id: task, period: "total", max_cost_micros } }),
      ),
    onSuccess: () => {
      setOpen(false);
      void client.invalidateQueries({ queryKey: ["task", task] });
    },
  });
  const open = () => {
    setText(micros === null ? "" : String(micros / 1_000_000));
    set.reset();
    setOpen(true);
  };
  const reason = limit.error ?? (limit.micros === null ? "Write an amount" : set.isPending ? "It is being sent" : null);
  return (
    <>
      <Action tone="quiet" onPress={open} className="-my-2 max-small:-my-3">
        Edit limit…
      </Action>
      <Layer title="Edit the limit of the task" isOpen={isOpen} onClose={() => setOpen(false)}>
        <Field
          label={`Limit in ${me.data?.currency ?? "USD"}`}
          value={text}
          onChange={setText}
          inputMode="decimal"
          error={limit.error}
          autoFocus
          description="What the model calls of the task may cost together."
        />
        {set.error && <ProblemNote error={set.error} />}
        <div className="flex gap-2">
          <Action tone="primary" onPress={() => limit.micros !== null && set.mutate(limit.micros)} reason={reason}>
            Set limit
          </Action>
          <Action tone="quiet" onPress={() => setOpen(false)}>
            Back
          </Action>
        </div>
      </Layer>
    </>
  );
}

function StopTask({ task }: { task: string }) {
  const steer = useSteer(task);
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Action tone="danger" className="small:ml-auto" onPress={() => setOpen(true)}>
        Stop task…
      </Action>
      <Layer title="Stop the task" isOpen={isOpen} onClose={() => setOpen(false)}>
        <p className="text-muted">
          Its sandboxes end, what was not delivered is lost, and the tasks that depend on it are cancelled too. It
          cannot be undone.
        </p>
        {steer.error && <ProblemNote error={steer.error} />}
        <div className="flex gap-2">
          <Action
            tone="danger"
            onPress={() => steer.mutate({ do: "cancel" }, { onSuccess: () => setOpen(false) })}
            reason={steer.isPending ? "It is being sent" : null}
          >
            Stop task
          </Action>
          <Action tone="quiet" onPress={() => setOpen(false)}>
            Back
          </Action>
        </div>
      </Layer>
    </>
  );
}

function CallDetail({ item, project }: { item: InboxItem; project: string | null }) {
  const approval = useQuery(approvalQuery(item.id));
  const client = useQueryClient();
  const navigate = useNavigate();
  const decide = useDecideApproval();
  const [draftsRule, setDraftsRule] = useState(false);
  const [end, isSeen] = useSeenWhole(approval.data !== undefined);
  // The arguments are erased when the call is decided: the rule is drafted before.
  const draft = useMutation({
    mutationFn: async (approved: boolean) => {
      const params = { path: { approval: item.id } };
      const body = { approved };
      const rule = await unwrap(api.POST("/v1/approvals/{approval}/draft-rule", { params, body }));
      client.setQueryData(["rule-draft", item.id, String(approved)], rule);
      await decide.mutateAsync({ approval: item.id, approved });
      await navigate({ to: "/tools/rules", search: { approval: item.id, approved } });
    },
  });
  const send = (approved: boolean) =>
    draftsRule ? draft.mutate(approved) : decide.mutate({ approval: item.id, approved });
  const busy = decide.isPending || draft.isPending ? "It is being sent" : null;
  const waitsFor = busy ?? (isSeen ? null : "Read the call to its end first");
  useKeys({ a: waitsFor ? undefined : () => send(true), d: busy ? undefined : () => send(false) });
  return (
    <article className="grid grid-cols-1 gap-4">
      <Head item={item} project={project} title="May this call be made?" />
      <Loaded query={approval}>
        {(data) => (
          <>
            <p className="font-mono text-lead">
              <Foreign text={data.tool} />
            </p>
            <section className="grid gap-2">
              <SectionHead aside="exactly as it would be sent">Arguments</SectionHead>
              <CallArguments values={data.arguments ?? {}} />
              <div ref={end} />
            </section>
            <Facts
              rows={[
                ["Asked by", data.rules.length > 0 ? data.rules.join(", ") : "the tool's own setting"],
                ["Until", formatTime(data.expires_at)],
                ["Agent", <Id key="agent" id={data.agent_token_id} />],
                data.task_id
                  ? [
                      "Task",
                      <TaskLink key="task" task={data.task_id}>
                        {item.task_name ?? data.task_id.slice(-8)}
                      </TaskLink>,
                    ]
                  : null,
                ["If approved", "this call is made once, with these arguments and no others"],
              ]}
            />
          </>
        )}
      </Loaded>
      {(draft.error ?? decide.error) && <ProblemNote error={draft.error ?? decide.error} />}
      <label className="flex min-h-8 items-start gap-2">
        <input
          type="checkbox"
          checked={draftsRule}
          onChange={(event) => setDraftsRule(event.target.checked)}
          className="mt-0.5 size-4 accent-accent"
        />
        <span>
          Decide like this next time
          <span className="block text-meta text-muted">
            Drafts a rule and opens it. In shadow mode a rule only marks calls; nothing is decided by it until you
            enable it.
          </span>
        </span>
      </label>
      <Actions>
        <Action tone="primary" hotkey="A" onPress={() => send(true)} reason={waitsFor}>
          Approve call
        </Action>
        <Action hotkey="D" onPress={() => send(false)} reason={busy}>
          Deny call
        </Action>
      </Actions>
    </article>
  );
}

/** Every argument whole: text as it is with its line breaks, anything else as JSON. */
export function CallArguments({ values }: { values: Record<string, unknown> }) {
  const entries = Object.entries(values);
  if (entries.length === 0) return <p className="text-muted">none</p>;
  return (
    <dl className="grid gap-2">
      {entries.map(([name, value]) => (
        <div key={name}>
          <dt className="font-mono text-code text-muted">
            <Foreign text={name} />
          </dt>
          <dd>
            <pre className="rounded-box border border-line bg-surface p-2.5 font-mono text-code whitespace-pre-wrap">
              <Foreign text={typeof value === "string" ? value : JSON.stringify(value, null, 2)} />
            </pre>
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** Everything else: the exact words, and what the caller may do about them. */
function OtherDetail({ item, project }: { item: InboxItem; project: string | null }) {
  const client = useQueryClient();
  const steer = useSteer(item.task_id ?? "");
  const act = useMutation({
    mutationFn: (action: "accept" | "reject" | "close") => decideItem(item, action),
    onSettled: () => {
      const keys = [["inbox"], ["project", item.project_id ?? ""], ["task", item.task_id ?? ""]];
      for (const queryKey of keys) void client.invalidateQueries({ queryKey });
    },
  });
  const busy = steer.isPending || act.isPending ? "It is being sent" : null;
  const error = steer.error ?? act.error;
  const may = (action: InboxAction) => item.actions.includes(action);
  return (
    <article className="grid grid-cols-1 gap-4">
      <Head item={item} project={project} title={item.title} />
      <Prose text={item.text} />
      {error && <ProblemNote error={error} />}
      <Actions>
        {may("unpark") && item.task_id && (
          <Action tone="primary" onPress={() => steer.mutate({ do: "unpark" })} reason={busy}>
            Let it go on
          </Action>
        )}
        {item.kind === "environment" && may("accept") && (
          <Action tone="primary" onPress={() => act.mutate("accept")} reason={busy}>
            Accept environment
          </Action>
        )}
        {item.kind === "environment" && may("reject") && (
          <Action onPress={() => act.mutate("reject")} reason={busy}>
            Reject environment
          </Action>
        )}
        {item.kind === "delivery" && may("close") && (
          <Action onPress={() => act.mutate("close")} reason={busy}>
            Close pull request
          </Action>
        )}
        {item.kind === "tool_definition" && (
          <Link to="/tools/servers" search={{ server: item.id }} className="text-accent underline">
            Compare and accept the definitions
          </Link>
        )}
        {item.kind === "environment" && item.project_id && (
          <Link to="/projects/$project" params={{ project: item.project_id }} className="text-accent underline">
            Why each line is there
          </Link>
        )}
        {item.task_id && <TaskLink task={item.task_id}>Open the task</TaskLink>}
      </Actions>
    </article>
  );
}

function decideItem(item: InboxItem, action: "accept" | "reject" | "close"): Promise<unknown> {
  if (action === "close") {
    return unwrap(api.POST("/v1/pull-requests/{pull_request}/close", { params: { path: { pull_request: item.id } } }));
  }
  const options = {
    params: { path: { project: item.project_id ?? "", version: item.version ?? 0 } },
    body: { note: null },
  };
  return action === "accept"
    ? unwrap(api.POST("/v1/projects/{project}/environments/{version}/accept", options))
    : unwrap(api.POST("/v1/projects/{project}/environments/{version}/reject", options));
}
