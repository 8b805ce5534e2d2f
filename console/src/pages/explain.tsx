/** Why is a call allowed or refused? */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useEffect, useState } from "react";
import type { Schema } from "../api/client";
import { projectsQuery } from "../api/queries";
import {
  callExplanationQuery,
  explanationQuery,
  policyToolsQuery,
  projectAgentsQuery,
  rulesQuery,
} from "../api/queries-policy";
import type { CallExplanation } from "../api/types";
import {
  describeDecision,
  findRemedy,
  parseArguments,
  QUESTIONS,
  RUNGS,
  sampleArguments,
  toRungState,
} from "../logic/explain";
import { formatAge, toWords } from "../logic/format";
import { quoteShell } from "../logic/text";
import { Action, Age, cx, Facts, Foreign, Id, Loaded, Page, PageHead, useNow } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { TaskName, useTaskNames } from "../ui/task-name";
import { ToolsNav } from "../ui/tools-nav";

type Explanation = Schema["PolicyExplanation"];
type AgentToken = Schema["AgentTokenView"];
type Rule = Schema["RuleView"];

const TYPING_MS = 400;

export function ExplainPage() {
  const { call, agent, tool } = useSearch({ from: "/tools/explain" });
  const isAsked = Boolean(call || (agent && tool));
  return (
    <Page wide>
      <ToolsNav />
      <PageHead
        title="Explain a call"
        lead="The gateway asks ten questions about every call, in this order. Each can only refuse. Nothing is called here and nothing is recorded."
      />
      <div className="grid grid-cols-1 gap-8 split:grid-cols-[420px_1fr]">
        <div className="grid content-start gap-6">
          <CallForm />
          <Hypothesis />
        </div>
        <div className={cx("min-w-0", isAsked && "max-split:order-first")}>
          {call ? <RecordedCall key={call} call={call} /> : <AssumedCall />}
        </div>
      </div>
    </Page>
  );
}

/** Chooses a recorded call by its id. */
function CallForm() {
  const { call } = useSearch({ from: "/tools/explain" });
  const navigate = useNavigate({ from: "/tools/explain" });
  const [typed, setTyped] = useState(call ?? "");
  useEffect(() => setTyped(call ?? ""), [call]);
  const wanted = typed.trim();
  const isId = /^cal_[0-9a-f]{32}$/.test(wanted);
  return (
    <form
      className="grid gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        if (isId) void navigate({ search: { call: wanted } });
      }}
    >
      <h2 className="text-body">A call that was made</h2>
      <Field
        label="Id of the call"
        value={typed}
        onChange={setTyped}
        placeholder="cal_…"
        description={
          <>
            Its id is in the{" "}
            <Link to="/audit" className="text-accent underline underline-offset-2">
              audit log
            </Link>
            .
          </>
        }
        mono
      />
      <div className="flex gap-2">
        <Action type="submit" reason={isId ? null : "The id of a call is cal_ and 32 digits"}>
          Explain call
        </Action>
        {call && (
          <Action tone="quiet" onPress={() => void navigate({ search: {} })}>
            Ask about another call
          </Action>
        )}
      </div>
    </form>
  );
}

function describeAgent(token: AgentToken, now: number, nameTask: (id: string) => string): string {
  const state = token.revoked_at ? ", revoked" : "";
  const place = token.task_id ? ` · task ${nameTask(token.task_id)}` : "";
  return `${toWords(token.role)}${place} · ${formatAge(token.created_at, now)} old${state}`;
}

