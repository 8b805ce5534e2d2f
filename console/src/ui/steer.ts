/** What a person can do with a task. Each is one request with a key of its own; the answer renews what is on screen. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, makeKey, type Schema, unwrap } from "../api/client";

export type Steer =
  | { do: "approve"; wait: string | null }
  | { do: "send_back"; wait: string | null; note: string }
  | { do: "answer"; wait: string | null; text: string }
  | { do: "instruct"; kind: Schema["InstructTask"]["kind"]; text?: string }
  | { do: "cancel" }
  | { do: "unpark" }
  | { do: "merge" | "close"; pullRequest: string }
  | { do: "review" }
  | { do: "retry"; task: Schema["TaskView"] };

async function send(task: string, steer: Steer): Promise<unknown> {
  const params = { path: { task }, header: { "Idempotency-Key": makeKey() } };
  switch (steer.do) {
    case "approve":
      return unwrap(api.POST("/v1/tasks/{task}/approve", { params, body: { approved: true, wait_id: steer.wait } }));
    case "send_back": {
      const body = { approved: false, note: steer.note, wait_id: steer.wait };
      return unwrap(api.POST("/v1/tasks/{task}/approve", { params, body }));
    }
    case "answer":
      return unwrap(api.POST("/v1/tasks/{task}/answer", { params, body: { text: steer.text, wait_id: steer.wait } }));
    case "instruct": {
      const body = { kind: steer.kind, ...(steer.text ? { text: steer.text } : {}) };
      return unwrap(api.POST("/v1/tasks/{task}/instructions", { params, body }));
    }
    case "cancel":
      return unwrap(api.POST("/v1/tasks/{task}/cancel", { params }));
    case "unpark":
      return unwrap(api.DELETE("/v1/tasks/{task}/park", { params }));
    case "review":
      return unwrap(api.POST("/v1/reviews", { body: { task_id: task } }));
    case "close": {
      const path = { pull_request: steer.pullRequest };
      return unwrap(api.POST("/v1/pull-requests/{pull_request}/close", { params: { path } }));
    }
    case "merge": {
      const path = { pull_request: steer.pullRequest };
      return unwrap(api.POST("/v1/pull-requests/{pull_request}/merge", { params: { path } }));
    }
    case "retry": {
      const { project_id, description, acceptance_criteria, budget, depends_on } = steer.task;
      const body = { project_id, description, acceptance_criteria, budget, depends_on };
      return unwrap(api.POST("/v1/tasks/{task}/retry", { params, body }));
    }
  }
}

export function useSteer(task: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (steer: Steer) => send(task, steer),
    onSettled: () => {
      for (const queryKey of [["task", task], ["tasks"], ["inbox"]]) void client.invalidateQueries({ queryKey });
    },
  });
}

export function useDecideApproval() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: ({ approval, approved }: { approval: string; approved: boolean }) =>
      unwrap(api.POST("/v1/approvals/{approval}", { params: { path: { approval } }, body: { approved } })),
    onSettled: () => {
      for (const queryKey of [["inbox"], ["approvals"]]) void client.invalidateQueries({ queryKey });
    },
  });
}
