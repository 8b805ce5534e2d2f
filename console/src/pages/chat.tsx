/** Chat with the project manager. */

import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { ArrowLeft, Plus } from "lucide-react";
import { memo, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { Form } from "react-aria-components";
import { ChatRun, findRun, runKey, setRun, subscribeRuns } from "../api/chat";
import type { Schema } from "../api/client";
import { inboxQuery, meQuery, projectsQuery, tasksQuery } from "../api/queries";
import { chatCallsQuery, chatHandoffsQuery, managerModelQuery, messagesQuery, threadsQuery } from "../api/queries-chat";
import {
  type AnswerCost,
  buildMessages,
  type ChatHandoff,
  type ChatTurn,
  findHandoff,
  findMentionedTasks,
  sumCosts,
} from "../logic/chat";
import { formatCost, formatDuration } from "../logic/format";
import { writeOutHidden } from "../logic/text";
import { Answer } from "../ui/answer";
import { Action, Age, cx, Empty, Foreign, Loaded, Page, ProblemNote, Prose } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { TaskCard } from "../ui/task-card";
import { InboxDetail } from "./inbox-detail";

type Thread = Schema["ThreadView"];
type Project = Schema["ProjectView"];

const NEW_THREAD = "new";

export function ChatPage() {
  const { thread } = useSearch({ from: "/chat" });
  const chosen = thread && thread !== NEW_THREAD ? thread : null;
  usePageCommand(
    chosen ? `cynork chat show ${chosen}` : "cynork chat",
    chosen ? `/v1/chat/threads/${chosen}/messages` : "/v1/chat/threads",
  );
  const threads = useQuery(threadsQuery);
  const projects = useQuery(projectsQuery);
  if (!projects.data || !threads.data) {
    return (
      <Page>
        <h1 className="pb-3 text-title">Chat</h1>
        <Loaded query={projects.data ? threads : projects}>{() => null}</Loaded>
      </Page>
    );
  }
  if (projects.data.items.length === 0) {
    return (
      <Page>
        <h1 className="text-title">Chat</h1>
        <Empty title="A conversation is about a project, and there is none yet.">
          <p className="text-muted">The project manager answers about tasks, plans and the repository of a project.</p>
          <p>
            <Link to="/welcome" className="font-medium text-accent underline">
              Set up a project
            </Link>
          </p>
        </Empty>
      </Page>
    );
  }
  return <Threads threads={threads.data.items} projects={projects.data.items} chosen={chosen} />;
}

function Threads({ threads, projects, chosen }: { threads: Thread[]; projects: Project[]; chosen: string | null }) {
  const search = useSearch({ from: "/chat" });
  const navigate = useNavigate({ from: "/chat" });
  const sorted = useMemo(() => threads.toSorted((a, b) => b.updated_at.localeCompare(a.updated_at)), [threads]);
  const thread = sorted.find((it) => it.thread_id === chosen) ?? null;
  const isOpen = search.thread !== undefined;
  const fallback = sorted[0]?.project_id ?? projects[0]?.id ?? "";
  const project = thread?.project_id ?? search.project ?? fallback;
  const open = (id: string | undefined) =>
    void navigate({ search: (previous) => ({ ...previous, thread: id }), replace: true });
  const move = (by: number) => {
    const index = sorted.findIndex((it) => it.thread_id === chosen);
    open(sorted[Math.min(Math.max(index + by, 0), sorted.length - 1)]?.thread_id);
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Escape: isOpen ? () => open(undefined) : undefined,
    r: isOpen ? focusComposer : undefined,
  });
  return (
    <div className="grid h-full grid-cols-1 grid-rows-[minmax(0,1fr)] split:grid-cols-[320px_1fr]">
      <div
        className={cx(
          "relative min-h-0 overflow-auto border-line px-4 py-5 split:border-r small:px-6",
          isOpen && "max-split:hidden",
        )}
      >
        <div className="flex items-center justify-between gap-3 pb-3">
          <h1 className="text-title">Chat</h1>
          <Link
            to="/chat"
            search={(previous) => ({ ...previous, thread: NEW_THREAD })}
            className="inline-flex min-h-8 items-center gap-1.5 rounded-box border border-control px-2.5 font-medium hover:bg-surface max-small:min-h-10"
          >
            <Plus size={14} aria-hidden="true" /> New chat
          </Link>
        </div>
        {sorted.length === 0 ? (
          <>
            <p className="text-muted max-split:hidden">You have asked nothing yet.</p>
            <div className="split:hidden">
              <Empty title="Ask the project manager.">
                <p className="text-muted">
                  It knows the tasks, plans and results of a project, and it can create and start tasks.
                </p>
                <p>
                  <Link
                    to="/chat"
                    search={(previous) => ({ ...previous, thread: NEW_THREAD })}
                    className="font-medium text-accent underline"
                  >
                    Begin a chat
                  </Link>
                </p>
              </Empty>
            </div>
          </>
        ) : (
          <ul aria-label="Conversations" className="border-line border-t">
            {sorted.map((it) => (
              <ThreadRow
                key={it.thread_id}
                thread={it}
                isChosen={it.thread_id === chosen}
                project={projects.find((entry) => entry.id === it.project_id)?.slug ?? null}
              />
            ))}
          </ul>
        )}
      </div>
      <div className={cx("min-h-0 min-w-0", !isOpen && "max-split:hidden")}>
        {chosen !== null && thread === null ? (
          <Page>
            <Empty title="This conversation is not yours, or it is gone.">
              <p>
                <Link to="/chat" className="text-accent underline">
                  Your conversations
                </Link>
              </p>
            </Empty>
          </Page>
        ) : (
          <Conversation
            key={chosen ?? `${NEW_THREAD} ${project}`}
            thread={thread}
            project={project}
            projects={projects}
          />
        )}
      </div>
    </div>
  );
}

