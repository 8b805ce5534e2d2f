/** How old are the keys, who uses them, and who receives the audit log? */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, unwrap } from "../api/client";
import { auditSinksQuery, keyringQuery } from "../api/queries-admin";
import { formatCount } from "../logic/format";
import {
  type AuditSink,
  describeKeyState,
  describeMasterKey,
  describeRotation,
  describeSink,
  describeTarget,
  describeUses,
  EMPTY_SINK,
  findMissing,
  type InstallationKey,
  type MasterKey,
  needsSecret,
  PURPOSES,
  SINK_KINDS,
  toSinkBody,
} from "../logic/keyring";
import {
  Action,
  Age,
  Command,
  Empty,
  Foreign,
  Id,
  Loaded,
  Page,
  PageHead,
  ProblemNote,
  SectionHead,
  Sign,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { ConfirmLayer } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";

export function KeyringPage() {
  usePageCommand("cynork keyring", "/v1/keyring");
  const keyring = useQuery(keyringQuery);
  const sinks = useQuery(auditSinksQuery);
  const [creating, setCreating] = useState(false);
  return (
    <Page wide>
      <SettingsNav />
      <PageHead
        title="Keys and export"
        lead="Keys of the installation with their age and use, and receivers of its audit log."
      />
      <div className="grid grid-cols-1 gap-8">
        <Loaded query={keyring} lines={4}>
          {(data) => (
            <section className="grid gap-3">
              <SectionHead
                aside={data.rotating ? <Foreign text={describeRotation(data)} /> : formatCount(data.keys.length, "key")}
              >
                Keys
              </SectionHead>
              <ul aria-label="Keys of the installation">
                {data.master_key && <MasterKeyRow item={data.master_key} />}
                {data.keys.map((key) => (
                  <KeyRow key={key.key_id} item={key} />
                ))}
              </ul>
              <p className="text-muted">A key is rotated on the server, while the installation runs:</p>
              <Command line="cynode admin rotate-key master" />
            </section>
          )}
        </Loaded>
        <Loaded query={sinks} lines={4}>
          {(data) => (
            <section className="grid gap-3">
              <SectionHead aside={formatCount(data.items.length, "sink")}>Receivers of the audit log</SectionHead>
              {data.items.length === 0 ? (
                <Empty title="Nobody outside receives the audit log.">
                  <p className="text-muted">
                    Signed heads in a place that this server cannot change show that nothing was cut off.
                  </p>
                  <Command line="cynork audit sink set siem --syslog tls --address siem.example.com:6514" />
                </Empty>
              ) : (
                <ul aria-label="Sinks of audit records">
                  {data.items.map((sink) => (
                    <SinkRow key={sink.name} sink={sink} />
                  ))}
                </ul>
              )}
              {creating ? (
                <SinkForm onClose={() => setCreating(false)} />
              ) : (
                <div>
                  <Action onPress={() => setCreating(true)}>Set sink</Action>
                </div>
              )}
            </section>
          )}
        </Loaded>
      </div>
    </Page>
  );
}

function MasterKeyRow({ item }: { item: MasterKey }) {
  const state = describeMasterKey(item);
  return (
    <li className="grid min-h-10 grid-cols-[130px_170px_140px_150px_1fr] items-center gap-x-4 gap-y-0.5 border-line border-b px-2 py-1 max-medium:grid-cols-1 max-medium:py-2">
      <Sign standing={state.standing} word={state.words} />
      <span className="font-medium">Wraps all keys</span>
      <span className="min-w-0 truncate font-mono text-meta">
        <Foreign text={item.version ?? "the first one"} />
      </span>
      <span className="text-meta text-muted">
        {item.since ? (
          <>
            since <Age at={item.since} ago />
          </>
        ) : null}
      </span>
      <span className="min-w-0 text-meta text-muted">
        In {state.place}
        {item.unfinished ? ". The end of its rotation is missing: run the command below." : ""}
        {item.problem ? (
          <>
            {" "}
            (<Foreign text={item.problem} />)
          </>
        ) : null}
      </span>
    </li>
  );
}

function KeyRow({ item }: { item: InstallationKey }) {
  const state = describeKeyState(item);
  return (
    <li className="grid min-h-10 grid-cols-[130px_170px_140px_150px_1fr] items-center gap-x-4 gap-y-0.5 border-line border-b px-2 py-1 max-medium:grid-cols-1 max-medium:py-2">
      <Sign standing={state.standing} word={state.words} />
      <span className="font-medium">{PURPOSES[item.purpose] ?? item.purpose}</span>
      <Id id={item.key_id} />
      <span className="text-meta text-muted">
        {item.retired_at ? (
          <>
            retired <Age at={item.retired_at} ago />
          </>
        ) : (
          <>
            created <Age at={item.created_at} ago />
          </>
        )}
      </span>
      <span className="min-w-0 text-meta text-muted">
        Named by {describeUses(item)}
        {item.unkeyed && !item.retired_at ? ". Tokens are stored without a key." : ""}
      </span>
    </li>
  );
}

function SinkRow({ sink }: { sink: AuditSink }) {
  const client = useQueryClient();
  const [deleting, setDeleting] = useState(false);
  const state = describeSink(sink);
  const remove = useMutation({
    mutationFn: () => unwrap(api.DELETE("/v1/audit/sinks/{name}", { params: { path: { name: sink.name } } })),
    onSuccess: () => setDeleting(false),
    onSettled: () => void client.invalidateQueries({ queryKey: ["audit-sinks"] }),
  });
  return (
    <li className="grid min-h-10 grid-cols-[130px_150px_1fr_220px_auto] items-center gap-x-4 gap-y-0.5 border-line border-b px-2 py-1 max-medium:grid-cols-[1fr_auto] max-medium:py-2">
      <Sign standing={state.standing} word={state.words} />
      <span className="min-w-0 truncate font-medium">
        <Foreign text={sink.name} />
      </span>
      <span className="min-w-0 text-meta text-muted">
        <Foreign text={describeTarget(sink.target)} />
        {sink.error ? (
          <>
            {" "}
            (<Foreign text={sink.error} />)
          </>
        ) : null}
      </span>
      <span className="text-meta text-muted">
        {formatCount(sink.lag_records, "record")} behind
        {sink.sent_at ? (
          <>
            , sent <Age at={sink.sent_at} ago />
          </>
        ) : null}
      </span>
      <Action tone="quiet" onPress={() => setDeleting(true)} aria-label={`Delete ${sink.name}`}>
        Delete…
      </Action>
      {deleting && (
        <ConfirmLayer
          title="Delete sink"
          action="Delete sink"
          keep="Keep sink"
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate()}
          onClose={() => setDeleting(false)}
        >
          <p>
            <Foreign text={sink.name} /> gets no more records, and its position is forgotten. A sink of the same name
            begins with the oldest record.
          </p>
        </ConfirmLayer>
      )}
    </li>
  );
}

