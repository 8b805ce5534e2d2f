/** The connection to the server: the event stream, and the session. */

import { useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext, useEffect, useMemo, useState } from "react";
import { recordDecision } from "../events/decisions";
import { InvalidationBatch, staleKeys } from "../events/invalidate";
import { type ApiEvent, browserEnvironment, followEvents, type LinkState } from "../events/stream";

interface Live {
  state: LinkState;
  /** When what is on screen was last known to be true; now, while it is live. */
  at: number;
}

const LiveContext = createContext<Live>({ state: "connecting", at: 0 });

export function useLive(): Live {
  return useContext(LiveContext);
}

/** Follows events while somebody is logged in. `session` names the account, so that another login begins anew. */
export function LiveProvider({ session, children }: { session: string | null; children: ReactNode }) {
  const client = useQueryClient();
  const [live, setLive] = useState<Live>({ state: "connecting", at: Date.now() });
  useEffect(() => {
    // A recording has no events.
    if (session === null || __DEMO__) return undefined;
    const stop = new AbortController();
    const batch = new InvalidationBatch((keys) => {
      for (const queryKey of keys) void client.invalidateQueries({ queryKey });
    });
    const listener = {
      onEvent: (event: ApiEvent) => {
        recordDecision(event);
        batch.add(staleKeys(event));
      },
      onLink: (state: LinkState, at: number) => {
        // While the connection is tried again, the data stays as old as the end of the last live stream.
        setLive((previous) => ({ state, at: state === "live" || previous.state === "live" ? at : previous.at }));
        if (state === "signed_out") void client.invalidateQueries({ queryKey: ["me"] });
      },
      onMissed: () => void client.invalidateQueries(),
    };
    void followEvents(browserEnvironment(), listener, stop.signal);
    return () => stop.abort();
  }, [client, session]);
  const value = useMemo(() => live, [live]);
  return <LiveContext value={value}>{children}</LiveContext>;
}
