/** What may agents call? One row per tool. */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, useRef, useState } from "react";
import { meQuery, projectsQuery } from "../api/queries";
import { allowlistsQuery, type StatsDays, toolServersQuery, toolStatsQuery, toolsQuery } from "../api/queries-tools";
import { formatCount, toWords } from "../logic/format";
import {
  describeAnnotations,
  filterTools,
  formatMicroseconds,
  sortTools,
  sumCalls,
  TOOL_SORTS,
  type Tool,
  type ToolFilter,
  type ToolScope,
  type ToolSort,
  type ToolStat,
} from "../logic/tools";
import { Action, Age, Command, cx, Empty, Foreign, Hint, Loaded, Page, PageHead, ProblemNote } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Layer } from "../ui/layer";
import { Split, useRowKeys } from "../ui/split";
import { Switch } from "../ui/switch";
import { ToolsNav } from "../ui/tools-nav";
import { UndoBar } from "../ui/undo";
import { ToolDetail } from "./tool-detail";
import { ScopeChoice } from "./tool-scope";
import { type ToolChange, useSetTool } from "./use-set-tool";

const FILTERS: readonly { value: ToolFilter | ""; name: string }[] = [
  { value: "", name: "Every state" },
  { value: "on", name: "On" },
  { value: "off", name: "Off" },
  { value: "changed", name: "Changed since accepted" },
];

const TIMES: readonly { value: "1" | "7" | "30"; name: string }[] = [
  { value: "1", name: "Last day" },
  { value: "7", name: "Last 7 days" },
  { value: "30", name: "Last 30 days" },
];

export function ToolsPage() {
  usePageCommand("cynork tool list", "/v1/tools");
  const { tool: chosen } = useSearch({ from: "/tools" });
  const tools = useQuery(toolsQuery);
  const [areListsOpen, setListsOpen] = useState(false);
  return (
    <Page wide>
      <ToolsNav />
      <div className={cx(chosen && "max-split:sr-only")}>
        <PageHead title="Tools" lead="What agents may call. Off means refused for everybody, at once.">
          <Action onPress={() => setListsOpen(true)} className={chosen ? "max-split:hidden" : ""}>
            Show allowlists
          </Action>
        </PageHead>
      </div>
      <Loaded query={tools} lines={10}>
        {(data) => <ToolsContent tools={data.items} />}
      </Loaded>
      <Layer title="Allowlists by role" isOpen={areListsOpen} onClose={() => setListsOpen(false)} width="max-w-[640px]">
        <Allowlists />
      </Layer>
    </Page>
  );
}

