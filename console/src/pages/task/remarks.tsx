/** Remarks on the changes of a task: drafts of this tab, sent as one follow-up. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useState } from "react";
import { api, makeKey, type Schema, unwrap } from "../../api/client";
import { formatCount } from "../../logic/format";
import {
  chooseRecipient,
  listWritten,
  type Remark,
  type RemarkDrafts,
  readDrafts,
  toComments,
  toInstruction,
  writeDrafts,
} from "../../logic/remarks";
import type { Task } from "../../logic/state";
import { Action, Foreign, ProblemNote } from "../../ui/basic";

export interface RemarkActions {
  all: readonly Remark[];
  written: readonly Remark[];
  key: string;
  open(place: Pick<Remark, "path" | "line" | "quote" | "isRemoved">): void;
  change(id: string, body: string): void;
  remove(id: string): void;
  clear(): void;
}

/** The drafts of a task. They survive a reload of the tab. */
export function useRemarks(task: string): RemarkActions {
  const [drafts, setDrafts] = useState(() => readDrafts(task, makeKey));
  useEffect(() => writeDrafts(task, drafts), [task, drafts]);
  const edit = useCallback((change: (remarks: Remark[]) => Remark[]) => {
    setDrafts((previous): RemarkDrafts => ({ key: makeKey(), remarks: change(previous.remarks) }));
  }, []);
  return useMemo(
    () => ({
      all: drafts.remarks,
      written: listWritten(drafts),
      key: drafts.key,
      open: (place) =>
        edit((remarks) => {
          const isSame = (remark: Remark) =>
            remark.path === place.path &&
            remark.line === place.line &&
            remark.isRemoved === place.isRemoved &&
            remark.quote === place.quote;
          // Drafts that say nothing go when another one is begun.
          const kept = remarks.filter((remark) => remark.body.trim() !== "" || isSame(remark));
          return kept.some(isSame) ? kept : [...kept, { ...place, id: makeKey(), body: "" }];
        }),
      change: (id, body) => edit((remarks) => remarks.map((it) => (it.id === id ? { ...it, body } : it))),
      remove: (id) => edit((remarks) => remarks.filter((it) => it.id !== id)),
      clear: () => edit(() => []),
    }),
    [drafts, edit],
  );
}

type Receipt = { followUp: string | null; reason: string | null; verdict: "changes" | "approve" };

/** What is done with the remarks, in reach at the bottom. */
export function RemarkBar({
  task,
  request,
  remarks,
}: {
  task: Task;
  request: Schema["PullRequestEntry"] | null;
  remarks: RemarkActions;
}) {
  const client = useQueryClient();
  const recipient = chooseRecipient(task.state, request);
  const { written } = remarks;
  const send = useMutation({
    mutationFn: async (verdict: "changes" | "approve"): Promise<Receipt> => {
      const header = { "Idempotency-Key": remarks.key };
      if (recipient.to === "review") {
        const path = { pull_request: recipient.pullRequest };
        const comments = verdict === "changes" ? toComments(written) : [];
        const body = { verdict, comments, commit: recipient.commit };
        const receipt = await unwrap(
          api.POST("/v1/pull-requests/{pull_request}/reviews", { params: { path, header }, body }),
        );
        return { followUp: receipt.follow_up ?? null, reason: receipt.no_follow_up ?? null, verdict };
      }
      const body = { kind: "revise" as const, text: toInstruction(written) };
      await unwrap(api.POST("/v1/tasks/{task}/instructions", { params: { path: { task: task.id }, header }, body }));
      return { followUp: null, reason: null, verdict };
    },
    onSuccess: () => remarks.clear(),
    onSettled: () => {
      for (const queryKey of [["task", task.id], ["tasks"], ["inbox"]]) void client.invalidateQueries({ queryKey });
    },
  });
  const busy = send.isPending ? "They are being sent" : null;
  const files = new Set(written.map((remark) => remark.path)).size;
  if (written.length === 0 && recipient.to !== "review" && !send.data) {
    return recipient.to === "task" ? (
      <p className="text-meta text-faint">Press a line number to write a remark on the line.</p>
    ) : null;
  }
  return (
    <div className="sticky bottom-0 z-10 grid gap-2 border-line border-t bg-bg py-3">
      {send.error && <ProblemNote error={send.error} />}
      {send.data && written.length === 0 && <ReceiptNote receipt={send.data} />}
      <div className="flex flex-wrap items-center gap-2">
        <Action
          tone={written.length > 0 ? "primary" : "plain"}
          onPress={() => send.mutate("changes")}
          reason={
            written.length === 0
              ? "Press a line number to write a remark"
              : recipient.to === null
                ? recipient.reason
                : busy
          }
        >
          {written.length === 0 ? "Send remarks" : `Send ${formatCount(written.length, "remark")}`}
        </Action>
        {recipient.to === "review" && (
          <Action
            onPress={() => send.mutate("approve")}
            reason={written.length > 0 ? "Send or delete the remarks first" : busy}
          >
            Approve changes
          </Action>
        )}
        <span className="text-meta text-muted">
          {written.length > 0
            ? `${formatCount(written.length, "remark")} in ${formatCount(files, "file")}, sent together as one ${recipient.to === "task" ? "instruction" : "follow-up"}`
            : "Press a line number to write a remark on the line."}
        </span>
        {written.length > 0 && (
          <Action tone="quiet" onPress={remarks.clear} className="ml-auto">
            Delete {formatCount(written.length, "draft")}
          </Action>
        )}
      </div>
    </div>
  );
}

function ReceiptNote({ receipt }: { receipt: Receipt }) {
  return (
    <p role="status" className="border-ok border-l-2 py-1 pl-3">
      {receipt.verdict === "approve" ? "The changes are approved." : "The remarks were sent."}{" "}
      {receipt.followUp && (
        <Link to="/tasks/$task" params={{ task: receipt.followUp }} className="text-accent underline">
          A task goes on with them
        </Link>
      )}
      {receipt.reason && <Foreign text={receipt.reason} />}
    </p>
  );
}
