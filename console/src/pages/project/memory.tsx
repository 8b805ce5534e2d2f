/** What a project knows: search with scores, records to accept, correct and forget, and what is ingested. */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, unwrap } from "../../api/client";
import {
  ingestsQuery,
  memoriesQuery,
  memoryQuery,
  memorySearchQuery,
  profilesQuery,
} from "../../api/queries-knowledge";
import { toWords } from "../../logic/format";
import {
  canCancel,
  describeAuthor,
  describeOrigin,
  describeProgress,
  formatScore,
  type Memory,
  standingOfIngest,
  WRITTEN_KINDS,
  type WrittenKind,
} from "../../logic/memory";
import { RECORD_STATES } from "../../router";
import {
  Action,
  Age,
  Command,
  Empty,
  Facts,
  Foreign,
  Id,
  Loaded,
  ProblemNote,
  SectionHead,
  Sign,
} from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { Person } from "../../ui/person";
import { ConfirmLayer, RowLines, RowLink } from "../../ui/rows";
import { Split, useRowKeys } from "../../ui/split";
import { TaskName } from "../../ui/task-name";
import type { Project } from "./use-project-change";

const DEFAULT_PROFILE = "default";

const STATE_NAMES: Record<(typeof RECORD_STATES)[number], string> = {
  accepted: "Found by agents",
  proposed: "Proposed by agents",
  rejected: "Rejected",
};

/** Sends a change of memory, and reads all of it again. */
function useMemoryChange<Input, Output>(send: (input: Input) => Promise<Output>, onSuccess?: (output: Output) => void) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: send,
    ...(onSuccess ? { onSuccess } : {}),
    onSettled: () => void client.invalidateQueries({ queryKey: ["memories"] }),
  });
}

export function MemoryTab({ project }: { project: Project }) {
  const { memory: chosen, q = "", records = "accepted", scope } = useSearch({ from: "/projects/$project" });
  const profile = scope ?? DEFAULT_PROFILE;
  const navigate = useNavigate({ from: "/projects/$project" });
  const profiles = useQuery(profilesQuery(project.id));
  const [create, setCreate] = useState(false);
  const close = () => void navigate({ search: (previous) => ({ ...previous, memory: undefined }), replace: true });
  const names = [...new Set([profile, ...(profiles.data?.items ?? []).map((item) => item.name)])];
  return (
    <div className="grid grid-cols-1 gap-8">
      <section className="grid grid-cols-1 gap-4">
        <div className="flex flex-wrap items-end gap-3">
          <div className="w-48">
            <Choice
              label="Profile"
              value={profile}
              onChange={(value) =>
                void navigate({
                  search: (previous) => ({
                    ...previous,
                    scope: value === DEFAULT_PROFILE ? undefined : value,
                    memory: undefined,
                  }),
                })
              }
              options={names.map((name) => ({ value: name, name }))}
            />
          </div>
          <div className="w-52">
            <Choice
              label="Records"
              value={records}
              onChange={(value) =>
                void navigate({
                  search: (previous) => ({
                    ...previous,
                    records: value === "accepted" ? undefined : value,
                    q: undefined,
                    memory: undefined,
                  }),
                })
              }
              options={RECORD_STATES.map((state) => ({ value: state, name: STATE_NAMES[state] }))}
            />
          </div>
          <SearchForm
            key={q}
            query={q}
            onSearch={(text) =>
              void navigate({
                search: (previous) => ({ ...previous, q: text || undefined, records: undefined, memory: undefined }),
              })
            }
          />
          {!create && (
            <Action tone="primary" onPress={() => setCreate(true)}>
              Write record
            </Action>
          )}
        </div>
        {create && <WriteForm project={project} profile={profile} onClose={() => setCreate(false)} />}
        <Split
          back="Memory"
          onClose={close}
          list={
            q ? (
              <Hits project={project} profile={profile} query={q} chosen={chosen} onClose={close} />
            ) : (
              <Records project={project} profile={profile} state={records} chosen={chosen} onClose={close} />
            )
          }
          detail={chosen ? <MemoryDetail key={chosen} id={chosen} onGone={close} /> : null}
        />
      </section>
      <Ingests project={project} profile={profile} />
      <ForgetSource project={project} profile={profile} />
    </div>
  );
}