function ToolsContent({ tools }: { tools: Tool[] }) {
  const { tool: chosenName, q, state, sort = "name", days = 1 } = useSearch({ from: "/tools" });
  const navigate = useNavigate({ from: "/tools" });
  const me = useQuery(meQuery);
  const servers = useQuery(toolServersQuery);
  const projects = useQuery(projectsQuery);
  const seesAll = Boolean(me.data?.installation_role);
  // Who may not see the whole installation sees the records of one project.
  const project = seesAll ? undefined : projects.data?.items[0]?.id;
  const counted = useQuery(toolStatsQuery(days));
  const stats = useMemo(
    () => new Map((counted.data?.items ?? []).map((stat): [string, ToolStat] => [stat.tool, stat])),
    [counted.data],
  );
  const names = useMemo(
    () => new Map((servers.data?.items ?? []).map((server) => [server.server_id, server])),
    [servers.data],
  );
  const serverName = (origin: string) =>
    origin === "native" ? "built in" : (names.get(origin)?.name ?? "a tool server");
  const shown = sortTools(filterTools(tools, q ?? "", state, serverName), sort, stats);
  const chosen = tools.find((tool) => tool.name === chosenName);
  const set = useSetTool();

  const choose = (name: string) =>
    void navigate({ search: (previous) => ({ ...previous, tool: name }), replace: chosenName !== undefined });
  const close = () => void navigate({ search: (previous) => ({ ...previous, tool: undefined }) });
  const sortBy = (next: ToolSort) =>
    void navigate({
      search: (previous) => ({ ...previous, sort: next === "name" ? undefined : next }),
      replace: true,
    });
  const countDays = (next: StatsDays) =>
    void navigate({ search: (previous) => ({ ...previous, days: next === 1 ? undefined : next }), replace: true });
  useRowKeys(
    shown.map((tool) => tool.name),
    chosen?.name,
    choose,
    close,
  );
  useKeys({ "/": () => document.querySelector<HTMLElement>("#filters input")?.focus() });

  const reasonFor = (tool: Tool): string | null => {
    if (set.isPending) return "Another change is being sent";
    if (me.data?.installation_role === "admin") return null;
    if (tool.origin === "native") return "Only an admin of the installation switches built-in tools";
    if (names.get(tool.origin)?.owner_id === me.data?.user.id) return null;
    return "Only an admin or the person who installed the server switches its tools";
  };

  const list = (
    <>
      <div id="filters" className="flex flex-wrap items-end gap-2 pb-3 max-small:grid max-small:grid-cols-2">
        <div className="min-w-0 flex-1 basis-48 small:max-w-80 max-small:col-span-2">
          <FilterField
            value={q ?? ""}
            onChange={(words) =>
              void navigate({ search: (previous) => ({ ...previous, q: words || undefined }), replace: true })
            }
          />
        </div>
        <Choice
          label="State"
          hideLabel
          value={state ?? ""}
          onChange={(value) => void navigate({ search: (previous) => ({ ...previous, state: value || undefined }) })}
          options={FILTERS}
        />
        <Choice label="Sort by" hideLabel value={sort} onChange={sortBy} options={SORTS} />
        <Choice
          label="Time of the counts"
          hideLabel
          value={String(days) as "1" | "7" | "30"}
          onChange={(value) => countDays(Number(value) as StatsDays)}
          options={TIMES}
        />
        <span className="py-1.5 text-meta text-muted max-small:self-center">
          {shown.length === tools.length
            ? formatCount(tools.length, "tool")
            : `${shown.length} of ${tools.length} tools`}
          {tools.some((tool) => !tool.enabled) && ` · ${tools.filter((tool) => !tool.enabled).length} off`}
        </span>
      </div>
      {set.error && <ProblemNote error={set.error} />}
      {shown.length === 0 ? (
        <Empty title="No tool is like this.">
          <p className="text-muted">Tools come with the installation or from tool servers that people install.</p>
          <p>
            <Link to="/tools/servers" search={{ server: "new" }} className="font-medium text-accent underline">
              Install a tool server
            </Link>
          </p>
        </Empty>
      ) : (
        <>
          {counted.error && <ProblemNote error={counted.error} onRetry={() => void counted.refetch()} />}
          {!chosen && <HeadRow sort={sort} onSort={sortBy} />}
          <ul aria-label="Tools" className="border-line border-t">
            {shown.map((tool) => (
              <Row
                key={tool.name}
                tool={tool}
                server={serverName(tool.origin)}
                stat={stats.get(tool.name)}
                isChosen={tool.name === chosen?.name}
                isCompact={chosen !== undefined}
                reason={reasonFor(tool)}
                onChange={(change) => set.mutate({ tool, change })}
              />
            ))}
          </ul>
          {!chosen && (
            <p className="py-2 text-meta text-muted">
              Counted are the recorded calls that you may see. Failed calls were allowed and ended without a result; the
              durations are those of calls that reached the tool.
            </p>
          )}
        </>
      )}
    </>
  );
  return (
    <>
      <Split
        list={list}
        back="Tools"
        onClose={close}
        detail={
          chosen ? (
            <ToolDetail
              key={chosen.name}
              tool={chosen}
              server={names.get(chosen.origin)}
              project={project}
              reason={reasonFor(chosen)}
              onChange={(change) => set.mutate({ tool: chosen, change })}
            />
          ) : chosenName !== undefined ? (
            <Empty title="There is no tool of this name.">
              <p className="text-muted">
                <Foreign text={chosenName} /> may have been removed with its server, or you may not see it.
              </p>
            </Empty>
          ) : null
        }
      />
      {set.done && (
        <UndoBar
          onClose={set.forget}
          onUndo={() => {
            if (set.done) set.mutate({ tool: set.done.tool, change: set.done.undo, isUndo: true });
          }}
          busy={set.isPending ? "It is being sent" : null}
        >
          <Outcome done={set.done} />
        </UndoBar>
      )}
    </>
  );
}

/** The words are typed here and stand in the address a moment later. */
function FilterField({ value, onChange }: { value: string; onChange: (words: string) => void }) {
  const [words, setWords] = useState(value);
  useEffect(() => setWords(value), [value]);
  return (
    <Field
      label="Filter tools"
      value={words}
      onChange={(next) => {
        setWords(next);
        onChange(next);
      }}
      placeholder="Name, server, role; press /"
      onKeyDown={(event) => {
        if (event.key === "Escape") (event.target as HTMLElement).blur();
      }}
    />
  );
}

