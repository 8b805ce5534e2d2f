/** One rule: its text, what it would have done, and what it was before. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { api, type Schema, unwrap } from "../api/client";
import { handlesQuery, ruleCheckQuery, ruleHistoryQuery, vocabularyQuery } from "../api/queries-policy";
import type { Backtest, RuleDraft, RuleVersion } from "../api/types";
import { describeDecision } from "../logic/explain";
import { formatCount, formatTime } from "../logic/format";
import {
  describeBacktest,
  describeChange,
  findNameProblem,
  MODES,
  type RuleMode,
  STARTERS,
  toMode,
} from "../logic/rules";
import { Action, Age, cx, Facts, Foreign, Loaded, ProblemNote, SectionHead } from "../ui/basic";
import { Choice, Field } from "../ui/fields";
import { Layer } from "../ui/layer";
import { RuleEditor } from "../ui/rule-editor";

type Rule = Schema["RuleView"];
/** What a rule does when it is in force. */
type Effect = Exclude<RuleMode, "shadow">;

interface Draft {
  name: string;
  text: string;
  effect: Effect;
}

const CHECK_DELAY_MS = 300;

const EFFECTS: readonly { value: Effect; name: string }[] = [
  { value: "refuse", name: "Refuse the call" },
  { value: "approve", name: "Ask a person" },
];

const PERIODS = [
  { value: "1", name: "Last day" },
  { value: "7", name: "Last 7 days" },
  { value: "30", name: "Last 30 days" },
] as const;

function toDraft(rule: Rule | null, name: string, drafted: RuleDraft | undefined): Draft {
  return {
    name: rule?.name ?? drafted?.name ?? name,
    text: rule?.text ?? drafted?.rule.text ?? "",
    effect: rule?.mode === "approve" || drafted?.replaces ? "approve" : "refuse",
  };
}

/** What somebody typed, kept in the tab until it is saved. */
function useDraft(key: string, initial: Draft) {
  const [draft, setDraft] = useState<Draft>(() => {
    try {
      return { ...initial, ...(JSON.parse(sessionStorage.getItem(key) ?? "{}") as Partial<Draft>) };
    } catch {
      return initial;
    }
  });
  const isChanged = JSON.stringify(draft) !== JSON.stringify(initial);
  useEffect(() => {
    try {
      if (isChanged) sessionStorage.setItem(key, JSON.stringify(draft));
      else sessionStorage.removeItem(key);
    } catch {
      // A browser that stores nothing loses the draft when the tab is closed.
    }
  }, [key, draft, isChanged]);
  return [draft, setDraft, isChanged] as const;
}

/** The value as it was when it last rested. */
function useRested<T>(value: T): T {
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), CHECK_DELAY_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return rested;
}

