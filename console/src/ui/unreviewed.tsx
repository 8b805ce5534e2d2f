/** Says that an agent wrote something last, and lets a person say that they read it. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schema, unwrap } from "../api/client";
import { Action, ProblemNote } from "./basic";

export function Unreviewed({ what, body, area }: { what: string; body: Schema["ReviewContent"]; area: string }) {
  const client = useQueryClient();
  const review = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/reviews", { body })),
    onSettled: () => void client.invalidateQueries({ queryKey: [area] }),
  });
  return (
    <div className="grid gap-2 border-warn border-l-2 py-1 pl-3">
      <p>
        <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
          ?
        </span>
        An agent wrote this {what} last, and no person has reviewed it. Read it whole first.
      </p>
      {review.error && <ProblemNote error={review.error} />}
      <div>
        <Action onPress={() => review.mutate()} reason={review.isPending ? "It is being sent" : null}>
          Mark {what} as reviewed
        </Action>
      </div>
    </div>
  );
}
