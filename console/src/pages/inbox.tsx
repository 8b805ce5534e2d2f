/** What needs me? */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { ArrowLeft } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { inboxQuery, projectsQuery } from "../api/queries";
import { useDecisions } from "../events/decisions";
import { describeItem, findDecision, type InboxItem, type InboxKind, type InboxView, KIND_WORDS } from "../logic/inbox";
import { writeOutHidden } from "../logic/text";
import { Age, cx, Empty, Foreign, Key, Loaded, Page } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { useKeys } from "../ui/keys";
import { NotifyBrowser } from "../ui/notify-browser";
import { TabBar } from "../ui/tabs";
import { WelcomeLink } from "../ui/welcome-state";
import { InboxDetail } from "./inbox-detail";
import { DecidedItem, Presence } from "./inbox-live";

export function InboxPage() {
  usePageCommand("cynork inbox", "/v1/inbox");
  const inbox = useQuery(inboxQuery);
  return (
    <Page wide>
      <WelcomeLink />
      <Loaded query={inbox}>{(data) => <InboxContent items={data.items} counts={data.counts} />}</Loaded>
    </Page>
  );
}

function InboxContent({ items, counts }: { items: InboxItem[]; counts: InboxView["counts"] }) {
  const { item: chosenId, kind } = useSearch({ from: "/" });
  const navigate = useNavigate({ from: "/" });
  const projects = useQuery(projectsQuery);
  const names = useMemo(
    () => new Map((projects.data?.items ?? []).map((project) => [project.id, project.slug])),
    [projects.data],
  );
  const shown = items.filter((item) => kind === undefined || item.kind === kind);
  const isWide = window.matchMedia("(min-width: 1200px)").matches;
  // What is shown beside the list stays when it is decided elsewhere: the next item never slips below a finger.
  const [first, setFirst] = useState(shown[0]?.id);
  const wantedId = chosenId ?? (isWide ? (first ?? shown[0]?.id) : undefined);
  const opened = useRef<InboxItem | null>(null);
  const listed = items.find((item) => item.id === wantedId);
  if (listed) opened.current = listed;
  const chosen = listed ?? (opened.current && opened.current.id === wantedId ? opened.current : undefined);
  const decision = findDecided(chosen, useDecisions());
  const isDecided = chosen !== undefined && !listed;
  const gone = chosenId !== undefined && !chosen;
  const tabs = [
    { id: "all", name: "All", count: counts.total },
    ...(Object.keys(KIND_WORDS) as InboxKind[])
      .filter((name) => counts[name])
      .map((name) => ({ id: name, name: KIND_WORDS[name].many, count: counts[name] })),
  ];

  const move = (by: number) => {
    setFirst(undefined);
    const index = shown.findIndex((item) => item.id === chosen?.id);
    const next = shown[Math.min(Math.max(index + by, 0), shown.length - 1)];
    if (next) void navigate({ search: (previous) => ({ ...previous, item: next.id }), replace: true });
  };
  const close = () => {
    opened.current = null;
    setFirst(undefined);
    void navigate({ search: (previous) => ({ ...previous, item: undefined }) });
  };
  useKeys({ j: () => move(1), k: () => move(-1), Escape: chosenId ? close : undefined });

  if (items.length === 0 && !chosen) {
    return (
      <>
        <h1 className="text-title">Inbox</h1>
        {gone && <Decided />}
        <Empty title="Nothing needs you.">
          <p className="text-muted">
            Plans, questions and calls that wait for a decision appear here as soon as they are asked.
          </p>
          <p>
            <Link to="/tasks/new" className="font-medium text-accent underline">
              Start a task
            </Link>
            <span className="text-muted max-small:hidden">
              {" "}
              or press <Key name="C" />
            </span>
          </p>
          <NotifyBrowser brief />
        </Empty>
      </>
    );
  }
  return (
    <div className="grid grid-cols-1 gap-4">
      <div className={cx("grid grid-cols-1 gap-2", chosenId && "max-split:sr-only")}>
        <h1 className="text-title">
          Inbox{" "}
          <span className="font-normal text-lead text-muted">
            {counts.total === 0 ? "nothing needs" : counts.total === 1 ? "1 needs" : `${counts.total} need`} you
          </span>
        </h1>
        {tabs.length > 2 && <TabBar label="Kinds" parameter="kind" value={kind ?? "all"} tabs={tabs} />}
      </div>
      {gone && <Decided />}
      <div className="grid grid-cols-1 gap-6 split:grid-cols-[420px_1fr]">
        <ul
          aria-label="What needs you"
          className={cx("content-start self-start border-line border-t", chosenId && chosen && "max-split:hidden")}
        >
          {shown.map((item) => (
            <Row
              key={item.id}
              item={item}
              isChosen={item.id === chosen?.id}
              project={item.project_slug ?? names.get(item.project_id ?? "") ?? null}
            />
          ))}
        </ul>
        {chosen && (
          <div className={cx("min-w-0", !chosenId && "max-split:hidden")}>
            <button
              type="button"
              onClick={close}
              className="mb-3 hidden min-h-10 items-center gap-1.5 text-muted max-split:inline-flex"
            >
              <ArrowLeft size={15} aria-hidden="true" /> Inbox
            </button>
            {isDecided ? (
              <DecidedItem item={chosen} decision={decision} />
            ) : (
              <div className="grid grid-cols-1 gap-3">
                <Presence key={chosen.id} item={chosen} />
                <InboxDetail
                  key={chosen.id}
                  item={chosen}
                  project={chosen.project_slug ?? names.get(chosen.project_id ?? "") ?? null}
                />
              </div>
            )}
          </div>
        )}
      </div>
    </div>
  );
}

function findDecided(item: InboxItem | null | undefined, decisions: ReturnType<typeof useDecisions>) {
  return item ? findDecision(item, decisions) : null;
}

/** An item in the address that is not in the inbox any more. */
function Decided() {
  return (
    <p role="status" className="border-ok border-l-2 py-1 pl-3">
      This has been decided, here or by somebody else. Nothing more is needed.
    </p>
  );
}

function Row({ item, isChosen, project }: { item: InboxItem; isChosen: boolean; project: string | null }) {
  const element = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen) element.current?.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  const words = KIND_WORDS[item.kind];
  const name = item.task_name ?? item.title;
  return (
    <li>
      <Link
        ref={element}
        to="/"
        search={(previous) => ({ ...previous, item: item.id })}
        aria-current={isChosen ? "true" : undefined}
        className={cx(
          "grid min-h-[52px] grid-cols-1 gap-0.5 border-line border-b px-3 py-2 -outline-offset-2 hover:bg-surface",
          isChosen && "bg-select hover:bg-select",
        )}
      >
        <span className="flex items-baseline gap-2">
          <span aria-hidden="true" className="w-4 shrink-0 text-center text-warn">
            {words.sign}
          </span>
          <span className="line-clamp-2 min-w-0 flex-1 font-medium" title={writeOutHidden(name)}>
            {words.one}: <Foreign text={name} />
          </span>
          {project && <span className="shrink-0 text-meta text-muted">{project}</span>}
          <Age at={item.since} className="shrink-0 text-meta text-faint" />
        </span>
        <span className="truncate pl-6 text-meta text-muted">
          <Foreign text={describeItem(item)} />
        </span>
      </Link>
    </li>
  );
}
