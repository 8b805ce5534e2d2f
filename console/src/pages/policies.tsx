/** What can nobody relax? Mandatory policies, and where each comes from. */

import { useMutation, useQueries, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { effectivePoliciesQuery, groupsQuery, policiesQuery, toScopeQuery } from "../api/queries-admin";
import { describeLevel, type Level, toLevelFlags, toLevelKey } from "../logic/levels";
import { findKnown, KNOWN_POLICIES, type KnownKey, listKeys } from "../logic/registry";
import { quoteShell } from "../logic/text";
import { formatValue, parseValue, toArgument, toDraft } from "../logic/values";
import {
  Action,
  Age,
  Command,
  Empty,
  Facts,
  Foreign,
  Inline,
  Loaded,
  Page,
  ProblemNote,
  SectionHead,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { useKeys } from "../ui/keys";
import { LevelList } from "../ui/level-list";
import { ADMINS_ONLY, KeyName, ListHead, RowLines, RowLink } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { UndoBar } from "../ui/undo";
import { useLevels } from "../ui/use-levels";
import { ValueField } from "../ui/versioned-value";
import { ViewChoice } from "../ui/view-choice";

type EffectivePolicy = Schema["EffectivePolicyView"];

/** Policies belong to the installation, groups and projects; every group can be chosen, the widest level comes first. */
function usePolicyLevels(): Level[] {
  const search = useSearch({ from: "/settings/policies" });
  const levels = useLevels(search).filter((level) => level.type === "project" || level.type === "system");
  const groups = useQuery(groupsQuery);
  return [
    ...levels.filter((level) => level.type === "system"),
    ...(groups.data?.items ?? []).map((group): Level => ({ type: "group", id: group.id, name: group.name })),
    ...levels.filter((level) => level.type === "project"),
  ];
}

/** A demand reads better in words. */
const formatPolicy = (value: unknown): string =>
  value === true ? "demanded" : Array.isArray(value) && value.length === 0 ? "nothing is allowed" : formatValue(value);

export function PoliciesPage() {
  const search = useSearch({ from: "/settings/policies" });
  const levels = usePolicyLevels();
  const project = levels.find((level) => level.type === "project");
  const flags = search.task ? ["--task", search.task] : project ? ["--project", project.name] : [];
  const query = search.task ? `?task_id=${search.task}` : search.project ? `?project_id=${search.project}` : "";
  usePageCommand(quoteShell(["cynork", "policy", "explain", ...flags]), `/v1/effective-policies${query}`);
  const effective = useQuery(effectivePoliciesQuery(search));
  return (
    <Page wide>
      <SettingsNav />
      <ListHead
        isChosen={search.key !== undefined}
        title="Policies"
        lead="Demands that nobody can relax: those of all levels hold together, and the strictest counts."
      />
      <Loaded query={effective} lines={8}>
        {(data) => <PoliciesContent items={data.items} levels={levels} />}
      </Loaded>
    </Page>
  );
}

function PoliciesContent({ items, levels }: { items: EffectivePolicy[]; levels: Level[] }) {
  const { key, q = "", project, task } = useSearch({ from: "/settings/policies" });
  const navigate = useNavigate({ from: "/settings/policies" });
  const effective = new Map(items.map((item) => [item.key, item]));
  const keys = listKeys(KNOWN_POLICIES, effective.keys(), q);
  const close = () => void navigate({ search: (previous) => ({ ...previous, key: undefined }) });
  useRowKeys(
    keys,
    key,
    (next) => void navigate({ search: (previous) => ({ ...previous, key: next }), replace: true }),
    close,
  );
  useKeys({ "/": () => document.querySelector<HTMLElement>("#filter input")?.focus() });
  return (
    <Split
      back="Policies"
      onClose={close}
      list={
        <div className="grid grid-cols-1 gap-3">
          <ViewChoice
            project={project}
            task={task}
            words={q}
            onProject={(value) =>
              void navigate({ search: (previous) => ({ ...previous, project: value, level: undefined }) })
            }
            onWords={(words) => void navigate({ search: (previous) => ({ ...previous, q: words }), replace: true })}
          />
          {keys.length === 0 ? (
            <Empty title="No policy is like this." />
          ) : (
            <ul aria-label="Policies" className="border-line border-t">
              {keys.map((name) => {
                const holds = effective.get(name);
                return (
                  <RowLink key={name} parameter="key" id={name} isChosen={name === key}>
                    <RowLines
                      name={<KeyName name={name} />}
                      end={
                        holds ? (
                          <strong className="font-medium text-text">
                            <Foreign text={formatPolicy(holds.value)} />
                          </strong>
                        ) : (
                          "not demanded"
                        )
                      }
                      below={<Inline text={findKnown(KNOWN_POLICIES, name)?.meaning ?? holds?.effect ?? ""} />}
                    />
                  </RowLink>
                );
              })}
            </ul>
          )}
        </div>
      }
      detail={key ? <PolicyDetail key={key} name={key} holds={effective.get(key) ?? null} levels={levels} /> : null}
    />
  );
}

function PolicyDetail({ name, holds, levels }: { name: string; holds: EffectivePolicy | null; levels: Level[] }) {
  const search = useSearch({ from: "/settings/policies" });
  const me = useQuery(meQuery);
  const known = findKnown(KNOWN_POLICIES, name);
  const values = useQueries({
    queries: levels.map((level) => policiesQuery(level)),
    combine: (results) => results.map((result) => result.data?.items.find((item) => item.key === name) ?? null),
  });
  const chosen =
    levels.find((level) => toLevelKey(level) === search.level) ??
    levels.find((level) => level.type === "project") ??
    levels[0];
  const index = chosen ? levels.indexOf(chosen) : -1;
  const isAdmin = me.data?.installation_role === "admin";
  return (
    <article className="grid grid-cols-1 gap-4">
      <h2 className="text-lead">
        <KeyName name={name} />
      </h2>
      <Facts
        rows={[
          ["Effect", <Inline key="effect" text={known?.meaning ?? holds?.effect ?? ""} />],
          [
            "Holds",
            holds ? (
              <code key="holds" className="font-mono text-code break-words">
                <Foreign text={formatPolicy(holds.value)} />
              </code>
            ) : (
              "nothing is demanded"
            ),
          ],
          known && ["Takes", <Inline key="takes" text={known.takes} />],
        ]}
      />
      <section className="grid grid-cols-1">
        <SectionHead aside="All of them hold together">Who said what</SectionHead>
        <LevelList
          chosen={chosen ? toLevelKey(chosen) : ""}
          rows={levels.map((level, at) => {
            const value = values[at] ?? null;
            return {
              level,
              value: value ? formatPolicy(value.value) : null,
              note: value && (
                <>
                  <Foreign text={value.set_by_handle} /> · <Age at={value.set_at} ago />
                </>
              ),
              holds:
                holds?.sources.some(
                  (source) => source.scope_type === level.type && (source.scope_id ?? null) === level.id,
                ) ?? false,
            };
          })}
        />
      </section>
      {chosen && known && (
        <PolicyForm
          key={toLevelKey(chosen) + chosen.id}
          known={known}
          level={chosen}
          current={values[index] ?? null}
          reason={isAdmin || chosen.type === "project" ? null : ADMINS_ONLY}
        />
      )}
    </article>
  );
}

function PolicyForm({
  known,
  level,
  current,
  reason,
}: {
  known: KnownKey;
  level: Level;
  current: Schema["PolicyView"] | null;
  reason: string | null;
}) {
  const client = useQueryClient();
  const [draft, setDraft] = useState<string | null>(null);
  const [done, setDone] = useState<{ words: string; before: Schema["PolicyView"] | null } | null>(null);
  const params = { path: { key: known.key }, query: toScopeQuery(level) };
  const renew = () => {
    for (const queryKey of [["policies"], ["preferences"]]) void client.invalidateQueries({ queryKey });
  };
  const set = (value: unknown) => unwrap(api.PUT("/v1/policies/{key}", { params, body: { value } }));
  const remove = () => unwrap(api.DELETE("/v1/policies/{key}", { params }));
  const change = useMutation({
    mutationFn: async (value: { value: unknown } | null) => {
      if (value === null) await remove();
      else await set(value.value);
      return current;
    },
    onSuccess: (before, value) => {
      setDraft(null);
      setDone({ words: value === null ? "The policy is deleted." : "The policy holds now.", before });
    },
    onSettled: renew,
  });
  const undo = useMutation({
    mutationFn: async (before: Schema["PolicyView"] | null) => {
      if (before === null) await remove();
      else await set(before.value);
    },
    onSuccess: () => setDone(null),
    onSettled: renew,
  });
  const text = draft ?? toDraft(known.kind, current?.value);
  const parsed = parseValue(known.kind, text);
  const isDemand = known.kind.type === "demand";
  const pending = change.isPending || undo.isPending;
  const blocked =
    reason ??
    (pending
      ? "It is being sent"
      : isDemand && current
        ? "It is demanded already"
        : !isDemand && draft === null && current
          ? "Nothing is changed yet"
          : "error" in parsed
            ? parsed.error
            : null);
  const problem = change.error ?? undo.error;
  return (
    <section className="grid grid-cols-1 gap-3">
      <h3>
        <Foreign text={describeLevel(level)} />
      </h3>
      <Form
        aria-label={`Policy ${known.key}, ${describeLevel(level)}`}
        className="grid max-w-[560px] gap-3"
        onSubmit={(event) => {
          event.preventDefault();
          if (!blocked && "value" in parsed) change.mutate(parsed);
        }}
      >
        {!isDemand && (
          <ValueField
            kind={known.kind}
            label="Allowed"
            text={text}
            onChange={setDraft}
            error={"error" in parsed && draft !== null ? parsed.error : null}
            placeholder=""
          />
        )}
        {!isDemand && text.trim() === "" && (
          <p className="border-warn border-l-2 py-1 pl-3">
            <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
              !
            </span>
            An empty list allows nothing at all.
          </p>
        )}
        {problem ? <ProblemNote error={problem} /> : null}
        <div className="flex flex-wrap gap-2">
          <Action type="submit" tone="primary" reason={blocked}>
            {isDemand ? "Demand it" : "Set policy"}
          </Action>
          {draft !== null && (
            <Action tone="quiet" onPress={() => setDraft(null)}>
              Cancel
            </Action>
          )}
          {current && (
            <Action onPress={() => change.mutate(null)} reason={reason ?? (pending ? "It is being sent" : null)}>
              Delete policy
            </Action>
          )}
        </div>
      </Form>
      <details className="max-w-[560px]">
        <summary className="cursor-default text-muted">By command</summary>
        <div className="pt-2">
          <Command
            line={quoteShell([
              "cynork",
              "policy",
              "set",
              known.key,
              isDemand ? "true" : toArgument("value" in parsed ? parsed.value : []),
              ...(level.type === "system" ? [] : toLevelFlags(level)),
            ])}
          />
        </div>
      </details>
      {done && (
        <UndoBar
          onUndo={() => undo.mutate(done.before)}
          onClose={() => setDone(null)}
          busy={pending ? "It is being sent" : null}
        >
          {done.words}
        </UndoBar>
      )}
    </section>
  );
}
