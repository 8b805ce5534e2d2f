import { useQuery } from "@tanstack/react-query";
import { meQuery, modelsQuery, providersQuery } from "../api/queries";
import { formatCost, formatTime } from "../logic/format";
import { Command, Empty, Foreign, Loaded, Page, PageHead, SectionHead, Sign } from "../ui/basic";
import { usePageCommand } from "../ui/copy";

export function ModelsPage() {
  usePageCommand("cynork model list", "/v1/model-registry");
  const models = useQuery(modelsQuery);
  const providers = useQuery(providersQuery);
  const me = useQuery(meQuery);
  const price = (micros: number) => formatCost(micros, me.data?.currency);
  return (
    <Page>
      <PageHead title="Models" />
      <div className="grid gap-6">
        <Loaded query={models}>
          {(data) =>
            data.items.length === 0 ? (
              <Empty title="No model is connected yet.">
                <p className="text-muted">A local server with the Chat Completions API needs no key:</p>
                <Command line="cynork provider set local --kind compatible --base-url http://127.0.0.1:11434/v1" />
                <Command line="cynork model set coder --route local=MODEL --context 32768 --max-output 4096 --tools --tier standard" />
              </Empty>
            ) : (
              <ul aria-label="Models" className="border-line border-t">
                {data.items.map((model) => (
                  <li key={`${model.id} ${model.project_id ?? ""}`} className="grid gap-0.5 border-line border-b py-2">
                    <div className="flex flex-wrap items-baseline gap-x-3">
                      <Sign
                        standing={model.enabled ? "done" : "cancelled"}
                        word={model.enabled ? "Offered" : "Disabled"}
                      />
                      <span className="font-medium">
                        <Foreign text={model.title} />
                      </span>
                      {model.tier && <span className="text-meta text-muted">{model.tier}</span>}
                      <span className="text-meta text-muted">
                        {model.context_tokens.toLocaleString("en-US")} tokens of context
                      </span>
                    </div>
                    {model.routes.map((route) => (
                      <p key={`${route.provider} ${route.upstream}`} className="pl-6 text-meta text-muted">
                        <code className="font-mono">
                          {route.provider}/{route.upstream}
                        </code>
                        {route.prices &&
                          ` · ${price(route.prices.input)} in, ${price(route.prices.output)} out per million tokens`}
                      </p>
                    ))}
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
        <section className="grid gap-1">
          <SectionHead>Providers</SectionHead>
          <Loaded query={providers}>
            {(data) => (
              <ul>
                {data.items.map((provider) => (
                  <li key={provider.provider_id} className="grid gap-0.5 border-line border-b py-2">
                    <div className="flex flex-wrap items-baseline gap-x-3">
                      <span className="font-medium">{provider.name}</span>
                      <span className="text-meta text-muted">
                        {provider.kind}
                        {provider.local && " · on this machine"}
                        {!provider.enabled && " · disabled"}
                      </span>
                    </div>
                    {provider.keys.map((key) => (
                      <p key={key.key_id} className="text-meta text-muted">
                        key {key.label}
                        {key.parked_until && (
                          <span className="text-warn">
                            {" "}
                            ! parked until {formatTime(key.parked_until)}: {key.parked_reason}
                          </span>
                        )}
                      </p>
                    ))}
                  </li>
                ))}
              </ul>
            )}
          </Loaded>
        </section>
      </div>
    </Page>
  );
}
