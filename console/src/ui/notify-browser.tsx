/** "Notify this browser": where notifications stand here, and the way to change it. */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { api, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { channelsQuery } from "../api/queries-admin";
import { browserQuery, subscribeThisBrowser, unsubscribeThisBrowser } from "../api/web-push";
import { findPushState } from "../logic/web-push";
import { Action, ProblemNote, Sign } from "./basic";

/** Reads where notifications stand in this browser; null while it is read. */
function usePushState() {
  const client = useQueryClient();
  const browser = useQuery(browserQuery);
  const channels = useInfiniteQuery(channelsQuery(false));
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = channels;
  // A person has few channels; the one of this browser may be the last.
  useEffect(() => {
    if (hasNextPage && !isFetchingNextPage) void fetchNextPage();
  }, [hasNextPage, isFetchingNextPage, fetchNextPage]);
  // The permission is changed in the settings of the browser, too.
  useEffect(() => {
    const renew = () => void client.invalidateQueries({ queryKey: browserQuery.queryKey });
    let status: PermissionStatus | null = null;
    let isGone = false;
    void navigator.permissions
      ?.query({ name: "notifications" })
      .then((answer) => {
        if (isGone) return;
        status = answer;
        status.addEventListener("change", renew);
      })
      .catch(() => undefined);
    return () => {
      isGone = true;
      status?.removeEventListener("change", renew);
    };
  }, [client]);
  if (!browser.data || !channels.data || hasNextPage) return null;
  return findPushState(
    browser.data,
    channels.data.pages.flatMap((page) => page.items),
  );
}

/** With `brief`, only what can be done here is said. */
export function NotifyBrowser({ brief = false }: { brief?: boolean }) {
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const state = usePushState();
  const owner = me.data?.user.id;
  const renew = () => client.invalidateQueries({ queryKey: ["notifications"] });
  const turnOn = useMutation({
    mutationFn: (user: string) => subscribeThisBrowser(user),
    onSettled: renew,
  });
  const turnOff = useMutation({ mutationFn: (channel: string) => unsubscribeThisBrowser(channel), onSettled: renew });
  const test = useMutation({
    mutationFn: (channel: string) =>
      unwrap(api.POST("/v1/notification-channels/{channel}/test", { params: { path: { channel } } })),
    onSettled: renew,
  });
  if (!state || !owner || (brief && state.name === "unsupported")) return null;
  const pending = turnOn.isPending || turnOff.isPending || test.isPending ? "It is being sent" : null;
  const error = turnOn.error ?? turnOff.error ?? test.error;
  return (
    <section aria-label="This browser" className="grid max-w-[640px] gap-2">
      {state.name === "unsupported" && <p className="text-muted">{state.reason}</p>}
      {state.name === "blocked" && (
        <div className="grid gap-1">
          <Sign standing="failed" word="Blocked by the browser" />
          <p className="text-muted">
            This browser shows no notifications of this page. Open the settings of the page by the sign before its
            address, allow notifications, and come back here.
          </p>
        </div>
      )}
      {state.name === "off" && (
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <Action onPress={() => turnOn.mutate(owner)} reason={pending}>
            Notify this browser
          </Action>
          <span className="text-muted">
            {turnOn.data === null
              ? "The browser did not give the permission."
              : "You are told even when no tab of the console is open."}
          </span>
        </div>
      )}
      {state.name === "on" && (
        <div className="flex flex-wrap items-center gap-x-3 gap-y-2">
          <Sign standing="done" word="This browser is notified" />
          {!brief && (
            <>
              <Action onPress={() => test.mutate(state.channel)} reason={pending}>
                Send test
              </Action>
              <Action tone="quiet" onPress={() => turnOff.mutate(state.channel)} reason={pending}>
                Stop notifying this browser
              </Action>
            </>
          )}
        </div>
      )}
      {test.isSuccess && (
        <p role="status" className="text-muted">
          The test is on its way. If nothing appears, look at the notification settings of this machine.
        </p>
      )}
      {error && <ProblemNote error={error} />}
    </section>
  );
}
