/** Models, the providers that answer for them, and why which model is chosen. */

import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { meQuery, modelsQuery, projectsQuery, providersQuery } from "../api/queries";
import { modelChoicesQuery } from "../api/queries-places";
import { formatCost, formatCount, toWords } from "../logic/format";
import type { ModelsSearch } from "../router";
import { Action, Command, Empty, Foreign, Loaded, Page, PageHead, SectionHead, Sign } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { ADMINS_ONLY, RowLines, RowLink } from "../ui/rows";
import { Split, useRowKeys } from "../ui/split";
import { TabBar } from "../ui/tabs";
import { ModelDetail } from "./models/model";
import { ProviderDetail } from "./models/provider";

type Tab = NonNullable<ModelsSearch["tab"]>;

const COMMANDS: Record<Tab, readonly [command: string, path: string]> = {
  models: ["cynork model list", "/v1/model-registry"],
  providers: ["cynork provider list", "/v1/providers"],
  choices: ["cynork model explain", "/v1/model-choices"],
};

export function ModelsPage() {
  const { tab = "models" } = useSearch({ from: "/models" });
  const models = useQuery(modelsQuery);
  const providers = useQuery(providersQuery);
  usePageCommand(...COMMANDS[tab]);
  const parked = providers.data?.items.flatMap((it) => it.keys.filter((key) => key.parked_until)).length ?? 0;
  return (
    <Page wide>
      <PageHead
        title="Models"
        lead={
          parked > 0 ? (
            <Sign standing="trouble" word={`${formatCount(parked, "key")} parked`} />
          ) : (
            "What agents think with, who answers for it, and why which is chosen."
          )
        }
      />
      <div className="grid grid-cols-1 gap-5">
        <TabBar
          label="Parts of the models"
          parameter="tab"
          value={tab}
          tabs={[
            { id: "models", name: "Models", count: models.data?.items.length },
            { id: "providers", name: "Providers", count: providers.data?.items.length },
            { id: "choices", name: "Choices" },
          ]}
        />
        {tab === "models" && <Registry />}
        {tab === "providers" && <Providers />}
        {tab === "choices" && <Choices />}
      </div>
    </Page>
  );
}

/** Identifies a model: the same id can stand for the installation and for a project. */
const keyOf = (model: { id: string; project_id?: string | null }) =>
  model.project_id ? `${model.id} ${model.project_id}` : model.id;

function useAdminReason(): string | null {
  const me = useQuery(meQuery);
  return me.data?.installation_role === "admin" ? null : ADMINS_ONLY;
}