export function RuleDetail({
  rule,
  rules,
  mayChange,
  draft: drafted,
  name: wanted = "",
}: {
  rule: Rule | null;
  rules: Rule[];
  mayChange: boolean;
  draft?: RuleDraft;
  name?: string;
}) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/tools/rules" });
  const initial = toDraft(rule, wanted, drafted);
  const [draft, setDraft, isChanged] = useDraft(
    `cynode.rule.${rule?.name ?? drafted?.name ?? `new ${wanted}`}`,
    initial,
  );
  const overtaken = useStoredVersion(rule, draft, setDraft);
  const [days, setDays] = useState<(typeof PERIODS)[number]["value"]>("7");
  const [deletes, setDeletes] = useState(false);
  const vocabulary = useQuery(vocabularyQuery);
  const text = useRested(draft.text);
  const check = useQuery({ ...ruleCheckQuery(rule?.name ?? "", draft.effect, text), enabled: text.trim() !== "" });
  const subject = JSON.stringify([draft.text, draft.effect]);
  const test = useMutation({
    mutationFn: async () => {
      const name = drafted?.replaces ?? rule?.name;
      const body = { ...(name ? { name } : {}), mode: draft.effect, text: draft.text, days: Number(days) };
      return { subject, days: Number(days), result: await unwrap(api.POST("/v1/rules/backtest", { body })) };
    },
  });
  const save = useMutation({
    // A draft that narrows a rule takes its place when it is put into force; beside it, it would change nothing.
    mutationFn: (mode: RuleMode) => {
      const name = mode === "shadow" ? draft.name : (drafted?.replaces ?? draft.name);
      return unwrap(api.PUT("/v1/rules/{name}", { params: { path: { name } }, body: { mode, text: draft.text } }));
    },
    onSuccess: async (saved) => {
      // What was typed is stored now: the next new rule begins empty.
      setDraft(rule ? toDraft(saved, "", undefined) : initial);
      await client.invalidateQueries({ queryKey: ["rules"] });
      void navigate({ search: { rule: saved.name } });
    },
  });
  const remove = useMutation({
    mutationFn: () => unwrap(api.DELETE("/v1/rules/{name}", { params: { path: { name: rule?.name ?? "" } } })),
    onSuccess: async () => {
      setDeletes(false);
      await client.invalidateQueries({ queryKey: ["rules"] });
      void navigate({ search: {} });
    },
  });
  const nameProblem = rule
    ? null
    : findNameProblem(
        draft.name,
        rules.map((it) => it.name),
      );
  const isChecked = check.data !== undefined && !check.isPlaceholderData && text === draft.text;
  const errors = draft.text.trim() === "" ? [] : (check.data?.errors ?? []);
  const isTested = test.data?.subject === subject;
  const blocker = !mayChange
    ? "Only admins of the installation change rules"
    : save.isPending || remove.isPending
      ? "It is being sent"
      : draft.text.trim() === ""
        ? "Write the text of the rule"
        : (nameProblem ??
          (check.error
            ? null
            : !isChecked
              ? "The text is being checked"
              : check.data.valid
                ? null
                : "Mend the text first"));
  const isStored = (mode: RuleMode) => rule !== null && rule.text === draft.text && rule.mode === mode;
  const untested = isTested || test.error ? null : "Backtest this text first";
  return (
    <article className="grid grid-cols-1 gap-5">
      <Head rule={rule} drafted={drafted} />
      {overtaken && (
        <div role="status" className="grid gap-2 border-warn border-l-2 py-1 pl-3">
          <p>
            Somebody saved version {overtaken.version} while you were writing. Saving yours replaces it; what you wrote
            is still here.
          </p>
          <div>
            <Action onPress={() => setDraft(toDraft(rule, "", undefined))}>Take the stored text</Action>
          </div>
        </div>
      )}
      {!rule && (
        <Field
          label="Name"
          value={draft.name}
          onChange={(name) => setDraft({ ...draft, name })}
          description="It stands in records and refusals."
          placeholder="no-fetch"
          error={draft.name === "" ? null : nameProblem}
          mono
        />
      )}
      {!rule && draft.text === "" && (
        <div className="flex flex-wrap items-center gap-2">
          <span className="text-muted">Begin with</span>
          {STARTERS.map((starter) => (
            <Action key={starter.id} onPress={() => setDraft({ ...draft, text: starter.text })}>
              {starter.name}
            </Action>
          ))}
        </div>
      )}
      <div className="grid gap-2">
        <RuleEditor
          label="Text"
          value={draft.text}
          onChange={(value) => setDraft((before) => ({ ...before, text: value }))}
          errors={errors}
          checkedText={text}
          vocabulary={vocabulary.data}
          isReadOnly={!mayChange}
        />
        {check.error ? (
          <ProblemNote error={check.error} onRetry={() => void check.refetch()} />
        ) : (
          <CheckLine check={isChecked ? check.data : undefined} isEmpty={draft.text.trim() === ""} />
        )}
      </div>
      <div className="grid max-w-[420px] gap-1">
        <Choice
          label="When the rule applies"
          value={draft.effect}
          onChange={(effect) => setDraft({ ...draft, effect })}
          options={EFFECTS}
        />
      </div>
      <section className="grid gap-3">
        <SectionHead aside="against the recorded calls; nothing is changed">Backtest</SectionHead>
        <div className="flex flex-wrap items-center gap-2">
          <Choice label="Time" hideLabel value={days} onChange={setDays} options={PERIODS} />
          <Action
            onPress={() => test.mutate()}
            reason={
              test.isPending
                ? "It is being computed"
                : draft.text.trim() === ""
                  ? "Write the text of the rule"
                  : isChecked && !check.data.valid
                    ? "Mend the text first"
                    : null
            }
          >
            Backtest rule
          </Action>
          {test.isPending && (
            <span role="status" className="text-muted">
              Reading recorded calls
            </span>
          )}
        </div>
        {test.error && <ProblemNote error={test.error} />}
        {test.data && (
          <div className={cx("grid gap-3", !isTested && "opacity-60")}>
            {!isTested && <p className="text-warn">! This is about the text as it was before.</p>}
            <BacktestResult test={test.data.result} days={test.data.days} />
          </div>
        )}
      </section>
      {save.error && <ProblemNote error={save.error} />}
      <div className="sticky bottom-0 z-10 -mx-4 flex flex-wrap items-center gap-2 border-line border-t bg-bg px-4 py-3 small:mx-0 small:px-0">
        <Action
          tone="primary"
          onPress={() => save.mutate(draft.effect)}
          reason={blocker ?? (isStored(draft.effect) ? "It is in force as it stands" : untested)}
        >
          Put into force
        </Action>
        <Action
          onPress={() => save.mutate("shadow")}
          reason={blocker ?? (isStored("shadow") ? "It is stored as shadow as it stands" : null)}
        >
          Save as shadow
        </Action>
        {isChanged && (
          <Action tone="quiet" onPress={() => setDraft(initial)}>
            Discard changes
          </Action>
        )}
      </div>
      {(rule || wanted) && (
        <History
          name={rule?.name ?? wanted}
          current={rule}
          onDelete={rule ? () => setDeletes(true) : null}
          mayChange={mayChange}
          onTake={(version) =>
            setDraft((before) => ({
              ...before,
              text: version.text ?? "",
              effect: version.mode === "approve" ? "approve" : "refuse",
            }))
          }
        />
      )}
      {rule && (
        <Layer title={`Delete ${rule.name}?`} isOpen={deletes} onClose={() => setDeletes(false)}>
          <p>
            {toMode(rule.mode) === "shadow"
              ? "Nothing is let through by this: the rule only records. What it recorded stays in the audit log."
              : "Calls that this rule stops are let through within 100 ms, in every project."}
          </p>
          <p className="text-muted">Its text stays in its history, from which it can be written again.</p>
          {remove.error && <ProblemNote error={remove.error} />}
          <div className="flex gap-2">
            <Action tone="danger" onPress={() => remove.mutate()} reason={remove.isPending ? "It is being sent" : null}>
              Delete rule
            </Action>
            <Action tone="quiet" onPress={() => setDeletes(false)}>
              Keep rule
            </Action>
          </div>
        </Layer>
      )}
    </article>
  );
}

