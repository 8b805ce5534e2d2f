/** What holds for the whole installation? Each setting with its value, its default and its history. */

import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { settingHistoryQuery, settingQuery, settingsQuery } from "../api/queries-admin";
import { findKnown, formatShort, KNOWN_SETTINGS, listKeys } from "../logic/registry";
import { quoteShell } from "../logic/text";
import { formatValue, toArgument } from "../logic/values";
import { Age, Command, Empty, Facts, Foreign, Inline, Loaded, Page } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Person } from "../ui/person";
import { ADMINS_ONLY, KeyName, ListHead, RowLines, RowLink } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { VersionedValue } from "../ui/versioned-value";

export function SettingsPage() {
  const search = useSearch({ from: "/settings" });
  usePageCommand(
    search.key ? quoteShell(["cynork", "settings", "get", search.key]) : "cynork settings list",
    search.key ? `/v1/settings/${search.key}` : "/v1/settings",
  );
  const settings = useQuery(settingsQuery);
  return (
    <Page wide>
      <SettingsNav />
      <ListHead
        isChosen={search.key !== undefined}
        title="Settings"
        lead="What holds for the whole installation. A change takes effect at once; its history says who made it."
      />
      <Loaded query={settings} lines={8}>
        {(data) => <SettingsContent items={data.items} />}
      </Loaded>
    </Page>
  );
}

function SettingsContent({ items }: { items: Schema["ValueView"][] }) {
  const me = useQuery(meQuery);
  const { key, q = "" } = useSearch({ from: "/settings" });
  const navigate = useNavigate({ from: "/settings" });
  const values = new Map(items.map((item) => [item.key, item]));
  const keys = listKeys(KNOWN_SETTINGS, values.keys(), q);
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
      back="Settings"
      onClose={close}
      list={
        <div className="grid grid-cols-1 gap-3">
          <div id="filter" className="max-w-[420px]">
            <Field
              label="Filter"
              value={q}
              onChange={(text) =>
                void navigate({ search: (previous) => ({ ...previous, q: text || undefined }), replace: true })
              }
              placeholder="budget"
            />
          </div>
          {keys.length === 0 ? (
            <Empty title="No setting is like this." />
          ) : (
            <ul aria-label="Settings" className="border-line border-t">
              {keys.map((name) => {
                const value = values.get(name);
                const known = findKnown(KNOWN_SETTINGS, name);
                return (
                  <RowLink key={name} parameter="key" id={name} isChosen={name === key}>
                    <RowLines
                      name={<KeyName name={name} />}
                      end={
                        value ? (
                          <strong className="font-medium text-text">
                            <Foreign text={formatShort(known, formatValue(value.value), me.data?.currency)} />
                          </strong>
                        ) : (
                          `${formatShort(known, known?.fallback ?? "", me.data?.currency)} (default)`
                        )
                      }
                      below={known?.meaning}
                    />
                  </RowLink>
                );
              })}
            </ul>
          )}
        </div>
      }
      detail={key ? <SettingDetail key={key} name={key} value={values.get(key) ?? null} /> : null}
    />
  );
}

function SettingDetail({ name, value }: { name: string; value: Schema["ValueView"] | null }) {
  const me = useQuery(meQuery);
  const known = findKnown(KNOWN_SETTINGS, name);
  const path = { key: name };
  return (
    <article className="grid grid-cols-1 gap-4">
      <h2 className="text-lead">
        <KeyName name={name} />
      </h2>
      {known && <p className="max-w-[560px]">{known.meaning}</p>}
      <Facts
        rows={[
          [
            "Holds now",
            value ? (
              <span key="value">
                <code className="font-mono text-code break-words">
                  <Foreign text={formatValue(value.value)} />
                </code>
                <span className="block text-meta text-muted">
                  installation · <Person id={value.updated_by} /> · <Age at={value.updated_at} ago />
                </span>
              </span>
            ) : (
              `${known?.fallback ?? "nothing"} (default)`
            ),
          ],
          known && ["Takes", <Inline key="takes" text={known.takes} />],
          known && ["Default", known.fallback],
        ]}
      />
      <VersionedValue
        name={name}
        kind={known?.kind ?? { type: "json" }}
        fallback={known?.fallback ?? ""}
        reason={me.data?.installation_role === "admin" ? null : ADMINS_ONLY}
        removeLabel="Back to the default"
        store={{
          read: settingQuery(name, value !== null),
          history: settingHistoryQuery(name),
          write: (written, expected) =>
            unwrap(
              api.PUT("/v1/settings/{key}", { params: { path }, body: { value: written, expected_version: expected } }),
            ),
          remove: (expected) =>
            unwrap(api.DELETE("/v1/settings/{key}", { params: { path, query: { expected_version: expected } } })),
          area: "settings",
        }}
      />
      <details className="max-w-[560px]">
        <summary className="cursor-default text-muted">By command</summary>
        <div className="grid gap-1 pt-2">
          <Command
            line={quoteShell(["cynork", "settings", "set", name, toArgument(value?.value ?? known?.fallback)])}
          />
          <Command line={quoteShell(["cynork", "settings", "history", name])} />
        </div>
      </details>
    </article>
  );
}
