/** What did agents call, and is the record of it whole? */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { ArrowLeft } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import type { Schema } from "../api/client";
import { toConnectionProblem, toProblem } from "../api/problem";
import { projectsQuery } from "../api/queries";
import { type AuditFilter, auditQuery, policyToolsQuery, toAuditQuery } from "../api/queries-policy";
import { send } from "../api/transport";
import { readBundle } from "../logic/audit-bundle";
import { describeDecision, describeEnd } from "../logic/explain";
import { formatCount, formatDuration, toWords } from "../logic/format";
import { quoteShell } from "../logic/text";
import { Action, Age, cx, Empty, Foreign, Loaded, Page, PageHead, ProblemNote } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { AuditDetail } from "./audit-detail";
import { WitnessPanel } from "./audit-witness";

type AuditRow = Schema["AuditView"];

const TIMES = [
  { value: "", name: "Any time" },
  { value: "1h", name: "Last hour" },
  { value: "1d", name: "Last day" },
  { value: "7d", name: "Last 7 days" },
  { value: "30d", name: "Last 30 days" },
  { value: "exact", name: "From … until …" },
] as const;

const DECISION_CHOICES = [
  { value: "", name: "Every decision" },
  { value: "allow", name: "Allowed" },
  { value: "deny", name: "Refused" },
  { value: "needs_approval", name: "Needs approval" },
];

export function AuditPage() {
  const search = useSearch({ from: "/audit" });
  const navigate = useNavigate({ from: "/audit" });
  const client = useQueryClient();
  const { call, role, ...filter } = search;
  const records = useInfiniteQuery(auditQuery(filter));
  const projects = useQuery(projectsQuery);
  const names = useMemo(() => new Map((projects.data?.items ?? []).map((it) => [it.id, it.slug])), [projects.data]);
  const all = useMemo(() => records.data?.pages.flatMap((page) => page.items) ?? [], [records.data]);
  const items = role ? all.filter((record) => record.agent_role === role) : all;
  const query = new URLSearchParams(toAuditQuery(filter, Date.now())).toString();
  usePageCommand(toCynork(filter, call), `/v1/audit${query ? `?${query}` : ""}`);

  const keyOf = (record: AuditRow) => `${record.chain_id}-${record.seq}`;
  const [cursor, setCursor] = useState<string | null>(null);
  const open = (record: AuditRow, replace: boolean) => {
    setCursor(keyOf(record));
    void navigate({ search: (previous) => ({ ...previous, call: record.call_id }), replace });
  };
  const move = (by: number) => {
    const index = items.findIndex((record) => (cursor ? keyOf(record) === cursor : record.call_id === call));
    const next = items[Math.min(Math.max(index + by, 0), items.length - 1)];
    if (!next) return;
    if (call) open(next, true);
    else setCursor(keyOf(next));
  };
  const marked = items.find((record) => keyOf(record) === cursor);
  const close = () => void navigate({ search: (previous) => ({ ...previous, call: undefined }) });
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: marked && !call ? () => open(marked, false) : undefined,
    Escape: call ? close : undefined,
    "/": () => document.querySelector<HTMLElement>("#filters input")?.focus(),
  });
  return (
    <Page wide>
      <div className={cx("grid grid-cols-1 gap-4 pb-4", call && "max-split:sr-only")}>
        <div className="-mb-4">
          <PageHead
            title="Audit"
            lead="Every tool call of every agent: how it was decided and how it ended, without arguments and results."
          >
            <Action
              tone="quiet"
              onPress={() => void client.invalidateQueries({ queryKey: ["audit"] })}
              reason={records.isFetching ? "It is being read" : null}
            >
              Look again
            </Action>
            <ExportButton filter={filter} />
          </PageHead>
        </div>
        <WitnessPanel />
        <Filters roles={[...new Set(all.flatMap((record) => record.agent_role ?? []))]} />
      </div>
      <div className={cx("grid grid-cols-1 gap-6", call && "split:grid-cols-[420px_1fr]")}>
        <div className={cx("min-w-0", call && "max-split:hidden")}>
          <Loaded query={records} lines={8}>
            {() =>
              items.length === 0 ? (
                <NoRecords isFiltered={all.length > 0 || Object.values(filter).some(Boolean)} />
              ) : (
                <>
                  {!call && <Columns />}
                  <ul aria-label="Records, newest first" className="border-line border-t">
                    {items.map((record) => (
                      <Row
                        key={keyOf(record)}
                        record={record}
                        project={names.get(record.project_id ?? "") ?? null}
                        isChosen={cursor ? keyOf(record) === cursor : record.call_id === call}
                        isCompact={call !== undefined}
                        onOpen={() => setCursor(keyOf(record))}
                      />
                    ))}
                  </ul>
                </>
              )
            }
          </Loaded>
          {role && (
            <p className="pt-2 text-meta text-muted">
              {items.length} of the {formatCount(all.length, "record")} read so far are of this role.
            </p>
          )}
          {records.hasNextPage && (
            <div className="py-4">
              <Action
                onPress={() => void records.fetchNextPage()}
                reason={records.isFetchingNextPage ? "They are being read" : null}
              >
                Show older records
              </Action>
            </div>
          )}
        </div>
        {call && (
          <div className="min-w-0">
            <button
              type="button"
              onClick={close}
              className="mb-3 hidden min-h-10 items-center gap-1.5 text-muted max-split:inline-flex"
            >
              <ArrowLeft size={15} aria-hidden="true" /> Audit
            </button>
            <AuditDetail key={call} call={call} projects={names} />
          </div>
        )}
      </div>
    </Page>
  );
}

