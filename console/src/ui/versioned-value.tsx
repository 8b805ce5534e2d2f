/** One value with its versions: what it says, who wrote it, a form that loses nothing, and its history. */

import { type UseQueryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import type { Schema } from "../api/client";
import { formatValue, parseValue, toDraft, type ValueKind } from "../logic/values";
import { Action, Age, Foreign, Loaded, ProblemNote, SectionHead } from "./basic";
import { Choice, Field } from "./fields";
import { Person } from "./person";
import { Tick } from "./switch";
import { UndoBar } from "./undo";

export interface ValueStore {
  read: UseQueryOptions<Schema["ValueView"] | null, Error, Schema["ValueView"] | null, string[]>;
  history: UseQueryOptions<Schema["ValueHistory"], Error, Schema["ValueHistory"], string[]>;
  write: (value: unknown, expected: number) => Promise<unknown>;
  remove: (expected: number) => Promise<unknown>;
  /** What is old after a change. */
  area: string;
}

/** The field for a kind of value. */
export function ValueField({
  kind,
  label,
  text,
  onChange,
  error,
  placeholder,
}: {
  kind: ValueKind;
  label: string;
  text: string;
  onChange: (text: string) => void;
  error: string | null;
  placeholder: string;
}) {
  if (kind.type === "boolean" || kind.type === "choice") {
    const options = kind.type === "boolean" ? ["true", "false"] : kind.options;
    return (
      <Choice
        label={label}
        value={text}
        onChange={onChange}
        options={[
          ...(options.includes(text) ? [] : [{ value: text, name: "Choose" }]),
          ...options.map((value) => ({ value, name: value })),
        ]}
      />
    );
  }
  const lines = kind.type === "json" ? 5 : kind.type === "list" || kind.type === "texts" ? 4 : undefined;
  return (
    <Field
      label={label}
      value={text}
      onChange={onChange}
      error={error}
      mono
      placeholder={placeholder}
      {...(lines === undefined ? {} : { lines })}
      {...(kind.type === "integer" ? { inputMode: "numeric" as const } : {})}
      description={
        kind.type === "json" ? "As JSON." : kind.type === "list" ? "One per line; none is an empty list." : undefined
      }
    />
  );
}

interface Draft {
  text: string;
  hides: boolean;
  /** The version that the draft began from. */
  version: number;
}

export function VersionedValue({
  name,
  kind,
  store,
  fallback,
  reason,
  canHide,
  removeLabel,
}: {
  name: string;
  kind: ValueKind;
  store: ValueStore;
  /** What holds without it, for the field's example. */
  fallback: string;
  /** Why the reader may not change it. */
  reason: string | null;
  /** Whether null hides what wider levels say. */
  canHide?: boolean;
  removeLabel: string;
}) {
  const client = useQueryClient();
  const read = useQuery(store.read);
  const [draft, setDraft] = useState<Draft | null>(null);
  const [done, setDone] = useState<{ words: string; before: Schema["ValueView"] | null; version: number } | null>(null);
  const current = read.data ?? null;
  const version = current?.version ?? 0;
  // The list first: it says whether there is still something to read.
  const renew = async () => {
    await client.invalidateQueries({ queryKey: [store.area, "list"] });
    await client.invalidateQueries({ queryKey: [store.area] });
  };
  const write = useMutation({
    mutationFn: async (request: { value: unknown; expected: number }) => {
      const before = current;
      await store.write(request.value, request.expected);
      return before;
    },
    onSuccess: (before, request) => {
      setDraft(null);
      setDone({ words: `It says ${shorten(formatValue(request.value))} now.`, before, version: request.expected });
    },
    onSettled: renew,
  });
  const remove = useMutation({
    mutationFn: async () => {
      const before = current;
      await store.remove(version);
      return before;
    },
    onSuccess: (before) => {
      setDraft(null);
      setDone({ words: "It is deleted.", before, version: 0 });
    },
    onSettled: renew,
  });
  const undo = useMutation({
    mutationFn: async (before: Schema["ValueView"] | null) =>
      before === null ? store.remove(version) : store.write(before.value, version),
    onSuccess: () => setDone(null),
    onSettled: renew,
  });
  const text = draft?.text ?? toDraft(kind, current?.value);
  const hides = draft?.hides ?? (current !== null && current.value === null);
  const change = (part: Partial<Draft>) => setDraft((known) => ({ ...(known ?? { text, hides, version }), ...part }));
  const parsed = hides ? { value: null } : parseValue(kind, text);
  const error = "error" in parsed && draft !== null && text.trim() !== "" ? parsed.error : null;
  const overtaken = draft !== null && draft.version !== version;
  const pending = write.isPending || remove.isPending || undo.isPending;
  const blocked =
    reason ??
    (pending
      ? "It is being sent"
      : "error" in parsed
        ? parsed.error
        : draft === null && kind.type !== "demand"
          ? "Nothing is changed yet"
          : null);
  const problem = write.error ?? remove.error ?? undo.error;
  return (
    <div className="grid grid-cols-1 gap-5">
      <Loaded query={read} lines={3}>
        {() => (
          <Form
            aria-label={`Value of ${name}`}
            className="grid max-w-[560px] gap-3"
            onSubmit={(event) => {
              event.preventDefault();
              if (!blocked && "value" in parsed)
                write.mutate({ value: parsed.value, expected: draft?.version ?? version });
            }}
          >
            {!hides && (
              <ValueField
                kind={kind}
                label="Value"
                text={text}
                onChange={(value) => change({ text: value })}
                error={error}
                placeholder={fallback}
              />
            )}
            {canHide && (
              <Tick
                label="Hide what wider levels say"
                description="The default holds then, whatever they say."
                isTicked={hides}
                onChange={(isTicked) => change({ hides: isTicked })}
              />
            )}
            {overtaken && (
              <div role="status" className="grid gap-2 border-warn border-l-2 py-1 pl-3">
                <p>
                  <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
                    !
                  </span>
                  {current ? (
                    <>
                      <Person id={current.updated_by} /> wrote <Foreign text={formatValue(current.value)} /> meanwhile.
                    </>
                  ) : (
                    "It was deleted meanwhile."
                  )}{" "}
                  What you typed is still here.
                </p>
                <div className="flex flex-wrap gap-2">
                  <Action onPress={() => change({ version })}>Keep mine</Action>
                  <Action onPress={() => setDraft(null)}>Take theirs</Action>
                </div>
              </div>
            )}
            {problem ? <ProblemNote error={problem} /> : null}
            <div className="flex flex-wrap gap-2">
              <Action
                type="submit"
                tone="primary"
                reason={overtaken && !reason ? "First decide about what was written meanwhile" : blocked}
              >
                Set value
              </Action>
              {draft && (
                <Action tone="quiet" onPress={() => setDraft(null)}>
                  Cancel
                </Action>
              )}
              {current && (
                <Action
                  tone="plain"
                  onPress={() => remove.mutate()}
                  reason={reason ?? (pending ? "It is being sent" : null)}
                >
                  {removeLabel}
                </Action>
              )}
            </div>
          </Form>
        )}
      </Loaded>
      <History
        store={store}
        onReuse={(value) => change(value === null ? { hides: true } : { text: toDraft(kind, value), hides: false })}
        canReuse={!reason}
      />
      {done && (
        <UndoBar
          onUndo={() => undo.mutate(done.before)}
          onClose={() => setDone(null)}
          busy={pending ? "It is being sent" : null}
        >
          <Foreign text={done.words} />
        </UndoBar>
      )}
    </div>
  );
}

function shorten(text: string): string {
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

function History({
  store,
  onReuse,
  canReuse,
}: {
  store: ValueStore;
  onReuse: (value: unknown) => void;
  canReuse: boolean;
}) {
  const history = useQuery(store.history);
  return (
    <section className="grid grid-cols-1 gap-1">
      <SectionHead>History</SectionHead>
      <Loaded query={history} lines={3}>
        {(data) =>
          data.items.length === 0 ? (
            <p className="py-1 text-muted">Nobody has written it yet.</p>
          ) : (
            <ol reversed aria-label="Versions, newest first">
              {data.items.map((entry) => (
                <li
                  key={entry.version}
                  className="grid grid-cols-[44px_1fr_auto] items-center gap-x-3 border-line border-b py-1"
                >
                  <span className="text-meta text-faint">v{entry.version}</span>
                  <span className="min-w-0">
                    {entry.deleted ? (
                      <span className="text-muted">deleted</span>
                    ) : (
                      <code className="font-mono text-code break-words">
                        <Foreign text={formatValue(entry.value)} />
                      </code>
                    )}
                    <span className="block text-meta text-muted">
                      <Person id={entry.changed_by} /> · <Age at={entry.changed_at} ago />
                    </span>
                  </span>
                  {!entry.deleted && canReuse && (
                    <Action
                      tone="quiet"
                      onPress={() => onReuse(entry.value)}
                      aria-label={`Use again the value of version ${entry.version}`}
                    >
                      Use again
                    </Action>
                  )}
                </li>
              ))}
            </ol>
          )
        }
      </Loaded>
    </section>
  );
}
