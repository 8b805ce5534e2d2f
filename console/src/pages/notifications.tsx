/** How am I told, and did it arrive? Channels, and each delivery with each attempt. */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { meQuery, projectsQuery } from "../api/queries";
import { channelQuery, channelsQuery, notificationsQuery } from "../api/queries-admin";
import { formatCount, formatTime } from "../logic/format";
import {
  CHANNEL_KINDS,
  type ChannelDraft,
  EVENT_WORDS,
  findEventWords,
  findKindName,
  parseGap,
  STATE_WORDS,
  shortenAddress,
  toChannelRequest,
} from "../logic/notifications";
import { quoteShell } from "../logic/text";
import { NOTIFICATION_STATES } from "../router";
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
  ProblemNote,
  SectionHead,
  Sign,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { NotifyBrowser } from "../ui/notify-browser";
import { Person } from "../ui/person";
import { ConfirmLayer, ListHead, RowLines, RowLink, SecretOnce } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { Switch, Tick } from "../ui/switch";
import { TabBar } from "../ui/tabs";

type Channel = Schema["ChannelView"];
type Notification = Schema["NotificationView"];

const SCOPE_WORDS: Record<string, string> = {
  user: "for one person",
  project: "for a project",
  installation: "for the installation",
};

export function NotificationsPage() {
  const search = useSearch({ from: "/settings/notifications" });
  const navigate = useNavigate({ from: "/settings/notifications" });
  const me = useQuery(meQuery);
  const all = search.all === true;
  const isAdmin = me.data?.installation_role === "admin";
  return (
    <Page wide>
      <SettingsNav />
      <ListHead
        isChosen={search.channel !== undefined || search.create === true}
        title="Notifications"
        lead="You are told when something waits for you, has ended or has failed."
      >
        {isAdmin && (
          <Tick
            label="Show those of everybody"
            isTicked={all}
            onChange={(isTicked) =>
              void navigate({ search: (previous) => ({ ...previous, all: isTicked || undefined }) })
            }
          />
        )}
      </ListHead>
      <div className="grid grid-cols-1 gap-4">
        <TabBar
          label="Parts"
          parameter="part"
          value={search.part ?? "channels"}
          tabs={[
            { id: "channels", name: "Channels" },
            { id: "sent", name: "Deliveries" },
          ]}
        />
        {search.part === "sent" ? (
          <Deliveries all={all} />
        ) : (
          <>
            <div className={cx((search.channel !== undefined || search.create) && "max-split:hidden")}>
              <NotifyBrowser />
            </div>
            <Channels all={all} />
          </>
        )}
      </div>
    </Page>
  );
}

