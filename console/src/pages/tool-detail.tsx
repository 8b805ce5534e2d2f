/** One tool: what it is, who may call it, what it was called for. */

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Schema } from "../api/client";
import { allowlistsQuery, dayRecordsQuery, rulesOfToolsQuery } from "../api/queries-tools";
import type { ServerTool } from "../api/types";
import { formatCount, formatDuration, formatTime, toWords } from "../logic/format";
import {
  ANNOTATIONS,
  countHours,
  describeSchema,
  findAllowlistLines,
  findRuleConcern,
  type HourCounts,
  joinCalls,
  readAnnotations,
  type SchemaRow,
  type Tool,
} from "../logic/tools";
import { Age, CopyButton, cx, Facts, Foreign, Id, Inline, Loaded, Prose, SectionHead, useNow } from "../ui/basic";
import { Person } from "../ui/person";
import { Switch } from "../ui/switch";
import { ScopeChoice } from "./tool-scope";
import type { ToolChange } from "./use-set-tool";

const SHOWN_CALLS = 20;
const HOURS = 24;

export function ToolDetail({
  tool,
  server,
  project,
  reason,
  onChange,
}: {
  tool: Tool;
  server: Schema["ServerView"] | undefined;
  /** The project whose records the reader may see; the whole installation without one. */
  project: string | undefined;
  reason: string | null;
  onChange: (change: ToolChange) => void;
}) {
  const offered: ServerTool | undefined = server?.tools.find((it) => it.name === tool.name);
  return (
    <article className="grid gap-5">
      <header className="grid gap-2">
        <div className="flex flex-wrap items-center gap-x-4 gap-y-1">
          <h2 className="min-w-0 font-mono text-lead">
            <Foreign text={tool.name} />
          </h2>
          <Switch
            label={`Enable ${tool.name}`}
            isOn={tool.enabled}
            onChange={(enabled) => onChange({ enabled })}
            reason={reason}
          />
          <div className="w-28">
            <ScopeChoice tool={tool} reason={reason} onChange={onChange} />
          </div>
        </div>
        <p className="font-medium">
          <Foreign text={tool.title} />
        </p>
        <Prose text={tool.description} className="text-muted" />
      </header>
      {!tool.accepted && (
        <p className="border-warn border-l-2 py-1 pl-3">
          <span aria-hidden="true">! </span>Its definition changed on its server, so every call is refused until a
          person accepts it.{" "}
          {server && (
            <Link
              to="/tools/servers"
              search={{ server: server.server_id }}
              className="font-medium text-accent underline"
            >
              Compare the definitions
            </Link>
          )}
        </p>
      )}
      <Facts
        rows={[
          [
            "Comes from",
            server ? (
              <Link
                key="server"
                to="/tools/servers"
                search={{ server: server.server_id }}
                className="text-accent underline underline-offset-2"
              >
                <Foreign text={server.title} />
              </Link>
            ) : tool.origin === "native" ? (
              "the installation"
            ) : (
              <Id key="origin" id={tool.origin} />
            ),
          ],
          [
            "Effects",
            [
              ...(readAnnotations(tool.annotations).readOnlyHint ? [] : ["Changes something"]),
              ...ANNOTATIONS.filter((it) => readAnnotations(tool.annotations)[it.key]).map((it) => it.name),
            ].join(" · "),
          ],
          ["Network", tool.network ? "reaches into the network" : "stays inside"],
          tool.bound_to.length > 0 && [
            "Tied to",
            <span key="bound" className="font-mono text-code">
              {tool.bound_to.join(", ")}
            </span>,
          ],
          [
            "On the wire",
            <span key="wire" className="font-mono text-code">
              <Foreign text={[tool.wire_name, ...tool.aliases].join(", ")} />
            </span>,
          ],
          [
            "Definition",
            <span
              key="digest"
              className="inline-flex items-center gap-1 font-mono text-code"
              title={tool.definition_digest}
            >
              {tool.definition_digest.slice(0, 16)}…
              <CopyButton text={tool.definition_digest} label="Copy the digest of the definition" />
            </span>,
          ],
          [
            "Accepted by",
            tool.origin === "native" ? (
              "nobody: it comes with the installation"
            ) : offered?.accepted_by ? (
              <span key="accepted">
                <Person id={offered.accepted_by} />
                {offered.accepted_at && (
                  <>
                    {" "}
                    <Age at={offered.accepted_at} ago className="text-muted" />
                  </>
                )}
              </span>
            ) : (
              "not said"
            ),
          ],
        ]}
      />
      <section className="grid gap-2">
        <SectionHead>Arguments</SectionHead>
        <SchemaRows rows={describeSchema(tool.input_schema)} />
        <details>
          <summary className="cursor-default text-meta text-muted">JSON Schema</summary>
          <pre className="mt-2 overflow-x-auto rounded-box border border-line bg-surface p-2.5 font-mono text-code">
            <Foreign text={JSON.stringify(tool.input_schema, null, 2)} />
          </pre>
        </details>
      </section>
      <Roles tool={tool} />
      <Rules tool={tool} />
      <Calls tool={tool} project={project} />
    </article>
  );
}

