import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Schema } from "../api/client";
import { budgetsQuery, meQuery, projectsQuery, usageQuery } from "../api/queries";
import { formatCost, formatCostExactly, shortenId, toWords } from "../logic/format";
import { Command, Empty, Foreign, Loaded, Page, PageHead, SectionHead, SpendBar } from "../ui/basic";
import { usePageCommand } from "../ui/copy";

export function SpendPage() {
  usePageCommand("cynork usage sum --by model", "/v1/usage?by=model");
  const me = useQuery(meQuery);
  const budgets = useQuery(budgetsQuery);
  const projects = useQuery(projectsQuery);
  const money = (micros: number) => formatCost(micros, me.data?.currency);
  const exactly = (micros: number) => formatCostExactly(micros, me.data?.currency);
  const names = new Map((projects.data?.items ?? []).map((project) => [project.id, project.slug]));
  return (
    <Page>
      <PageHead title="Spend" />
      <div className="grid gap-6">
        <section className="grid gap-3">
          <SectionHead>Limits</SectionHead>
          <Loaded query={budgets}>
            {(data) =>
              data.items.length === 0 ? (
                <Empty title="There is no limit.">
                  <Command line="cynork budget set --installation --period month --max-cost 50" />
                </Empty>
              ) : (
                <ul className="grid gap-4">
                  {data.items.map((budget) => (
                    <Budget
                      key={budget.budget_id}
                      budget={budget}
                      money={money}
                      name={names.get(budget.scope_id ?? "")}
                    />
                  ))}
                </ul>
              )
            }
          </Loaded>
        </section>
        <Sums by="model" title="By model" money={exactly} nameOf={(key) => key} />
        <Sums by="project" title="By project" money={exactly} nameOf={(key) => names.get(key) ?? key} />
        <Sums by="day" title="By day" money={exactly} nameOf={(key) => key} />
      </div>
    </Page>
  );
}

function Budget({
  budget,
  money,
  name,
}: {
  budget: Schema["BudgetStatusView"];
  money: (micros: number) => string;
  name: string | undefined;
}) {
  const limit = budget.max_cost_micros ?? null;
  const words = [
    `${money(budget.spent_micros)} spent`,
    budget.reserved_micros > 0 ? `${money(budget.reserved_micros)} reserved` : null,
    limit === null ? "no limit in money" : `of ${money(limit)}`,
  ].filter(Boolean);
  return (
    <li className="grid max-w-[760px] gap-1">
      <div className="flex flex-wrap justify-between gap-x-4">
        <span className="font-medium">
          {toWords(budget.scope_type)} {name && <span className="text-muted">{name}</span>}
          {budget.scope_type === "task" && budget.scope_id && (
            <Link
              to="/tasks/$task"
              params={{ task: budget.scope_id }}
              className="font-mono text-accent text-code underline"
            >
              {shortenId(budget.scope_id)}
            </Link>
          )}{" "}
          <span className="font-normal text-muted">
            {budget.period === "total" ? "in total" : `per ${budget.period}`}
          </span>
        </span>
        <span className="text-meta text-muted">{words.join(" · ")}</span>
      </div>
      <SpendBar spent={budget.spent_micros} reserved={budget.reserved_micros} limit={limit} label={words.join(", ")} />
    </li>
  );
}

function Sums({
  by,
  title,
  money,
  nameOf,
}: {
  by: "model" | "project" | "day";
  title: string;
  money: (micros: number) => string;
  nameOf: (key: string) => string;
}) {
  const usage = useQuery(usageQuery(by));
  return (
    <section className="grid gap-1">
      <SectionHead>{title}</SectionHead>
      <Loaded query={usage}>
        {(data) =>
          data.items.length === 0 ? (
            <p className="text-muted">No model has been called yet.</p>
          ) : (
            <table className="w-full text-meta">
              <thead>
                <tr className="text-left text-muted">
                  <th className="py-1.5 font-medium">
                    {title.slice(3).replace(/^./, (letter) => letter.toUpperCase())}
                  </th>
                  <th className="w-20 py-1.5 text-right font-medium">Calls</th>
                  <th className="w-32 py-1.5 text-right font-medium max-small:hidden">Tokens in</th>
                  <th className="w-32 py-1.5 text-right font-medium max-small:hidden">Tokens out</th>
                  <th className="w-24 py-1.5 text-right font-medium">Cost</th>
                </tr>
              </thead>
              <tbody>
                {data.items.map((sum) => (
                  <tr key={sum.key ?? ""} className="border-line border-t">
                    <td className="py-1.5">
                      <Foreign text={nameOf(sum.key ?? "") || "other"} />
                    </td>
                    <td className="text-right">{sum.calls.toLocaleString("en-US")}</td>
                    <td className="text-right max-small:hidden">{sum.input_tokens.toLocaleString("en-US")}</td>
                    <td className="text-right max-small:hidden">{sum.output_tokens.toLocaleString("en-US")}</td>
                    <td className="text-right">{money(sum.cost_micros)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Loaded>
    </section>
  );
}