function Channels({ all }: { all: boolean }) {
  const search = useSearch({ from: "/settings/notifications" });
  const navigate = useNavigate({ from: "/settings/notifications" });
  const channels = useInfiniteQuery(channelsQuery(all));
  const items = channels.data?.pages.flatMap((page) => page.items) ?? [];
  usePageCommand(
    search.channel
      ? quoteShell(["cynork", "channel", "show", search.channel])
      : `cynork channel list${all ? " --all" : ""}`,
    search.channel
      ? `/v1/notification-channels/${search.channel}`
      : `/v1/notification-channels${all ? "?all=true" : ""}`,
  );
  const close = () => void navigate({ search: (previous) => ({ ...previous, channel: undefined, create: undefined }) });
  const openForm = () => void navigate({ search: (previous) => ({ ...previous, channel: undefined, create: true }) });
  useRowKeys(
    items.map((item) => item.channel_id),
    search.channel ?? (search.create ? "" : undefined),
    (next) =>
      void navigate({
        search: (previous) => ({ ...previous, channel: next, create: undefined }),
        replace: true,
      }),
    close,
  );
  return (
    <Loaded query={channels} lines={6}>
      {() =>
        items.length === 0 && !search.create && !search.channel ? (
          <Empty title="No channel tells you yet.">
            <p className="text-muted">
              Be asked on your phone, by mail or by a webhook, with exactly what is to be decided.
            </p>
            <Command line="cynork channel create phone --kind ntfy --address https://ntfy.sh/a-topic-nobody-guesses" />
            <div>
              <Action tone="primary" onPress={openForm}>
                Create channel
              </Action>
            </div>
          </Empty>
        ) : (
          <Split
            back="Channels"
            onClose={close}
            list={
              <div className="grid grid-cols-1 gap-3">
                {!search.create && (
                  <div>
                    <Action tone={search.channel ? "plain" : "primary"} onPress={openForm}>
                      Create channel
                    </Action>
                  </div>
                )}
                <ul aria-label="Channels" className="border-line border-t">
                  {items.map((item) => (
                    <RowLink
                      key={item.channel_id}
                      parameter="channel"
                      id={item.channel_id}
                      isChosen={item.channel_id === search.channel}
                    >
                      <RowLines
                        name={<Foreign text={item.name} />}
                        end={
                          item.enabled ? <Sign standing="done" word="On" /> : <Sign standing="cancelled" word="Off" />
                        }
                        below={
                          <Foreign
                            text={`${findKindName(item.kind)} · ${SCOPE_WORDS[item.scope] ?? item.scope} · ${shortenAddress(item)}`}
                          />
                        }
                      />
                    </RowLink>
                  ))}
                </ul>
                {channels.hasNextPage && (
                  <div>
                    <Action
                      onPress={() => void channels.fetchNextPage()}
                      reason={channels.isFetchingNextPage ? "They are being read" : null}
                    >
                      Show more channels
                    </Action>
                  </div>
                )}
              </div>
            }
            detail={
              search.create ? (
                <CreateForm onClose={close} />
              ) : search.channel ? (
                <ChannelDetail key={search.channel} id={search.channel} all={all} />
              ) : null
            }
          />
        )
      }
    </Loaded>
  );
}

/** Which kinds of events are told. */
function EventTicks({ kinds, onChange }: { kinds: readonly string[]; onChange: (kinds: string[]) => void }) {
  const others = kinds.filter((kind) => !EVENT_WORDS.some((it) => it.kind === kind));
  return (
    <fieldset className="grid gap-x-4 small:grid-cols-2">
      <legend className="pb-1 font-medium">Tell when</legend>
      {[...EVENT_WORDS, ...others.map((kind) => ({ kind, words: kind }))].map(({ kind, words }) => (
        <Tick
          key={kind}
          label={words}
          isTicked={kinds.includes(kind)}
          onChange={(isTicked) => onChange(isTicked ? [...kinds, kind] : kinds.filter((it) => it !== kind))}
        />
      ))}
    </fieldset>
  );
}

