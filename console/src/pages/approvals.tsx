/** Calls that wait for a person, and what was decided about others. */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { approvalQuery, meQuery, projectsQuery } from "../api/queries";
import { approvalsQuery } from "../api/queries-tools";
import type { Approval } from "../api/types";
import { formatDuration, formatTime } from "../logic/format";
import type { Standing } from "../logic/state";
import {
  Action,
  Age,
  Command,
  cx,
  Empty,
  Facts,
  Foreign,
  Id,
  Loaded,
  Page,
  PageHead,
  ProblemNote,
  SectionHead,
  Sign,
  useNow,
  useSeen,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Person } from "../ui/person";
import { Split, useRowKeys } from "../ui/split";
import { useDecideApproval } from "../ui/steer";
import { TabBar } from "../ui/tabs";
import { ToolsNav } from "../ui/tools-nav";
import { CallArguments } from "./inbox-detail";

const STATES: Record<string, { standing: Standing; words: string }> = {
  asked: { standing: "person", words: "Waits" },
  approved: { standing: "done", words: "Approved" },
  refused: { standing: "failed", words: "Denied" },
  used: { standing: "done", words: "Approved and made" },
};

export function ApprovalsPage() {
  const { approval: chosenId, state, project } = useSearch({ from: "/tools/approvals" });
  const navigate = useNavigate({ from: "/tools/approvals" });
  const decided = state === "decided";
  usePageCommand(
    decided ? "cynork approval list --decided" : "cynork approval list",
    decided ? "/v1/approvals?decided=true" : "/v1/approvals",
  );
  const waiting = useQuery(approvalsQuery(false));
  const approvals = useQuery(approvalsQuery(decided));
  const projects = useQuery(projectsQuery);
  const names = useMemo(() => new Map((projects.data?.items ?? []).map((it) => [it.id, it.slug])), [projects.data]);
  const items = (approvals.data?.items ?? []).filter(
    (item) => (item.state !== "asked") === decided && (!project || item.project_id === project),
  );
  const isWide = window.matchMedia("(min-width: 1200px)").matches;
  const chosen = chosenId ?? (isWide ? items[0]?.approval_id : undefined);
  const choose = (id: string) =>
    void navigate({ search: (previous) => ({ ...previous, approval: id }), replace: true });
  const close = () => void navigate({ search: (previous) => ({ ...previous, approval: undefined }) });
  useRowKeys(
    items.map((item) => item.approval_id),
    chosen,
    choose,
    close,
  );
  useKeys({ "/": () => document.querySelector<HTMLElement>("#filters select")?.focus() });
  const tabs = [
    { id: "waiting", name: "Waiting", count: waiting.data?.items.length },
    { id: "decided", name: "Decided" },
  ];
  return (
    <Page wide>
      <ToolsNav />
      <div className={cx(chosenId && "max-split:sr-only")}>
        <PageHead
          title="Approvals"
          lead="A rule asked for a person. A yes holds once, for exactly this call of this agent."
        />
      </div>
      <div className="grid grid-cols-1 gap-4">
        <div className={cx("flex flex-wrap items-end justify-between gap-3", chosenId && "max-split:hidden")}>
          <TabBar label="Which approvals" parameter="state" value={state ?? "waiting"} tabs={tabs} />
          <div id="filters" className="min-w-0 small:max-w-56">
            <Choice
              label="Project"
              hideLabel
              value={project ?? ""}
              onChange={(value) =>
                void navigate({
                  search: (previous) => ({ ...previous, project: value || undefined, approval: undefined }),
                })
              }
              options={[
                { value: "", name: "Every project" },
                ...(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug })),
              ]}
            />
          </div>
        </div>
        <Loaded query={approvals}>
          {() =>
            items.length === 0 && !chosenId ? (
              <Nothing decided={decided} filtered={Boolean(project)} />
            ) : (
              <Split
                back="Approvals"
                onClose={close}
                list={
                  <ul aria-label="Approvals" className="border-line border-t">
                    {items.map((item) => (
                      <Row
                        key={item.approval_id}
                        item={item}
                        project={names.get(item.project_id ?? "") ?? null}
                        isChosen={item.approval_id === chosen}
                      />
                    ))}
                  </ul>
                }
                detail={
                  chosen && <ApprovalDetail key={chosen} id={chosen} names={names} onDecide={() => choose(chosen)} />
                }
              />
            )
          }
        </Loaded>
      </div>
    </Page>
  );
}

function Nothing({ decided, filtered }: { decided: boolean; filtered: boolean }) {
  if (decided) {
    return (
      <Empty title="Nothing was decided in the last day.">
        <p className="text-muted">Decisions are kept for a day; the audit keeps every call that was made or refused.</p>
        <p>
          <Link to="/audit" className="font-medium text-accent underline">
            Search the audit
          </Link>
        </p>
      </Empty>
    );
  }
  return (
    <Empty title={filtered ? "No call of this project waits." : "No call waits for a person."}>
      <p className="text-muted">A rule with the mode “approve” makes calls wait here:</p>
      <Command
        line={`cynork rule set ask-before-web --mode approve 'forbid (principal, action == Action::"web.fetch", resource);'`}
      />
      <p>
        <Link to="/tools/rules" className="font-medium text-accent underline">
          Write a rule
        </Link>
      </p>
    </Empty>
  );
}

