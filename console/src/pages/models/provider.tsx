/** One provider of models, and its keys. Keys are set and deleted, never read back. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../../api/client";
import { modelsQuery, providersQuery } from "../../api/queries";
import { formatCount, formatTime } from "../../logic/format";
import { Action, Age, Foreign, ProblemNote, SectionHead, Sign } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { ConfirmLayer } from "../../ui/rows";
import { Tick } from "../../ui/switch";
import { useModelChange } from "./use-model-change";

type Provider = Schema["ProviderView"];

const KINDS = [
  { value: "anthropic", name: "Anthropic" },
  { value: "openai", name: "OpenAI" },
  { value: "compatible", name: "A server with the Chat Completions API" },
  { value: "scripted", name: "Scripted: answers from a list" },
  { value: "record", name: "Record: keeps the answers of another provider" },
  { value: "replay", name: "Replay: gives kept answers again" },
] as const;

const DIALECTS = [
  { value: "", name: "What the kind usually speaks" },
  { value: "chat", name: "Chat Completions" },
  { value: "responses", name: "Responses" },
  { value: "messages", name: "Messages" },
] as const;

const PLACES = [
  { value: "", name: "By its address" },
  { value: "yes", name: "Yes" },
  { value: "no", name: "No" },
] as const;

/** Reads the script of a scripted provider; undefined is none, null is no script. */
function parseScript(text: string): Record<string, never> | null | undefined {
  if (text.trim() === "") return undefined;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, never>)
      : null;
  } catch {
    return null;
  }
}

export function ProviderDetail({
  provider,
  reason,
  onClose,
  onSet,
}: {
  /** Null makes a new one. */
  provider: Provider | null;
  reason: string | null;
  onClose: () => void;
  onSet: (name: string) => void;
}) {
  const providers = useQuery(providersQuery);
  const models = useQuery(modelsQuery);
  const [name, setName] = useState(provider?.name ?? "");
  const [kind, setKind] = useState(provider?.kind ?? "anthropic");
  const [address, setAddress] = useState(provider?.base_url ?? "");
  const [dialect, setDialect] = useState(provider?.dialect ?? "");
  const [local, setLocal] = useState<"" | "yes" | "no">(provider ? (provider.local ? "yes" : "no") : "");
  const [enabled, setEnabled] = useState(provider?.enabled ?? true);
  const [cassette, setCassette] = useState(provider?.cassette ?? "");
  const [source, setSource] = useState(provider?.recorded_provider ?? "");
  const [scriptText, setScriptText] = useState("");
  const [asks, setAsks] = useState(false);
  const script = parseScript(scriptText);
  const keeps = kind === "record" || kind === "replay";
  const params = { path: { name: name.trim() } };
  const set = useModelChange(
    () =>
      unwrap(
        api.PUT("/v1/providers/{name}", {
          params,
          body: {
            kind,
            enabled,
            ...(address.trim() === "" ? {} : { base_url: address.trim() }),
            ...(dialect === "" ? {} : { dialect }),
            ...(local === "" ? {} : { local: local === "yes" }),
            ...(keeps && cassette.trim() !== "" ? { cassette: cassette.trim() } : {}),
            ...(kind === "record" && source !== "" ? { recorded_provider: source } : {}),
            ...(kind === "scripted" && script ? { script } : {}),
          },
        }),
      ),
    (view) => !provider && onSet(view.name),
  );
  const remove = useModelChange(
    () => unwrap(api.DELETE("/v1/providers/{name}", { params })),
    () => {
      setAsks(false);
      onClose();
    },
  );
  const missing =
    reason ??
    (set.isPending
      ? "It is being saved"
      : name.trim() === ""
        ? "Write a name"
        : kind === "compatible" && !URL.canParse(address.trim())
          ? "Write the address of the server"
          : keeps && cassette.trim() === ""
            ? "Write the name of the kept answers"
            : kind === "record" && source === ""
              ? "Choose the provider whose answers are kept"
              : kind === "scripted" && script === null
                ? "Write the script as a JSON object"
                : null);
  const routes = (models.data?.items ?? []).filter((model) =>
    model.routes.some((route) => route.provider === provider?.name),
  );
  const dropped = set.data?.dropped_keys ?? [];
  return (
    <article className="grid max-w-[760px] grid-cols-1 gap-6">
      <h2 className="text-lead">{provider ? <Foreign text={provider.name} /> : "Add provider"}</h2>
      {provider && <Keys provider={provider} reason={reason} />}
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!missing) set.mutate(undefined);
        }}
      >
        {provider && <SectionHead>How it is reached</SectionHead>}
        <div className="grid grid-cols-1 items-start gap-4 small:grid-cols-2">
          <Field
            label="Name"
            value={name}
            onChange={setName}
            mono
            isDisabled={provider !== null}
            placeholder="anthropic"
          />
          <Choice label="Kind" value={kind} onChange={setKind} options={KINDS} />
          <Field
            label="Address"
            value={address}
            onChange={setAddress}
            mono
            placeholder={kind === "compatible" ? "http://127.0.0.1:11434/v1" : ""}
            description={kind === "compatible" ? "Up to and including /v1." : "The usual place when empty."}
          />
          <Choice label="Speaks" value={dialect} onChange={setDialect} options={DIALECTS} />
          <Choice label="Stays within what you own" value={local} onChange={setLocal} options={PLACES} />
          {keeps && <Field label="Name of the kept answers" value={cassette} onChange={setCassette} mono />}
          {kind === "record" && (
            <Choice
              label="Answers of"
              value={source}
              onChange={setSource}
              options={[
                { value: "", name: "Choose a provider" },
                ...(providers.data?.items ?? [])
                  .filter((it) => it.name !== provider?.name)
                  .map((it) => ({ value: it.name, name: it.name })),
              ]}
            />
          )}
        </div>
        {kind === "scripted" && (
          <Field
            label="Script"
            value={scriptText}
            onChange={setScriptText}
            lines={6}
            mono
            description={provider ? "Left empty, the stored script stays." : "The answers, as JSON."}
          />
        )}
        <Tick label="Is used" isTicked={enabled} onChange={setEnabled} />
        {set.error && <ProblemNote error={set.error} />}
        {dropped.length > 0 && (
          <p role="status" className="border-warn border-l-2 py-1 pl-3">
            <Foreign
              text={`The keys ${dropped.join(", ")} were dropped, because the provider is another one now. Add them again.`}
            />
          </p>
        )}
        {set.isSuccess && provider && dropped.length === 0 && (
          <p role="status" className="border-ok border-l-2 py-1 pl-3">
            The provider is saved.
          </p>
        )}
        <div className="flex flex-wrap gap-2">
          <Action type="submit" tone="primary" reason={missing}>
            {provider ? "Save provider" : "Add provider"}
          </Action>
          {provider && (
            <Action tone="danger" onPress={() => setAsks(true)} reason={reason}>
              Delete provider…
            </Action>
          )}
        </div>
      </Form>
      {asks && provider && (
        <ConfirmLayer
          title={`Delete ${provider.name}?`}
          action="Delete provider"
          keep="Keep provider"
          typed={provider.name}
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(undefined)}
          onClose={() => setAsks(false)}
        >
          <p>
            {formatCount(provider.keys.length, "key")} of it {provider.keys.length === 1 ? "is" : "are"} lost.{" "}
            {routes.length > 0
              ? `${formatCount(routes.length, "model")} lose a route: ${routes.map((model) => model.title).join(", ")}.`
              : "No model uses it."}
          </p>
        </ConfirmLayer>
      )}
    </article>
  );
}