function CreateForm({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/settings/notifications" });
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const [draft, setDraft] = useState<ChannelDraft>({
    name: "",
    kind: "ntfy",
    address: "",
    secret: "",
    gap: "",
    scope: "user",
    project: "",
    kinds: EVENT_WORDS.map((it) => it.kind),
  });
  const [key, setKey] = useState(makeKey);
  const change = (part: Partial<ChannelDraft>) => {
    setDraft((known) => ({ ...known, ...part }));
    setKey(makeKey());
  };
  const [created, setCreated] = useState<Schema["ChannelWithSecret"] | null>(null);
  const request = toChannelRequest({ ...draft, project: draft.project || projects.data?.items[0]?.id || "" });
  const show = (channel: string) =>
    void navigate({ search: (previous) => ({ ...previous, create: undefined, channel }) });
  const create = useMutation({
    mutationFn: (body: Schema["CreateChannel"]) =>
      unwrap(api.POST("/v1/notification-channels", { params: { header: { "Idempotency-Key": key } }, body })),
    onSuccess: (answer) => {
      if (answer.secret) setCreated(answer);
      else show(answer.channel.channel_id);
    },
    onSettled: () => void client.invalidateQueries({ queryKey: ["notifications"] }),
  });
  if (created?.secret) {
    return (
      <SecretOnce
        label="The secret of the webhook"
        secret={created.secret}
        onClose={() => show(created.channel.channel_id)}
      >
        The receiver checks the signature of each notification with it.
      </SecretOnce>
    );
  }
  const kind = CHANNEL_KINDS.find((it) => it.value === draft.kind) ?? CHANNEL_KINDS[0];
  const reason = create.isPending ? "The channel is being created" : "missing" in request ? request.missing : null;
  const gap = parseGap(draft.gap);
  return (
    <Form
      aria-labelledby="create-channel"
      className="grid max-w-[640px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason && "body" in request) create.mutate(request.body);
      }}
    >
      <h2 id="create-channel" className="text-lead">
        Create channel
      </h2>
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Field label="Name" value={draft.name} onChange={(name) => change({ name })} autoFocus placeholder="phone" />
        <Choice
          label="By"
          value={draft.kind}
          onChange={(value) => change({ kind: value, secret: "" })}
          options={CHANNEL_KINDS.map((it) => ({ value: it.value, name: it.name }))}
        />
      </div>
      <Field
        label="Address"
        value={draft.address}
        onChange={(address) => change({ address })}
        mono
        placeholder={kind.example}
        description="It cannot be changed later, because the secret belongs to it."
      />
      {kind.secret && (
        <Field
          label={kind.secret}
          value={draft.secret}
          onChange={(secret) => change({ secret })}
          type="password"
          autoComplete="off"
          description="Stored encrypted and never shown again."
        />
      )}
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Choice
          label="For"
          value={draft.scope}
          onChange={(scope) => change({ scope })}
          options={[
            { value: "user", name: "Yourself" },
            { value: "project", name: "A project" },
            ...(me.data?.installation_role === "admin"
              ? [{ value: "installation" as const, name: "The installation" }]
              : []),
          ]}
        />
        {draft.scope === "project" && (
          <Choice
            label="Project"
            value={draft.project || projects.data?.items[0]?.id || ""}
            onChange={(project) => change({ project })}
            options={(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug }))}
          />
        )}
        <Field
          label="Quiet after each, in seconds"
          value={draft.gap}
          onChange={(text) => change({ gap: text })}
          inputMode="numeric"
          placeholder="0"
          error={gap.error}
          description="What happens meanwhile is told afterwards."
        />
      </div>
      <EventTicks kinds={draft.kinds} onChange={(kinds) => change({ kinds })} />
      {create.error && <ProblemNote error={create.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Create channel
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

function ChannelDetail({ id, all }: { id: string; all: boolean }) {
  const channel = useQuery(channelQuery(id));
  return <Loaded query={channel}>{(data) => <ChannelContent channel={data} all={all} />}</Loaded>;
}

function ChannelContent({ channel, all }: { channel: Channel; all: boolean }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/settings/notifications" });
  const projects = useQuery(projectsQuery);
  const [asks, setAsks] = useState<"delete" | "rotate" | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const path = { channel: channel.channel_id };
  const renew = () => void client.invalidateQueries({ queryKey: ["notifications"] });
  const update = useMutation({
    mutationFn: (body: Schema["UpdateChannel"]) =>
      unwrap(api.PATCH("/v1/notification-channels/{channel}", { params: { path }, body })),
    onSuccess: (answer) => {
      setAsks(null);
      if (answer.secret) setSecret(answer.secret);
    },
    onSettled: renew,
  });
  const test = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/notification-channels/{channel}/test", { params: { path } })),
    onSettled: renew,
  });
  const remove = useMutation({
    mutationFn: () => unwrap(api.DELETE("/v1/notification-channels/{channel}", { params: { path } })),
    onSuccess: () => {
      void navigate({ search: (previous) => ({ ...previous, channel: undefined }) });
      void client.invalidateQueries({ queryKey: ["notifications", "channels"] });
      void client.invalidateQueries({ queryKey: ["notifications", "list"] });
    },
  });
  const pending = update.isPending || test.isPending;
  return (
    <article className="grid grid-cols-1 gap-5">
      <div className="grid gap-2">
        <h2 className="text-lead">
          <Foreign text={channel.name} />
        </h2>
        <div className="flex flex-wrap items-center gap-2">
          <Switch
            label={`Channel ${channel.name}`}
            isOn={channel.enabled}
            onChange={(enabled) => update.mutate({ enabled })}
            reason={pending ? "It is being sent" : null}
          />
          <Action
            onPress={() => test.mutate()}
            reason={
              test.isPending ? "It is being sent" : channel.enabled ? null : "The channel is off: switch it on first"
            }
          >
            Send test
          </Action>
          {channel.kind === "webhook" && <Action onPress={() => setAsks("rotate")}>Rotate secret…</Action>}
          <Action tone="danger" onPress={() => setAsks("delete")}>
            Delete channel…
          </Action>
        </div>
      </div>
      {channel.disabled_reason && (
        <p className="border-warn border-l-2 py-1 pl-3">
          <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
            !
          </span>
          <Foreign text={channel.disabled_reason} />
        </p>
      )}
      {(test.error ?? (asks === null ? update.error : null)) ? (
        <ProblemNote error={test.error ?? update.error} />
      ) : null}
      {secret && (
        <SecretOnce label="The new secret of the webhook" secret={secret} onClose={() => setSecret(null)}>
          For a day the old one signs, too.
        </SecretOnce>
      )}
      <Facts
        rows={[
          ["By", findKindName(channel.kind)],
          [
            "Address",
            <code key="address" className="font-mono text-code break-all">
              <Foreign text={channel.address} />
            </code>,
          ],
          [
            "For",
            channel.scope === "user" && channel.user_id ? (
              <Person key="for" id={channel.user_id} />
            ) : channel.scope === "project" ? (
              <Foreign
                key="for"
                text={`project ${projects.data?.items.find((it) => it.id === channel.project_id)?.slug ?? ""}`}
              />
            ) : (
              "the installation"
            ),
          ],
          [
            "Secret",
            channel.has_secret
              ? channel.old_secret_until
                ? `set; the one before signs until ${formatTime(channel.old_secret_until)}`
                : "set"
              : "none",
          ],
          ["Created", <Age key="created" at={channel.created_at} ago />],
          ["Id", <Id key="id" id={channel.channel_id} />],
        ]}
      />
      <ChannelDeliveries channel={channel} all={all} />
      <ChannelForm
        key={channel.channel_id}
        channel={channel}
        pending={update.isPending}
        onSave={(body) => update.mutate(body)}
      />
      {asks === "rotate" && (
        <ConfirmLayer
          title="Rotate secret"
          action="Rotate secret"
          keep="Keep secret"
          pending={update.isPending}
          error={update.error}
          onConfirm={() => update.mutate({ rotate_secret: true })}
          onClose={() => setAsks(null)}
        >
          <p>
            The receiver needs the new secret within a day. Until then both sign; after that, what checks the old one
            refuses.
          </p>
        </ConfirmLayer>
      )}
      {asks === "delete" && (
        <ConfirmLayer
          title="Delete channel"
          action="Delete channel"
          keep="Keep channel"
          typed={channel.name}
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate()}
          onClose={() => setAsks(null)}
        >
          <p>
            Its secret and the notifications that are still pending are lost. Nothing is told by{" "}
            <Foreign text={channel.name} /> any more.
          </p>
        </ConfirmLayer>
      )}
    </article>
  );
}

