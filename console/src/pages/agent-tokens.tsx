/** Who may call tools in whose name? The tokens of agents. */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { projectsQuery } from "../api/queries";
import { agentTokensQuery, allowlistsQuery, runningTasksQuery } from "../api/queries-tools";
import { type AgentToken, describeToken, type TokenDraft, toTokenRequest } from "../logic/agent-token";
import { formatCount, formatTime, toWords } from "../logic/format";
import { quoteShell } from "../logic/text";
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
  Sign,
  useNow,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Layer } from "../ui/layer";
import { Person } from "../ui/person";
import { Tick } from "../ui/switch";
import { TaskName, useTaskNames } from "../ui/task-name";
import { ToolsNav } from "../ui/tools-nav";

export function AgentTokensPage() {
  const search = useSearch({ from: "/tools/tokens" });
  const navigate = useNavigate({ from: "/tools/tokens" });
  const projects = useQuery(projectsQuery);
  const project = search.project ?? projects.data?.items[0]?.id ?? "";
  const slug = projects.data?.items.find((it) => it.id === project)?.slug ?? "PROJECT";
  usePageCommand(
    quoteShell(["cynork", "agent-token", "list", "--project", slug]),
    `/v1/agent-tokens?project_id=${project}`,
  );
  const setIssue = (issue: boolean) =>
    void navigate({ search: (previous) => ({ ...previous, issue: issue || undefined }) });
  useKeys({
    "/": () => document.querySelector<HTMLElement>("#filters select")?.focus(),
    Escape: search.issue ? () => setIssue(false) : undefined,
  });
  return (
    <Page wide>
      <ToolsNav />
      <PageHead
        title="Agent tokens"
        lead="Each agent calls the gateway with a token of its own. Jobs get theirs by themselves and lose them when they end."
      >
        {!search.issue && (
          <Action tone="primary" onPress={() => setIssue(true)} reason={project ? null : "There is no project yet"}>
            Issue token
          </Action>
        )}
      </PageHead>
      <Loaded query={projects}>
        {(data) =>
          data.items.length === 0 ? (
            <Empty title="There is no project yet.">
              <p className="text-muted">A token belongs to a project. Make one in a repository:</p>
              <Command line="cynork project import ." />
              <p>
                <Link to="/projects" className="font-medium text-accent underline">
                  Projects
                </Link>
              </p>
            </Empty>
          ) : (
            <div className="grid grid-cols-1 gap-4">
              <div id="filters" className="flex max-w-80">
                <Choice
                  label="Project"
                  value={project}
                  onChange={(value) => void navigate({ search: (previous) => ({ ...previous, project: value }) })}
                  options={data.items.map((it) => ({ value: it.id, name: it.slug }))}
                />
              </div>
              {search.issue && <IssueForm key={project} project={project} onClose={() => setIssue(false)} />}
              <TokenList key={`list ${project}`} project={project} slug={slug} />
            </div>
          )
        }
      </Loaded>
    </Page>
  );
}

function TokenList({ project, slug }: { project: string; slug: string }) {
  const tokens = useInfiniteQuery(agentTokensQuery(project));
  const now = useNow();
  const [cursor, setCursor] = useState(-1);
  const [open, setOpen] = useState<string | null>(null);
  const [revoking, setRevoking] = useState<AgentToken | null>(null);
  const items = tokens.data?.pages.flatMap((page) => page.items) ?? [];
  const chosen = items[cursor];
  const toggle = (id: string) => setOpen((known) => (known === id ? null : id));
  useKeys({
    j: () => setCursor((index) => Math.min(index + 1, items.length - 1)),
    k: () => setCursor((index) => Math.max(index - 1, 0)),
    Enter: chosen ? () => toggle(chosen.agent_token_id) : undefined,
  });
  return (
    <Loaded query={tokens} lines={8}>
      {() =>
        items.length === 0 ? (
          <Empty title="No agent of this project has a token.">
            <p className="text-muted">Jobs get one when they start. For an agent of your own:</p>
            <Command line={quoteShell(["cynork", "agent-token", "issue", "project_manager", "--project", slug])} />
          </Empty>
        ) : (
          <>
            <ul aria-label="Agent tokens" className="border-line border-t">
              {items.map((token, index) => (
                <Row
                  key={token.agent_token_id}
                  token={token}
                  now={now}
                  isAtCursor={index === cursor}
                  isOpen={open === token.agent_token_id}
                  onToggle={() => toggle(token.agent_token_id)}
                  onRevoke={() => setRevoking(token)}
                />
              ))}
            </ul>
            {tokens.hasNextPage && (
              <div>
                <Action
                  onPress={() => void tokens.fetchNextPage()}
                  reason={tokens.isFetchingNextPage ? "They are being read" : null}
                >
                  Show more tokens
                </Action>
              </div>
            )}
            {revoking && <RevokeLayer token={revoking} onClose={() => setRevoking(null)} />}
          </>
        )
      }
    </Loaded>
  );
}