/** What was measured, and what was not. */
function Outcome({ done }: { done: NonNullable<ReturnType<typeof useSetTool>["done"]> }) {
  const { tool, change, timing, agent } = done;
  if (change.scope !== undefined) {
    return (
      <p>
        <code className="font-mono text-code">{tool.name}</code> may now be called by {describeCallers(change.scope)}.
      </p>
    );
  }
  if (change.enabled) {
    return (
      <p>
        <code className="font-mono text-code">{tool.name}</code> is on again after{" "}
        {formatMilliseconds(timing?.storedMs ?? 0)}.
      </p>
    );
  }
  if (timing === null || timing.refusedMs === null) {
    return (
      <>
        <p className="font-medium">
          <code className="font-mono text-code">{tool.name}</code> is off after{" "}
          {formatMilliseconds(timing?.storedMs ?? 0)}.
        </p>
        <p className="text-meta text-muted">
          No agent that may call it works now, so no refusal was measured. Every gateway follows within 100 ms.
        </p>
      </>
    );
  }
  return (
    <>
      <p className="font-medium">
        <code className="font-mono text-code">{tool.name}</code> is refused after {formatMilliseconds(timing.refusedMs)}
        , everywhere at most 100 ms later.
      </p>
      <p className="text-meta text-muted">
        Measured from your click until the policy refused a call of a{" "}
        {agent ? toWords(agent.role).toLowerCase() : "working agent"}. The 100 ms are what every gateway keeps to.
      </p>
    </>
  );
}

/** A measured time stays in milliseconds: that is what is promised. */
function formatMilliseconds(milliseconds: number): string {
  return `${Math.round(milliseconds).toLocaleString("en-US")} ms`;
}

function describeCallers(scope: ToolScope): string {
  if (scope === "pm") return "project managers and analysts only";
  return scope === "sandbox" ? "agents in sandboxes only" : "project managers and agents in sandboxes";
}

const COLUMNS =
  "medium:grid-cols-[70px_minmax(160px,1.5fr)_minmax(110px,1fr)_112px_56px_60px_52px] split:grid-cols-[70px_minmax(180px,1.5fr)_minmax(130px,1fr)_112px_56px_60px_56px_60px_60px_52px]";

const SORTS = TOOL_SORTS.map(({ value, name }) => ({ value, name: `By ${name.toLowerCase()}` }));

/** Names of the columns; those of numbers sort by them. */
function HeadRow({ sort, onSort }: { sort: ToolSort; onSort: (sort: ToolSort) => void }) {
  const head = (value: ToolSort, className: string) => {
    const name = TOOL_SORTS.find((entry) => entry.value === value)?.name ?? value;
    return (
      <button
        type="button"
        aria-pressed={sort === value}
        onClick={() => onSort(value)}
        className={cx("hover:underline aria-pressed:font-medium aria-pressed:text-text", className)}
      >
        {name}
        {sort === value && <span aria-hidden="true"> {value === "name" ? "↑" : "↓"}</span>}
      </button>
    );
  };
  return (
    <div className={cx("hidden gap-x-3 px-2 py-1 text-meta text-faint medium:grid", COLUMNS)}>
      <span aria-hidden="true">State</span>
      {head("name", "text-left")}
      <span aria-hidden="true">Server</span>
      <span aria-hidden="true">Scope</span>
      {head("calls", "text-right")}
      {head("refused", "text-right")}
      {head("failed", "hidden text-right split:block")}
      {head("p50", "hidden text-right split:block")}
      {head("p95", "hidden text-right split:block")}
      {head("used", "text-right")}
    </div>
  );
}