function Keys({ provider, reason }: { provider: Provider; reason: string | null }) {
  const [label, setLabel] = useState("");
  // The key is in memory only, and only until it is stored.
  const [secret, setSecret] = useState("");
  const [leaving, setLeaving] = useState<Schema["ProviderKeyView"] | null>(null);
  const add = useModelChange(
    () =>
      unwrap(
        api.POST("/v1/providers/{name}/keys", {
          params: { path: { name: provider.name } },
          body: { label: label.trim(), key: secret.trim() },
        }),
      ),
    () => {
      setLabel("");
      setSecret("");
    },
  );
  const remove = useModelChange(
    (key: string) =>
      unwrap(api.DELETE("/v1/providers/{name}/keys/{key}", { params: { path: { name: provider.name, key } } })),
    () => setLeaving(null),
  );
  const missing =
    reason ??
    (add.isPending
      ? "It is being stored"
      : label.trim() === ""
        ? "Write what you call the key"
        : secret.trim() === ""
          ? "Paste the key"
          : null);
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead>Keys</SectionHead>
      {provider.keys.length === 0 ? (
        <p className="text-muted">{provider.local ? "It needs none." : "There is no key yet."}</p>
      ) : (
        <ul aria-label="Keys" className="border-line border-t">
          {provider.keys.map((key) => (
            <li key={key.key_id} className="flex flex-wrap items-center gap-x-3 border-line border-b py-1.5">
              {key.parked_until ? (
                <Sign standing="trouble" word={`Parked until ${formatTime(key.parked_until)}`} />
              ) : (
                <Sign standing="done" word="Works" />
              )}
              <span className="font-medium">
                <Foreign text={key.label} />
              </span>
              {key.parked_reason && (
                <span className="text-muted">
                  <Foreign text={key.parked_reason} />
                </span>
              )}
              <span className="text-meta text-muted">
                added <Age at={key.created_at} ago />
              </span>
              <Action tone="quiet" className="ml-auto" onPress={() => setLeaving(key)} reason={reason}>
                Delete {key.label}…
              </Action>
            </li>
          ))}
        </ul>
      )}
      <Form
        className="grid grid-cols-1 items-end gap-3 small:grid-cols-[1fr_2fr_auto]"
        onSubmit={(event) => {
          event.preventDefault();
          if (!missing) add.mutate(undefined);
        }}
      >
        <Field label="Label" value={label} onChange={setLabel} placeholder="main" />
        <Field label="Key" type="password" value={secret} onChange={setSecret} autoComplete="off" />
        <Action type="submit" reason={missing}>
          Add key
        </Action>
      </Form>
      <p className="text-meta text-muted">
        A key is stored encrypted and never shown again. One that its provider refuses is parked until its limit is
        reset.
      </p>
      {add.error && <ProblemNote error={add.error} />}
      {leaving && (
        <ConfirmLayer
          title={`Delete the key ${leaving.label}?`}
          action="Delete key"
          keep="Keep key"
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(leaving.key_id)}
          onClose={() => setLeaving(null)}
        >
          <p>
            It cannot be read back.{" "}
            {provider.keys.length === 1 ? "It is the only one: models of this provider stop answering." : ""}
          </p>
        </ConfirmLayer>
      )}
    </section>
  );
}