function Registry() {
  const { model: chosenKey, create } = useSearch({ from: "/models" });
  const navigate = useNavigate({ from: "/models" });
  const models = useQuery(modelsQuery);
  const projects = useQuery(projectsQuery);
  const me = useQuery(meQuery);
  const reason = useAdminReason();
  const names = new Map((projects.data?.items ?? []).map((project) => [project.id, project.slug]));
  const items = models.data?.items ?? [];
  const chosen = items.find((model) => keyOf(model) === chosenKey);
  const show = (search: Partial<ModelsSearch>) =>
    void navigate({
      search: (previous) => ({ ...previous, model: undefined, create: undefined, ...search }),
      replace: true,
    });
  useRowKeys(
    items.map(keyOf),
    chosenKey ?? (create ? "" : undefined),
    (model) => show({ model }),
    () => show({}),
  );
  const add = (
    <Action tone={chosen || create ? "plain" : "primary"} onPress={() => show({ create: true })} reason={reason}>
      Add model
    </Action>
  );
  return (
    <Loaded query={models}>
      {() =>
        items.length === 0 && !create ? (
          <Empty title="No model is connected yet.">
            <p className="text-muted">
              Add a provider first, then a model of it. A local server with the Chat Completions API needs no key:
            </p>
            <Command line="cynork provider set local --kind compatible --base-url http://127.0.0.1:11434/v1" />
            <Command line="cynork model set coder --route local=MODEL --context 32768 --max-output 4096 --tools --tier standard" />
            <div>{add}</div>
          </Empty>
        ) : (
          <Split
            back="Models"
            onClose={() => show({})}
            list={
              <div className="grid grid-cols-1 gap-3">
                <div>{add}</div>
                <ul aria-label="Models" className="border-line border-t">
                  {items.map((model) => {
                    const prices = model.routes[0]?.prices;
                    return (
                      <RowLink
                        key={keyOf(model)}
                        parameter="model"
                        id={keyOf(model)}
                        isChosen={keyOf(model) === chosenKey}
                      >
                        <RowLines
                          sign={<Sign standing={model.enabled ? "done" : "cancelled"} />}
                          name={<Foreign text={model.title} />}
                          end={model.tier ? `tier ${model.tier}` : "no tier"}
                          below={
                            <Foreign
                              text={[
                                model.enabled ? null : "disabled",
                                model.project_id
                                  ? `only in ${names.get(model.project_id) ?? "one project"}`
                                  : "in every project",
                                model.routes.map((route) => `${route.provider}/${route.upstream}`).join(", "),
                                prices &&
                                  `${formatCost(prices.input, me.data?.currency)} in and ${formatCost(prices.output, me.data?.currency)} out per million tokens`,
                              ]
                                .filter(Boolean)
                                .join(" · ")}
                            />
                          }
                        />
                      </RowLink>
                    );
                  })}
                </ul>
              </div>
            }
            detail={
              create || chosen ? (
                <ModelDetail
                  key={chosenKey ?? ""}
                  model={create ? null : (chosen ?? null)}
                  reason={reason}
                  onClose={() => show({})}
                />
              ) : chosenKey ? (
                <p role="status">There is no such model.</p>
              ) : null
            }
          />
        )
      }
    </Loaded>
  );
}

function Providers() {
  const { provider: chosenName, create } = useSearch({ from: "/models" });
  const navigate = useNavigate({ from: "/models" });
  const providers = useQuery(providersQuery);
  const reason = useAdminReason();
  const items = providers.data?.items ?? [];
  const chosen = items.find((provider) => provider.name === chosenName);
  const show = (search: Partial<ModelsSearch>) =>
    void navigate({
      search: (previous) => ({ ...previous, provider: undefined, create: undefined, ...search }),
      replace: true,
    });
  useRowKeys(
    items.map((provider) => provider.name),
    chosenName ?? (create ? "" : undefined),
    (provider) => show({ provider }),
    () => show({}),
  );
  const add = (
    <Action tone={chosen || create ? "plain" : "primary"} onPress={() => show({ create: true })} reason={reason}>
      Add provider
    </Action>
  );
  return (
    <Loaded query={providers}>
      {() =>
        items.length === 0 && !create ? (
          <Empty title="There is no provider yet.">
            <p className="text-muted">A provider is a server that answers for models, with its keys.</p>
            <Command line="cynork provider set anthropic --kind anthropic" />
            <Command line="cynork provider add-key anthropic --label main --key-stdin" />
            <div>{add}</div>
          </Empty>
        ) : (
          <Split
            back="Providers"
            onClose={() => show({})}
            list={
              <div className="grid grid-cols-1 gap-3">
                <div>{add}</div>
                <ul aria-label="Providers" className="border-line border-t">
                  {items.map((provider) => {
                    const parked = provider.keys.filter((key) => key.parked_until).length;
                    return (
                      <RowLink
                        key={provider.provider_id}
                        parameter="provider"
                        id={provider.name}
                        isChosen={provider.name === chosenName}
                      >
                        <RowLines
                          name={<Foreign text={provider.name} />}
                          end={
                            parked > 0 ? (
                              <Sign standing="trouble" word={`${formatCount(parked, "key")} parked`} />
                            ) : provider.enabled ? (
                              provider.local && provider.keys.length === 0 ? (
                                "needs no key"
                              ) : (
                                formatCount(provider.keys.length, "key")
                              )
                            ) : (
                              "– disabled"
                            )
                          }
                          below={
                            <Foreign
                              text={[
                                toWords(provider.kind),
                                provider.local ? "nothing leaves what you own" : null,
                                provider.base_url,
                              ]
                                .filter(Boolean)
                                .join(" · ")}
                            />
                          }
                        />
                      </RowLink>
                    );
                  })}
                </ul>
              </div>
            }
            detail={
              create || chosen ? (
                <ProviderDetail
                  key={chosenName ?? ""}
                  provider={create ? null : (chosen ?? null)}
                  reason={reason}
                  onClose={() => show({})}
                  onSet={(name) => show({ provider: name })}
                />
              ) : chosenName ? (
                <p role="status">There is no such provider.</p>
              ) : null
            }
          />
        )
      }
    </Loaded>
  );
}

