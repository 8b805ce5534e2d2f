/** Addresses and what they hold. The address is the state of a page: it can be sent to somebody else. */

import {
  createHashHistory,
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Navigate,
} from "@tanstack/react-router";
import type { StatsDays } from "./api/queries-tools";
import { type InboxKindName, isInboxKind } from "./logic/inbox";
import type { Task } from "./logic/state";
import type { ToolFilter, ToolSort } from "./logic/tools";
import { NotFound } from "./pages/not-found";
import { BREAK_GLASS_PATH, Root } from "./pages/root";
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
  /** Place of a line in the log. */
  line?: string | undefined;
  /** Milliseconds after the start: where the cursor of the timeline is. */
  at?: number | undefined;
}

const task = createRoute({
  getParentRoute: () => root,
  path: "/tasks/$task",
  validateSearch: (search: Record<string, unknown>): TaskSearch => ({
    tab: TASK_TABS.find((tab) => tab === search.tab),
    job: text(search.job),
    file: text(search.file),
    line: text(search.line),
    at: typeof search.at === "number" && search.at >= 0 ? search.at : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/task/page"), "TaskPage"),
});

const projects = createRoute({
  getParentRoute: () => root,
  path: "/projects",
  validateSearch: (
    search: Record<string, unknown>,
  ): { archived?: boolean | undefined; create?: boolean | undefined } => ({
    archived: search.archived === true ? true : undefined,
    create: search.create === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/projects"), "ProjectsPage"),
});

export const PROJECT_TABS = [
  "repository",
  "pulls",
  "environment",
  "secrets",
  "packages",
  "members",
  "memory",
  "profiles",
  "handoffs",
  "settings",
] as const;
export type ProjectTab = (typeof PROJECT_TABS)[number];

/** Which records of memory are listed. */
export const RECORD_STATES = ["accepted", "proposed", "rejected"] as const;

export const PULL_STATES = ["opening", "open", "merged", "closed", "failed"] as const;

export interface ProjectSearch {
  tab?: ProjectTab | undefined;
  /** The state of the pull requests that are listed. */
  state?: (typeof PULL_STATES)[number] | undefined;
  pull?: string | undefined;
  file?: string | undefined;
  /** The version of the environment that is shown. */
  version?: number | undefined;
  handoff?: string | undefined;
  refused?: boolean | undefined;
  /** The profile that is open: its name, with `@project` after it when it is the project's own. */
  profile?: string | undefined;
  /** The profile whose memory is shown; `default` without it. */
  scope?: string | undefined;
  /** The record of memory that is open. */
  memory?: string | undefined;
  records?: (typeof RECORD_STATES)[number] | undefined;
  /** What is searched for in memory. */
  q?: string | undefined;
}

const project = createRoute({
  getParentRoute: () => root,
  path: "/projects/$project",
  validateSearch: (search: Record<string, unknown>): ProjectSearch => ({
    tab: PROJECT_TABS.find((tab) => tab === search.tab),
    state: PULL_STATES.find((state) => state === search.state),
    pull: text(search.pull),
    file: text(search.file),
    version: typeof search.version === "number" ? search.version : undefined,
    handoff: text(search.handoff),
    refused: search.refused === true ? true : undefined,
    profile: text(search.profile),
    scope: text(search.scope),
    memory: text(search.memory),
    records: RECORD_STATES.find((state) => state === search.records),
    q: text(search.q),
  }),
  component: lazyRouteComponent(() => import("./pages/project"), "ProjectPage"),
});

const nodes = createRoute({
  getParentRoute: () => root,
  path: "/nodes",
  validateSearch: (search: Record<string, unknown>): { node?: string | undefined } => ({ node: text(search.node) }),
  component: lazyRouteComponent(() => import("./pages/nodes"), "NodesPage"),
});

export const MODEL_TABS = ["models", "providers", "choices"] as const;

export interface ModelsSearch {
  tab?: (typeof MODEL_TABS)[number] | undefined;
  model?: string | undefined;
  provider?: string | undefined;
  project?: string | undefined;
  role?: string | undefined;
  create?: boolean | undefined;
}

const models = createRoute({
  getParentRoute: () => root,
  path: "/models",
  validateSearch: (search: Record<string, unknown>): ModelsSearch => ({
    tab: MODEL_TABS.find((tab) => tab === search.tab),
    model: text(search.model),
    provider: text(search.provider),
    project: text(search.project),
    role: text(search.role),
    create: search.create === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/models"), "ModelsPage"),
});

export const SPEND_GROUPS = ["model", "project", "task", "user", "role", "provider", "day", "calls"] as const;

export interface SpendSearch {
  by?: (typeof SPEND_GROUPS)[number] | undefined;
  days?: 7 | 90 | undefined;
  project?: string | undefined;
}

const spend = createRoute({
  getParentRoute: () => root,
  path: "/spend",
  validateSearch: (search: Record<string, unknown>): SpendSearch => ({
    by: SPEND_GROUPS.find((by) => by === search.by),
    days: search.days === 7 || search.days === 90 ? search.days : undefined,
    project: text(search.project),
  }),
  component: lazyRouteComponent(() => import("./pages/spend"), "SpendPage"),
});

export interface ChatSearch {
  /** A conversation, or `new`. */
  thread?: string | undefined;
  /** Where a new conversation begins. */
  project?: string | undefined;
}

const chat = createRoute({
  getParentRoute: () => root,
  path: "/chat",
  validateSearch: (search: Record<string, unknown>): ChatSearch => ({
    thread: text(search.thread),
    project: text(search.project),
  }),
  component: lazyRouteComponent(() => import("./pages/chat"), "ChatPage"),
});

export interface ToolsSearch {
  tool?: string | undefined;
  q?: string | undefined;
  state?: ToolFilter | undefined;
  sort?: ToolSort | undefined;
  /** How many days the counts of calls go back. */
  days?: StatsDays | undefined;
}

const tools = createRoute({
  getParentRoute: () => root,
  path: "/tools",
  validateSearch: (search: Record<string, unknown>): ToolsSearch => ({
    tool: text(search.tool),
    q: text(search.q),
    state: (["on", "off", "changed"] as const).find((state) => state === search.state),
    sort: (["calls", "refused", "failed", "p50", "p95", "used"] as const).find((sort) => sort === search.sort),
    days: ([7, 30] as const).find((days) => days === search.days),
  }),
  component: lazyRouteComponent(() => import("./pages/tools"), "ToolsPage"),
});

const toolServers = createRoute({
  getParentRoute: () => root,
  path: "/tools/servers",
  validateSearch: (search: Record<string, unknown>): { server?: string | undefined } => ({
    server: text(search.server),
  }),
  component: lazyRouteComponent(() => import("./pages/tool-servers"), "ToolServersPage"),
});

const agentTokens = createRoute({
  getParentRoute: () => root,
  path: "/tools/tokens",
  validateSearch: (search: Record<string, unknown>): { project?: string | undefined; issue?: boolean | undefined } => ({
    project: text(search.project),
    issue: search.issue === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/agent-tokens"), "AgentTokensPage"),
});

export interface ApprovalsSearch {
  approval?: string | undefined;
  state?: "decided" | undefined;
  project?: string | undefined;
}

const approvals = createRoute({
  getParentRoute: () => root,
  path: "/tools/approvals",
  validateSearch: (search: Record<string, unknown>): ApprovalsSearch => ({
    approval: text(search.approval),
    state: search.state === "decided" ? "decided" : undefined,
    project: text(search.project),
  }),
  component: lazyRouteComponent(() => import("./pages/approvals"), "ApprovalsPage"),
});

const images = createRoute({
  getParentRoute: () => root,
  path: "/tools/images",
  component: lazyRouteComponent(() => import("./pages/images"), "ImagesPage"),
});

export interface RulesSearch {
  rule?: string | undefined;
  /** A rule that is not stored yet. */
  new?: true | undefined;
  /** The call whose decision the new rule is drafted from, and that decision. */
  approval?: string | undefined;
  approved?: boolean | undefined;
}

const rules = createRoute({
  getParentRoute: () => root,
  path: "/tools/rules",
  validateSearch: (search: Record<string, unknown>): RulesSearch => ({
    rule: text(search.rule),
    new: search.new === true ? true : undefined,
    approval: text(search.approval),
    approved: typeof search.approved === "boolean" ? search.approved : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/rules"), "RulesPage"),
});

export interface ExplainSearch {
  call?: string | undefined;
  project?: string | undefined;
  agent?: string | undefined;
  tool?: string | undefined;
  /** JSON, as it was typed. */
  arguments?: string | undefined;
  /** A rule that is taken as put into force, or as deleted when it is in force. */
  assume?: string | undefined;
}

const explain = createRoute({
  getParentRoute: () => root,
  path: "/tools/explain",
  validateSearch: (search: Record<string, unknown>): ExplainSearch => ({
    call: text(search.call),
    project: text(search.project),
    agent: text(search.agent),
    tool: text(search.tool),
    arguments: text(search.arguments),
    assume: text(search.assume),
  }),
  component: lazyRouteComponent(() => import("./pages/explain"), "ExplainPage"),
});

export interface AuditSearch {
  call?: string | undefined;
  tool?: string | undefined;
  decision?: string | undefined;
  project?: string | undefined;
  task?: string | undefined;
  role?: string | undefined;
  since?: string | undefined;
  until?: string | undefined;
}

const audit = createRoute({
  getParentRoute: () => root,
  path: "/audit",
  validateSearch: (search: Record<string, unknown>): AuditSearch => ({
    call: text(search.call),
    tool: text(search.tool),
    decision: text(search.decision),
    project: text(search.project),
    task: text(search.task),
    role: text(search.role),
    since: text(search.since),
    until: text(search.until),
  }),
  component: lazyRouteComponent(() => import("./pages/audit"), "AuditPage"),
});

export interface SettingsSearch {
  key?: string | undefined;
  q?: string | undefined;
}

export interface ScopedSearch extends SettingsSearch {
  /** The project whose view is shown. */
  project?: string | undefined;
  task?: string | undefined;
  user?: string | undefined;
  /** The level that is read and written, as `project` or `group:GROUP`. */
  level?: string | undefined;
}

const readScopedSearch = (search: Record<string, unknown>): ScopedSearch => ({
  key: text(search.key),
  q: text(search.q),
  project: text(search.project),
  task: text(search.task),
  user: text(search.user),
  level: text(search.level),
});

const settings = createRoute({
  getParentRoute: () => root,
  path: "/settings",
  validateSearch: (search: Record<string, unknown>): SettingsSearch => ({ key: text(search.key), q: text(search.q) }),
  component: lazyRouteComponent(() => import("./pages/settings"), "SettingsPage"),
});

const preferences = createRoute({
  getParentRoute: () => root,
  path: "/settings/preferences",
  validateSearch: readScopedSearch,
  component: lazyRouteComponent(() => import("./pages/preferences"), "PreferencesPage"),
});

const policies = createRoute({
  getParentRoute: () => root,
  path: "/settings/policies",
  validateSearch: readScopedSearch,
  component: lazyRouteComponent(() => import("./pages/policies"), "PoliciesPage"),
});

const people = createRoute({
  getParentRoute: () => root,
  path: "/settings/people",
  validateSearch: (search: Record<string, unknown>): { user?: string | undefined; create?: boolean | undefined } => ({
    user: text(search.user),
    create: search.create === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/people"), "PeoplePage"),
});

const groups = createRoute({
  getParentRoute: () => root,
  path: "/settings/groups",
  validateSearch: (search: Record<string, unknown>): { group?: string | undefined; create?: boolean | undefined } => ({
    group: text(search.group),
    create: search.create === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/groups"), "GroupsPage"),
});

const security = createRoute({
  getParentRoute: () => root,
  path: "/settings/security",
  component: lazyRouteComponent(() => import("./pages/security"), "SecurityPage"),
});

const directory = createRoute({
  getParentRoute: () => root,
  path: "/settings/directory",
  validateSearch: (search: Record<string, unknown>): { create?: boolean | undefined } => ({
    create: search.create === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/directory"), "DirectoryPage"),
});

const breakGlass = createRoute({
  getParentRoute: () => root,
  path: BREAK_GLASS_PATH,
  component: lazyRouteComponent(() => import("./pages/break-glass"), "BreakGlassPage"),
});

const apiKeys = createRoute({
  getParentRoute: () => root,
  path: "/settings/keys",
  validateSearch: (search: Record<string, unknown>): { user?: string | undefined; create?: boolean | undefined } => ({
    user: text(search.user),
    create: search.create === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/api-keys"), "ApiKeysPage"),
});

const identityProviders = createRoute({
  getParentRoute: () => root,
  path: "/settings/identity-providers",
  validateSearch: (
    search: Record<string, unknown>,
  ): { provider?: string | undefined; create?: boolean | undefined } => ({
    provider: text(search.provider),
    create: search.create === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/identity-providers"), "IdentityProvidersPage"),
});

const sessions = createRoute({
  getParentRoute: () => root,
  path: "/settings/sessions",
  validateSearch: (search: Record<string, unknown>): { user?: string | undefined; sso?: string | undefined } => ({
    user: text(search.user),
    sso: text(search.sso),
  }),
  component: lazyRouteComponent(() => import("./pages/sessions"), "SessionsPage"),
});

/** Nobody who is logged in needs it: the login stands above every page. */
const login = createRoute({
  getParentRoute: () => root,
  path: "/login",
  validateSearch: (search: Record<string, unknown>): { sso?: string | undefined } => ({ sso: text(search.sso) }),
  component: () => <Navigate to="/" replace />,
});

const device = createRoute({
  getParentRoute: () => root,
  path: "/device",
  validateSearch: (search: Record<string, unknown>): { code?: string | undefined } => ({ code: text(search.code) }),
  component: lazyRouteComponent(() => import("./pages/device"), "DevicePage"),
});

export const NOTIFICATION_STATES = ["pending", "sent", "failed", "dropped"] as const;

export interface NotificationsSearch {
  channel?: string | undefined;
  part?: "sent" | undefined;
  state?: (typeof NOTIFICATION_STATES)[number] | undefined;
  /** Those of everybody, for admins. */
  all?: boolean | undefined;
  create?: boolean | undefined;
}

const notifications = createRoute({
  getParentRoute: () => root,
  path: "/settings/notifications",
  validateSearch: (search: Record<string, unknown>): NotificationsSearch => ({
    channel: text(search.channel),
    part: search.part === "sent" ? "sent" : undefined,
    state: NOTIFICATION_STATES.find((state) => state === search.state),
    all: search.all === true ? true : undefined,
    create: search.create === true ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/notifications"), "NotificationsPage"),
});

interface ProjectItemSearch {
  project?: string | undefined;
  create?: boolean | undefined;
}

const readProjectItemSearch = (search: Record<string, unknown>): ProjectItemSearch => ({
  project: text(search.project),
  create: search.create === true ? true : undefined,
});

const skills = createRoute({
  getParentRoute: () => root,
  path: "/settings/skills",
  validateSearch: (search: Record<string, unknown>): ProjectItemSearch & { skill?: string | undefined } => ({
    ...readProjectItemSearch(search),
    skill: text(search.skill),
  }),
  component: lazyRouteComponent(() => import("./pages/skills"), "SkillsPage"),
});

const keyring = createRoute({
  getParentRoute: () => root,
  path: "/settings/keyring",
  component: lazyRouteComponent(() => import("./pages/keyring"), "KeyringPage"),
});

const doctor = createRoute({
  getParentRoute: () => root,
  path: "/settings/doctor",
  component: lazyRouteComponent(() => import("./pages/doctor"), "DoctorPage"),
});

const schedules = createRoute({
  getParentRoute: () => root,
  path: "/schedules",
  validateSearch: (search: Record<string, unknown>): ProjectItemSearch & { schedule?: string | undefined } => ({
    ...readProjectItemSearch(search),
    schedule: text(search.schedule),
  }),
  component: lazyRouteComponent(() => import("./pages/schedules"), "SchedulesPage"),
});

const welcome = createRoute({
  getParentRoute: () => root,
  path: "/welcome",
  validateSearch: (search: Record<string, unknown>): { step?: string | undefined; project?: string | undefined } => ({
    step: text(search.step),
    project: text(search.project),
  }),
  component: lazyRouteComponent(() => import("./pages/welcome"), "WelcomePage"),
});

const tree = root.addChildren([
  inbox,
  tasks,
  newTask,
  task,
  projects,
  project,
  nodes,
  models,
  spend,
  chat,
  tools,
  toolServers,
  agentTokens,
  approvals,
  images,
  rules,
  explain,
  audit,
  settings,
  preferences,
  policies,
  people,
  groups,
  directory,
  security,
  identityProviders,
  sessions,
  login,
  device,
  apiKeys,
  keyring,
  notifications,
  skills,
  doctor,
  schedules,
  welcome,
  breakGlass,
]);

export function makeRouter() {
  return createRouter({
    routeTree: tree,
    // A static host knows no addresses but those of files.
    ...(__DEMO__ ? { history: createHashHistory() } : {}),
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