function toCynork(filter: AuditFilter, call: string | undefined): string {
  if (call) return quoteShell(["cynork", "audit", "prove", call]);
  const flags = [
    ["--project", filter.project],
    ["--task", filter.task],
    ["--tool", filter.tool],
    ["--decision", filter.decision],
    ["--since", filter.since],
    ["--until", filter.until],
  ].flatMap(([flag, value]) => (flag && value ? [flag, value] : []));
  return quoteShell(["cynork", "audit", "search", ...flags]);
}

function NoRecords({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) return <Empty title="No record is like this." />;
  return (
    <Empty title="No agent has called a tool yet.">
      <p className="text-muted">
        Two records stand here for every call that is made, and one for every call that is refused.
      </p>
      <p>
        <Link to="/tasks/new" className="font-medium text-accent underline">
          Start a task
        </Link>
      </p>
    </Empty>
  );
}

/** The query line. */
function Filters({ roles }: { roles: readonly string[] }) {
  const search = useSearch({ from: "/audit" });
  const navigate = useNavigate({ from: "/audit" });
  const projects = useQuery(projectsQuery);
  const tools = useQuery({ ...policyToolsQuery, retry: false });
  const set = (part: Partial<typeof search>) =>
    void navigate({ search: (previous) => ({ ...previous, ...part }), replace: true });
  const [tool, setTool] = useState(search.tool ?? "");
  useEffect(() => setTool(search.tool ?? ""), [search.tool]);
  const isRelative = TIMES.some((it) => it.value === (search.since ?? "")) && !search.until;
  const [isExact, setExact] = useState(!isRelative);
  return (
    <search id="filters" className="grid gap-2">
      <div className="grid grid-cols-[2fr_repeat(4,1fr)] items-end gap-2 max-medium:grid-cols-2">
        <form
          className="max-medium:col-span-2"
          onSubmit={(event) => {
            event.preventDefault();
            set({ tool: tool.trim() || undefined });
          }}
        >
          <label className="grid">
            <span className="sr-only">Tool</span>
            <input
              list="audit-tools"
              value={tool}
              onChange={(event) => setTool(event.target.value)}
              onBlur={() => set({ tool: tool.trim() || undefined })}
              placeholder="Tool, such as git.push"
              className="min-h-8 w-full rounded-box border border-control bg-bg px-2.5 py-1 font-mono text-code placeholder:text-faint max-small:min-h-10 max-small:text-[16px]"
            />
          </label>
          <datalist id="audit-tools">
            {tools.data?.items.map((it) => (
              <option key={it.name} value={it.name} />
            ))}
          </datalist>
        </form>
        <Choice
          label="Decision"
          hideLabel
          value={search.decision ?? ""}
          onChange={(decision) => set({ decision: decision || undefined })}
          options={DECISION_CHOICES}
        />
        <Choice
          label="Project"
          hideLabel
          value={search.project ?? ""}
          onChange={(project) => set({ project: project || undefined })}
          options={[
            { value: "", name: "Every project" },
            ...(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug })),
          ]}
        />
        <Choice
          label="Role of the agent"
          hideLabel
          value={search.role ?? ""}
          onChange={(role) => set({ role: role || undefined })}
          options={[
            { value: "", name: "Every agent" },
            ...[...new Set([...roles, ...(search.role ? [search.role] : [])])]
              .sort()
              .map((role) => ({ value: role, name: toWords(role) })),
          ]}
        />
        <Choice
          label="Time"
          hideLabel
          value={isExact ? "exact" : (search.since ?? "")}
          onChange={(since) => {
            setExact(since === "exact");
            if (since !== "exact") set({ since: since || undefined, until: undefined });
          }}
          options={TIMES}
        />
      </div>
      {isExact && (
        <div className="grid max-w-[560px] grid-cols-2 gap-2 max-small:grid-cols-1">
          <TimeField label="From" value={search.since} onChange={(since) => set({ since })} />
          <TimeField label="Until" value={search.until} onChange={(until) => set({ until })} />
        </div>
      )}
      {search.task && (
        <p className="flex items-center gap-2 text-meta text-muted">
          Only of one task.
          <Action tone="quiet" onPress={() => set({ task: undefined })}>
            Show every task
          </Action>
        </p>
      )}
    </search>
  );
}