/** Chooses an agent, a tool and arguments. */
function Hypothesis() {
  const search = useSearch({ from: "/tools/explain" });
  const navigate = useNavigate({ from: "/tools/explain" });
  const now = useNow();
  const nameTask = useTaskNames();
  const projects = useQuery(projectsQuery);
  const project = search.project ?? projects.data?.items[0]?.id ?? "";
  const agents = useQuery({ ...projectAgentsQuery(project), enabled: project !== "" });
  const tools = useQuery(policyToolsQuery);
  const rules = useQuery({ ...rulesQuery, retry: false });
  const [typed, setTyped] = useState(search.arguments ?? "");
  useEffect(() => setTyped(search.arguments ?? ""), [search.arguments]);
  useEffect(() => {
    if (typed === (search.arguments ?? "")) return undefined;
    const timer = setTimeout(
      () =>
        void navigate({
          search: (previous) => ({ ...previous, call: undefined, arguments: typed || undefined }),
          replace: true,
        }),
      TYPING_MS,
    );
    return () => clearTimeout(timer);
  }, [typed, search.arguments, navigate]);
  const set = (part: Partial<typeof search>) =>
    void navigate({ search: (previous) => ({ ...previous, call: undefined, ...part }), replace: true });
  const parsed = parseArguments(typed);
  const tool = tools.data?.items.find((it) => it.name === search.tool);
  const none = { value: "", name: "Choose…" };
  return (
    <form
      aria-label="A call that was not made"
      className="grid gap-3 border-line border-t pt-4"
      onSubmit={(event) => event.preventDefault()}
    >
      <h2 className="text-body">Or a call that was not made</h2>
      <Choice
        label="Project"
        value={project}
        onChange={(value) => set({ project: value, agent: undefined })}
        options={(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug }))}
      />
      <Choice
        label="Agent"
        value={search.agent ?? ""}
        onChange={(agent) => set({ project, agent: agent || undefined })}
        options={[
          none,
          ...(agents.data?.items ?? []).map((it) => ({
            value: it.agent_token_id,
            name: describeAgent(it, now, nameTask),
          })),
        ]}
      />
      {agents.data?.items.length === 0 && (
        <p className="text-meta text-muted">
          No agent of this project has a token now. Start a task, or issue one under Tokens.
        </p>
      )}
      <Choice
        label="Tool"
        value={search.tool ?? ""}
        onChange={(value) => set({ tool: value || undefined })}
        options={[none, ...(tools.data?.items ?? []).map((it) => ({ value: it.name, name: it.name }))]}
      />
      <Field
        label="Arguments"
        value={typed}
        onChange={setTyped}
        lines={4}
        placeholder="{}"
        error={"problem" in parsed ? parsed.problem : null}
        description="One JSON object. Ids of task, run, job and project may be left out."
        mono
      />
      {tool && typed.trim() === "" && (
        <div>
          <Action
            tone="quiet"
            onPress={() => setTyped(JSON.stringify(sampleArguments(tool.input_schema, tool.bound_to), null, 2))}
          >
            Fill in what {tool.name} requires
          </Action>
        </div>
      )}
      {rules.data && rules.data.items.length > 0 && (
        <Choice
          label="Rules"
          value={search.assume ?? ""}
          onChange={(assume) => set({ assume: assume || undefined })}
          options={[
            { value: "", name: "As they stand" },
            ...rules.data.items.map((rule) => ({
              value: rule.name,
              name: rule.mode === "shadow" ? `As if ${rule.name} were in force` : `As if ${rule.name} did not exist`,
            })),
          ]}
        />
      )}
    </form>
  );
}

/** The rules with one of them turned around; nothing to be tried when it is not there. */
function turnRule(rules: readonly Rule[], name: string | undefined): Record<string, Schema["SetRule"]> | null {
  const turned = rules.find((rule) => rule.name === name);
  if (!turned) return null;
  const kept = rules.filter((rule) => rule !== turned || rule.mode === "shadow");
  return Object.fromEntries(
    kept.map((rule) => [rule.name, { mode: rule === turned ? "refuse" : rule.mode, text: rule.text }]),
  );
}

function AssumedCall() {
  const search = useSearch({ from: "/tools/explain" });
  const parsed = parseArguments(search.arguments ?? "");
  const rules = useQuery({ ...rulesQuery, retry: false });
  const tried = turnRule(rules.data?.items ?? [], search.assume);
  const body: Schema["ExplainRequest"] = {
    agent_token_id: search.agent ?? "",
    tool: search.tool ?? "",
    arguments: ("value" in parsed ? parsed.value : {}) as Record<string, never>,
    ...(tried ? { rules: tried } : {}),
  };
  const isReady =
    Boolean(search.agent && search.tool && "value" in parsed) && (!search.assume || rules.data !== undefined);
  const explanation = useQuery({ ...explanationQuery(body), enabled: isReady });
  usePageCommand(
    quoteShell([
      "cynork",
      "tool",
      "explain",
      search.tool ?? "TOOL",
      "--agent",
      search.agent ?? "AGENT",
      ...(search.arguments ? ["--arguments", search.arguments] : []),
    ]),
    "/v1/policy/explain",
  );
  if (!isReady) {
    return (
      <div className="grid gap-4">
        <div className="grid max-w-[560px] gap-1">
          <p className="font-semibold text-lead">Choose an agent and a tool.</p>
          <p className="text-muted">
            The answer is that of the gateway, by the switches, allowlists and rules that hold now. It changes here as
            soon as somebody changes them.
          </p>
        </div>
        <Ladder columns={[]} />
      </div>
    );
  }
  return (
    <Loaded query={explanation} lines={10}>
      {(data) => (
        <div className="grid gap-4">
          <Verdict explanation={data} tool={search.tool ?? ""} />
          <Ladder columns={[{ name: "Now", explanation: data }]} tool={search.tool} />
          <Hashes explanation={data} />
        </div>
      )}
    </Loaded>
  );
}

