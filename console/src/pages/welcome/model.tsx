/** Connects a model of a provider, and asks it something at once. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../../api/client";
import { meQuery, modelsQuery, providersQuery } from "../../api/queries";
import { askModel } from "../../api/test-model";
import { formatDuration } from "../../logic/format";
import { checkModelDraft, type ModelDraft, parsePrice } from "../../logic/welcome";
import { Action, Command, Foreign, ProblemNote, Sign } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";

type Kind = ModelDraft["kind"];

const KINDS: readonly { value: Kind; name: string }[] = [
  { value: "anthropic", name: "Anthropic" },
  { value: "openai", name: "OpenAI" },
  { value: "compatible", name: "A server with the Chat Completions API (Ollama, vLLM, …)" },
];

const PROVIDER_NAMES: Record<Kind, string> = { anthropic: "anthropic", openai: "openai", compatible: "local" };

/** Label of the key that this page sets. It replaces its own, and no other. */
const KEY_LABEL = "first-steps";

const EMPTY: ModelDraft = {
  kind: "anthropic",
  address: "http://127.0.0.1:11434/v1",
  upstream: "",
  inputPrice: "",
  outputPrice: "",
};

export function ModelStep() {
  const models = useQuery(modelsQuery);
  const offered = models.data?.items.filter((model) => model.enabled) ?? [];
  // The form stays open after it stored a model whose test failed.
  const [isOpen, setOpen] = useState<boolean | null>(null);
  return (
    <div className="grid grid-cols-1 gap-4">
      {offered.length > 0 && (
        <ul aria-label="Models" className="grid gap-2">
          {offered.map((model) => (
            <ConnectedModel key={`${model.id} ${model.project_id ?? ""}`} model={model} />
          ))}
        </ul>
      )}
      <details
        open={isOpen ?? (models.data !== undefined && offered.length === 0)}
        onToggle={(event) => setOpen(event.currentTarget.open)}
      >
        <summary className="cursor-default font-medium">
          {offered.length > 0 ? "Connect another model" : "Connect a model"}
        </summary>
        <NewModel />
      </details>
      <details>
        <summary className="cursor-default font-medium">No model at hand?</summary>
        <div className="grid gap-2 pt-2">
          <p className="text-muted">
            The demo plays one task from its words to its merge in an installation of its own, with a scripted model,
            without a key and without a network:
          </p>
          <Command line="cynode demo" />
        </div>
      </details>
    </div>
  );
}

function ConnectedModel({ model }: { model: Schema["ModelView"] }) {
  const test = useMutation({ mutationFn: () => askModel(model.id, model.project_id ?? null) });
  return (
    <li className="grid grid-cols-1 gap-1 border-line border-b pb-2">
      <div className="flex items-center gap-x-3">
        <div className="flex min-w-0 flex-1 flex-wrap items-baseline gap-x-3">
          <span className="font-medium">
            <Foreign text={model.title} />
          </span>
          <span className="text-meta text-muted">
            {[model.tier, model.routes.map((route) => route.provider).join(", ")].filter(Boolean).join(" · ")}
          </span>
        </div>
        <Action className="shrink-0" onPress={() => test.mutate()} reason={test.isPending ? "It is being asked" : null}>
          Test model
        </Action>
      </div>
      <TestResult test={test} />
    </li>
  );
}

function TestResult({
  test,
}: {
  test: { data?: { text: string; milliseconds: number } | undefined; error: unknown; isPending: boolean };
}) {
  if (test.isPending) return <p className="text-muted">It is being asked to say hello…</p>;
  if (test.error) return <ProblemNote error={test.error} />;
  if (!test.data) return null;
  return (
    <p role="status">
      <Sign standing="done" word={`It answered in ${formatDuration(test.data.milliseconds)}`} />:{" "}
      <span className="text-muted">
        “<Foreign text={test.data.text.slice(0, 200)} />”
      </span>
    </p>
  );
}

