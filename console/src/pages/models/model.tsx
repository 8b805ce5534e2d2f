/** One model: what it can do, its routes and its prices. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../../api/client";
import { meQuery, projectsQuery, providersQuery } from "../../api/queries";
import { EMPTY_MODEL, EMPTY_ROUTE, type RouteDraft, toModelRequest, toRegistryDraft } from "../../logic/places";
import { Action, ProblemNote } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { ConfirmLayer } from "../../ui/rows";
import { Tick } from "../../ui/switch";
import { useModelChange } from "./use-model-change";

const TIERS = [
  { value: "", name: "None" },
  { value: "fast", name: "Fast" },
  { value: "standard", name: "Standard" },
  { value: "deep", name: "Deep" },
] as const;

export function ModelDetail({
  model,
  reason,
  onClose,
}: {
  /** Null makes a new one. */
  model: Schema["ModelView"] | null;
  reason: string | null;
  onClose: () => void;
}) {
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const providers = useQuery(providersQuery);
  const [draft, setDraft] = useState(() => (model ? toRegistryDraft(model) : EMPTY_MODEL));
  const [asks, setAsks] = useState(false);
  const change = (part: Partial<typeof draft>) => setDraft((previous) => ({ ...previous, ...part }));
  const request = toModelRequest(draft);
  const params = { path: { id: draft.id.trim() } };
  const set = useModelChange(
    (body: Schema["SetModel"]) => unwrap(api.PUT("/v1/model-registry/{id}", { params, body })),
    () => !model && onClose(),
  );
  const remove = useModelChange(
    () => unwrap(api.DELETE("/v1/model-registry/{id}", { params })),
    () => {
      setAsks(false);
      onClose();
    },
  );
  const missing = reason ?? (set.isPending ? "It is being saved" : "missing" in request ? request.missing : null);
  const changeRoute = (index: number, part: Partial<RouteDraft>) =>
    change({ routes: draft.routes.map((route, at) => (at === index ? { ...route, ...part } : route)) });
  const currency = me.data?.currency ?? "USD";
  const names = [
    { value: "", name: "Choose a provider" },
    ...(providers.data?.items ?? []).map((it) => ({ value: it.name, name: it.name })),
  ];
  return (
    <article className="grid max-w-[760px] grid-cols-1 gap-5">
      <h2 className="text-lead">{model ? model.title : "Add model"}</h2>
      <Form
        className="grid gap-5"
        onSubmit={(event) => {
          event.preventDefault();
          if (!missing && "body" in request) set.mutate(request.body);
        }}
      >
        <div className="grid grid-cols-1 items-start gap-4 small:grid-cols-2">
          <Field
            label="Id"
            value={draft.id}
            onChange={(id) => change({ id })}
            mono
            isDisabled={model !== null}
            description={model ? undefined : "What agents and rules call it."}
          />
          <Field
            label="Title"
            value={draft.title}
            onChange={(title) => change({ title })}
            placeholder={draft.id}
            description="The id when empty."
          />
          <Choice label="Tier" value={draft.tier} onChange={(tier) => change({ tier })} options={TIERS} />
          <Choice
            label="Only in the project"
            value={draft.project}
            onChange={(project) => change({ project })}
            options={[
              { value: "", name: "Every project" },
              ...(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug })),
            ]}
          />
          <Field
            label="Tokens of a conversation"
            value={draft.context}
            onChange={(context) => change({ context })}
            inputMode="numeric"
          />
          <Field
            label="Tokens of an answer"
            value={draft.output}
            onChange={(output) => change({ output })}
            inputMode="numeric"
          />
          <Field
            label="Seconds that the manager waits"
            value={draft.thinkSeconds}
            onChange={(thinkSeconds) => change({ thinkSeconds })}
            inputMode="numeric"
            description="1 to 3600; that of the settings when empty."
          />
        </div>
        <fieldset className="grid grid-cols-1 gap-x-4 small:grid-cols-2">
          <legend className="font-medium">What it can do</legend>
          <Tick label="Calls tools" isTicked={draft.tools} onChange={(tools) => change({ tools })} />
          <Tick label="Sees images" isTicked={draft.images} onChange={(images) => change({ images })} />
          <Tick
            label="Keeps to a JSON schema"
            isTicked={draft.jsonSchema}
            onChange={(jsonSchema) => change({ jsonSchema })}
          />
          <Tick label="Takes skills" isTicked={draft.skills} onChange={(skills) => change({ skills })} />
          <Tick label="Is offered" isTicked={draft.enabled} onChange={(enabled) => change({ enabled })} />
        </fieldset>
        {draft.routes.map((route, index) => (
          <fieldset
            // biome-ignore lint/suspicious/noArrayIndexKey: a route is identified by its place in the order
            key={index}
            className="border-line border-t pt-3"
          >
            <legend className="float-left mb-2 w-full font-medium">
              Route {index + 1}
              {index > 0 && <span className="font-normal text-muted">, when the ones before it fail</span>}
            </legend>
            <div className="clear-both grid grid-cols-2 items-start gap-3 small:grid-cols-4">
              <div className="col-span-2">
                <Choice
                  label="Provider"
                  value={route.provider}
                  onChange={(provider) => changeRoute(index, { provider })}
                  options={names}
                />
              </div>
              <div className="col-span-2">
                <Field
                  label="Called there"
                  value={route.upstream}
                  onChange={(upstream) => changeRoute(index, { upstream })}
                  mono
                />
              </div>
              <Field
                label="Read"
                value={route.input}
                onChange={(input) => changeRoute(index, { input })}
                inputMode="decimal"
                placeholder="0"
              />
              <Field
                label="Written"
                value={route.output}
                onChange={(output) => changeRoute(index, { output })}
                inputMode="decimal"
                placeholder="0"
              />
              <Field
                label="Read, cached"
                value={route.cached}
                onChange={(cached) => changeRoute(index, { cached })}
                inputMode="decimal"
                placeholder={route.input || "0"}
              />
              <Field
                label="Put into the cache"
                value={route.cacheWrite}
                onChange={(cacheWrite) => changeRoute(index, { cacheWrite })}
                inputMode="decimal"
                placeholder={route.input || "0"}
              />
              <p className="col-span-full flex flex-wrap items-center justify-between gap-2 text-meta text-muted">
                Prices in {currency} for a million tokens.
                {draft.routes.length > 1 && (
                  <Action tone="quiet" onPress={() => change({ routes: draft.routes.filter((_, at) => at !== index) })}>
                    Remove route {index + 1}
                  </Action>
                )}
              </p>
            </div>
          </fieldset>
        ))}
        <div>
          <Action tone="quiet" onPress={() => change({ routes: [...draft.routes, EMPTY_ROUTE] })}>
            Add another route
          </Action>
        </div>
        {set.error && <ProblemNote error={set.error} />}
        {set.isSuccess && model && (
          <p role="status" className="border-ok border-l-2 py-1 pl-3">
            The model is saved.
          </p>
        )}
        <div className="flex flex-wrap gap-2">
          <Action type="submit" tone="primary" reason={missing}>
            {model ? "Save model" : "Add model"}
          </Action>
          {model && (
            <Action tone="danger" onPress={() => setAsks(true)} reason={reason}>
              Delete model…
            </Action>
          )}
        </div>
      </Form>
      {asks && model && (
        <ConfirmLayer
          title={`Delete ${model.title}?`}
          action="Delete model"
          keep="Keep model"
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(undefined)}
          onClose={() => setAsks(false)}
        >
          <p>Its routes and prices are lost, and agents can no longer ask it. What it did cost stays in the sums.</p>
        </ConfirmLayer>
      )}
    </article>
  );
}