function SearchForm({ query, onSearch }: { query: string; onSearch: (text: string) => void }) {
  const [text, setText] = useState(query);
  return (
    <Form
      aria-label="Search memory"
      className="flex min-w-64 flex-1 items-end gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        onSearch(text.trim());
      }}
    >
      <div className="flex-1">
        <Field label="Search" value={text} onChange={setText} placeholder="How are failed uploads retried?" />
      </div>
      <Action type="submit">Search memory</Action>
    </Form>
  );
}

interface ListProps {
  project: Project;
  profile: string;
  chosen: string | undefined;
  onClose: () => void;
}

/** `j` and `k` go through what is listed. */
function useMemoryKeys(ids: readonly string[], chosen: string | undefined, close: () => void) {
  const navigate = useNavigate({ from: "/projects/$project" });
  const choose = (next: string) =>
    void navigate({ search: (previous) => ({ ...previous, memory: next }), replace: true });
  useRowKeys(ids, chosen, choose, close);
}

function Hits({ project, profile, query, chosen, onClose }: ListProps & { query: string }) {
  const hits = useQuery(memorySearchQuery(project.id, profile, query));
  const items = hits.data?.hits ?? [];
  useMemoryKeys(
    items.map((hit) => hit.memory.memory_id),
    chosen,
    onClose,
  );
  return (
    <Loaded query={hits} lines={6}>
      {() =>
        items.length === 0 ? (
          <Empty title="Nothing is found.">
            <p className="text-muted">
              A record is found when it shares a word with the search. Each profile has a memory of its own.
            </p>
          </Empty>
        ) : (
          <ul aria-label="Found records" className="border-line border-t">
            {items.map(({ memory, score }) => (
              <MemoryRow
                key={memory.memory_id}
                memory={memory}
                isChosen={memory.memory_id === chosen}
                end={<span title="From 0 to 1, higher is better">{formatScore(score)}</span>}
              />
            ))}
          </ul>
        )
      }
    </Loaded>
  );
}

function Records({ project, profile, state, chosen, onClose }: ListProps & { state: (typeof RECORD_STATES)[number] }) {
  const records = useInfiniteQuery(memoriesQuery(project.id, { profile, state }));
  const items = records.data?.pages.flatMap((page) => page.items) ?? [];
  useMemoryKeys(
    items.map((memory) => memory.memory_id),
    chosen,
    onClose,
  );
  return (
    <Loaded query={records} lines={6}>
      {() =>
        items.length === 0 ? (
          <Empty title={state === "accepted" ? "Nothing is remembered yet." : `No record is ${state}.`}>
            {state === "accepted" && (
              <>
                <p className="text-muted">Give it what the project has written down:</p>
                <Command line={`cynork memory ingest docs --project ${project.slug}`} />
              </>
            )}
          </Empty>
        ) : (
          <div className="grid grid-cols-1 gap-3">
            <ul aria-label="Records" className="border-line border-t">
              {items.map((memory) => (
                <MemoryRow
                  key={memory.memory_id}
                  memory={memory}
                  isChosen={memory.memory_id === chosen}
                  end={<Age at={memory.created_at} />}
                />
              ))}
            </ul>
            {records.hasNextPage && (
              <div>
                <Action
                  onPress={() => void records.fetchNextPage()}
                  reason={records.isFetchingNextPage ? "They are being read" : null}
                >
                  Show more records
                </Action>
              </div>
            )}
          </div>
        )
      }
    </Loaded>
  );
}

function MemoryRow({ memory, isChosen, end }: { memory: Memory; isChosen: boolean; end: ReactNode }) {
  return (
    <RowLink parameter="memory" id={memory.memory_id} isChosen={isChosen}>
      <RowLines
        name={<Foreign text={memory.title} />}
        end={end}
        below={
          <>
            {toWords(memory.kind)}
            {memory.pinned && " · pinned"} · <Foreign text={describeOrigin(memory)} />
          </>
        }
      />
    </RowLink>
  );
}