function focusComposer(): void {
  document.querySelector<HTMLElement>("#composer textarea")?.focus();
}

function ThreadRow({ thread, isChosen, project }: { thread: Thread; isChosen: boolean; project: string | null }) {
  const element = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen) element.current?.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  return (
    <li>
      <Link
        ref={element}
        to="/chat"
        search={{ thread: thread.thread_id }}
        aria-current={isChosen ? "true" : undefined}
        className={cx(
          "grid min-h-[52px] grid-cols-1 gap-0.5 border-line border-b px-2 py-2 -outline-offset-2 hover:bg-surface",
          isChosen && "bg-select hover:bg-select",
        )}
      >
        <span className="truncate font-medium" title={writeOutHidden(thread.title)}>
          <Foreign text={thread.title || "Without words"} />
        </span>
        <span className="flex gap-2 text-meta text-muted">
          {project && <span className="truncate">{project}</span>}
          <Age at={thread.updated_at} className="ml-auto text-faint" />
        </span>
      </Link>
    </li>
  );
}

const DRAFT_KEY = "cynode-chat";

const drafts = new Map<string, string>();
const draftReaders = new Set<() => void>();

function subscribeDrafts(reader: () => void): () => void {
  draftReaders.add(reader);
  return () => draftReaders.delete(reader);
}

/** The message that is being written in a conversation. */
function readDraft(key: string): string {
  const known = drafts.get(key);
  if (known !== undefined) return known;
  try {
    return sessionStorage.getItem(`${DRAFT_KEY} ${key}`) ?? "";
  } catch {
    return "";
  }
}

function writeDraft(key: string, text: string): void {
  drafts.set(key, text);
  for (const reader of draftReaders) reader();
  try {
    if (text === "") sessionStorage.removeItem(`${DRAFT_KEY} ${key}`);
    else sessionStorage.setItem(`${DRAFT_KEY} ${key}`, text);
  } catch {
    // A browser that stores nothing loses the draft when the tab is closed.
  }
}

