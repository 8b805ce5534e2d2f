import { useMutation, useQueryClient } from "@tanstack/react-query";

/** Sends a change of models or providers, and reads all of them again. */
export function useModelChange<Input, Output>(
  send: (input: Input) => Promise<Output>,
  onSuccess?: (output: Output) => void,
) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: send,
    ...(onSuccess ? { onSuccess } : {}),
    onSettled: () => {
      for (const queryKey of [["models"], ["readiness"]]) void client.invalidateQueries({ queryKey });
    },
  });
}