function Row({
  token,
  now,
  isAtCursor,
  isOpen,
  onToggle,
  onRevoke,
}: {
  token: AgentToken;
  now: number;
  isAtCursor: boolean;
  isOpen: boolean;
  onToggle: () => void;
  onRevoke: () => void;
}) {
  const state = describeToken(token, now);
  const nameTask = useTaskNames();
  const name = `${toWords(token.role)} ${token.agent_token_id.slice(-8)}`;
  return (
    <li className={cx("border-line border-b", isAtCursor && "bg-select")}>
      <div className="grid min-h-10 grid-cols-[110px_1fr_110px_120px_160px] items-center gap-x-4 gap-y-0.5 px-2 py-1 max-medium:grid-cols-[1fr_auto] max-medium:pt-2">
        <span className="max-medium:justify-self-end">
          <Sign standing={state.standing} word={state.words} />
        </span>
        <span className="min-w-0 max-medium:order-first">
          <span className="font-medium">{toWords(token.role)}</span>{" "}
          <span className="text-meta text-muted">
            {token.task_id && (
              <>
                task <Foreign text={nameTask(token.task_id)} />
                {" · "}
              </>
            )}
            {token.network ? "network" : "no network"}
            {token.tools &&
              ` · ${token.tools.length === 0 ? "no tools" : `only ${formatCount(token.tools.length, "tool")}`}`}
            {token.profile !== "default" && ` · ${token.profile}`}
          </span>
        </span>
        <Id id={token.agent_token_id} />
        <span className="text-meta text-muted max-medium:justify-self-end">
          issued <Age at={token.created_at} ago />
        </span>
        <span className="flex gap-1 medium:-mr-3 medium:justify-end max-medium:col-span-2 max-medium:-ml-3">
          <Action tone="quiet" onPress={onToggle} aria-expanded={isOpen} aria-label={`Details of ${name}`}>
            Details
          </Action>
          {state.works && (
            <Action tone="quiet" onPress={onRevoke} aria-label={`Revoke ${name}`}>
              Revoke…
            </Action>
          )}
        </span>
      </div>
      {isOpen && (
        <div className="px-2 pt-1 pb-3">
          <TokenFacts token={token} />
        </div>
      )}
    </li>
  );
}

function TokenFacts({ token }: { token: AgentToken }) {
  return (
    <Facts
      rows={[
        ["Kind", token.kind],
        token.user_id ? ["In the name of", <Person key="user" id={token.user_id} />] : null,
        token.task_id ? ["Task", <TaskName key="task" id={token.task_id} />] : null,
        token.job_id ? ["Job", <Id key="job" id={token.job_id} />] : null,
        token.run_id ? ["Run", <Id key="run" id={token.run_id} />] : null,
        ["Profile", token.profile],
        [
          "Tools",
          token.tools ? <Foreign key="tools" text={token.tools.join(", ") || "none"} /> : "all that its role may call",
        ],
        ["Models", token.models.length > 0 ? <Foreign key="models" text={token.models.join(", ")} /> : "none"],
        token.expires_at ? ["Ends", formatTime(token.expires_at)] : null,
        token.revoked_at ? ["Revoked", formatTime(token.revoked_at)] : null,
      ]}
    />
  );
}

function RevokeLayer({ token, onClose }: { token: AgentToken; onClose: () => void }) {
  const client = useQueryClient();
  const revoke = useMutation({
    mutationFn: () =>
      unwrap(api.DELETE("/v1/agent-tokens/{token}", { params: { path: { token: token.agent_token_id } } })),
    onSuccess: onClose,
    onSettled: () => void client.invalidateQueries({ queryKey: ["agent-tokens"] }),
  });
  return (
    <Layer title="Revoke token" isOpen onClose={onClose}>
      <p>
        The {toWords(token.role).toLowerCase()} with the token <Id id={token.agent_token_id} /> is refused everywhere
        within 100 ms, and its calls under way end. What it has not reported is lost. A revoked token never works again.
      </p>
      {revoke.error && <ProblemNote error={revoke.error} />}
      <div className="flex flex-wrap gap-2">
        <Action tone="danger" onPress={() => revoke.mutate()} reason={revoke.isPending ? "It is being sent" : null}>
          Revoke token
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Keep token
        </Action>
      </div>
    </Layer>
  );
}