function Row({ item, project, isChosen }: { item: Approval; project: string | null; isChosen: boolean }) {
  const element = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen) element.current?.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  const state = STATES[item.state] ?? { standing: "waits" as const, words: item.state };
  return (
    <li>
      <Link
        ref={element}
        from="/tools/approvals"
        to="/tools/approvals"
        search={(previous) => ({ ...previous, approval: item.approval_id })}
        aria-current={isChosen ? "true" : undefined}
        className={cx(
          "grid min-h-[52px] grid-cols-[1fr_auto] gap-x-3 gap-y-0.5 border-line border-b px-3 py-2 -outline-offset-2",
          isChosen ? "bg-select" : "hover:bg-surface",
        )}
      >
        <span className="truncate font-mono text-code">
          <Foreign text={item.tool} />
        </span>
        <Sign standing={state.standing} word={state.words} />
        <span className="truncate text-meta text-muted">
          {[project, item.rules.join(", ")].filter(Boolean).join(" · ")}
        </span>
        <Age at={item.decided_at ?? item.asked_at} className="text-right text-meta text-faint" />
      </Link>
    </li>
  );
}

function ApprovalDetail({
  id,
  names,
  onDecide,
}: {
  id: string;
  names: Map<string, string>;
  /** Keeps it on screen when it leaves the list. */
  onDecide: () => void;
}) {
  const approval = useQuery(approvalQuery(id));
  const me = useQuery(meQuery);
  const decide = useDecideApproval();
  const now = useNow();
  const [isSeen, setSeen] = useState(false);
  const markSeen = useCallback(() => setSeen(true), []);
  const end = useSeen(approval.data !== undefined, markSeen);
  const item: Approval | undefined = approval.data;
  const isOpen = item?.state === "asked";
  const tooLate =
    item !== undefined && new Date(item.expires_at).getTime() <= now ? "It is too late: the agent asks again" : null;
  const busy = tooLate ?? (decide.isPending ? "It is being sent" : null);
  const unread = busy ?? (isSeen ? null : "Read the call to its end first");
  const send = (approved: boolean) => {
    onDecide();
    decide.mutate({ approval: id, approved });
  };
  useKeys({
    a: isOpen && !unread ? () => send(true) : undefined,
    d: isOpen && !busy ? () => send(false) : undefined,
  });
  return (
    <article className="grid gap-4">
      <Loaded query={approval}>
        {(data: Approval) => (
          <>
            <header className="grid gap-1">
              <h2 className="text-lead">{data.state === "asked" ? "May this call be made?" : "What was decided"}</h2>
              <p className="font-mono text-lead">
                <Foreign text={data.tool} />
              </p>
            </header>
            {data.state !== "asked" && (
              <p role="status" className="border-ok border-l-2 py-1 pl-3">
                {STATES[data.state]?.words ?? data.state}
                {data.decided_by && (
                  <>
                    {" by "}
                    <Person id={data.decided_by} />
                  </>
                )}
                {data.decided_at && (
                  <>
                    {", "}
                    <Age at={data.decided_at} ago />
                  </>
                )}
                . Nothing more is needed.
              </p>
            )}
            <section className="grid gap-2">
              <SectionHead aside={data.state === "asked" ? "exactly as it would be sent" : undefined}>
                Arguments
              </SectionHead>
              {data.state === "asked" ? (
                <CallArguments values={data.arguments ?? {}} />
              ) : (
                <p className="text-muted">
                  They were sealed for the person who decided and are deleted with the decision.
                </p>
              )}
              <div ref={end} />
            </section>
            <Facts
              rows={[
                [
                  "Asked by",
                  data.rules.length > 0 ? (
                    <span key="rules">
                      {data.rules.map((rule, index) => (
                        <span key={rule}>
                          {index > 0 && ", "}
                          <Link
                            to="/tools/rules"
                            search={{ rule }}
                            className="text-accent underline underline-offset-2"
                          >
                            <Foreign text={rule} />
                          </Link>
                        </span>
                      ))}
                    </span>
                  ) : (
                    "the tool's own setting"
                  ),
                ],
                ["Asked", <Age key="asked" at={data.asked_at} ago />],
                [
                  "Until",
                  data.state === "asked" && new Date(data.expires_at).getTime() > now
                    ? `${formatTime(data.expires_at)} (${formatDuration(new Date(data.expires_at).getTime() - now)} left)`
                    : formatTime(data.expires_at),
                ],
                ["Agent", <Id key="agent" id={data.agent_token_id} />],
                data.project_id
                  ? [
                      "Project",
                      <Link
                        key="project"
                        to="/projects/$project"
                        params={{ project: data.project_id }}
                        className="text-accent underline underline-offset-2"
                      >
                        {names.get(data.project_id) ?? data.project_id.slice(-8)}
                      </Link>,
                    ]
                  : null,
                data.task_id
                  ? [
                      "Task",
                      <Link
                        key="task"
                        to="/tasks/$task"
                        params={{ task: data.task_id }}
                        className="text-accent underline underline-offset-2"
                      >
                        {data.task_id.slice(-8)}
                      </Link>,
                    ]
                  : null,
                [
                  "Tool",
                  <Link
                    key="tool"
                    to="/tools"
                    search={{ tool: data.tool }}
                    className="text-accent underline underline-offset-2"
                  >
                    what it does, and its other calls
                  </Link>,
                ],
                data.state === "asked" && ["If approved", "this call is made once, with these arguments and no others"],
              ]}
            />
          </>
        )}
      </Loaded>
      {decide.error && <ProblemNote error={decide.error} />}
      {isOpen && me.data && (
        <div className="sticky bottom-0 z-10 -mx-4 flex flex-wrap items-center gap-2 border-line border-t bg-bg px-4 py-3 small:mx-0 small:px-0">
          <Action tone="primary" hotkey="A" onPress={() => send(true)} reason={unread}>
            Approve call
          </Action>
          <Action hotkey="D" onPress={() => send(false)} reason={busy}>
            Deny call
          </Action>
        </div>
      )}
    </article>
  );
}
