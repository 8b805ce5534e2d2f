/** Limits of spending: what is spent, what is reserved, and what may be spent at most. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../../api/client";
import { meQuery, projectsQuery } from "../../api/queries";
import { userChoicesQuery } from "../../api/queries-admin";
import { limitsQuery } from "../../api/queries-places";
import { formatCount, shortenId, toWords } from "../../logic/format";
import { parseLimit } from "../../logic/new-task";
import { isPressing, parseCount } from "../../logic/places";
import { Action, Command, Foreign, Loaded, ProblemNote, SectionHead, SpendBar } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { Layer } from "../../ui/layer";
import { Person } from "../../ui/person";
import { ConfirmLayer } from "../../ui/rows";
import { TaskName } from "../../ui/task-name";

type Budget = Schema["BudgetStatusView"];
type ScopeType = Schema["BudgetScopeType"];
type Money = (micros: number) => string;

const SCOPES: readonly { value: ScopeType; name: string }[] = [
  { value: "installation", name: "The installation" },
  { value: "project", name: "A project" },
  { value: "user", name: "A person" },
  { value: "task", name: "A task" },
];

const PERIODS = [
  { value: "day", name: "Each day" },
  { value: "month", name: "Each month" },
  { value: "total", name: "In total" },
] as const;

const SOURCES: Record<NonNullable<Budget["source"]>, string> = {
  default: "from the settings",
  task: "set with the task",
  person: "set by a person",
};

export function Budgets({ project, money }: { project: string | undefined; money: Money }) {
  const budgets = useQuery(limitsQuery(project));
  const [edited, setEdited] = useState<Budget | "new" | null>(null);
  const [leaving, setLeaving] = useState<Budget | null>(null);
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: (budget: string) => unwrap(api.DELETE("/v1/budgets/{budget}", { params: { path: { budget } } })),
    onSuccess: () => setLeaving(null),
    onSettled: () => void client.invalidateQueries({ queryKey: ["usage"] }),
  });
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead
        aside={
          <Action tone="quiet" className="-mr-3" onPress={() => setEdited("new")}>
            Set a limit
          </Action>
        }
      >
        Limits
      </SectionHead>
      <Loaded query={budgets}>
        {(data) =>
          data.items.length === 0 ? (
            <div className="grid max-w-[560px] gap-2">
              <p className="font-medium">{project ? "This project has no limit of its own." : "There is no limit."}</p>
              <Command
                line={`cynork budget set ${project ? `--project ${project}` : "--installation"} --period month --max-cost 50`}
              />
            </div>
          ) : (
            <BudgetLists budgets={data.items} money={money} onEdit={setEdited} onDelete={setLeaving} />
          )
        }
      </Loaded>
      {edited && (
        <BudgetForm budget={edited === "new" ? null : edited} project={project} onClose={() => setEdited(null)} />
      )}
      {leaving && (
        <ConfirmLayer
          title="Delete the limit?"
          action="Delete limit"
          keep="Keep limit"
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(leaving.budget_id)}
          onClose={() => setLeaving(null)}
        >
          <p>
            Model calls {leaving.scope_type === "installation" ? "of everybody" : `of this ${leaving.scope_type}`} are
            no longer stopped by it. What was spent stays counted; other limits hold.
          </p>
        </ConfirmLayer>
      )}
    </section>
  );
}

interface BudgetListProps {
  budgets: readonly Budget[];
  money: Money;
  onEdit: (budget: Budget) => void;
  onDelete: (budget: Budget) => void;
}

/** The limits that concern many people or are nearly used; the others behind one line. */
function BudgetLists({ budgets, ...rest }: BudgetListProps) {
  const shown = budgets.filter(isPressing);
  const others = budgets.filter((budget) => !isPressing(budget));
  return (
    <>
      <BudgetList label="Limits" budgets={shown} {...rest} />
      {others.length > 0 && (
        <details open={shown.length === 0}>
          <summary className="cursor-default text-muted">
            {formatCount(others.length, "limit")} of people and tasks, far from used
          </summary>
          <div className="pt-3">
            <BudgetList label="Limits of people and tasks" budgets={others} {...rest} />
          </div>
        </details>
      )}
    </>
  );
}

function BudgetList({ label, budgets, money, onEdit, onDelete }: BudgetListProps & { label: string }) {
  return (
    <ul aria-label={label} className="grid grid-cols-1 gap-x-8 gap-y-4 medium:grid-cols-2">
      {budgets.map((budget) => (
        <BudgetRow
          key={budget.budget_id}
          budget={budget}
          money={money}
          onEdit={() => onEdit(budget)}
          onDelete={() => onDelete(budget)}
        />
      ))}
    </ul>
  );
}