const LIFETIMES = [
  { value: "900", name: "15 minutes" },
  { value: "3600", name: "1 hour" },
  { value: "28800", name: "8 hours" },
  { value: "86400", name: "1 day" },
  { value: "604800", name: "7 days" },
];

/** Kinds of programs of the installation itself; their tokens are made at the machine. */
const SERVICE_KINDS = new Set(["runner", "host"]);

function IssueForm({ project, onClose }: { project: string; onClose: () => void }) {
  const client = useQueryClient();
  const lists = useQuery(allowlistsQuery);
  const tasks = useQuery(runningTasksQuery(project));
  const [draft, setDraft] = useState<TokenDraft>({
    role: "project_manager",
    kind: "pm",
    task: "",
    seconds: "3600",
    profile: "",
    network: false,
    models: "",
    tools: "",
  });
  // The same key for each try of the same draft: a token is issued once.
  const [key, setKey] = useState(makeKey);
  const [issued, setIssued] = useState<Schema["IssuedAgentToken"] | null>(null);
  const change = (part: Partial<TokenDraft>) => {
    setDraft((known) => ({ ...known, ...part }));
    setKey(makeKey());
  };
  const roles = (lists.data?.items ?? []).filter((list) => !SERVICE_KINDS.has(list.kind));
  const request = toTokenRequest(project, draft);
  const issue = useMutation({
    mutationFn: (body: Schema["IssueAgentToken"]) =>
      unwrap(api.POST("/v1/agent-tokens", { params: { header: { "Idempotency-Key": key } }, body })),
    onSuccess: setIssued,
    onSettled: () => void client.invalidateQueries({ queryKey: ["agent-tokens"] }),
  });
  const reason = "missing" in request ? request.missing : issue.isPending ? "It is being issued" : null;
  if (issued) {
    return (
      <section aria-label="The new token" className="grid max-w-[640px] gap-3 rounded-box border border-accent p-4">
        <p className="font-medium">
          <span aria-hidden="true">! </span>Copy the token now. It is shown this once.
        </p>
        <Command line={issued.token} />
        <p className="text-muted">
          It goes into the header <code className="font-mono text-code">Authorization: Bearer …</code> at{" "}
          <code className="font-mono text-code">/mcp</code> of the internal port
          {issued.expires_at && <> and ends at {formatTime(issued.expires_at)}</>}.
        </p>
        <div>
          <Action tone="primary" onPress={onClose}>
            I have copied it
          </Action>
        </div>
      </section>
    );
  }
  return (
    <Form
      aria-label="Issue a token"
      className="grid max-w-[640px] gap-4 rounded-box border border-line p-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason && "body" in request) issue.mutate(request.body);
      }}
    >
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Choice
          label="Role"
          value={draft.role}
          onChange={(role) => change({ role, kind: roles.find((list) => list.role === role)?.kind ?? "" })}
          options={
            roles.length > 0
              ? roles.map((list) => ({ value: list.role, name: toWords(list.role) }))
              : [{ value: draft.role, name: toWords(draft.role) }]
          }
        />
        <Choice
          label="Works for"
          value={draft.seconds}
          onChange={(seconds) => change({ seconds })}
          options={LIFETIMES}
        />
        <Choice
          label={draft.kind === "pm" ? "Task, if it works on one" : "Task"}
          value={draft.task}
          onChange={(task) => change({ task })}
          options={[
            { value: "", name: tasks.data?.items.length === 0 ? "No task runs" : "None" },
            ...(tasks.data?.items ?? []).map((task) => ({ value: task.id, name: task.name })),
          ]}
        />
        <Field
          label="Profile"
          value={draft.profile}
          onChange={(profile) => change({ profile })}
          placeholder="as preferred"
        />
      </div>
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Field
          label="Only these tools"
          value={draft.tools}
          onChange={(tools) => change({ tools })}
          description="One per line; all of the role without any."
          lines={3}
          mono
        />
        <Field
          label="Models"
          value={draft.models}
          onChange={(models) => change({ models })}
          description="One per line, tiers such as cynodeai.fast too; none without any."
          lines={3}
          mono
        />
      </div>
      <Tick
        label="Its tools may use the network"
        isTicked={draft.network}
        onChange={(network) => change({ network })}
      />
      {issue.error && <ProblemNote error={issue.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Issue token
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}
