/** What did it cost? */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useMemo } from "react";
import type { Schema } from "../api/client";
import { meQuery, projectsQuery, providersQuery } from "../api/queries";
import { modelCallsQuery, type SpendFilter, spendSeriesQuery, spendSumQuery } from "../api/queries-places";
import { formatCost, formatCostExactly, formatDuration, formatTime, shortenId, toWords } from "../logic/format";
import { firstDay, stackByDay } from "../logic/places";
import type { SpendSearch } from "../router";
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
  SectionHead,
  Sign,
  useNow,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice } from "../ui/fields";
import { Person } from "../ui/person";
import { TabBar } from "../ui/tabs";
import { TaskName } from "../ui/task-name";
import { Budgets } from "./spend/budgets";
import { SpendChart } from "./spend/chart";

type Group = Exclude<NonNullable<SpendSearch["by"]>, "calls">;

const TABS: readonly { id: Group | "calls"; name: string; one?: string }[] = [
  { id: "model", name: "Models", one: "Model" },
  { id: "project", name: "Projects", one: "Project" },
  { id: "task", name: "Tasks", one: "Task" },
  { id: "user", name: "People", one: "Person" },
  { id: "role", name: "Roles", one: "Role" },
  { id: "provider", name: "Providers", one: "Provider" },
  { id: "day", name: "Days", one: "Day" },
  { id: "calls", name: "Calls" },
];

const SPANS = [
  { value: "7", name: "7 days" },
  { value: "30", name: "30 days" },
  { value: "90", name: "90 days" },
] as const;

const DAY_MS = 86_400_000;

export function SpendPage() {
  const { by = "model", days = 30, project } = useSearch({ from: "/spend" });
  const navigate = useNavigate({ from: "/spend" });
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const today = Math.floor(useNow() / DAY_MS) * DAY_MS;
  const filter: SpendFilter = { project, from: firstDay(days, today) };
  const series = useQuery(spendSeriesQuery(filter));
  const money = (micros: number) => formatCost(micros, me.data?.currency);
  const stack = useMemo(
    () => stackByDay(series.data?.items ?? [], filter.from, days),
    [series.data, filter.from, days],
  );
  const total = stack.days.reduce((sum, day) => sum + day.total, 0);
  const since = `--since ${filter.from}T00:00:00Z${project ? ` --project ${project}` : ""}`;
  const query = new URLSearchParams({
    ...(by === "calls" ? {} : { by }),
    from: `${filter.from}T00:00:00Z`,
    ...(project ? { project_id: project } : {}),
  });
  usePageCommand(
    by === "calls" ? `cynork usage calls ${since}` : `cynork usage sum --by ${by} ${since}`,
    `/v1/usage${by === "calls" ? "/calls" : ""}?${query}`,
  );
  return (
    <Page wide>
      <PageHead title="Spend" lead={series.data ? `${money(total)} in the last ${days} days` : undefined}>
        <div className="grid grid-cols-[minmax(0,14rem)_auto] gap-2">
          <Choice
            label="Project"
            hideLabel
            value={project ?? ""}
            onChange={(value) =>
              void navigate({ search: (previous) => ({ ...previous, project: value || undefined }), replace: true })
            }
            options={[
              { value: "", name: "Every project" },
              ...(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug })),
            ]}
          />
          <Choice
            label="Time"
            hideLabel
            value={String(days) as "7" | "30" | "90"}
            onChange={(value) =>
              void navigate({
                search: (previous) => ({ ...previous, days: value === "30" ? undefined : value === "7" ? 7 : 90 }),
                replace: true,
              })
            }
            options={SPANS}
          />
        </div>
      </PageHead>
      <div className="grid grid-cols-1 gap-8">
        <ParkedKeys />
        <Budgets project={project} money={money} />
        <section className="grid grid-cols-1 gap-3">
          <SectionHead aside="Days in UTC">Per day, by model</SectionHead>
          <Loaded query={series}>
            {(data) =>
              data.items.length === 0 ? (
                <p className="text-muted">No model was called in these {days} days.</p>
              ) : (
                <SpendChart stack={stack} money={money} />
              )
            }
          </Loaded>
        </section>
        <section aria-label="Sums" className="grid grid-cols-1 gap-3">
          <TabBar label="Sums by" parameter="by" value={by} tabs={TABS} />
          {by === "calls" ? <Calls filter={filter} /> : <Sums by={by} filter={filter} />}
        </section>
      </div>
    </Page>
  );
}