/** Which model answers for each tier, and why the others do not. */
function Choices() {
  const { project, role } = useSearch({ from: "/models" });
  const navigate = useNavigate({ from: "/models" });
  const projects = useQuery(projectsQuery);
  const choices = useQuery(modelChoicesQuery(project, role));
  return (
    <div className="grid grid-cols-1 gap-6">
      <div className="grid max-w-[560px] grid-cols-1 gap-3 small:grid-cols-2">
        <Choice
          label="In the project"
          value={project ?? ""}
          onChange={(value) =>
            void navigate({ search: (previous) => ({ ...previous, project: value || undefined }), replace: true })
          }
          options={[
            { value: "", name: "No project" },
            ...(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug })),
          ]}
        />
        <Field
          label="For the agent role"
          value={role ?? ""}
          onChange={(value) =>
            void navigate({ search: (previous) => ({ ...previous, role: value || undefined }), replace: true })
          }
          placeholder="developer"
        />
      </div>
      <Loaded query={choices}>
        {(data) => (
          <>
            {data.blockers.map((blocker) => (
              <p key={blocker} className="border-warn border-l-2 py-1 pl-3">
                <Foreign text={blocker} />
              </p>
            ))}
            {data.tiers.map((tier) => (
              <section key={tier.tier} className="grid grid-cols-1 gap-1">
                <SectionHead
                  aside={
                    <code className="font-mono">
                      <Foreign text={tier.model_id} />
                    </code>
                  }
                >
                  {toWords(tier.tier)}:{" "}
                  {tier.model ? <Foreign text={tier.model} /> : <span className="text-warn">! no model answers</span>}
                  {tier.fallback_tier && ` (then ${tier.fallback_tier})`}
                </SectionHead>
                {tier.choices.length === 0 && <p className="text-muted">No model has this tier.</p>}
                <ol>
                  {tier.choices.map((choice) => (
                    <li
                      key={`${choice.model} ${choice.provider ?? ""} ${choice.upstream ?? ""} ${choice.project_specific}`}
                      className="flex flex-wrap items-baseline gap-x-3 border-line border-b py-1.5"
                    >
                      <Sign
                        standing={choice.selected ? "done" : "cancelled"}
                        word={
                          choice.selected ? (choice.position ? `Choice ${choice.position}` : "Chosen") : "Not chosen"
                        }
                      />
                      <span className="font-medium">
                        <Foreign text={choice.model} />
                      </span>
                      {choice.provider && (
                        <code className="font-mono text-code text-muted">
                          <Foreign text={`${choice.provider}/${choice.upstream ?? ""}`} />
                        </code>
                      )}
                      <span className="text-muted">
                        <Foreign text={choice.reason} />
                      </span>
                    </li>
                  ))}
                </ol>
              </section>
            ))}
          </>
        )}
      </Loaded>
    </div>
  );
}
