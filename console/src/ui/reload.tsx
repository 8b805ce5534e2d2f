/** Offers the new version when the server has another build of the console than this page. */

import { useRouter } from "@tanstack/react-router";
import { RefreshCw } from "lucide-react";
import { useEffect, useSyncExternalStore } from "react";
import { buildWatch } from "../api/build";
import { hasOpenRun } from "../api/chat";
import { Action } from "./basic";

export function ReloadNotice() {
  const isOutdated = useSyncExternalStore(buildWatch.subscribe, buildWatch.isOutdated);
  const router = useRouter();
  // Whoever opens another page leaves nothing behind on this one: that page is loaded in the new version.
  useEffect(() => {
    if (!isOutdated) return undefined;
    return router.subscribe("onBeforeNavigate", ({ toLocation, pathChanged }) => {
      if (pathChanged && !hasOpenRun()) window.location.assign(toLocation.href);
    });
  }, [isOutdated, router]);
  // Files of the old version may be gone. The page that was wanted is loaded whole then.
  useEffect(() => {
    const reload = (event: Event) => {
      if (!buildWatch.isOutdated()) return;
      event.preventDefault();
      window.location.reload();
    };
    window.addEventListener("vite:preloadError", reload);
    return () => window.removeEventListener("vite:preloadError", reload);
  }, []);
  if (!isOutdated) return null;
  return (
    <div
      role="status"
      className="fixed top-14 right-4 z-30 grid max-w-[calc(100vw-32px)] gap-2 rounded-box border border-line bg-raised p-3 shadow-float"
    >
      <p>
        CyNode was updated.
        <span className="block text-meta text-muted">Drafts of tasks and chats stay.</span>
      </p>
      <Action onPress={() => window.location.reload()}>
        <RefreshCw size={14} aria-hidden="true" /> Reload to the new version
      </Action>
    </div>
  );
}
