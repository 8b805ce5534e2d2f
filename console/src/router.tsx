/** Addresses and what they hold. The address is the state of a page: it can be sent to somebody else. */

import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import { type InboxKindName, isInboxKind } from "./logic/inbox";
import type { Task } from "./logic/state";
import { NotFound } from "./pages/not-found";
import { Root } from "./pages/root";
import { Page, ProblemNote, Skeleton } from "./ui/basic";

const root = createRootRoute({ component: Root, notFoundComponent: NotFound });

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

export interface InboxSearch {
  item?: string | undefined;
  kind?: InboxKindName | undefined;
}

const inbox = createRoute({
  getParentRoute: () => root,
  path: "/",
  validateSearch: (search: Record<string, unknown>): InboxSearch => ({
    item: text(search.item),
    kind: isInboxKind(search.kind) ? search.kind : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/inbox"), "InboxPage"),
});

const TASK_STATES: readonly Task["state"][] = ["queued", "running", "completed", "failed", "cancelled"];

export interface TasksSearch {
  project?: string | undefined;
  state?: Task["state"] | undefined;
}

const tasks = createRoute({
  getParentRoute: () => root,
  path: "/tasks",
  validateSearch: (search: Record<string, unknown>): TasksSearch => ({
    project: text(search.project),
    state: TASK_STATES.find((state) => state === search.state),
  }),
  component: lazyRouteComponent(() => import("./pages/tasks"), "TasksPage"),
});

const newTask = createRoute({
  getParentRoute: () => root,
  path: "/tasks/new",
  validateSearch: (search: Record<string, unknown>): { project?: string | undefined } => ({
    project: text(search.project),
  }),
  component: lazyRouteComponent(() => import("./pages/new-task"), "NewTaskPage"),
});

export const TASK_TABS = ["overview", "plan", "timeline", "logs", "changes", "evidence", "decisions"] as const;
export type TaskTab = (typeof TASK_TABS)[number];

export interface TaskSearch {
  tab?: TaskTab | undefined;
  job?: string | undefined;
  file?: string | undefined;
}

const task = createRoute({
  getParentRoute: () => root,
  path: "/tasks/$task",
  validateSearch: (search: Record<string, unknown>): TaskSearch => ({
    tab: TASK_TABS.find((tab) => tab === search.tab),
    job: text(search.job),
    file: text(search.file),
  }),
  component: lazyRouteComponent(() => import("./pages/task/page"), "TaskPage"),
});

const projects = createRoute({
  getParentRoute: () => root,
  path: "/projects",
  component: lazyRouteComponent(() => import("./pages/projects"), "ProjectsPage"),
});

const project = createRoute({
  getParentRoute: () => root,
  path: "/projects/$project",
  component: lazyRouteComponent(() => import("./pages/project"), "ProjectPage"),
});

const nodes = createRoute({
  getParentRoute: () => root,
  path: "/nodes",
  component: lazyRouteComponent(() => import("./pages/nodes"), "NodesPage"),
});

const models = createRoute({
  getParentRoute: () => root,
  path: "/models",
  component: lazyRouteComponent(() => import("./pages/models"), "ModelsPage"),
});

const spend = createRoute({
  getParentRoute: () => root,
  path: "/spend",
  component: lazyRouteComponent(() => import("./pages/spend"), "SpendPage"),
});

const tree = root.addChildren([inbox, tasks, newTask, task, projects, project, nodes, models, spend]);

export function makeRouter() {
  return createRouter({
    routeTree: tree,
    defaultPreload: "intent",
    defaultPendingComponent: () => (
      <Page>
        <Skeleton />
      </Page>
    ),
    defaultErrorComponent: ({ error, reset }) => (
      <Page>
        <ProblemNote error={error} onRetry={reset} />
      </Page>
    ),
  });
}

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof makeRouter>;
  }
}