function ChannelForm({
  channel,
  pending,
  onSave,
}: {
  channel: Channel;
  pending: boolean;
  onSave: (body: Schema["UpdateChannel"]) => void;
}) {
  const [name, setName] = useState<string | null>(null);
  const [gapText, setGapText] = useState<string | null>(null);
  const [kinds, setKinds] = useState<string[] | null>(null);
  const gap = parseGap(gapText ?? String(channel.min_gap_seconds));
  const isChanged =
    (name !== null && name.trim() !== channel.name) ||
    (gapText !== null && gap.seconds !== channel.min_gap_seconds) ||
    (kinds !== null && kinds.toSorted().join() !== channel.kinds.toSorted().join());
  const reason = pending
    ? "It is being sent"
    : gap.error
      ? gap.error
      : name !== null && name.trim() === ""
        ? "Write a name"
        : kinds?.length === 0
          ? "Choose at least one kind of event"
          : isChanged
            ? null
            : "Nothing is changed yet";
  return (
    <Form
      aria-label={`Change ${channel.name}`}
      className="grid max-w-[640px] gap-3"
      onSubmit={(event) => {
        event.preventDefault();
        if (reason) return;
        onSave({
          ...(name === null ? {} : { name: name.trim() }),
          ...(gapText === null ? {} : { min_gap_seconds: gap.seconds }),
          ...(kinds === null ? {} : { kinds }),
        });
      }}
    >
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Field label="Name" value={name ?? channel.name} onChange={setName} />
        <Field
          label="Quiet after each, in seconds"
          value={gapText ?? String(channel.min_gap_seconds)}
          onChange={setGapText}
          inputMode="numeric"
          error={gap.error}
        />
      </div>
      <EventTicks kinds={kinds ?? channel.kinds} onChange={setKinds} />
      <div>
        <Action type="submit" reason={reason}>
          Save channel
        </Action>
      </div>
    </Form>
  );
}