/** A time in the zone of the reader. */
function TimeField({
  label,
  value,
  onChange,
}: {
  label: string;
  value: string | undefined;
  onChange: (value: string | undefined) => void;
}) {
  const at = value ? Date.parse(value) : Number.NaN;
  const local = Number.isNaN(at) ? "" : toLocalText(at);
  return (
    <Field
      label={label}
      type="datetime-local"
      value={local}
      onChange={(text) => {
        const time = Date.parse(text);
        onChange(Number.isNaN(time) ? undefined : new Date(time).toISOString());
      }}
    />
  );
}

function toLocalText(at: number): string {
  const shifted = new Date(at - new Date(at).getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 16);
}

const GRID =
  "medium:grid medium:grid-cols-[72px_minmax(0,1.6fr)_150px_minmax(0,1.3fr)_minmax(0,1.2fr)_minmax(0,1fr)_72px] medium:items-baseline medium:gap-3";

/** The heads of the columns, for the eye; each row reads as a sentence. */
function Columns() {
  return (
    <div aria-hidden="true" className={cx("hidden px-3 py-1 font-medium text-meta text-muted", GRID)}>
      <span>When</span>
      <span>Tool</span>
      <span>Record</span>
      <span>Reason</span>
      <span>Agent</span>
      <span>Project</span>
      <span className="text-right">Took</span>
    </div>
  );
}

