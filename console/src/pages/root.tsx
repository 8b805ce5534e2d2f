/** The whole window: the login, or the frame with a page. */

import { useQuery } from "@tanstack/react-query";
import { Outlet, useLocation, useRouter } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import type { Schema } from "../api/client";
import { Problem } from "../api/problem";
import { meQuery } from "../api/queries";
import { releaseIfForeign } from "../api/web-push";
import { readOpenMessage } from "../logic/web-push";
import { RecordingFrame } from "../recording/bar";
import { Page, ProblemNote, Skeleton } from "../ui/basic";
import { Frame } from "../ui/frame";
import { LiveProvider } from "../ui/live";
import { Login } from "./login";

/** The page of a link that logs an admin in when the usual way is closed. It stands outside of the frame. */
export const BREAK_GLASS_PATH = "/break-glass";

export function Root() {
  const { pathname } = useLocation();
  return pathname === BREAK_GLASS_PATH ? <Outlet /> : <Window />;
}

function Window() {
  const me = useQuery(meQuery);
  // What was on screen stays below the login, so that nothing that was typed is lost when a session ends.
  const known = useRef<Schema["MeView"] | null>(null);
  // While it is asked again who is logged in, nobody is until the answer says so: the login and what was typed there stay on screen.
  const refused = useRef(false);
  if (me.error instanceof Problem && me.error.status === 401) refused.current = true;
  else if (me.isSuccess) refused.current = false;
  const isLoggedOut = refused.current;
  if (me.data && !isLoggedOut) known.current = me.data;
  const { refetch } = me;
  // Somebody who logged in again in another tab is logged in here, too.
  useEffect(() => {
    if (!isLoggedOut) return undefined;
    const look = () => void refetch();
    window.addEventListener("focus", look);
    return () => window.removeEventListener("focus", look);
  }, [isLoggedOut, refetch]);
  // A notification that was clicked opens its page in this tab.
  const { history } = useRouter();
  useEffect(() => {
    const workers = "serviceWorker" in navigator ? navigator.serviceWorker : null;
    const open = (event: MessageEvent) => {
      const path = readOpenMessage(event.data);
      if (path) history.push(path);
    };
    workers?.addEventListener("message", open);
    return () => workers?.removeEventListener("message", open);
  }, [history]);
  const user = me.data?.user.id;
  useEffect(() => {
    if (user) void releaseIfForeign(user);
  }, [user]);
  if (!known.current) {
    if (isLoggedOut) return <Login />;
    return <Page>{me.error ? <ProblemNote error={me.error} onRetry={() => void me.refetch()} /> : <Skeleton />}</Page>;
  }
  return (
    <LiveProvider session={isLoggedOut ? null : known.current.user.id}>
      <div className="contents" inert={isLoggedOut}>
        {__DEMO__ ? (
          <RecordingFrame>
            <Frame me={known.current} />
          </RecordingFrame>
        ) : (
          <Frame me={known.current} />
        )}
      </div>
      {isLoggedOut && (
        <div className="fixed inset-0 z-50 overflow-auto bg-bg">
          <Login again={known.current.user.handle} />
        </div>
      )}
    </LiveProvider>
  );
}