/** The newest deliveries of one channel, so that a test is seen where it was asked for. */
function ChannelDeliveries({ channel, all }: { channel: Channel; all: boolean }) {
  const deliveries = useInfiniteQuery(notificationsQuery({ all, state: undefined }));
  const items = (deliveries.data?.pages.flatMap((page) => page.items) ?? [])
    .filter((it) => it.channel_id === channel.channel_id)
    .slice(0, 5);
  return (
    <section className="grid grid-cols-1">
      <SectionHead>Newest deliveries</SectionHead>
      <Loaded query={deliveries} lines={3}>
        {() =>
          items.length === 0 ? (
            <p className="py-1 text-muted">Nothing was sent by it so far. Send a test to see that it arrives.</p>
          ) : (
            <ul aria-label="Newest deliveries">
              {items.map((item) => (
                <Delivery key={item.notification_id} notification={item} channel={null} isAtCursor={false} />
              ))}
            </ul>
          )
        }
      </Loaded>
    </section>
  );
}

function Deliveries({ all }: { all: boolean }) {
  const { state } = useSearch({ from: "/settings/notifications" });
  const navigate = useNavigate({ from: "/settings/notifications" });
  const deliveries = useInfiniteQuery(notificationsQuery({ all, state }));
  const channels = useInfiniteQuery(channelsQuery(all));
  const items = deliveries.data?.pages.flatMap((page) => page.items) ?? [];
  const names = new Map(channels.data?.pages.flatMap((page) => page.items).map((it) => [it.channel_id, it.name]));
  const [cursor, setCursor] = useState(-1);
  const query = new URLSearchParams({ ...(all ? { all: "true" } : {}), ...(state ? { state } : {}) }).toString();
  usePageCommand(
    `cynork notification list${all ? " --all" : ""}${state ? ` --state ${state}` : ""}`,
    `/v1/notifications${query ? `?${query}` : ""}`,
  );
  useKeys({
    j: () => setCursor((index) => Math.min(index + 1, items.length - 1)),
    k: () => setCursor((index) => Math.max(index - 1, 0)),
    "/": () => document.querySelector<HTMLElement>("#filter select")?.focus(),
  });
  return (
    <div className="grid grid-cols-1 gap-3">
      <div id="filter" className="max-w-60">
        <Choice
          label="State"
          value={state ?? ""}
          onChange={(value) =>
            void navigate({ search: (previous) => ({ ...previous, state: value === "" ? undefined : value }) })
          }
          options={[
            { value: "", name: "Every state" },
            ...NOTIFICATION_STATES.map((value) => ({ value, name: STATE_WORDS[value]?.words ?? value })),
          ]}
        />
      </div>
      <Loaded query={deliveries} lines={8}>
        {() =>
          items.length === 0 ? (
            <Empty title={state ? "No delivery is like this." : "Nothing was sent so far."}>
              {!state && <p className="text-muted">Deliveries of the last 30 days stand here, with each attempt.</p>}
            </Empty>
          ) : (
            <>
              <ul aria-label="Deliveries" className="border-line border-t">
                {items.map((item, index) => (
                  <Delivery
                    key={item.notification_id}
                    notification={item}
                    channel={names.get(item.channel_id) ?? item.channel_id.slice(-8)}
                    isAtCursor={index === cursor}
                  />
                ))}
              </ul>
              {deliveries.hasNextPage && (
                <div>
                  <Action
                    onPress={() => void deliveries.fetchNextPage()}
                    reason={deliveries.isFetchingNextPage ? "They are being read" : null}
                  >
                    Show more deliveries
                  </Action>
                </div>
              )}
            </>
          )
        }
      </Loaded>
    </div>
  );
}

