import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { isRetryable } from "./api/client";
import { meQuery } from "./api/queries";
import { startRecording } from "./recording/start";
import { makeRouter } from "./router";
import "./styles.css";
import { Problem } from "./api/problem";
import { applyTheme, readTheme } from "./ui/theme";

applyTheme(readTheme());

const client = new QueryClient({
  defaultOptions: {
    queries: {
      // Events say what is old; the time does not.
      staleTime: Number.POSITIVE_INFINITY,
      gcTime: 5 * 60_000,
      refetchOnWindowFocus: false,
      retry: isRetryable,
    },
  },
});

// A session that ended shows at any request: then the question who is logged in is asked again.
function askWhoIsLoggedIn(error: unknown): void {
  if (error instanceof Problem && error.status === 401) {
    void client.invalidateQueries({ queryKey: meQuery.queryKey });
  }
}
client.getQueryCache().subscribe((change) => {
  if (change.type !== "updated" || change.action.type !== "error" || change.query.queryKey[0] === "me") return;
  askWhoIsLoggedIn(change.action.error);
});
client.getMutationCache().subscribe((change) => {
  // A login that failed is no session that ended.
  if (client.getQueryData(meQuery.queryKey) === undefined) return;
  if (change.type === "updated" && change.action.type === "error") askWhoIsLoggedIn(change.action.error);
});

function draw(root: HTMLElement): void {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <RouterProvider router={makeRouter()} />
      </QueryClientProvider>
    </StrictMode>,
  );
}

const root = document.getElementById("root");
if (root) {
  if (__DEMO__) {
    startRecording().then(
      () => draw(root),
      (error: unknown) => root.append(error instanceof Error ? error.message : String(error)),
    );
  } else {
    draw(root);
  }
}