function MemoryDetail({ id, onGone }: { id: string; onGone: () => void }) {
  const memory = useQuery(memoryQuery(id));
  const [isEdited, setEdited] = useState(false);
  return (
    <Loaded query={memory}>
      {(data) =>
        isEdited ? (
          <CorrectForm memory={data} onClose={() => setEdited(false)} />
        ) : (
          <MemoryContent memory={data} onEdit={() => setEdited(true)} onGone={onGone} />
        )
      }
    </Loaded>
  );
}

function MemoryContent({ memory, onEdit, onGone }: { memory: Memory; onEdit: () => void; onGone: () => void }) {
  const [isForgotten, setForgotten] = useState(false);
  const path = { memory: memory.memory_id };
  const accept = useMemoryChange(() => unwrap(api.POST("/v1/memories/{memory}/accept", { params: { path } })));
  const reject = useMemoryChange(() => unwrap(api.POST("/v1/memories/{memory}/reject", { params: { path } })));
  const pin = useMemoryChange((pinned: boolean) =>
    unwrap(api.PATCH("/v1/memories/{memory}", { params: { path }, body: { pinned } })),
  );
  const forget = useMemoryChange(() => unwrap(api.DELETE("/v1/memories/{memory}", { params: { path } })), onGone);
  const problem = accept.error ?? reject.error ?? pin.error;
  const busy = accept.isPending || reject.isPending || pin.isPending ? "It is being sent" : null;
  return (
    <article className="grid grid-cols-1 gap-4">
      <h2 className="text-lead">
        <Foreign text={memory.title} />
      </h2>
      <div className="flex flex-wrap gap-2">
        {memory.state === "proposed" && (
          <>
            <Action tone="primary" onPress={() => accept.mutate(undefined)} reason={busy}>
              Accept record
            </Action>
            <Action onPress={() => reject.mutate(undefined)} reason={busy}>
              Reject record
            </Action>
          </>
        )}
        {memory.state === "accepted" && !memory.superseded_by && (
          <>
            <Action onPress={onEdit} reason={busy}>
              Correct record
            </Action>
            <Action onPress={() => pin.mutate(!memory.pinned)} reason={busy}>
              {memory.pinned ? "Unpin record" : "Pin record"}
            </Action>
          </>
        )}
        <Action tone="danger" onPress={() => setForgotten(true)} reason={busy}>
          Forget record…
        </Action>
      </div>
      {problem && <ProblemNote error={problem} />}
      {memory.state === "proposed" && (
        <p className="border-warn border-l-2 py-1 pl-3">
          <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
            ?
          </span>
          An agent proposed it. Agents of other tasks find it only after you have accepted it. Read it whole first.
        </p>
      )}
      <Facts
        rows={[
          ["Kind", toWords(memory.kind)],
          ["From", <Foreign key="origin" text={describeOrigin(memory)} />],
          ["Written by", describeAuthor(memory)],
          memory.user_id ? ["For", <Person key="user" id={memory.user_id} />] : null,
          memory.task_id ? ["Task", <TaskName key="task" id={memory.task_id} />] : null,
          ["Written", <Age key="at" at={memory.created_at} ago />],
          memory.decided_by ? ["Decided by", <Person key="decided" id={memory.decided_by} />] : null,
          memory.untrusted ? ["Trust", "a stranger may have written it: agents are given it as data"] : null,
          memory.supersedes ? ["Corrects", <Id key="old" id={memory.supersedes} />] : null,
          memory.superseded_by ? ["Corrected by", <Id key="new" id={memory.superseded_by} />] : null,
          ["Id", <Id key="id" id={memory.memory_id} />],
        ]}
      />
      <section className="grid grid-cols-1 gap-2">
        <SectionHead aside="Shown as text; nothing of it is carried out here">Text</SectionHead>
        <pre className="rounded-box border border-line bg-surface p-3 font-mono text-code break-words whitespace-pre-wrap">
          <Foreign text={memory.content} />
        </pre>
      </section>
      {isForgotten && (
        <ConfirmLayer
          title="Forget record"
          action="Forget record"
          keep="Keep record"
          pending={forget.isPending}
          error={forget.error}
          onConfirm={() => forget.mutate(undefined)}
          onClose={() => setForgotten(false)}
        >
          <p>
            <Foreign text={memory.title} /> is deleted with its text. Agents that were given it keep what they made of
            it.
          </p>
        </ConfirmLayer>
      )}
    </article>
  );
}