function Delivery({
  notification,
  channel,
  isAtCursor,
}: {
  notification: Notification;
  /** Its name where the row does not stand below it. */
  channel: string | null;
  isAtCursor: boolean;
}) {
  const client = useQueryClient();
  const [isOpen, setOpen] = useState(false);
  const replay = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/notifications/{notification}/replay", {
          params: { path: { notification: notification.notification_id } },
        }),
      ),
    onSettled: () => {
      for (const queryKey of [["notifications"], ["inbox"]]) void client.invalidateQueries({ queryKey });
    },
  });
  useKeys({ Enter: isAtCursor ? () => setOpen((known) => !known) : undefined });
  const state = STATE_WORDS[notification.state] ?? { standing: "waits" as const, words: notification.state };
  const words = findEventWords(notification.kind);
  return (
    <li className={cx("border-line border-b", isAtCursor && "bg-select")}>
      <div className="grid min-h-10 grid-cols-[90px_1fr_auto] items-center gap-x-4 px-2 py-1 max-small:grid-cols-[1fr_auto]">
        <Sign standing={state.standing} word={state.words} />
        <span className="min-w-0 max-small:order-first max-small:col-span-2">
          <span className="font-medium">{words}</span>
          <span className="block text-meta text-muted">
            {channel !== null && (
              <>
                <Foreign text={channel} /> ·{" "}
              </>
            )}
            {formatCount(notification.attempts.length, "attempt")} · <Age at={notification.occurred_at} ago />
            {notification.state === "pending" && notification.due_at && <>, next {formatTime(notification.due_at)}</>}
          </span>
        </span>
        <span className="flex gap-1">
          <Action
            tone="quiet"
            onPress={() => setOpen(!isOpen)}
            aria-expanded={isOpen}
            aria-label={`Attempts: ${words}`}
          >
            Attempts
          </Action>
          <Action
            tone="quiet"
            onPress={() => replay.mutate()}
            aria-label={`Send again: ${words}`}
            reason={
              replay.isPending ? "It is being sent" : notification.state === "pending" ? "It is not sent yet" : null
            }
          >
            Send again
          </Action>
        </span>
      </div>
      {replay.error && (
        <div className="px-2 pb-2">
          <ProblemNote error={replay.error} />
        </div>
      )}
      {(isOpen || notification.state === "failed") && notification.reason && (
        <p className="px-2 pb-1 text-meta">
          <Foreign text={notification.reason} />
        </p>
      )}
      {isOpen && (
        <div className="grid gap-1 px-2 pb-3">
          {notification.attempts.length === 0 ? (
            <p className="text-muted">It was not tried yet.</p>
          ) : (
            <ol aria-label="Attempts">
              {notification.attempts.map((attempt) => (
                <li
                  key={attempt.number}
                  className="grid grid-cols-[90px_1fr_auto] gap-x-4 py-0.5 max-small:grid-cols-1"
                >
                  <Sign
                    standing={attempt.sent ? "done" : "failed"}
                    word={`${attempt.number}. ${attempt.sent ? "Taken" : "Not taken"}`}
                  />
                  <span className="min-w-0 break-words">
                    <Foreign text={attempt.answer} />
                  </span>
                  <span className="text-meta text-muted">{formatTime(attempt.at)}</span>
                </li>
              ))}
            </ol>
          )}
          <p className="flex flex-wrap items-center gap-x-3 text-meta text-faint">
            {notification.kind} <Id id={notification.notification_id} />
          </p>
        </div>
      )}
    </li>
  );
}