function RecordedCall({ call }: { call: string }) {
  const [typed, setTyped] = useState("");
  const [given, setGiven] = useState<Record<string, unknown> | null>(null);
  const explanation = useQuery(callExplanationQuery(call, given));
  const parsed = parseArguments(typed);
  usePageCommand(`cynork tool explain-call ${call}`, "/v1/policy/explain-call");
  return (
    <Loaded query={explanation} lines={10}>
      {(data) => {
        const needsArguments =
          data.now?.steps.some((step) => toRungState(step.result) === "not_recorded") || given !== null;
        return (
          <div className="grid gap-4">
            <RecordedVerdict data={data} />
            <Ladder
              columns={[
                { name: "Then", explanation: data.then },
                ...(data.now ? [{ name: "Now", explanation: data.now }] : []),
              ]}
              tool={data.record.tool ?? undefined}
            />
            {needsArguments && (
              <form
                className="grid max-w-[560px] gap-2"
                onSubmit={(event) => {
                  event.preventDefault();
                  if ("value" in parsed) setGiven(parsed.value);
                }}
              >
                <Field
                  label="Its arguments, if you know them"
                  value={typed}
                  onChange={setTyped}
                  lines={3}
                  placeholder="{}"
                  error={"problem" in parsed ? parsed.problem : null}
                  description="The audit log keeps only a digest of them."
                  mono
                />
                <div>
                  <Action type="submit" reason={"problem" in parsed ? "Arguments are one JSON object" : null}>
                    Ask with these arguments
                  </Action>
                </div>
              </form>
            )}
          </div>
        );
      }}
    </Loaded>
  );
}

function Verdict({ explanation, tool }: { explanation: Explanation; tool: string }) {
  const decision = describeDecision(explanation.decision);
  return (
    <div role="status" className="grid gap-1">
      <h2 className="text-lead">
        <span className={decision.tone}>
          <span aria-hidden="true">{decision.sign}</span> {decision.words}:
        </span>{" "}
        <code className="font-mono">
          <Foreign text={tool} />
        </code>
      </h2>
      <p>
        <Foreign text={explanation.detail} />
      </p>
    </div>
  );
}

function RecordedVerdict({ data }: { data: CallExplanation }) {
  const [was, is] = [describeDecision(data.then.decision), describeDecision(data.now?.decision ?? "")];
  return (
    <div className="grid gap-3">
      <div role="status" className="grid gap-1">
        <h2 className="text-lead">
          <span className={was.tone}>
            <span aria-hidden="true">{was.sign}</span> {was.words} then
          </span>
          {data.now && (
            <>
              {", "}
              <span className={is.tone}>
                <span aria-hidden="true">{is.sign}</span> {is.words.toLowerCase()} now
              </span>
            </>
          )}
          :{" "}
          <code className="font-mono">
            <Foreign text={data.record.tool ?? "a tool that does not exist"} />
          </code>
        </h2>
        <p>
          <Foreign text={data.then.detail} />
        </p>
        {data.now_missing && (
          <p className="text-muted">
            What would be decided now cannot be said: <Foreign text={data.now_missing} />
          </p>
        )}
        {data.now && !data.changed && (
          <p className="text-muted">
            {data.same_policy && data.same_catalogue
              ? "Policy and tools are those of then."
              : "Policy or tools have changed since, and the answer is the same."}
          </p>
        )}
      </div>
      <Facts
        rows={[
          ["When", <Age key="at" at={data.record.at} ago />],
          ["Agent", <Foreign key="role" text={toWords(data.record.agent_role ?? "unknown")} />],
          data.record.task_id ? ["Task", <TaskName key="task" id={data.record.task_id} />] : null,
          [
            "Record",
            <Link
              key="record"
              to="/audit"
              search={{ call: data.record.call_id }}
              className="text-accent underline underline-offset-2"
            >
              See it in the audit log, with its proof
            </Link>,
          ],
        ]}
      />
    </div>
  );
}

interface Column {
  name: string;
  explanation: Explanation;
}