/** Follows what is stored while nothing was typed; returns the newer version when something was. */
function useStoredVersion(rule: Rule | null, draft: Draft, setDraft: (draft: Draft) => void): Rule | null {
  const base = useRef(rule);
  const [overtaken, setOvertaken] = useState<Rule | null>(null);
  useEffect(() => {
    const before = base.current;
    if (!rule || !before || rule.version === before.version) return;
    base.current = rule;
    if (draft.text === before.text || draft.text === rule.text) {
      setDraft(toDraft(rule, "", undefined));
      setOvertaken(null);
    } else setOvertaken(rule);
  }, [rule, draft.text, setDraft]);
  return overtaken && draft.text !== overtaken.text ? overtaken : null;
}

function Head({ rule, drafted }: { rule: Rule | null; drafted: RuleDraft | undefined }) {
  const handles = useQuery(handlesQuery);
  if (rule) {
    const mode = MODES[toMode(rule.mode)];
    const author = rule.updated_by ? (handles.data?.get(rule.updated_by) ?? "somebody") : "the installation";
    return (
      <header className="flex flex-wrap items-baseline justify-between gap-x-4 gap-y-1">
        <h2 className="font-mono text-lead">
          <Foreign text={rule.name} />
        </h2>
        <span className="text-meta text-muted">
          <span className={mode.tone}>
            <span aria-hidden="true">{mode.sign}</span> {mode.words}
          </span>{" "}
          · version {rule.version} by <Foreign text={author} /> · <Age at={rule.updated_at} ago />
        </span>
      </header>
    );
  }
  return (
    <header className="grid gap-2">
      <h2 className="text-lead">{drafted ? "New rule, drafted from a decision" : "New rule"}</h2>
      {drafted && (
        <ul className="grid gap-1 text-muted">
          {!drafted.arguments_included && (
            <li>The arguments of the call are erased already, so the draft does not look at them.</li>
          )}
          {drafted.omitted_arguments.length > 0 && (
            <li>
              Not looked at: <Foreign text={drafted.omitted_arguments.join(", ")} />
            </li>
          )}
          {drafted.replaces && (
            <li>
              Put into force, it replaces the rule <Foreign text={drafted.replaces} />. As shadow it stands beside it
              and records what would still be asked.
            </li>
          )}
          {drafted.notes.map((note) => (
            <li key={note}>
              <Foreign text={note} />
            </li>
          ))}
        </ul>
      )}
    </header>
  );
}

