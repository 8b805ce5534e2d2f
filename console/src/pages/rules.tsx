/** Which calls do rules stop? */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { ArrowLeft, Plus } from "lucide-react";
import { useEffect, useMemo, useRef } from "react";
import type { Schema } from "../api/client";
import { meQuery } from "../api/queries";
import { HIT_SAMPLE_DAYS, ruleDraftQuery, ruleHitsQuery, rulesQuery } from "../api/queries-policy";
import { formatCount } from "../logic/format";
import { countHits, MODES, toMode } from "../logic/rules";
import { writeOutHidden } from "../logic/text";
import { Age, Command, cx, Empty, Foreign, Loaded, Page, PageHead, ProblemNote, Skeleton } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { useKeys } from "../ui/keys";
import { ToolsNav } from "../ui/tools-nav";
import { RuleDetail } from "./rule-detail";

type Rule = Schema["RuleView"];

export function RulesPage() {
  usePageCommand("cynork rule list", "/v1/rules");
  const rules = useQuery(rulesQuery);
  return (
    <Page wide>
      <ToolsNav />
      <Loaded query={rules}>{(data) => <RulesContent rules={data.items} />}</Loaded>
    </Page>
  );
}

function RulesContent({ rules }: { rules: Rule[] }) {
  const search = useSearch({ from: "/tools/rules" });
  const navigate = useNavigate({ from: "/tools/rules" });
  const me = useQuery(meQuery);
  const sample = useQuery(ruleHitsQuery);
  const hits = useMemo(() => (sample.data ? countHits(sample.data.items) : null), [sample.data]);
  const isNew = Boolean(search.new || search.approval);
  const isWide = window.matchMedia("(min-width: 1200px)").matches;
  const chosen = isNew
    ? undefined
    : (rules.find((rule) => rule.name === search.rule) ?? (isWide && !search.rule ? rules[0] : undefined));
  const isOpen = isNew || search.rule !== undefined;
  const mayChange = me.data?.installation_role === "admin";
  const close = () => void navigate({ search: {} });
  const move = (by: number) => {
    const index = rules.findIndex((rule) => rule.name === chosen?.name);
    const next = rules[Math.min(Math.max(index + by, 0), rules.length - 1)];
    if (next) void navigate({ search: { rule: next.name }, replace: true });
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: chosen ? () => document.querySelector<HTMLElement>("#rule textarea")?.focus() : undefined,
    Escape: isOpen ? close : undefined,
    n: mayChange ? () => void navigate({ search: { new: true } }) : undefined,
  });
  return (
    <div className="grid grid-cols-1 gap-4">
      <div className={cx(isOpen && "max-split:sr-only")}>
        <PageHead
          title="Rules"
          lead="A rule forbids calls that everything else permits. It refuses them, asks a person, or only records them while it is tried."
        >
          {mayChange && (
            <Link
              to="/tools/rules"
              search={{ new: true }}
              className="inline-flex min-h-8 items-center gap-1.5 rounded-box border border-control px-3 font-medium hover:bg-surface max-small:min-h-10"
            >
              <Plus size={15} aria-hidden="true" /> New rule
            </Link>
          )}
        </PageHead>
      </div>
      <div className="grid grid-cols-1 gap-6 split:grid-cols-[420px_1fr]">
        <div className={cx("grid content-start gap-2", isOpen && "max-split:hidden")}>
          {rules.length === 0 ? (
            <Empty title="No rule stops anything.">
              <p className="text-muted">
                Switches, scopes and allowlists still hold. A rule looks at what they cannot: the role together with the
                tool, its arguments and its server.
              </p>
              <Command
                line={`cynork rule set no-fetch shadow --text 'forbid (principal, action == Action::"web.fetch", resource);'`}
              />
            </Empty>
          ) : (
            <>
              <ul aria-label="Rules" className="content-start self-start border-line border-t">
                {rules.map((rule) => (
                  <Row
                    key={rule.name}
                    rule={rule}
                    isChosen={rule.name === chosen?.name}
                    hits={hits ? (hits.get(rule.name) ?? 0) : null}
                  />
                ))}
              </ul>
              {sample.data && (
                <p className="text-meta text-faint">
                  Hits are those of{" "}
                  {sample.data.next_cursor
                    ? `the newest ${formatCount(sample.data.items.length, "record")}`
                    : `the last ${HIT_SAMPLE_DAYS} days (${formatCount(sample.data.items.length, "record")})`}
                  .
                </p>
              )}
            </>
          )}
        </div>
        {isOpen || chosen ? (
          <div id="rule" className={cx("min-w-0", !isOpen && "max-split:hidden")}>
            <button
              type="button"
              onClick={close}
              className="mb-3 hidden min-h-10 items-center gap-1.5 text-muted max-split:inline-flex"
            >
              <ArrowLeft size={15} aria-hidden="true" /> Rules
            </button>
            {search.approval ? (
              <DraftDetail
                key={search.approval}
                approval={search.approval}
                approved={search.approved ?? false}
                rules={rules}
                mayChange={mayChange}
              />
            ) : isNew ? (
              <RuleDetail key="new" rule={null} rules={rules} mayChange={mayChange} />
            ) : chosen ? (
              <RuleDetail key={chosen.name} rule={chosen} rules={rules} mayChange={mayChange} />
            ) : (
              <Gone name={search.rule ?? ""} rules={rules} mayChange={mayChange} />
            )}
          </div>
        ) : null}
      </div>
    </div>
  );
}

