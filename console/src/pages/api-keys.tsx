/** Which programs act in my name? API keys. */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { meQuery, projectsQuery } from "../api/queries";
import { apiKeysQuery } from "../api/queries-admin";
import {
  API_SCOPES,
  type ApiKey,
  describeKey,
  describeLimits,
  type KeyLimits,
  LIFETIMES,
  toLimitRequest,
} from "../logic/api-keys";
import { formatDay, formatTime } from "../logic/format";
import {
  Action,
  Age,
  Command,
  cx,
  Empty,
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
import { Person } from "../ui/person";
import { ConfirmLayer, SecretOnce } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Tick } from "../ui/switch";

export function ApiKeysPage() {
  const { user, create } = useSearch({ from: "/settings/keys" });
  const navigate = useNavigate({ from: "/settings/keys" });
  const me = useQuery(meQuery);
  const isOther = user !== undefined && user !== me.data?.user.id;
  usePageCommand(
    isOther ? `cynork api GET '/v1/api-keys?user_id=${user}'` : "cynork api-key list",
    isOther ? `/v1/api-keys?user_id=${user}` : "/v1/api-keys",
  );
  const keys = useInfiniteQuery(apiKeysQuery(isOther ? user : undefined));
  const items = keys.data?.pages.flatMap((page) => page.items) ?? [];
  const now = useNow();
  const [cursor, setCursor] = useState(-1);
  const [revoking, setRevoking] = useState<ApiKey | null>(null);
  const setCreate = (isOpen: boolean) =>
    void navigate({ search: (previous) => ({ ...previous, create: isOpen || undefined }) });
  const chosen = items[cursor];
  useKeys({
    j: () => setCursor((index) => Math.min(index + 1, items.length - 1)),
    k: () => setCursor((index) => Math.max(index - 1, 0)),
    Enter: chosen && describeKey(chosen, now).works ? () => setRevoking(chosen) : undefined,
    Escape: create ? () => setCreate(false) : undefined,
  });
  return (
    <Page wide>
      <SettingsNav />
      <PageHead
        title="API keys"
        lead={
          isOther ? (
            <>
              Of <Person id={user} />.{" "}
              <Link to="/settings/keys" className="text-accent underline">
                Show mine
              </Link>
            </>
          ) : (
            "A program with a key acts in your name, within what the key opens."
          )
        }
      >
        {!create && !isOther && items.length > 0 && (
          <Action tone="primary" onPress={() => setCreate(true)}>
            Create API key
          </Action>
        )}
      </PageHead>
      <div className="grid grid-cols-1 gap-5">
        {create && !isOther && <CreateForm onClose={() => setCreate(false)} />}
        <Loaded query={keys} lines={6}>
          {() =>
            items.length === 0 ? (
              isOther ? (
                <Empty title="This person has no API key." />
              ) : (
                !create && (
                  <Empty title="You have no API key.">
                    <p className="text-muted">A script or another program needs one to use the API in your name.</p>
                    <Command line="cynork api-key create ci --days 90 --scope tasks" />
                    <div>
                      <Action tone="primary" onPress={() => setCreate(true)}>
                        Create API key
                      </Action>
                    </div>
                  </Empty>
                )
              )
            ) : (
              <div>
                <ul aria-label="API keys" className="border-line border-t">
                  {items.map((key, index) => (
                    <Row
                      key={key.id}
                      apiKey={key}
                      now={now}
                      isAtCursor={index === cursor}
                      onRevoke={() => setRevoking(key)}
                    />
                  ))}
                </ul>
                {keys.hasNextPage && (
                  <div className="py-3">
                    <Action
                      onPress={() => void keys.fetchNextPage()}
                      reason={keys.isFetchingNextPage ? "They are being read" : null}
                    >
                      Show more keys
                    </Action>
                  </div>
                )}
              </div>
            )
          }
        </Loaded>
      </div>
      {revoking && <RevokeLayer apiKey={revoking} onClose={() => setRevoking(null)} />}
    </Page>
  );
}

function Row({
  apiKey,
  now,
  isAtCursor,
  onRevoke,
}: {
  apiKey: ApiKey;
  now: number;
  isAtCursor: boolean;
  onRevoke: () => void;
}) {
  const state = describeKey(apiKey, now);
  return (
    <li
      className={cx(
        "grid min-h-10 grid-cols-[100px_1fr_110px_250px_76px] items-center gap-x-4 gap-y-0.5 border-line border-b px-2 py-1 max-medium:grid-cols-[1fr_auto] max-medium:py-2",
        isAtCursor && "bg-select",
      )}
    >
      <span className="max-medium:justify-self-end">
        <Sign standing={state.standing} word={state.words} />
      </span>
      <span className="min-w-0 truncate font-medium max-medium:order-first">
        <Foreign text={apiKey.name} />
      </span>
      <span className="max-medium:hidden">
        <Id id={apiKey.id} />
      </span>
      <span className="text-meta text-muted">
        {describeLimits(apiKey)}. {apiKey.last_used_at ? "Used " : "Never used"}
        {apiKey.last_used_at && <Age at={apiKey.last_used_at} ago />}, created <Age at={apiKey.created_at} ago />
        {apiKey.revoked_at ? (
          <span title={formatTime(apiKey.revoked_at)}>, revoked {formatDay(apiKey.revoked_at)}</span>
        ) : apiKey.expires_at ? (
          <span title={formatTime(apiKey.expires_at)}>, until {formatDay(apiKey.expires_at)}</span>
        ) : (
          ", until it is revoked"
        )}
      </span>
      {state.works ? (
        <Action tone="quiet" className="-mr-3" onPress={onRevoke} aria-label={`Revoke ${apiKey.name}`}>
          Revoke…
        </Action>
      ) : (
        <span />
      )}
    </li>
  );
}

