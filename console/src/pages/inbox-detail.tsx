/** One item of the inbox, whole, with what can be decided about it. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type ReactNode, useCallback, useState } from "react";
import { api, unwrap } from "../api/client";
import { approvalQuery, meQuery, plannedQuery, taskQuery, timelineQuery } from "../api/queries";
import { formatCost, formatCount, formatTime, toWords } from "../logic/format";
import type { InboxAction, InboxItem } from "../logic/inbox";
import { Action, Age, Facts, Foreign, Id, Inline, Loaded, ProblemNote, Prose, SectionHead, useSeen } from "../ui/basic";
import { Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
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

function PlanDetail({ item, task: id, project }: { item: InboxItem; task: string; project: string | null }) {
  const task = useQuery(taskQuery(id));
  const me = useQuery(meQuery);
  const timeline = useQuery(timelineQuery(id));
  const planned = useQuery({ ...plannedQuery(task.data?.project_id ?? "", id), enabled: Boolean(task.data) });
  const steer = useSteer(id);
  const [sendsBack, setSendsBack] = useState(false);
  const [note, setNote] = useState("");
  const wait = item.id;
  const approve = () => steer.mutate({ do: "approve", wait });
  const waitsFor = timeline.isPending ? "The plan is being read" : steer.isPending ? "It is being sent" : null;
  useKeys({ a: waitsFor ? undefined : approve, d: () => setSendsBack(true), r: () => setSendsBack(true) });
  return (
    <article className="grid gap-4">
      <Head item={item} project={project} title={item.title} />
      <Loaded query={task}>
        {(data) => (
          <>
            <p className="text-lead">
              “<Foreign text={data.description} />”
            </p>
            <Prose text={bodyOf(item)} className="text-muted" />
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
                [
                  "Limit",
                  data.budget.max_cost_micros != null
                    ? formatCost(data.budget.max_cost_micros, me.data?.currency)
                    : "none of its own",
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
              reason={note.trim() === "" ? "Write what should be different" : waitsFor}
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
    <article className="grid gap-4">
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
      </Actions>
    </article>
  );
}

function CallDetail({ item, project }: { item: InboxItem; project: string | null }) {
  const approval = useQuery(approvalQuery(item.id));
  const decide = useDecideApproval();
  const [isSeen, setSeen] = useState(false);
  const markSeen = useCallback(() => setSeen(true), []);
  const end = useSeen(approval.data !== undefined, markSeen);
  const send = (approved: boolean) => decide.mutate({ approval: item.id, approved });
  const waitsFor = decide.isPending ? "It is being sent" : isSeen ? null : "Read the call to its end first";
  useKeys({ a: waitsFor ? undefined : () => send(true), d: () => send(false) });
  return (
    <article className="grid gap-4">
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
                        {data.task_id.slice(-8)}
                      </TaskLink>,
                    ]
                  : null,
                ["If approved", "this call is made once, with these arguments and no others"],
              ]}
            />
          </>
        )}
      </Loaded>
      {decide.error && <ProblemNote error={decide.error} />}
      <Actions>
        <Action tone="primary" hotkey="A" onPress={() => send(true)} reason={waitsFor}>
          Approve call
        </Action>
        <Action hotkey="D" onPress={() => send(false)} reason={decide.isPending ? "It is being sent" : null}>
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
    <article className="grid gap-4">
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