function Conversation({ thread, project, projects }: { thread: Thread | null; project: string; projects: Project[] }) {
  const navigate = useNavigate({ from: "/chat" });
  const client = useQueryClient();
  const isNew = useSearch({ from: "/chat" }).thread === NEW_THREAD;
  const id = thread?.thread_id ?? null;
  const key = runKey(id, project);
  const run = useSyncExternalStore(subscribeRuns, () => findRun(key));
  const messages = useQuery({ ...messagesQuery(id ?? ""), enabled: id !== null });
  const stored = useMemo(() => (id === null ? [] : (messages.data?.items ?? [])), [id, messages.data]);
  const draft = useSyncExternalStore(subscribeDrafts, () => readDraft(key));
  const change = (text: string) => writeDraft(key, text);

  const ask = (text: string) => {
    const before = stored;
    const question = { thread: id, project, text, messages: buildMessages(before, text), before };
    const begun = new ChatRun(question);
    let current = key;
    setRun(current, begun);
    const onBegun = async () => {
      const renewed = await client.fetchQuery({ ...threadsQuery, staleTime: 0 }).catch(() => null);
      if (id !== null || !renewed) return;
      const own = renewed.items.filter((it) => it.project_id === project);
      const newest = own.toSorted((a, b) => b.updated_at.localeCompare(a.updated_at))[0];
      if (!newest) return;
      // From here on the conversation has a name: its run, its draft and the address follow it.
      writeDraft(newest.thread_id, readDraft(current));
      writeDraft(current, "");
      setRun(newest.thread_id, begun);
      setRun(current, null);
      current = newest.thread_id;
      const shown = new URLSearchParams(window.location.search).get("thread") ?? NEW_THREAD;
      if (window.location.pathname === "/chat" && shown === NEW_THREAD) {
        void navigate({ search: { thread: newest.thread_id }, replace: true });
      }
    };
    let naming: Promise<void> = Promise.resolve();
    const asking = begun.ask(() => {
      naming = onBegun();
    });
    void asking.then(async () => {
      await naming;
      if (begun.read().state === "failed") {
        if (readDraft(current) === "") writeDraft(current, text);
        if (begun.read().error?.status === 401) void client.invalidateQueries({ queryKey: meQuery.queryKey });
      }
      await client.invalidateQueries({ queryKey: ["chat"] });
    });
  };

  // The answer that is stored takes the place of the one that arrived.
  const isStored = stored.length >= (run?.question.before.length ?? 0) + 2 && stored.at(-1)?.role === "assistant";
  useEffect(() => {
    if (run && !run.isOpen && run.read().state !== "failed" && isStored) setRun(key, null);
  }, [run, isStored, key]);

  const isAsking = useRunIsOpen(run);
  const reason = isAsking
    ? "An answer is arriving; stop it first"
    : id !== null && !messages.data
      ? "The conversation is being read"
      : draft.trim() === ""
        ? "Write a message"
        : null;
  const send = () => {
    if (reason) return;
    const text = draft.trim();
    change("");
    ask(text);
  };
  useKeys({ Escape: isAsking ? () => run?.stop() : undefined });

  return (
    <section aria-label="Conversation" className="relative flex h-full min-h-0 flex-col">
      <h1 className="sr-only split:hidden">Chat</h1>
      <ConversationHead thread={thread} project={project} projects={projects} />
      <Scroller>
        {id !== null && !messages.data ? (
          <Loaded query={messages}>{() => null}</Loaded>
        ) : stored.length === 0 && !run ? (
          <Empty title="Ask the project manager.">
            <p className="text-muted">
              It knows the tasks, plans and results of the project, and it can create and start tasks. What it may do is
              what you may do; a call that needs your approval is asked for here.
            </p>
            <ul className="grid gap-2">
              {["What is everybody working on?", "What did the last task change, and is it tested?"].map((example) => (
                <li key={example}>
                  <Action onPress={() => change(example)}>{example}</Action>
                </li>
              ))}
            </ul>
          </Empty>
        ) : (
          <Turns thread={thread} project={project} turns={run ? run.question.before : stored} run={run} />
        )}
      </Scroller>
      <Form
        id="composer"
        className="flex items-end gap-2 border-line border-t px-4 py-3 small:px-6"
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <div className="min-w-0 max-w-[760px] flex-1">
          <Field
            label="Message"
            value={draft}
            onChange={change}
            lines={Math.min(8, Math.max(2, draft.split("\n").length))}
            autoFocus={run !== undefined || isNew}
            description={
              <span className="max-small:hidden">Enter sends, Shift+Enter begins a new line, R brings you here.</span>
            }
            onKeyDown={(event) => {
              const composes = event.nativeEvent.isComposing;
              if (event.key === "Escape") {
                if (isAsking) run?.stop();
                else if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
              } else if (event.key === "Enter" && !event.shiftKey && !composes) {
                event.preventDefault();
                send();
              } else event.continuePropagation();
            }}
          />
        </div>
        <div className="small:pb-[21px]">
          {isAsking ? (
            <Action onPress={() => run?.stop()} hotkey="Esc">
              Stop answer
            </Action>
          ) : (
            <Action type="submit" tone="primary" reason={reason}>
              Send message
            </Action>
          )}
        </div>
      </Form>
    </section>
  );
}

function useRunIsOpen(run: ChatRun | undefined): boolean {
  return useSyncExternalStore(run?.subscribe ?? noSubscription, () => run?.isOpen ?? false);
}

const noSubscription = () => () => undefined;