function Row({
  tool,
  server,
  stat,
  isChosen,
  isCompact,
  reason,
  onChange,
}: {
  tool: Tool;
  server: string;
  stat: ToolStat | undefined;
  isChosen: boolean;
  isCompact: boolean;
  reason: string | null;
  onChange: (change: ToolChange) => void;
}) {
  const element = useRef<HTMLLIElement>(null);
  useEffect(() => {
    if (isChosen) element.current?.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  const toggle = (
    <Switch
      label={`${tool.name} is enabled`}
      isOn={tool.enabled}
      onChange={(enabled) => onChange({ enabled })}
      reason={reason}
    />
  );
  const name = (
    <Link
      from="/tools"
      to="/tools"
      search={(previous) => ({ ...previous, tool: tool.name })}
      aria-current={isChosen ? "true" : undefined}
      className="grid min-w-0 py-1"
    >
      <span className="truncate font-medium font-mono text-code">
        <Foreign text={tool.name} />
      </span>
      <span className="truncate text-meta text-muted">
        {!tool.accepted && <span className="text-warn">! changed · </span>}
        <Foreign text={tool.title} />
      </span>
    </Link>
  );
  if (isCompact) {
    return (
      <li
        ref={element}
        className={cx(
          "grid grid-cols-[70px_1fr] items-center gap-x-3 border-line border-b px-2",
          isChosen ? "bg-select" : "hover:bg-surface",
        )}
      >
        {toggle}
        {name}
      </li>
    );
  }
  return (
    <li
      ref={element}
      className={cx(
        "grid grid-cols-[70px_1fr_auto] items-center gap-x-3 border-line border-b px-2 py-0.5 hover:bg-surface max-medium:py-2",
        COLUMNS,
      )}
    >
      {toggle}
      {name}
      <span className="grid min-w-0 text-meta text-muted max-medium:hidden">
        <span className="truncate">
          <Foreign text={server} /> · <RolesHint roles={tool.roles} />
        </span>
        <span className="truncate">{describeAnnotations(tool.annotations)}</span>
      </span>
      <ScopeChoice tool={tool} reason={reason} onChange={onChange} />
      <span className="text-right text-meta max-medium:hidden">
        {stat ? sumCalls(stat).toLocaleString("en-US") : "–"}
      </span>
      <Count className="max-medium:hidden" count={stat?.refused} />
      <Count className="hidden split:block" count={stat?.failed} />
      <Duration microseconds={stat?.p50_us} />
      <Duration microseconds={stat?.p95_us} />
      <span className="text-right text-meta text-faint max-medium:hidden">
        {stat ? <Age at={stat.last_at} /> : "–"}
      </span>
      <span className="col-span-2 col-start-2 text-meta text-muted medium:hidden">
        {server} · {describeAnnotations(tool.annotations)}
        {stat && ` · ${formatCount(sumCalls(stat), "call")}`}
        {stat && stat.refused > 0 && (
          <>
            {" · "}
            <span className="whitespace-nowrap text-bad">✗ {stat.refused.toLocaleString("en-US")} refused</span>
          </>
        )}
        {stat && stat.failed > 0 && (
          <>
            {" · "}
            <span className="whitespace-nowrap text-bad">✗ {stat.failed.toLocaleString("en-US")} failed</span>
          </>
        )}
        {stat?.p95_us != null && ` · 95 % within ${formatMicroseconds(stat.p95_us)}`}
      </span>
    </li>
  );
}

function RolesHint({ roles }: { roles: readonly string[] }) {
  if (roles.length === 0) return "no role";
  return (
    <Hint text={roles.map(toWords).join(", ")}>
      {roles.length === 1 ? toWords(roles[0] ?? "") : formatCount(roles.length, "role")}
    </Hint>
  );
}

/** A number of calls that went wrong. */
function Count({ count, className }: { count: number | undefined; className: string }) {
  return (
    <span className={cx("text-right text-meta", className)}>
      {count ? <span className="text-bad">✗ {count.toLocaleString("en-US")}</span> : "–"}
    </span>
  );
}

function Duration({ microseconds }: { microseconds: number | null | undefined }) {
  return (
    <span className="hidden text-right text-meta text-muted split:block">
      {microseconds == null ? "–" : formatMicroseconds(microseconds)}
    </span>
  );
}

function Allowlists() {
  const lists = useQuery(allowlistsQuery);
  return (
    <Loaded query={lists}>
      {(data) => (
        <div className="grid gap-4">
          <p className="text-muted">
            Built-in tools by role; the first line that fits decides. Tools of servers are open to every role of an
            agent.
          </p>
          <dl className="grid gap-3">
            {data.items.map((list) => (
              <div key={list.role}>
                <dt className="font-medium">
                  {toWords(list.role)} <span className="font-normal text-meta text-muted">{list.kind}</span>
                </dt>
                <dd className="font-mono text-code text-muted">
                  {list.lines.length === 0
                    ? "none"
                    : list.lines
                        .map((line) => (line.setting ? `${line.tools} (if ${line.setting})` : line.tools))
                        .join(", ")}
                </dd>
              </div>
            ))}
          </dl>
          <Command line="cynork tool allowlists" />
        </div>
      )}
    </Loaded>
  );
}