/** The name of a rule that is not there: its history may still tell what it was. */
function Gone({ name, rules, mayChange }: { name: string; rules: Rule[]; mayChange: boolean }) {
  return (
    <div className="grid gap-4">
      <p role="status" className="border-warn border-l-2 py-1 pl-3">
        There is no rule <Foreign text={name} /> now. If there was one, its history is below, and it can be written
        again.
      </p>
      <RuleDetail rule={null} rules={rules} mayChange={mayChange} name={name} />
    </div>
  );
}

function DraftDetail({
  approval,
  approved,
  rules,
  mayChange,
}: {
  approval: string;
  approved: boolean;
  rules: Rule[];
  mayChange: boolean;
}) {
  const draft = useQuery(ruleDraftQuery(approval, approved));
  if (draft.data) return <RuleDetail rule={null} rules={rules} mayChange={mayChange} draft={draft.data} />;
  if (draft.error) return <ProblemNote error={draft.error} onRetry={() => void draft.refetch()} />;
  return <Skeleton />;
}

function Row({ rule, isChosen, hits }: { rule: Rule; isChosen: boolean; hits: number | null }) {
  const element = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen) element.current?.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  const mode = MODES[toMode(rule.mode)];
  return (
    <li>
      <Link
        ref={element}
        to="/tools/rules"
        search={{ rule: rule.name }}
        aria-current={isChosen ? "true" : undefined}
        className={cx(
          "grid min-h-[52px] grid-cols-1 gap-0.5 border-line border-b px-3 py-2 -outline-offset-2 hover:bg-surface",
          isChosen && "bg-select hover:bg-select",
        )}
      >
        <span className="flex items-baseline gap-2">
          <span aria-hidden="true" className={cx("w-4 shrink-0 text-center font-mono", mode.tone)}>
            {mode.sign}
          </span>
          <span className="min-w-0 flex-1 truncate font-medium" title={writeOutHidden(rule.name)}>
            <Foreign text={rule.name} />
          </span>
          {hits !== null && (
            <span className={cx("shrink-0 text-meta", hits > 0 ? "text-text" : "text-faint")}>
              {formatCount(hits, "hit")}
            </span>
          )}
          <Age at={rule.updated_at} className="w-8 shrink-0 text-right text-meta text-faint" />
        </span>
        <span className="flex items-baseline gap-2 pl-6 text-meta">
          <span className={cx("shrink-0", mode.tone)}>{mode.words}</span>
          <span className="min-w-0 truncate font-mono text-muted">
            <Foreign text={rule.text.replaceAll(/\s+/g, " ")} />
          </span>
        </span>
      </Link>
    </li>
  );
}