/** Stays at the end while text arrives, unless the reader scrolled up. */
function Scroller({ children }: { children: React.ReactNode }) {
  const outer = useRef<HTMLElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  useEffect(() => {
    const box = outer.current;
    const content = inner.current;
    if (!box || !content) return undefined;
    const onScroll = () => {
      follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    };
    const observer = new ResizeObserver(() => {
      if (follows.current) box.scrollTop = box.scrollHeight;
    });
    observer.observe(content);
    box.addEventListener("scroll", onScroll, { passive: true });
    return () => {
      observer.disconnect();
      box.removeEventListener("scroll", onScroll);
    };
  }, []);
  return (
    <section
      ref={outer}
      aria-label="Messages"
      tabIndex={0}
      className="relative min-h-0 flex-1 overflow-auto px-4 -outline-offset-2 small:px-6"
    >
      <div ref={inner} className="py-4">
        {children}
      </div>
    </section>
  );
}

function ConversationHead({
  thread,
  project,
  projects,
}: {
  thread: Thread | null;
  project: string;
  projects: Project[];
}) {
  const navigate = useNavigate({ from: "/chat" });
  const me = useQuery(meQuery);
  const model = useQuery(managerModelQuery(project));
  const { handoffs, costs } = useThreadCosts(thread, project);
  const cost = handoffs.reduce((sum, it) => sum + (costs.get(it.trace_id)?.micros ?? 0), 0);
  const answers = model.data?.tiers[0];
  const slug = projects.find((it) => it.id === project)?.slug ?? "";
  return (
    <header className="grid gap-1 border-line border-b px-4 py-3 small:px-6">
      <Link to="/chat" className="hidden min-h-10 items-center gap-1.5 text-muted max-split:inline-flex">
        <ArrowLeft size={15} aria-hidden="true" /> Chats
      </Link>
      <div className="flex flex-wrap items-center justify-between gap-x-4 gap-y-1">
        <h2 className="min-w-0 truncate text-lead">{thread ? <Foreign text={thread.title} /> : "New chat"}</h2>
        {thread === null && projects.length > 1 ? (
          <div className="min-w-0 small:max-w-56 max-small:basis-full">
            <Choice
              label="Project"
              hideLabel
              value={project}
              onChange={(value) => void navigate({ search: { thread: NEW_THREAD, project: value }, replace: true })}
              options={projects.map((it) => ({ value: it.id, name: it.slug }))}
            />
          </div>
        ) : (
          <Link to="/projects/$project" params={{ project }} className="text-meta text-muted hover:text-text">
            {slug}
          </Link>
        )}
      </div>
      <p className="text-meta text-muted">
        {answers?.model ? (
          <>
            The project manager answers with <Foreign text={answers.model} />
            {cost > 0 && ` · ${formatCost(cost, me.data?.currency)} for this chat`}
          </>
        ) : answers ? (
          <span className="text-warn">
            <span aria-hidden="true">! </span>No model can be asked in this project.{" "}
            <Link to="/welcome" search={{ step: "model" }} className="underline">
              Connect one
            </Link>
          </span>
        ) : (
          " "
        )}
      </p>
    </header>
  );
}

/** The answers of a conversation and what each cost, as far as the caller may see it. */
function useThreadCosts(thread: Thread | null, project: string) {
  const enabled = thread !== null;
  const handoffs = useQuery({ ...chatHandoffsQuery(project), enabled });
  const calls = useQuery({ ...chatCallsQuery(project, thread?.created_at ?? ""), enabled });
  const own = useMemo(
    () => handoffs.data?.items.filter((it) => it.thread_id != null && it.thread_id === thread?.thread_id) ?? [],
    [handoffs.data, thread?.thread_id],
  );
  const costs = useMemo(() => sumCosts(calls.data?.items ?? []), [calls.data]);
  return { handoffs: own, costs };
}

function Turns({
  thread,
  project,
  turns,
  run,
}: {
  thread: Thread | null;
  project: string;
  turns: readonly ChatTurn[];
  run: ChatRun | undefined;
}) {
  const me = useQuery(meQuery);
  const tasks = useInfiniteQuery(tasksQuery({ project }));
  const { handoffs, costs } = useThreadCosts(thread, project);
  const known = useMemo(() => tasks.data?.pages.flatMap((page) => page.items) ?? [], [tasks.data]);
  const [decided, setDecided] = useState<string | null>(null);
  // The card of a task stands where it was spoken of last.
  const cards = useMemo(() => {
    const last = new Map<string, number>();
    for (const turn of turns) {
      for (const id of findMentionedTasks(turn.content, known)) last.set(id, turn.number);
    }
    return last;
  }, [turns, known]);
  return (
    <ol aria-label="Turns" className="grid grid-cols-1 gap-5">
      {turns.map((turn, index) => {
        const asked = turns[index - 1];
        const handoff = turn.role === "assistant" && asked ? findHandoff(handoffs, asked.at) : null;
        return (
          <li key={turn.number} className="grid grid-cols-1 gap-3">
            <Turn
              turn={turn}
              handoff={handoff}
              cost={(handoff && costs.get(handoff.trace_id)) ?? null}
              currency={me.data?.currency}
            />
            {[...cards].map(
              ([task, number]) =>
                number === turn.number && (
                  <TaskCard
                    key={task}
                    task={task}
                    decides={decided === task}
                    onDecide={(decides) => setDecided(decides ? task : null)}
                  />
                ),
            )}
          </li>
        );
      })}
      {run && (
        <>
          <li>
            <Said speaker="user" at={new Date(run.startedAt).toISOString()}>
              <Prose text={run.question.text} />
            </Said>
          </li>
          <RunAnswer run={run} project={project} />
        </>
      )}
    </ol>
  );
}