/** Keys that a provider does not take at the moment, with the time when it takes them again. */
function ParkedKeys() {
  const providers = useQuery(providersQuery);
  const parked = (providers.data?.items ?? []).flatMap((provider) =>
    provider.keys.flatMap((key) =>
      key.parked_until ? [{ provider: provider.name, key, until: key.parked_until }] : [],
    ),
  );
  if (parked.length === 0) return null;
  return (
    <section className="grid grid-cols-1 gap-1">
      <SectionHead>Parked keys</SectionHead>
      <ul aria-label="Parked keys">
        {parked.map(({ provider, key, until }) => (
          <li key={key.key_id} className="flex flex-wrap items-baseline gap-x-3 border-line border-b py-1.5">
            <Sign standing="trouble" word={`Until ${formatTime(until)}`} />
            <Link to="/models" search={{ tab: "providers", provider }} className="text-accent underline">
              <Foreign text={`${provider}, key ${key.label}`} />
            </Link>
            {key.parked_reason && (
              <span className="text-muted">
                <Foreign text={key.parked_reason} />
              </span>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

function SumName({ by, name }: { by: Group; name: string | null }) {
  const projects = useQuery(projectsQuery);
  if (name === null || name === "") return <span className="text-muted">none</span>;
  switch (by) {
    case "project":
      return (
        <Link to="/projects/$project" params={{ project: name }} className="text-accent underline">
          <Foreign text={projects.data?.items.find((it) => it.id === name)?.slug ?? shortenId(name)} />
        </Link>
      );
    case "task":
      return <TaskName id={name} />;
    case "user":
      return <Person id={name} />;
    case "role":
      return <Foreign text={toWords(name)} />;
    default:
      return <Foreign text={name} />;
  }
}

function Head({ children, className = "" }: { children: ReactNode; className?: string }) {
  return (
    <th scope="col" className={`py-1.5 font-medium ${className}`}>
      {children}
    </th>
  );
}

const count = (value: number) => value.toLocaleString("en-US");

function Sums({ by, filter }: { by: Group; filter: SpendFilter }) {
  const me = useQuery(meQuery);
  const usage = useQuery(spendSumQuery(by, filter));
  const most = Math.max(1, ...(usage.data?.items ?? []).map((sum) => sum.cost_micros));
  return (
    <Loaded query={usage}>
      {(data) =>
        data.items.length === 0 ? (
          <Empty title="No model was called in this time.">
            <Command line={`cynork usage sum --by ${by}`} />
          </Empty>
        ) : (
          <table className="w-full text-meta">
            <thead>
              <tr className="text-left text-muted">
                <Head>{TABS.find((tab) => tab.id === by)?.one}</Head>
                <Head className="w-16 text-right">Calls</Head>
                <Head className="w-16 text-right max-small:hidden">Failed</Head>
                <Head className="w-28 text-right max-small:hidden">Tokens in</Head>
                <Head className="w-28 text-right max-medium:hidden">Of them cached</Head>
                <Head className="w-28 text-right max-small:hidden">Tokens out</Head>
                <Head className="w-24 text-right">Cost</Head>
                <Head className="w-32 pl-3 max-medium:hidden">
                  <span className="sr-only">Part</span>
                </Head>
              </tr>
            </thead>
            <tbody>
              {data.items.map((sum) => (
                <tr key={sum.key ?? ""} className="border-line border-t">
                  <td className="py-1.5">
                    <SumName by={by} name={sum.key ?? null} />
                  </td>
                  <td className="text-right">{count(sum.calls)}</td>
                  <td className="text-right max-small:hidden">
                    {sum.failed === 0 ? (
                      <span className="text-faint">–</span>
                    ) : (
                      <span className="text-bad">✗ {count(sum.failed)}</span>
                    )}
                  </td>
                  <td className="text-right max-small:hidden">{count(sum.input_tokens)}</td>
                  <td className="text-right max-medium:hidden">{count(sum.cached_tokens)}</td>
                  <td className="text-right max-small:hidden">{count(sum.output_tokens)}</td>
                  <td className="text-right">{formatCostExactly(sum.cost_micros, me.data?.currency)}</td>
                  <td className="pl-3 max-medium:hidden" aria-hidden="true">
                    <div
                      className="h-1.5 rounded-chip bg-accent"
                      style={{ width: `${(sum.cost_micros / most) * 100}%` }}
                    />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )
      }
    </Loaded>
  );
}

type Call = Schema["Page_UsageCall"]["items"][number];

function Calls({ filter }: { filter: SpendFilter }) {
  const me = useQuery(meQuery);
  const calls = useInfiniteQuery(modelCallsQuery(filter));
  const items = useMemo(() => calls.data?.pages.flatMap((page) => page.items) ?? [], [calls.data]);
  return (
    <Loaded query={calls}>
      {() =>
        items.length === 0 ? (
          <Empty title="No model was called in this time.">
            <Command line="cynork usage calls" />
          </Empty>
        ) : (
          <div className="grid grid-cols-1 gap-3">
            <p className="text-muted">Newest first. What was asked and answered is not stored here.</p>
            <ul aria-label="Calls" className="border-line border-t">
              {items.map((call) => (
                <CallRow key={call.call_id} call={call} currency={me.data?.currency} />
              ))}
            </ul>
            {calls.hasNextPage && (
              <div>
                <Action
                  onPress={() => void calls.fetchNextPage()}
                  reason={calls.isFetchingNextPage ? "They are being read" : null}
                >
                  Show more calls
                </Action>
              </div>
            )}
          </div>
        )
      }
    </Loaded>
  );
}

function CallRow({ call, currency }: { call: Call; currency: string | undefined }) {
  const failed = Boolean(call.error);
  return (
    <li>
      <details className="border-line border-b">
        <summary className="flex min-h-9 cursor-default flex-wrap items-center gap-x-3 px-1 py-1 -outline-offset-2 hover:bg-surface">
          <Sign standing={failed ? "failed" : "done"} word={toWords(call.outcome)} />
          <span className="font-medium">
            <Foreign text={call.model} />
          </span>
          <span className="text-meta text-muted">
            {call.agent_role ? `${toWords(call.agent_role)} · ` : ""}
            {count(call.input_tokens)} in, {count(call.output_tokens)} out
            {call.duration_ms != null && ` · ${formatDuration(call.duration_ms)}`}
          </span>
          <span className="ml-auto text-meta">{formatCostExactly(call.cost_micros, currency)}</span>
          <Age at={call.at} className="w-10 text-right text-meta text-faint" />
        </summary>
        <dl className="grid grid-cols-[max-content_1fr] gap-x-4 gap-y-1 px-1 pb-3 pl-7 text-meta">
          <dt className="text-muted">Provider</dt>
          <dd>
            <Foreign text={call.provider} />
          </dd>
          {call.error && (
            <>
              <dt className="text-muted">Error</dt>
              <dd className="text-bad">
                <Foreign text={call.error} />
              </dd>
            </>
          )}
          {call.task_id && (
            <>
              <dt className="text-muted">Task</dt>
              <dd>
                <TaskName id={call.task_id} />
              </dd>
            </>
          )}
          <dt className="text-muted">For</dt>
          <dd>
            <Person id={call.user_id} />
          </dd>
          <dt className="text-muted">Tokens</dt>
          <dd>
            {count(call.cached_tokens)} of those in were cached, {count(call.reasoning_tokens)} of those out were
            reasoning; counted by {call.basis}
          </dd>
          {call.first_byte_ms != null && (
            <>
              <dt className="text-muted">First byte</dt>
              <dd>{formatDuration(call.first_byte_ms)}</dd>
            </>
          )}
          {call.redactions > 0 && (
            <>
              <dt className="text-muted">Redacted</dt>
              <dd>{count(call.redactions)} secrets were taken out before it was sent</dd>
            </>
          )}
          <dt className="text-muted">Trace</dt>
          <dd>
            <Id id={call.trace_id} />
          </dd>
        </dl>
      </details>
    </li>
  );
}