export function SchemaRows({ rows }: { rows: SchemaRow[] }) {
  if (rows.length === 0) return <p className="text-muted">It takes no arguments.</p>;
  return (
    <dl className="grid">
      {rows.map((row, index) => (
        <div
          // biome-ignore lint/suspicious/noArrayIndexKey: the rows of a schema never move
          key={index}
          className="grid gap-x-4 border-line border-b py-1.5 small:grid-cols-[200px_1fr]"
        >
          <dt className="min-w-0 font-mono text-code" style={{ paddingLeft: `${row.depth * 14}px` }}>
            <Foreign text={row.name} />
            {row.required && <span className="text-meta text-warn"> needed</span>}
          </dt>
          <dd className="min-w-0">
            <span className="text-muted">
              <Foreign text={[row.type, ...row.limits].join(" · ")} />
            </span>
            {row.description && (
              <div className="whitespace-pre-wrap">
                <Inline text={row.description} />
              </div>
            )}
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Roles({ tool }: { tool: Tool }) {
  const lists = useQuery(allowlistsQuery);
  const lines = findAllowlistLines(lists.data?.items ?? [], tool.name);
  return (
    <section className="grid gap-2">
      <SectionHead aside={formatCount(tool.roles.length, "role")}>Who may call it</SectionHead>
      {tool.origin !== "native" ? (
        <p className="text-muted">
          Every role of an agent within its scope: {tool.roles.map(toWords).join(", ") || "none"}.
        </p>
      ) : lines.length === 0 ? (
        <p className="text-muted">No allowlist has it.</p>
      ) : (
        <ul className="grid gap-1">
          {lines.map((line) => (
            <li key={line.role}>
              <span
                aria-hidden="true"
                className={cx("mr-1.5", tool.roles.includes(line.role) ? "text-ok" : "text-faint")}
              >
                {tool.roles.includes(line.role) ? "✓" : "–"}
              </span>
              {toWords(line.role)} <code className="font-mono text-code text-muted">{line.pattern}</code>
              {line.setting && (
                <span className="text-muted">
                  {" "}
                  if{" "}
                  <Link
                    to="/settings"
                    search={{ key: line.setting }}
                    className="font-mono text-accent text-code underline underline-offset-2"
                  >
                    {line.setting}
                  </Link>{" "}
                  is true
                </span>
              )}
              {!tool.roles.includes(line.role) && !line.setting && (
                <span className="text-muted"> but the scope excludes it</span>
              )}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Rules({ tool }: { tool: Tool }) {
  const rules = useQuery(rulesOfToolsQuery);
  return (
    <section className="grid gap-2">
      <SectionHead>Rules that concern it</SectionHead>
      <Loaded query={rules} lines={2}>
        {(data) => {
          const found = data.items.flatMap((rule) => {
            const concern = findRuleConcern(rule.text, tool.name);
            return concern ? [{ rule, concern }] : [];
          });
          if (found.length === 0) return <p className="text-muted">No rule names it.</p>;
          return (
            <ul className="grid gap-1">
              {found.map(({ rule, concern }) => (
                <li key={rule.name}>
                  <Link
                    to="/tools/rules"
                    search={{ rule: rule.name }}
                    className="text-accent underline underline-offset-2"
                  >
                    <Foreign text={rule.name} />
                  </Link>{" "}
                  <span className="text-muted">
                    {RULE_MODES[rule.mode] ?? rule.mode}
                    {concern === "every" && ", whatever the tool"}
                  </span>
                </li>
              ))}
            </ul>
          );
        }}
      </Loaded>
    </section>
  );
}

const RULE_MODES: Record<string, string> = { refuse: "refuses", approve: "asks a person", shadow: "only watches" };

function Calls({ tool, project }: { tool: Tool; project: string | undefined }) {
  const records = useQuery(dayRecordsQuery({ tool: tool.name, project }));
  const now = useNow();
  const calls = useMemo(() => joinCalls(records.data?.items ?? []), [records.data]);
  const hours = useMemo(() => countHours(records.data?.items ?? [], now, HOURS), [records.data, now]);
  const refused = calls.filter((call) => call.decision === "deny").length;
  return (
    <section className="grid gap-2">
      <SectionHead
        aside={
          records.data &&
          `${records.data.next_cursor ? "more than " : ""}${formatCount(calls.length, "call")}, ${refused} refused`
        }
      >
        Calls of the last day
      </SectionHead>
      <Loaded query={records}>
        {() =>
          calls.length === 0 ? (
            <p className="text-muted">It was not called.</p>
          ) : (
            <>
              <div className="max-w-[480px]">
                <Spark hours={hours} />
                <div aria-hidden="true" className="flex justify-between text-meta text-faint">
                  <span>{HOURS} h ago</span>
                  <span>now</span>
                </div>
              </div>
              <ul aria-label="Recent calls">
                {calls.slice(0, SHOWN_CALLS).map((call) => (
                  <li key={call.callId}>
                    <Link
                      to="/audit"
                      search={{ call: call.callId }}
                      className="grid min-h-8 grid-cols-[1fr_auto_auto] items-center gap-x-3 border-line border-b px-1 py-1 -outline-offset-2 hover:bg-surface"
                    >
                      <span className="min-w-0">
                        {call.decision === "allow" ? (
                          <span className={call.outcome && call.outcome !== "success" ? "text-warn" : "text-ok"}>
                            {call.outcome && call.outcome !== "success" ? "! " : "✓ "}
                            {call.outcome ? toWords(call.outcome) : "Allowed"}
                          </span>
                        ) : call.decision === "needs_approval" ? (
                          <span className="text-warn">? Asked a person</span>
                        ) : (
                          <span className="text-bad">✗ Refused: {toWords(call.reason).toLowerCase()}</span>
                        )}
                        {call.role && <span className="text-muted"> · {toWords(call.role)}</span>}
                      </span>
                      <span className="text-meta text-muted">
                        {call.durationUs === null ? "" : formatDuration(call.durationUs / 1000)}
                      </span>
                      <Age at={call.at} className="w-10 text-right text-meta text-faint" />
                    </Link>
                  </li>
                ))}
              </ul>
              {calls.length > SHOWN_CALLS && (
                <p className="text-meta text-muted">
                  The newest {SHOWN_CALLS}; the oldest counted was at {formatTime(calls.at(-1)?.at ?? now)}.
                </p>
              )}
            </>
          )
        }
      </Loaded>
    </section>
  );
}

const SPARK_HEIGHT = 36;

/** Calls per hour as bars; refused ones on top in their own colour. */
function Spark({ hours }: { hours: HourCounts[] }) {
  const most = Math.max(1, ...hours.map((hour) => hour.allowed + hour.refused));
  const scale = (count: number) => (count / most) * (SPARK_HEIGHT - 2);
  const allowed = hours.reduce((sum, hour) => sum + hour.allowed, 0);
  const refused = hours.reduce((sum, hour) => sum + hour.refused, 0);
  return (
    <svg
      role="img"
      aria-label={`Calls per hour of the last ${hours.length} hours: ${allowed} allowed, ${refused} refused, at most ${most} in an hour`}
      viewBox={`0 0 ${hours.length * 10} ${SPARK_HEIGHT}`}
      preserveAspectRatio="none"
      className="h-9 w-full"
    >
      <line x1="0" x2={hours.length * 10} y1={SPARK_HEIGHT - 0.5} y2={SPARK_HEIGHT - 0.5} className="stroke-line" />
      {hours.map((hour, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: an hour has its place
        <g key={index}>
          <rect
            x={index * 10 + 1}
            width="8"
            y={SPARK_HEIGHT - scale(hour.allowed)}
            height={scale(hour.allowed)}
            className="fill-accent"
          />
          <rect
            x={index * 10 + 1}
            width="8"
            y={SPARK_HEIGHT - scale(hour.allowed + hour.refused)}
            height={scale(hour.refused)}
            className="fill-bad"
          />
        </g>
      ))}
    </svg>
  );
}