function Row({
  record,
  project,
  isChosen,
  isCompact,
  onOpen,
}: {
  record: AuditRow;
  project: string | null;
  isChosen: boolean;
  isCompact: boolean;
  onOpen: () => void;
}) {
  const element = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen) element.current?.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  const decision = describeDecision(record.decision);
  const isOutcome = record.phase === "outcome";
  const sign = isOutcome ? (record.outcome === "success" ? "▪" : "!") : decision.sign;
  const tone = isOutcome ? (record.outcome === "success" ? "text-muted" : "text-warn") : decision.tone;
  const words = isOutcome ? toWords(describeEnd(record.outcome)) : decision.words;
  const isPlain = record.reason === "ok" || record.reason === "allowed";
  const took = isOutcome ? formatDuration(record.duration_us / 1000) : "";
  return (
    <li>
      <Link
        ref={element}
        to="/audit"
        search={(previous) => ({ ...previous, call: record.call_id })}
        onClick={onOpen}
        aria-current={isChosen ? "true" : undefined}
        className={cx(
          "block border-line border-b px-3 py-1.5 text-meta -outline-offset-2 hover:bg-surface max-medium:py-2",
          isChosen && "bg-select hover:bg-select",
        )}
      >
        <span className={cx("grid gap-0.5", !isCompact && GRID)}>
          <span className={cx("flex items-baseline gap-2", !isCompact && "medium:contents")}>
            <Age
              at={record.at}
              className={cx("shrink-0 text-faint", !isCompact && "max-medium:order-3", isCompact && "order-3")}
            />
            <span className="min-w-0 flex-1 truncate font-mono text-code text-text">
              <Foreign text={record.tool ?? record.method} />
            </span>
            <span className={cx("shrink-0 whitespace-nowrap", tone)}>
              <span aria-hidden="true" className="inline-block w-[1.1em] text-center font-mono">
                {sign}
              </span>{" "}
              {words}
            </span>
          </span>
          <span className={cx("flex min-w-0 items-baseline gap-2 text-muted", !isCompact && "medium:contents")}>
            <span className={cx("min-w-0 truncate", isCompact ? "empty:hidden" : "max-medium:empty:hidden")}>
              {!isPlain && <Foreign text={toWords(record.reason)} />}
              {record.rules.length > 0 && (
                <>
                  {" "}
                  by <Foreign text={record.rules.join(", ")} />
                </>
              )}
              {record.shadow.length > 0 && (
                <span className="text-warn">
                  {" "}
                  shadow: <Foreign text={record.shadow.join(", ")} />
                </span>
              )}
            </span>
            <span className="min-w-0 truncate">
              <Foreign text={toWords(record.agent_role ?? "unknown caller")} />
            </span>
            <span className="min-w-0 truncate">{project ? <Foreign text={project} /> : ""}</span>
            <span className="ml-auto shrink-0 text-right">{took}</span>
          </span>
        </span>
      </Link>
    </li>
  );
}

/** Exports what is searched for, with proofs, and says what is in it. */
function ExportButton({ filter }: { filter: AuditFilter }) {
  const save = useMutation({
    mutationFn: async () => {
      const query = new URLSearchParams({ ...toAuditQuery(filter, Date.now()), limit: "5000" });
      const response = await send(`/v1/audit/export?${query}`, { credentials: "same-origin" }).catch(() => {
        throw toConnectionProblem();
      });
      if (!response.ok) {
        const body: unknown = await response.json().catch(() => null);
        throw toProblem(response.status, body, response.headers.get("x-trace-id"));
      }
      const text = await response.text();
      const bundle = readBundle(text);
      saveFile(text, `cynode-audit-${new Date().toISOString().slice(0, 10)}.ndjson`);
      return bundle;
    },
  });
  return (
    <div className="grid justify-items-end gap-1">
      <Action onPress={() => save.mutate()} reason={save.isPending ? "It is being written" : null}>
        Export bundle
      </Action>
      {save.data && (
        <p role="status" className="text-meta text-muted">
          {formatCount(save.data.records, "record")} exported, {save.data.proven} with a proof
          {save.data.complete ? "" : "; more match, and the newest are in it"}.
        </p>
      )}
      {save.error && <ProblemNote error={save.error} />}
    </div>
  );
}

function saveFile(text: string, name: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}
