/** How is work planned, checked and delivered, and who said so? Preferences of every level. */

import { useQueries, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import {
  effectivePreferencesQuery,
  preferenceHistoryQuery,
  preferenceQuery,
  preferencesQuery,
  type Scope,
  toScopeQuery,
} from "../api/queries-admin";
import { describeLevel, type Level, toLevelFlags, toLevelKey } from "../logic/levels";
import { findKnown, findPlaceholder, formatShort, KNOWN_PREFERENCES, listKeys, PLACEHOLDERS } from "../logic/registry";
import { quoteShell } from "../logic/text";
import { formatValue } from "../logic/values";
import { Action, Age, Command, Empty, Facts, Foreign, Inline, Loaded, Page, SectionHead } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { LevelList } from "../ui/level-list";
import { Person } from "../ui/person";
import { ADMINS_ONLY, KeyName, ListHead, RowLines, RowLink } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { useLevels } from "../ui/use-levels";
import { VersionedValue } from "../ui/versioned-value";
import { ViewChoice } from "../ui/view-choice";

type Effective = Schema["EffectiveView"];

const isSameScope = (source: Schema["SourceView"], level: Level) =>
  source.scope_type === level.type && (source.scope_id ?? null) === level.id;

export function PreferencesPage() {
  const search = useSearch({ from: "/settings/preferences" });
  const levels = useLevels(search);
  const project = levels.find((level) => level.type === "project");
  const flags = search.task ? ["--task", search.task] : project ? ["--project", project.name] : [];
  const query = search.task ? `?task_id=${search.task}` : search.project ? `?project_id=${search.project}` : "";
  usePageCommand(quoteShell(["cynork", "prefs", "effective", ...flags]), `/v1/effective-preferences${query}`);
  const effective = useQuery(effectivePreferencesQuery(search));
  return (
    <Page wide>
      <SettingsNav />
      <ListHead
        isChosen={search.key !== undefined}
        title="Preferences"
        lead="How work is planned, checked and delivered. The most specific level wins: task, project, person, group, installation."
      />
      <Loaded query={effective} lines={8}>
        {(data) => <PreferencesContent effective={data} levels={levels} />}
      </Loaded>
    </Page>
  );
}

function PreferencesContent({ effective, levels }: { effective: Effective; levels: Level[] }) {
  const { key, q = "", project, task } = useSearch({ from: "/settings/preferences" });
  const navigate = useNavigate({ from: "/settings/preferences" });
  const stored = useQueries({
    queries: levels.map((level) => preferencesQuery(level)),
    combine: (results) => results.flatMap((result) => result.data?.items.map((item) => item.key) ?? []),
  });
  const keys = listKeys(KNOWN_PREFERENCES, [...Object.keys(effective.effective), ...stored], q);
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
      back="Preferences"
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
            <Empty title="No preference is like this." />
          ) : (
            <ul aria-label="Preferences" className="border-line border-t">
              {keys.map((name) => (
                <RowLink key={name} parameter="key" id={name} isChosen={name === key}>
                  <Row name={name} effective={effective} levels={levels} />
                </RowLink>
              ))}
            </ul>
          )}
        </div>
      }
      detail={
        key ? (
          findPlaceholder(key) ? (
            <Placeholder key={key} name={key} />
          ) : (
            <PreferenceDetail key={key} name={key} effective={effective} levels={levels} />
          )
        ) : null
      }
    />
  );
}

function describeSource(source: Schema["SourceView"], levels: readonly Level[]): string {
  const level = levels.find((it) => isSameScope(source, it));
  const words = level ? describeLevel(level) : describeLevel({ type: source.scope_type, name: "" });
  return source.policy ? `policy of ${words.toLowerCase()}` : words.toLowerCase();
}

function Row({ name, effective, levels }: { name: string; effective: Effective; levels: Level[] }) {
  const known = findKnown(KNOWN_PREFERENCES, name);
  const source = effective.sources[name];
  return (
    <RowLines
      name={<KeyName name={name} />}
      end={
        source ? (
          <>
            <strong className="font-medium text-text">
              <Foreign text={formatShort(known, formatValue(effective.effective[name]))} />
            </strong>{" "}
            <Foreign text={describeSource(source, levels)} />
          </>
        ) : findPlaceholder(name) ? null : (
          `${formatShort(known, known?.fallback ?? "")} (default)`
        )
      }
      below={known && <Inline text={known.meaning} />}
    />
  );
}

/** A key with a part that a person chooses. */
function Placeholder({ name }: { name: string }) {
  const navigate = useNavigate({ from: "/settings/preferences" });
  const [text, setText] = useState("");
  const known = findKnown(KNOWN_PREFERENCES, name);
  const placeholder = findPlaceholder(name) ?? "";
  const chosen = text.trim();
  const reason = chosen === "" ? "Write a name first" : null;
  return (
    <article className="grid grid-cols-1 gap-4">
      <h2 className="text-lead">
        <KeyName name={name} />
      </h2>
      {known && (
        <p className="max-w-[560px]">
          <Inline text={known.meaning} />
        </p>
      )}
      <Form
        className="grid max-w-[560px] gap-3"
        onSubmit={(event) => {
          event.preventDefault();
          if (!reason) {
            void navigate({ search: (previous) => ({ ...previous, key: name.replace(placeholder, chosen) }) });
          }
        }}
      >
        <Field
          label={`In place of ${placeholder}`}
          value={text}
          onChange={setText}
          mono
          description={<Inline text={`It is ${PLACEHOLDERS.get(placeholder) ?? "any name"}.`} />}
        />
        <div>
          <Action type="submit" tone="primary" reason={reason}>
            Open preference
          </Action>
        </div>
      </Form>
    </article>
  );
}