/** A correction is a new record that takes the place of the old one. */
function CorrectForm({ memory, onClose }: { memory: Memory; onClose: () => void }) {
  const navigate = useNavigate({ from: "/projects/$project" });
  const [title, setTitle] = useState(memory.title);
  const [content, setContent] = useState(memory.content);
  const correct = useMemoryChange(
    () =>
      unwrap(
        api.PATCH("/v1/memories/{memory}", {
          params: { path: { memory: memory.memory_id } },
          body: { title: title.trim(), content },
        }),
      ),
    (corrected) => {
      onClose();
      void navigate({ search: (previous) => ({ ...previous, memory: corrected.memory_id }), replace: true });
    },
  );
  const reason = correct.isPending
    ? "It is being sent"
    : title.trim() === ""
      ? "Write a title"
      : content.trim() === ""
        ? "Write the text"
        : null;
  return (
    <Form
      aria-labelledby="correct-form"
      className="grid max-w-[760px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) correct.mutate(undefined);
      }}
    >
      <h2 id="correct-form" className="text-lead">
        Correct record
      </h2>
      <Field label="Title" value={title} onChange={setTitle} autoFocus />
      <Field label="Text" value={content} onChange={setContent} lines={12} mono />
      {correct.error && <ProblemNote error={correct.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Save correction
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

function WriteForm({ project, profile, onClose }: { project: Project; profile: string; onClose: () => void }) {
  const navigate = useNavigate({ from: "/projects/$project" });
  const [kind, setKind] = useState<WrittenKind>("decision");
  const [title, setTitle] = useState("");
  const [content, setContent] = useState("");
  const [key] = useState(makeKey);
  const write = useMemoryChange(
    () =>
      unwrap(
        api.POST("/v1/projects/{project}/memories", {
          params: { path: { project: project.id }, header: { "Idempotency-Key": key } },
          body: { kind, title: title.trim(), content, profile },
        }),
      ),
    (written) => {
      onClose();
      void navigate({ search: (previous) => ({ ...previous, memory: written.memory_id, q: undefined }) });
    },
  );
  const reason = write.isPending
    ? "It is being sent"
    : title.trim() === ""
      ? "Write a title"
      : content.trim() === ""
        ? "Write the text"
        : null;
  return (
    <Form
      aria-labelledby="write-form"
      className="grid max-w-[760px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) write.mutate(undefined);
      }}
    >
      <h2 id="write-form" className="text-lead">
        Write record
      </h2>
      <div className="max-w-60">
        <Choice
          label="Kind"
          value={kind}
          onChange={setKind}
          options={WRITTEN_KINDS.map((value) => ({ value, name: toWords(value) }))}
        />
      </div>
      <Field
        label="Title"
        value={title}
        onChange={setTitle}
        autoFocus
        placeholder="Uploads are retried three times"
        description="One line, with the words that somebody would search for."
      />
      <Field
        label="Text"
        value={content}
        onChange={setContent}
        lines={6}
        description="Agents of this project are given it when it fits their work. Secrets are redacted."
      />
      {write.error && <ProblemNote error={write.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Write record
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

function Ingests({ project, profile }: { project: Project; profile: string }) {
  const ingests = useQuery(ingestsQuery(project.id, profile));
  const [url, setUrl] = useState("");
  const params = { path: { project: project.id } };
  const begin = useMemoryChange((page: string | null) =>
    unwrap(
      api.POST("/v1/projects/{project}/memory-ingests", {
        params,
        body: page === null ? { kind: "repository", profile } : { kind: "page", url: page, profile },
      }),
    ),
  );
  const cancel = useMemoryChange((ingest: string) =>
    unwrap(api.POST("/v1/memory-ingests/{ingest}/cancel", { params: { path: { ingest } } })),
  );
  const busy = begin.isPending ? "It is being sent" : null;
  return (
    <section className="grid max-w-[760px] grid-cols-1 gap-3">
      <SectionHead aside="What is unchanged is not read again">Ingests</SectionHead>
      <div className="flex flex-wrap items-end gap-2">
        <Action onPress={() => begin.mutate(null)} reason={busy}>
          Ingest repository
        </Action>
        <Form
          aria-label="Ingest a page"
          className="flex min-w-64 flex-1 items-end gap-2"
          onSubmit={(event) => {
            event.preventDefault();
            if (!busy && url.trim() !== "") begin.mutate(url.trim());
          }}
        >
          <div className="flex-1">
            <Field label="Page" value={url} onChange={setUrl} mono placeholder="https://docs.example.org/retries" />
          </div>
          <Action type="submit" reason={busy ?? (url.trim() === "" ? "Write the address" : null)}>
            Ingest page
          </Action>
        </Form>
      </div>
      {(begin.error ?? cancel.error) && <ProblemNote error={begin.error ?? cancel.error} />}
      <Loaded query={ingests} lines={2}>
        {(data) =>
          data.items.length === 0 ? (
            <div className="grid max-w-[560px] gap-2 py-1">
              <p className="text-muted">Nothing was ingested yet. Files of this machine come by the command:</p>
              <Command line={`cynork memory ingest docs --project ${project.slug}`} />
            </div>
          ) : (
            <ul aria-label="Ingests" className="border-line border-t">
              {data.items.map((ingest) => (
                <li key={ingest.ingest_id} className="grid gap-0.5 border-line border-b py-1.5">
                  <span className="flex flex-wrap items-center gap-x-3">
                    <Sign standing={standingOfIngest(ingest)} word={toWords(ingest.state)} />
                    <code className="font-mono text-code break-all">
                      <Foreign text={ingest.source} />
                    </code>
                    <span className="text-meta text-muted">
                      <Age at={ingest.created_at} ago />
                    </span>
                    {canCancel(ingest) && (
                      <Action
                        tone="quiet"
                        className="ml-auto"
                        onPress={() => cancel.mutate(ingest.ingest_id)}
                        reason={cancel.isPending ? "It is being sent" : null}
                        aria-label={`Cancel the ingest of ${ingest.source}`}
                      >
                        Cancel ingest
                      </Action>
                    )}
                  </span>
                  <span className="text-meta text-muted">{describeProgress(ingest.progress)}</span>
                  {ingest.error && (
                    <span className="text-meta text-bad">
                      <Foreign text={ingest.error} />
                    </span>
                  )}
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
    </section>
  );
}

/** Deletes everything of a source, and gives all records as a file. */
function ForgetSource({ project, profile }: { project: Project; profile: string }) {
  const [source, setSource] = useState("");
  const [isOpen, setOpen] = useState(false);
  const forget = useMemoryChange(
    async () => {
      // The server deletes so many at once, and says whether there are more.
      for (;;) {
        const { more } = await unwrap(
          api.POST("/v1/projects/{project}/memories/forget", {
            params: { path: { project: project.id } },
            body: { source: source.trim(), profile },
          }),
        );
        if (!more) return;
      }
    },
    () => {
      setOpen(false);
      setSource("");
    },
  );
  return (
    <section className="grid max-w-[760px] grid-cols-1 gap-3">
      <SectionHead>Forget and export</SectionHead>
      <div className="flex flex-wrap items-end gap-2">
        <div className="w-72">
          <Field label="Source" value={source} onChange={setSource} mono placeholder="files:docs" />
        </div>
        <Action
          tone="danger"
          onPress={() => setOpen(true)}
          reason={source.trim() === "" ? "Write the source first" : null}
        >
          Forget source…
        </Action>
        <a
          href={`/v1/projects/${project.id}/memories/export?profile=${encodeURIComponent(profile)}`}
          download={`${project.slug}-${profile}.jsonl`}
          className="inline-flex min-h-8 items-center text-accent underline max-small:min-h-10"
        >
          Export records
        </a>
      </div>
      {isOpen && (
        <ConfirmLayer
          title="Forget source"
          action="Forget source"
          keep="Keep source"
          typed={source.trim()}
          pending={forget.isPending}
          error={forget.error}
          onConfirm={() => forget.mutate(undefined)}
          onClose={() => setOpen(false)}
        >
          <p>
            Every record of <Foreign text={source.trim()} /> under the profile <Foreign text={profile} /> is deleted,
            pinned ones too.
          </p>
        </ConfirmLayer>
      )}
    </section>
  );
}