const Turn = memo(function Turn({
  turn,
  handoff,
  cost,
  currency,
}: {
  turn: ChatTurn;
  handoff: ChatHandoff | null;
  cost: AnswerCost | null;
  currency: string | undefined;
}) {
  const facts = [
    cost?.providers.join(", "),
    cost && cost.micros > 0 ? formatCost(cost.micros, currency) : null,
    handoff?.ended_at
      ? formatDuration(new Date(handoff.ended_at).getTime() - new Date(handoff.created_at).getTime())
      : null,
  ].filter(Boolean);
  return (
    <Said speaker={turn.role} at={turn.at} facts={facts.join(" · ")}>
      {turn.role === "assistant" ? <Answer text={turn.content} /> : <Prose text={turn.content} />}
      {turn.state !== "whole" && (
        <p className="pt-1 text-meta text-warn">
          <span aria-hidden="true" className="mr-1 font-mono">
            !
          </span>
          {turn.state === "interrupted" ? "Stopped before its end." : "It broke off."}{" "}
          {handoff?.failure && turn.state === "failed" && <Foreign text={handoff.failure} />}
        </p>
      )}
    </Said>
  );
});

const SPEAKERS: Record<ChatTurn["role"], string> = { user: "You", assistant: "Project manager", system: "System" };

function Said({
  speaker,
  at,
  facts,
  children,
}: {
  speaker: ChatTurn["role"];
  at: string;
  facts?: string | undefined;
  children: React.ReactNode;
}) {
  return (
    <div className={cx("max-w-[784px]", speaker === "user" && "rounded-box bg-surface px-3 py-2")}>
      <p className="flex items-baseline gap-2 pb-0.5 text-meta text-muted">
        <span className="font-medium text-text">{SPEAKERS[speaker]}</span>
        <Age at={at} ago className="text-faint" />
        {facts && <span className="ml-auto">{facts}</span>}
      </p>
      {children}
    </div>
  );
}

/** The answer that arrives. Only this is drawn while it grows. */
function RunAnswer({ run, project }: { run: ChatRun; project: string }) {
  const { state, text, error } = useSyncExternalStore(run.subscribe, run.read);
  const isOpen = state === "asking" || state === "answering";
  return (
    <>
      <li aria-busy={isOpen}>
        <Said speaker="assistant" at={new Date(run.startedAt).toISOString()}>
          <Answer text={text} />
          {isOpen && text === "" && <p className="text-muted">It thinks…</p>}
          {state === "stopped" && <p className="pt-1 text-meta text-warn">! Stopped before its end.</p>}
          {error && <ProblemNote error={error} />}
          <p role="status" className="sr-only">
            {isOpen ? "The answer is arriving" : state === "done" ? "The answer is there" : ""}
          </p>
        </Said>
      </li>
      {isOpen && <PendingCalls project={project} since={run.startedAt} />}
    </>
  );
}

/** Clocks of server and browser may differ by so much. */
const MAX_CLOCK_SKEW_MS = 30_000;

/** A call of this answer that waits for the person. It is the same component as in the inbox. */
function PendingCalls({ project, since }: { project: string; since: number }) {
  const inbox = useQuery(inboxQuery);
  const call = inbox.data?.items.find(
    (item) =>
      item.kind === "call" &&
      !item.task_id &&
      item.project_id === project &&
      new Date(item.since).getTime() > since - MAX_CLOCK_SKEW_MS,
  );
  if (!call) return null;
  return (
    <li className="max-w-[784px] rounded-box border border-line p-3">
      <InboxDetail key={call.id} item={call} project={call.project_slug ?? null} />
    </li>
  );
}