function BudgetRow({
  budget,
  money,
  onEdit,
  onDelete,
}: {
  budget: Budget;
  money: Money;
  onEdit: () => void;
  onDelete: () => void;
}) {
  const limit = budget.max_cost_micros ?? null;
  const tokens = budget.max_tokens ?? null;
  const count = (value: number) => value.toLocaleString("en-US");
  const words = [
    limit === null
      ? `${money(budget.spent_micros)} spent, no limit in money`
      : `${money(budget.spent_micros)} of ${money(limit)} spent`,
    budget.reserved_micros > 0 ? `${money(budget.reserved_micros)} reserved` : null,
  ].filter(Boolean);
  const tokenWords = [
    tokens === null
      ? `${count(budget.spent_tokens)} tokens used`
      : `${count(budget.spent_tokens)} of ${count(tokens)} tokens used`,
    budget.reserved_tokens > 0 ? `${count(budget.reserved_tokens)} reserved` : null,
  ].filter(Boolean);
  return (
    <li className="grid grid-cols-1 content-start gap-1">
      <div className="flex flex-wrap items-center justify-between gap-x-4">
        <span className="flex flex-wrap items-baseline gap-x-2">
          <span className="font-medium">{toWords(budget.scope_type)}</span>
          <ScopeName budget={budget} />
          <span className="text-muted">{budget.period === "total" ? "in total" : `per ${budget.period}`}</span>
          {budget.source && <span className="text-meta text-faint">{SOURCES[budget.source]}</span>}
        </span>
        <span className="-mx-3 flex">
          <Action tone="quiet" onPress={onEdit}>
            Change limit
          </Action>
          <Action tone="quiet" onPress={onDelete}>
            Delete limit…
          </Action>
        </span>
      </div>
      <SpendBar spent={budget.spent_micros} reserved={budget.reserved_micros} limit={limit} label={words.join(", ")} />
      <p className="text-meta text-muted">{words.join(" · ")}</p>
      {tokens !== null && (
        <SpendBar
          spent={budget.spent_tokens}
          reserved={budget.reserved_tokens}
          limit={tokens}
          label={tokenWords.join(", ")}
        />
      )}
      {tokens !== null && <p className="text-meta text-muted">{tokenWords.join(" · ")}</p>}
    </li>
  );
}

function ScopeName({ budget }: { budget: Budget }) {
  const projects = useQuery(projectsQuery);
  if (!budget.scope_id) return null;
  switch (budget.scope_type) {
    case "installation":
      return null;
    case "project":
      return (
        <Link to="/projects/$project" params={{ project: budget.scope_id }} className="text-accent underline">
          <Foreign
            text={
              projects.data?.items.find((project) => project.id === budget.scope_id)?.slug ?? shortenId(budget.scope_id)
            }
          />
        </Link>
      );
    case "task":
      return <TaskName id={budget.scope_id} />;
    case "user":
      return <Person id={budget.scope_id} />;
  }
}

function BudgetForm({
  budget,
  project,
  onClose,
}: {
  /** Null sets a new one. */
  budget: Budget | null;
  project: string | undefined;
  onClose: () => void;
}) {
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const [scope, setScope] = useState<ScopeType>(budget?.scope_type ?? (project ? "project" : "installation"));
  const [id, setId] = useState(budget?.scope_id ?? project ?? "");
  const [period, setPeriod] = useState(budget?.period ?? "month");
  const [cost, setCost] = useState(budget?.max_cost_micros ? String(budget.max_cost_micros / 1_000_000) : "");
  const [tokens, setTokens] = useState(budget?.max_tokens ? String(budget.max_tokens) : "");
  const users = useQuery({ ...userChoicesQuery, enabled: scope === "user" });
  const limit = parseLimit(cost);
  const count = tokens.trim() === "" ? undefined : parseCount(tokens);
  const set = useMutation({
    mutationFn: () =>
      unwrap(
        api.PUT("/v1/budgets", {
          body: {
            scope_type: scope,
            period,
            ...(scope === "installation" ? {} : { scope_id: id.trim() }),
            ...(limit.micros === null ? {} : { max_cost_micros: limit.micros }),
            ...(count ? { max_tokens: count } : {}),
          },
        }),
      ),
    onSuccess: onClose,
    onSettled: () => void client.invalidateQueries({ queryKey: ["usage"] }),
  });
  const reason = set.isPending
    ? "It is being set"
    : scope !== "installation" && id.trim() === ""
      ? `Choose ${scope === "user" ? "a person" : `a ${scope}`}`
      : (limit.error ??
        (count === null
          ? "Write the tokens as a whole number"
          : limit.micros === null && count === undefined
            ? "Write a limit in money, in tokens, or both"
            : null));
  return (
    <Layer title={budget ? "Change limit" : "Set a limit"} isOpen onClose={onClose}>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!reason) set.mutate();
        }}
      >
        {!budget && (
          <>
            <Choice
              label="Of whom"
              value={scope}
              onChange={(value) => {
                setScope(value);
                setId(value === "project" ? (project ?? "") : "");
              }}
              options={SCOPES}
            />
            {scope === "project" && (
              <Choice
                label="Project"
                value={id}
                onChange={setId}
                options={[
                  { value: "", name: "Choose a project" },
                  ...(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug })),
                ]}
              />
            )}
            {scope === "user" && (
              <Choice
                label="Person"
                value={id}
                onChange={setId}
                options={[
                  { value: "", name: "Choose a person" },
                  ...(users.data?.items ?? []).map((it) => ({ value: it.id, name: it.handle })),
                ]}
              />
            )}
            {scope === "task" && <Field label="Id of the task" value={id} onChange={setId} mono placeholder="tsk_…" />}
            <Choice label="When" value={period} onChange={setPeriod} options={PERIODS} />
          </>
        )}
        <Field
          label={`Limit in ${me.data?.currency ?? "USD"}`}
          value={cost}
          onChange={setCost}
          inputMode="decimal"
          placeholder="50"
          error={limit.error}
          autoFocus
        />
        <Field
          label="Limit in tokens"
          value={tokens}
          onChange={setTokens}
          inputMode="numeric"
          description="In and out together. There is one limit for each scope and period; this one replaces it."
        />
        {set.error && <ProblemNote error={set.error} />}
        <div>
          <Action type="submit" tone="primary" reason={reason}>
            {budget ? "Save limit" : "Set limit"}
          </Action>
        </div>
      </Form>
    </Layer>
  );
}