function PreferenceDetail({ name, effective, levels }: { name: string; effective: Effective; levels: Level[] }) {
  const search = useSearch({ from: "/settings/preferences" });
  const me = useQuery(meQuery);
  const known = findKnown(KNOWN_PREFERENCES, name);
  const values = useQueries({
    queries: levels.map((level) => preferencesQuery(level)),
    combine: (results) => results.map((result) => result.data?.items.find((item) => item.key === name) ?? null),
  });
  const source = effective.sources[name];
  const invalid = effective.invalid.filter((entry) => entry.key === name);
  const isOther = search.user !== undefined && search.user !== me.data?.user.id;
  const holding = source && !source.policy && !isOther ? levels.find((level) => isSameScope(source, level)) : undefined;
  const fallbackLevel = levels.find((level) => level.type === "project") ?? levels.find((it) => it.type === "user");
  const chosen =
    levels.find((level) => toLevelKey(level) === search.level) ?? holding ?? fallbackLevel ?? levels.at(-1);
  const isAdmin = me.data?.installation_role === "admin";
  return (
    <article className="grid grid-cols-1 gap-4">
      <h2 className="text-lead">
        <KeyName name={name} />
      </h2>
      {known ? (
        <p className="max-w-[560px]">
          <Inline text={known.meaning} />
        </p>
      ) : (
        <p className="border-warn border-l-2 pl-3">Nothing reads this key.</p>
      )}
      <Facts
        rows={[
          !isOther && [
            "Holds",
            source ? (
              <span key="holds">
                <code className="font-mono text-code break-words">
                  <Foreign text={formatValue(effective.effective[name])} />
                </code>{" "}
                <span className="text-muted">
                  said by <Foreign text={describeSource(source, levels)} />
                </span>
                {source.policy && (
                  <Link
                    to="/settings/policies"
                    search={{ key: name, project: search.project }}
                    className="ml-2 text-accent underline"
                  >
                    Show policy
                  </Link>
                )}
              </span>
            ) : (
              <span key="holds">
                <Inline text={known?.fallback ?? "nothing"} /> <span className="text-muted">(default)</span>
              </span>
            ),
          ],
          known && ["Takes", <Inline key="takes" text={known.takes} />],
          known?.bounds ? ["Bounds", <Inline key="bounds" text={known.bounds} />] : null,
          known && ["Default", <Inline key="default" text={known.fallback} />],
        ]}
      />
      <section className="grid grid-cols-1">
        <SectionHead aside="The most specific first">Who said what</SectionHead>
        <LevelList
          chosen={chosen ? toLevelKey(chosen) : ""}
          rows={levels.map((level, index) => {
            const value = values[index] ?? null;
            const passedOver = invalid.some((entry) => isSameScope(entry.source, level));
            return {
              level,
              value: value ? (value.value === null ? "hides wider levels" : formatValue(value.value)) : null,
              note: value && (
                <>
                  {passedOver && "passed over: the value does not fit · "}
                  <Person id={value.updated_by} /> · <Age at={value.updated_at} ago />
                </>
              ),
              holds: level === holding,
            };
          })}
        />
      </section>
      {chosen && (
        <section className="grid grid-cols-1 gap-3">
          <h3>
            <Foreign text={describeLevel(chosen)} />
          </h3>
          <LevelValue
            key={toLevelKey(chosen) + chosen.id}
            name={name}
            level={chosen}
            isSet={Boolean(values[levels.indexOf(chosen)])}
            reason={
              isAdmin || chosen.type === "project" || chosen.type === "task" || chosen.id === me.data?.user.id
                ? null
                : ADMINS_ONLY
            }
          />
        </section>
      )}
    </article>
  );
}

function LevelValue({
  name,
  level,
  isSet,
  reason,
}: {
  name: string;
  level: Level;
  isSet: boolean;
  reason: string | null;
}) {
  const known = findKnown(KNOWN_PREFERENCES, name);
  const scope: Scope = level;
  const path = { key: name };
  return (
    <>
      <VersionedValue
        name={`${name}, ${describeLevel(level)}`}
        kind={known?.kind ?? { type: "json" }}
        fallback={known?.fallback.replaceAll("`", "") ?? ""}
        reason={reason}
        canHide={level.type !== "system"}
        removeLabel="Say nothing here"
        store={{
          read: preferenceQuery(name, scope, isSet),
          history: preferenceHistoryQuery(name, scope),
          write: (value, expected) =>
            unwrap(
              api.PUT("/v1/preferences/{key}", {
                params: { path, query: toScopeQuery(scope) },
                body: { value, expected_version: expected },
              }),
            ),
          remove: (expected) =>
            unwrap(
              api.DELETE("/v1/preferences/{key}", {
                params: { path, query: { ...toScopeQuery(scope), expected_version: expected } },
              }),
            ),
          area: "preferences",
        }}
      />
      <details className="max-w-[560px]">
        <summary className="cursor-default text-muted">By command</summary>
        <div className="grid gap-1 pt-2">
          <Command line={quoteShell(["cynork", "prefs", "get", name, ...toLevelFlags(level)])} />
          <Command line={`${quoteShell(["cynork", "prefs", "set", name])} VALUE ${quoteShell(toLevelFlags(level))}`} />
        </div>
      </details>
    </>
  );
}