/** The questions from top to bottom. What passed is grey, what refused is lit. */
function Ladder({ columns, tool }: { columns: readonly Column[]; tool?: string | undefined }) {
  const steps = columns[0]?.explanation.steps.map((step) => step.step) ?? Object.keys(QUESTIONS);
  return (
    <ol aria-label="Questions of the gateway" className="max-w-[760px]">
      {steps.map((step, index) => {
        const results = columns.map((column) => ({
          column,
          state: toRungState(column.explanation.steps.find((it) => it.step === step)?.result ?? "not_reached"),
        }));
        const refusing = results.filter((result) => result.state === "refused");
        const isLit = refusing.length > 0;
        const isLast = index === steps.length - 1;
        return (
          <li key={step} className="grid grid-cols-[28px_1fr] gap-x-2">
            <span aria-hidden="true" className="grid grid-rows-[28px_1fr] justify-items-center">
              <span
                className={cx(
                  "mt-1 grid size-6 place-items-center rounded-full border text-meta",
                  isLit ? "border-bad bg-bad text-bg" : "border-line text-muted",
                )}
              >
                {index + 1}
              </span>
              {!isLast && <span className="w-px bg-line" />}
            </span>
            <div className={cx("mb-1 min-w-0 rounded-box px-2.5 py-1.5", isLit && "border border-bad bg-removed")}>
              <div className="flex flex-wrap items-baseline justify-between gap-x-4">
                <span className={cx(isLit ? "font-medium" : columns.length > 0 && "text-muted")}>
                  {QUESTIONS[step] ?? toWords(step)}
                </span>
                <span className="flex gap-4 text-meta">
                  {results.map(({ column, state }) => (
                    <span key={column.name} className={cx("whitespace-nowrap", RUNGS[state].tone)}>
                      {columns.length > 1 && <span className="text-faint">{column.name.toLowerCase()} </span>}
                      <span aria-hidden="true">{RUNGS[state].sign}</span> {RUNGS[state].words}
                    </span>
                  ))}
                </span>
              </div>
              {refusing.map(({ column }) => (
                <Refusal
                  key={column.name}
                  explanation={column.explanation}
                  label={columns.length > 1 ? column.name : null}
                  tool={tool}
                />
              ))}
              {step === "rules" &&
                columns
                  .filter((column) => column.explanation.shadow.length > 0)
                  .map((column) => (
                    <p key={column.name} className="text-meta text-muted">
                      {columns.length > 1 && `${column.name}: `}on trial, would have stopped it:{" "}
                      <RuleLinks rules={column.explanation.shadow} />
                    </p>
                  ))}
            </div>
          </li>
        );
      })}
    </ol>
  );
}

function RuleLinks({ rules }: { rules: readonly string[] }) {
  return (
    <>
      {rules.map((rule, index) => (
        <span key={rule}>
          {index > 0 && ", "}
          <Link to="/tools/rules" search={{ rule }} className="text-accent underline underline-offset-2">
            <Foreign text={rule} />
          </Link>
        </span>
      ))}
    </>
  );
}

/** Why the lit rung refused, and what would have to change. */
function Refusal({
  explanation,
  label,
  tool,
}: {
  explanation: Explanation;
  label: string | null;
  tool: string | undefined;
}) {
  const remedy = findRemedy(explanation.reason);
  return (
    <div className="grid gap-1 pt-1">
      <p>
        {label && <span className="text-muted">{label}: </span>}
        <Foreign text={explanation.detail} />{" "}
        <code className="font-mono text-code text-muted">{explanation.reason}</code>
      </p>
      {explanation.rules.length > 0 && (
        <p>
          By <RuleLinks rules={explanation.rules} />
        </p>
      )}
      {remedy && (
        <p>
          <span className="font-medium">What would have to change: </span>
          {remedy.words} <RemedyLink remedy={remedy} tool={tool} />
        </p>
      )}
      {explanation.advice && (
        <p className="text-meta text-muted">
          The agent is told: <Foreign text={explanation.advice} />
        </p>
      )}
    </div>
  );
}

function RemedyLink({
  remedy,
  tool,
}: {
  remedy: NonNullable<ReturnType<typeof findRemedy>>;
  tool: string | undefined;
}): ReactNode {
  if (!remedy.to || !remedy.link) return null;
  return (
    <Link
      to={remedy.to}
      {...(remedy.to === "/tools" && tool ? { search: { tool } } : {})}
      className="whitespace-nowrap text-accent underline underline-offset-2"
    >
      {remedy.link}
    </Link>
  );
}

function Hashes({ explanation }: { explanation: Explanation }) {
  return (
    <details className="text-meta text-muted">
      <summary className="cursor-default">Which policy answered</summary>
      <div className="pt-1">
        <Facts
          rows={[
            ["Policy", <Id key="policy" id={explanation.policy_hash} />],
            ["Catalogue", <Id key="catalogue" id={explanation.catalogue_hash} />],
          ]}
        />
      </div>
    </details>
  );
}
