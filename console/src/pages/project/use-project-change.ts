/** Changes of a project. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { Schema } from "../../api/client";

export type Project = Schema["ProjectView"];

/** Sends a change, and reads everything of the project again. */
export function useProjectChange<Input, Output>(
  project: string,
  send: (input: Input) => Promise<Output>,
  onSuccess?: (output: Output, input: Input) => void,
) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: send,
    ...(onSuccess ? { onSuccess } : {}),
    onSettled: () => {
      for (const queryKey of [["project", project], ["projects"], ["inbox"]]) {
        void client.invalidateQueries({ queryKey });
      }
    },
  });
}