function CheckLine({
  check,
  isEmpty,
}: {
  check: { valid: boolean; reads_arguments: boolean; tools: string[]; roles: string[] } | undefined;
  isEmpty: boolean;
}) {
  if (isEmpty || (check && !check.valid)) return null;
  if (!check) {
    return (
      <p role="status" className="text-meta text-muted">
        Checking
      </p>
    );
  }
  const few = (names: string[], many: string) => (names.length <= 6 ? names.join(", ") : `${names.length} ${many}`);
  return (
    <p role="status" className="text-meta">
      <span className="text-ok">
        <span aria-hidden="true">✓</span> It fits the tools.
      </span>{" "}
      <span className="text-muted">
        It concerns <Foreign text={few(check.tools, "tools") || "no tool that exists now"} />
        {check.roles.length > 0 && (
          <>
            {" "}
            for <Foreign text={few(check.roles, "roles")} />
          </>
        )}
        {check.reads_arguments && ", and looks at arguments"}.
      </span>
    </p>
  );
}

function BacktestResult({ test, days }: { test: Backtest; days: number }) {
  return (
    <div className="grid gap-4">
      <p role="status" className="font-medium text-lead">
        {describeBacktest(test, days)}
      </p>
      {!test.complete && (
        <p className="text-warn">
          ! There are more calls than are looked at: this goes back to {formatTime(test.since)}.
        </p>
      )}
      <Facts
        rows={[
          ...test.decisions.map(
            (change) =>
              [
                formatCount(change.calls, "call"),
                <span key={`${change.then}-${change.now}`}>{describeChange(change.then, change.now)}</span>,
              ] as const,
          ),
          test.released > 0 && [
            "Released",
            `${formatCount(test.released, "call")} that only the stored text of this rule stopped`,
          ],
          test.not_reached > 0 && [
            "Not asked",
            `${formatCount(test.not_reached, "call")} were refused before the rules`,
          ],
          ...test.undecidable_reasons.map(
            (reason) =>
              [
                "Not decidable",
                <span key={reason.reason}>
                  {formatCount(reason.calls, "call")}: <Foreign text={reason.detail} />
                </span>,
              ] as const,
          ),
        ]}
      />
      {test.by_tool.length > 0 && (
        <div className="overflow-x-auto">
          <table className="w-full max-w-[560px] text-meta">
            <caption className="sr-only">Calls by tool</caption>
            <thead>
              <tr className="border-line border-b text-left text-muted">
                <th className="py-1 pr-3 font-medium">Tool</th>
                <th className="py-1 pr-3 text-right font-medium">Hit</th>
                <th className="py-1 pr-3 text-right font-medium">Not decidable</th>
                <th className="py-1 text-right font-medium">Calls</th>
              </tr>
            </thead>
            <tbody>
              {test.by_tool.slice(0, 12).map((row) => (
                <tr key={row.tool} className="border-line border-b">
                  <td className="py-1 pr-3 font-mono">
                    <Foreign text={row.tool} />
                  </td>
                  <td className="py-1 pr-3 text-right">{row.hits.toLocaleString("en-US")}</td>
                  <td className="py-1 pr-3 text-right">{row.undecidable.toLocaleString("en-US")}</td>
                  <td className="py-1 text-right">{row.calls.toLocaleString("en-US")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {test.samples.length > 0 && (
        <details>
          <summary className="cursor-default text-muted">{formatCount(test.samples.length, "sample")}</summary>
          <ul aria-label="Samples" className="mt-1 border-line border-t">
            {test.samples.map((sample) => (
              <li key={sample.call_id}>
                <Link
                  to="/tools/explain"
                  search={{ call: sample.call_id }}
                  className="flex flex-wrap items-baseline gap-x-3 gap-y-0.5 border-line border-b px-1 py-1.5 -outline-offset-2 hover:bg-surface"
                >
                  <span className="font-mono text-code">
                    <Foreign text={sample.tool} />
                  </span>
                  {sample.agent_role && <span className="text-muted">{sample.agent_role}</span>}
                  {(sample.calls ?? 1) > 1 && <span className="text-muted">one of {sample.calls} alike</span>}
                  <span className={describeDecision(sample.now ?? "").tone}>
                    {sample.now ? describeChange(sample.then, sample.now) : "not decidable"}
                  </span>
                  <Age at={sample.at} ago className="ml-auto text-meta text-faint" />
                </Link>
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function History({
  name,
  current,
  onDelete,
  mayChange,
  onTake,
}: {
  name: string;
  current: Rule | null;
  onDelete: (() => void) | null;
  mayChange: boolean;
  onTake: (version: RuleVersion) => void;
}) {
  const history = useQuery(ruleHistoryQuery(name));
  const handles = useQuery(handlesQuery);
  return (
    <section className="grid gap-3">
      <SectionHead>History</SectionHead>
      <Loaded query={history} lines={2}>
        {(data) => (
          <ol aria-label="Versions, newest first" className="-mt-3">
            {data.items.map((version) => {
              const mode = MODES[toMode(version.mode ?? "")];
              return (
                <li key={`${version.version}-${version.changed_at}`} className="border-line border-b py-2">
                  <details>
                    <summary className="flex cursor-default flex-wrap items-baseline gap-x-3">
                      <span className="font-medium">Version {version.version}</span>
                      <span className={version.deleted ? "text-muted" : mode.tone}>
                        {version.deleted ? "– Deleted" : `${mode.sign} ${mode.words}`}
                      </span>
                      <span className="text-meta text-muted">
                        by{" "}
                        <Foreign
                          text={
                            version.changed_by
                              ? (handles.data?.get(version.changed_by) ?? "somebody")
                              : "the installation"
                          }
                        />
                      </span>
                      <Age at={version.changed_at} ago className="ml-auto text-meta text-faint" />
                    </summary>
                    {version.text && (
                      <div className="grid justify-items-start gap-2 pt-2">
                        <pre className="w-full rounded-box border border-line bg-surface p-2.5 font-mono text-code whitespace-pre-wrap">
                          <Foreign text={version.text} />
                        </pre>
                        {version.text !== current?.text && (
                          <Action onPress={() => onTake(version)}>Take this text into the editor</Action>
                        )}
                      </div>
                    )}
                  </details>
                </li>
              );
            })}
          </ol>
        )}
      </Loaded>
      {onDelete && (
        <div>
          <Action
            tone="danger"
            onPress={onDelete}
            reason={mayChange ? null : "Only admins of the installation change rules"}
          >
            Delete rule…
          </Action>
        </div>
      )}
    </section>
  );
}