function NewModel() {
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const providers = useQuery(providersQuery);
  const [draft, setDraft] = useState(EMPTY);
  // The key is in memory only, and only until it is stored.
  const [key, setKey] = useState("");
  const change = (part: Partial<ModelDraft>) => setDraft((previous) => ({ ...previous, ...part }));
  const name = PROVIDER_NAMES[draft.kind];
  const upstream = draft.upstream.trim();
  const known = providers.data?.items.find((provider) => provider.name === name);
  const hasKey = key.trim() !== "" || (known?.keys.length ?? 0) > 0;

  const connect = useMutation({
    mutationFn: async () => {
      const path = { name };
      const base = draft.kind === "compatible" ? { base_url: draft.address.trim() } : {};
      const provider = await unwrap(
        api.PUT("/v1/providers/{name}", { params: { path }, body: { kind: draft.kind, ...base } }),
      );
      if (key.trim() !== "") {
        for (const old of provider.keys.filter((it) => it.label === KEY_LABEL)) {
          const params = { path: { name, key: old.key_id } };
          await unwrap(api.DELETE("/v1/providers/{name}/keys/{key}", { params }));
        }
        const body = { label: KEY_LABEL, key: key.trim() };
        await unwrap(api.POST("/v1/providers/{name}/keys", { params: { path }, body }));
      }
      const input = parsePrice(draft.inputPrice) ?? 0;
      const output = parsePrice(draft.outputPrice) ?? 0;
      await unwrap(
        api.PUT("/v1/model-registry/{id}", {
          params: { path: { id: upstream } },
          body: {
            context_tokens: draft.kind === "compatible" ? 32_768 : 128_000,
            max_output_tokens: draft.kind === "compatible" ? 4096 : 8192,
            tools: true,
            tier: "standard",
            routes: [
              {
                provider: name,
                upstream,
                ...(input + output > 0 ? { prices: { input, output, cached: input, cache_write: input } } : {}),
              },
            ],
          },
        }),
      );
      setKey("");
      return askModel(upstream, null);
    },
    onSettled: () => {
      for (const queryKey of [["models"], ["readiness"]]) void client.invalidateQueries({ queryKey });
    },
  });
  const reason =
    me.data && me.data.installation_role !== "admin"
      ? "Only an admin of the installation connects models"
      : connect.isPending
        ? "It is being connected"
        : checkModelDraft(draft, hasKey);
  const currency = me.data?.currency ?? "USD";
  return (
    <Form
      className="grid gap-4 pt-3"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) connect.mutate();
      }}
    >
      <Choice label="Provider" value={draft.kind} onChange={(kind) => change({ kind })} options={KINDS} />
      {draft.kind === "compatible" && (
        <Field
          label="Address"
          value={draft.address}
          onChange={(address) => change({ address })}
          mono
          description="Up to and including /v1."
        />
      )}
      <Field
        label={draft.kind === "compatible" ? "Key, if it needs one" : "Key"}
        type="password"
        value={key}
        onChange={setKey}
        autoComplete="off"
        description="It is stored encrypted on the server and never shown again."
      />
      <Field
        label="Model"
        value={draft.upstream}
        onChange={(value) => change({ upstream: value })}
        mono
        placeholder={draft.kind === "compatible" ? "qwen2.5-coder:7b" : ""}
        description="What it is called at the provider. It must be able to call tools."
      />
      <div className="grid grid-cols-2 gap-4">
        <Field
          label={`${currency} per million tokens read`}
          value={draft.inputPrice}
          onChange={(inputPrice) => change({ inputPrice })}
          inputMode="decimal"
          placeholder="0"
        />
        <Field
          label={`${currency} per million tokens written`}
          value={draft.outputPrice}
          onChange={(outputPrice) => change({ outputPrice })}
          inputMode="decimal"
          placeholder="0"
        />
      </div>
      <p className="text-meta text-muted">
        Costs and limits are reckoned by these prices. Context, tiers and more models: page Models.
      </p>
      <TestResult test={connect} />
      <div>
        <Action type="submit" tone="primary" reason={reason}>
          Connect and test model
        </Action>
      </div>
    </Form>
  );
}