function RevokeLayer({ apiKey, onClose }: { apiKey: ApiKey; onClose: () => void }) {
  const client = useQueryClient();
  const revoke = useMutation({
    mutationFn: () => unwrap(api.DELETE("/v1/api-keys/{api_key}", { params: { path: { api_key: apiKey.id } } })),
    onSuccess: onClose,
    onSettled: () => void client.invalidateQueries({ queryKey: ["api-keys"] }),
  });
  return (
    <ConfirmLayer
      title="Revoke API key"
      action="Revoke key"
      keep="Keep key"
      pending={revoke.isPending}
      error={revoke.error}
      onConfirm={() => revoke.mutate()}
      onClose={onClose}
    >
      <p>
        Programs that use <Foreign text={apiKey.name} /> are refused at once. A revoked key never works again.
      </p>
    </ConfirmLayer>
  );
}

function CreateForm({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [days, setDays] = useState("90");
  const [limits, setLimits] = useState<KeyLimits>({ scopes: [], isReadOnly: false, projects: [] });
  // The same key for each try of the same draft: an API key is created once.
  const [key, setKey] = useState(makeKey);
  const [created, setCreated] = useState<Schema["CreatedApiKey"] | null>(null);
  const create = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/api-keys", {
          params: { header: { "Idempotency-Key": key } },
          body: {
            name: name.trim(),
            ...(days === "" ? {} : { expires_in_days: Number(days) }),
            ...toLimitRequest(limits),
          },
        }),
      ),
    onSuccess: setCreated,
    onSettled: () => void client.invalidateQueries({ queryKey: ["api-keys"] }),
  });
  if (created) {
    return (
      <SecretOnce label="The new API key" secret={created.token} onClose={onClose}>
        Programs send it in the header <code className="font-mono text-code">Authorization: Bearer …</code>
        {created.api_key.expires_at && <>. It ends at {formatTime(created.api_key.expires_at)}</>}.
      </SecretOnce>
    );
  }
  const reason = create.isPending ? "The key is being created" : name.trim() === "" ? "Write a name" : null;
  return (
    <Form
      aria-labelledby="create-key"
      className="grid max-w-[640px] gap-4 rounded-box border border-line p-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) create.mutate();
      }}
    >
      <h2 id="create-key" className="text-lead">
        Create API key
      </h2>
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Field
          label="Name"
          value={name}
          onChange={(text) => {
            setName(text);
            setKey(makeKey());
          }}
          autoFocus
          placeholder="ci"
          description="For which program it is."
        />
        <Choice
          label="Works for"
          value={days}
          onChange={(value) => {
            setDays(value);
            setKey(makeKey());
          }}
          options={LIFETIMES}
        />
      </div>
      <LimitFields
        limits={limits}
        onChange={(next) => {
          setLimits(next);
          setKey(makeKey());
        }}
      />
      {create.error && <ProblemNote error={create.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Create API key
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

/** Returns the list with the value, or without it. */
function withValue<T>(list: readonly T[], value: T, isIn: boolean): T[] {
  return isIn ? [...list, value] : list.filter((it) => it !== value);
}

function LimitFields({ limits, onChange }: { limits: KeyLimits; onChange: (limits: KeyLimits) => void }) {
  const projects = useQuery(projectsQuery);
  return (
    <>
      <fieldset className="grid gap-1">
        <legend className="font-medium">What it opens</legend>
        <p className="text-meta text-muted">
          Without a tick it opens everything that you may do, but changes neither accounts nor notification channels.
        </p>
        <div className="grid gap-x-4 small:grid-cols-2">
          {API_SCOPES.map((scope) => (
            <Tick
              key={scope.value}
              label={scope.name}
              isTicked={limits.scopes.includes(scope.value)}
              onChange={(isTicked) => onChange({ ...limits, scopes: withValue(limits.scopes, scope.value, isTicked) })}
            />
          ))}
        </div>
        <Tick
          label="It only reads"
          isTicked={limits.isReadOnly}
          onChange={(isReadOnly) => onChange({ ...limits, isReadOnly })}
        />
      </fieldset>
      {projects.data && projects.data.items.length > 0 && (
        <fieldset className="grid gap-1">
          <legend className="font-medium">Projects</legend>
          <p className="text-meta text-muted">
            Without a tick it opens all of yours. A key of some projects has no role in the installation.
          </p>
          <div className="grid max-h-[240px] gap-x-4 overflow-auto small:grid-cols-2">
            {projects.data.items.map((project) => (
              <Tick
                key={project.id}
                label={<Foreign text={project.slug} />}
                isTicked={limits.projects.includes(project.id)}
                onChange={(isTicked) =>
                  onChange({ ...limits, projects: withValue(limits.projects, project.id, isTicked) })
                }
              />
            ))}
          </div>
        </fieldset>
      )}
    </>
  );
}