function SinkForm({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const [draft, setDraft] = useState(EMPTY_SINK);
  const change = (part: Partial<typeof draft>) => setDraft((before) => ({ ...before, ...part }));
  const set = useMutation({
    mutationFn: () =>
      unwrap(api.PUT("/v1/audit/sinks/{name}", { params: { path: { name: draft.name } }, body: toSinkBody(draft) })),
    onSuccess: onClose,
    onSettled: () => void client.invalidateQueries({ queryKey: ["audit-sinks"] }),
  });
  const reason = set.isPending ? "It is being sent" : findMissing(draft);
  const isBucket = draft.kind === "object_store";
  return (
    <Form
      className="grid max-w-[640px] gap-3"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) set.mutate();
      }}
    >
      <Field label="Name" value={draft.name} onChange={(name) => change({ name })} placeholder="siem" mono autoFocus />
      <Choice label="Kind" value={draft.kind} onChange={(kind) => change({ kind })} options={SINK_KINDS} />
      <Field
        label={draft.kind === "webhook" ? "URL" : isBucket ? "Endpoint, outside of AWS" : "Address"}
        value={draft.address}
        onChange={(address) => change({ address })}
        placeholder={
          draft.kind === "webhook"
            ? "https://siem.example.com/cynode"
            : isBucket
              ? "https://s3.example.com"
              : draft.kind === "syslog_unix"
                ? "/dev/log"
                : "siem.example.com:6514"
        }
        mono
      />
      {isBucket && (
        <>
          <Field label="Bucket" value={draft.bucket} onChange={(bucket) => change({ bucket })} mono />
          <Field label="Region" value={draft.region} onChange={(region) => change({ region })} mono />
          <Field label="Prefix of names" value={draft.prefix} onChange={(prefix) => change({ prefix })} mono />
          <Field
            label="Access key id"
            value={draft.accessKeyId}
            onChange={(accessKeyId) => change({ accessKeyId })}
            mono
          />
        </>
      )}
      {needsSecret(draft.kind) && (
        <Field
          label={isBucket ? "Secret access key" : "Secret that signs (whsec_…)"}
          type="password"
          value={draft.secret}
          onChange={(secret) => change({ secret })}
          description="It is stored encrypted and never shown again."
          mono
        />
      )}
      {set.error ? <ProblemNote error={set.error} /> : null}
      <div className="flex gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Set sink
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}
