/** Where each operation of the public interface is in the console. A test compares the table with docs/openapi.json and docs/cynork.json. */

import type { ModelsSearch, makeRouter, ProjectTab, TaskTab } from "../router";

/** A part of a page, by the parameter `tab` of its address. */
export type PlaceTab = TaskTab | ProjectTab | NonNullable<ModelsSearch["tab"]>;

export type PlacePath = Extract<keyof ReturnType<typeof makeRouter>["routesByPath"], string>;

export type OperationPlace =
  | {
      /** The route that offers the operation. */
      place: PlacePath;
      /** The tab of the page. */
      tab?: PlaceTab;
      /** The commands of cynork that do the same; the palette finds the place by each of them. */
      cynork: readonly string[];
    }
  | {
      /** Why the console does not offer it. */
      reason: string;
    };

/** By the operation's identifier in docs/openapi.json. */
export const OPERATIONS: Readonly<Record<string, OperationPlace>> = {
  accept_environment: { place: "/projects/$project", tab: "environment", cynork: ["project environment accept"] },
  accept_tools: { place: "/tools/servers", cynork: ["tool accept"] },
  accepted_environment: { place: "/projects/$project", tab: "environment", cynork: ["project environment show"] },
  add_provider_key: { place: "/models", tab: "providers", cynork: ["provider add-key"] },
  allow_image: { place: "/tools/images", cynork: ["image allow"] },
  annotate_tool: { place: "/tools/servers", cynork: ["tool annotate"] },
  answer: { reason: "The link in a notification is answered on a page of its own, which needs no login." },
  answer_task: { place: "/", cynork: ["task answer"] },
  approve_task: { place: "/", cynork: ["task approve"] },
  archive_project: { place: "/projects/$project", tab: "settings", cynork: ["project archive"] },
  audit_consistency: { place: "/audit", cynork: ["audit consistency"] },
  audit_heads: { place: "/audit", cynork: ["audit head"] },
  backtest_rule: { place: "/tools/rules", cynork: ["rule backtest"] },
  bootstrap: { place: "/welcome", cynork: ["setup"] },
  cancel_task: { place: "/tasks/$task", cynork: ["task cancel"] },
  check_rule: { place: "/tools/rules", cynork: ["rule check"] },
  close_pull_request: { place: "/tasks/$task", tab: "changes", cynork: ["pr close"] },
  comment_pull_request: { place: "/tasks/$task", tab: "changes", cynork: ["pr comment"] },
  create_api_key: { place: "/settings/keys", cynork: ["api-key create"] },
  create_channel: { place: "/settings/notifications", cynork: ["channel create"] },
  create_group: { place: "/settings/groups", cynork: ["group create"] },
  create_project: { place: "/projects", cynork: ["project create"] },
  create_schedule: { place: "/schedules", cynork: ["schedule create"] },
  create_skill: { place: "/settings/skills", cynork: ["skill create"] },
  create_task: { place: "/tasks/new", cynork: ["run", "task create"] },
  create_user: { place: "/settings/people", cynork: ["user create"] },
  decide_approval: { place: "/", cynork: ["approval approve", "approval deny"] },
  delete_budget: { place: "/spend", cynork: ["budget delete"] },
  delete_channel: { place: "/settings/notifications", cynork: ["channel delete"] },
  delete_model: { place: "/models", cynork: ["model delete"] },
  delete_node: { place: "/nodes", cynork: ["node delete"] },
  delete_policy: { place: "/settings/policies", cynork: ["policy delete"] },
  delete_preference: { place: "/settings/preferences", cynork: ["prefs delete"] },
  delete_project: { place: "/projects/$project", tab: "settings", cynork: ["project delete"] },
  delete_provider: { place: "/models", tab: "providers", cynork: ["provider delete"] },
  delete_provider_key: { place: "/models", tab: "providers", cynork: ["provider delete-key"] },
  delete_remote: { place: "/projects/$project", cynork: ["remote delete"] },
  delete_rule: { place: "/tools/rules", cynork: ["rule delete"] },
  delete_schedule: { place: "/schedules", cynork: ["schedule delete"] },
  delete_secret: { place: "/projects/$project", tab: "secrets", cynork: ["project secret delete"] },
  delete_setting: { place: "/settings", cynork: ["settings delete"] },
  delete_skill: { place: "/settings/skills", cynork: ["skill delete"] },
  detect_environment: { place: "/projects/$project", tab: "environment", cynork: ["project environment detect"] },
  diagnose: { place: "/settings/doctor", cynork: ["doctor"] },
  diff_pull_request: { place: "/tasks/$task", tab: "changes", cynork: ["pr diff"] },
  disallow_image: { place: "/tools/images", cynork: ["image disallow"] },
  draft_rule: { place: "/", cynork: ["approval draft-rule"] },
  effective_policies: { place: "/settings/policies", cynork: ["policy explain"] },
  effective_preferences: { place: "/settings/preferences", cynork: ["prefs effective"] },
  estimate_task: { place: "/tasks/new", cynork: ["task estimate"] },
  explain: { place: "/tools/explain", cynork: ["tool explain"] },
  explain_models: { place: "/models", tab: "choices", cynork: ["model explain"] },
  explain_recorded_call: { place: "/tools/explain", cynork: ["tool explain-call"] },
  export_audit: { place: "/audit", cynork: ["audit bundle"] },
  follow_events: { place: "/", cynork: ["events"] },
  follow_job_events: { place: "/tasks/$task", tab: "logs", cynork: [] },
  get_approval: { place: "/", cynork: ["approval show"] },
  get_artifact: { place: "/tasks/$task", tab: "overview", cynork: ["artifact get"] },
  get_channel: { place: "/settings/notifications", cynork: ["channel show"] },
  get_environment: { place: "/projects/$project", tab: "environment", cynork: [] },
  get_handoff: { place: "/tasks/$task", tab: "decisions", cynork: ["handoff show"] },
  get_node: { place: "/nodes", cynork: ["node show"] },
  get_park: { place: "/tasks/$task", cynork: ["task parked"] },
  get_preference: { place: "/settings/preferences", cynork: ["prefs get"] },
  get_project: { place: "/projects/$project", cynork: ["project show"] },
  get_prompt: { place: "/tasks/$task", tab: "decisions", cynork: ["handoff prompt"] },
  get_pull_request: { place: "/tasks/$task", tab: "changes", cynork: ["pr show"] },
  get_remote: { place: "/projects/$project", cynork: ["remote show"] },
  get_repository: { place: "/projects/$project", cynork: ["project repository"] },
  get_schedule: { place: "/schedules", cynork: ["schedule show"] },
  get_server: { place: "/tools/servers", cynork: ["tool server"] },
  get_setting: { place: "/settings", cynork: ["settings get"] },
  get_skill: { place: "/settings/skills", cynork: ["skill show"] },
  get_task: { place: "/tasks/$task", cynork: ["task show", "task watch"] },
  get_user: { place: "/settings/people", cynork: ["user show"] },
  healthz: { reason: "A probe of the machine that supervises the process; people read /settings/doctor." },
  home: { reason: "It is the console itself." },
  import_repository: { place: "/projects/$project", cynork: ["project import"] },
  install_server: { place: "/tools/servers", cynork: ["tool install"] },
  instruct_task: {
    place: "/tasks/$task",
    cynork: ["task pause", "task resume", "task revise", "task expand", "task reduce", "task abort"],
  },
  issue_agent_token: { place: "/tools/tokens", cynork: ["agent-token issue"] },
  issue_join_token: { place: "/nodes", cynork: ["node join-token"] },
  job_events: { place: "/tasks/$task", tab: "logs", cynork: ["task logs"] },
  list_agent_tokens: { place: "/tools/tokens", cynork: ["agent-token list"] },
  list_allowlists: { place: "/tools", cynork: ["tool allowlists"] },
  list_api_keys: { place: "/settings/keys", cynork: ["api-key list"] },
  list_approvals: { place: "/tools/approvals", cynork: ["approval list"] },
  list_artifacts: { place: "/tasks/$task", tab: "overview", cynork: ["artifact list"] },
  list_budgets: { place: "/spend", cynork: ["budget list"] },
  list_calls: { place: "/spend", cynork: ["usage calls"] },
  list_channels: { place: "/settings/notifications", cynork: ["channel list"] },
  list_environments: { place: "/projects/$project", tab: "environment", cynork: ["project environment list"] },
  list_groups: { place: "/settings/groups", cynork: ["group list"] },
  list_handoffs: { place: "/tasks/$task", tab: "decisions", cynork: ["handoff list"] },
  list_images: { place: "/tools/images", cynork: ["image list"] },
  list_inbox: { place: "/", cynork: ["inbox"] },
  list_issues: { place: "/projects/$project", cynork: ["remote issues"] },
  list_members: { place: "/projects/$project", tab: "members", cynork: ["project members"] },
  list_messages: { place: "/chat", cynork: ["chat show"] },
  list_nodes: { place: "/nodes", cynork: ["node list"] },
  list_notifications: { place: "/settings/notifications", cynork: ["notification list"] },
  list_packages: { place: "/projects/$project", tab: "packages", cynork: ["project packages"] },
  list_policies: { place: "/settings/policies", cynork: ["policy list"] },
  list_preferences: { place: "/settings/preferences", cynork: ["prefs list"] },
  list_projects: { place: "/projects", cynork: ["project list"] },
  list_providers: { place: "/models", tab: "providers", cynork: ["provider list"] },
  list_pull_requests: { place: "/projects/$project", tab: "pulls", cynork: ["pr list"] },
  list_registry: { place: "/models", cynork: ["model list"] },
  list_replays: { place: "/tasks/$task", tab: "decisions", cynork: ["handoff compare"] },
  list_reports: { place: "/tasks/$task", tab: "evidence", cynork: ["task reports"] },
  list_rules: { place: "/tools/rules", cynork: ["rule list"] },
  list_schedules: { place: "/schedules", cynork: ["schedule list"] },
  list_secrets: { place: "/projects/$project", tab: "secrets", cynork: ["project secret list"] },
  list_servers: { place: "/tools/servers", cynork: ["tool servers"] },
  list_settings: { place: "/settings", cynork: ["settings list"] },
  list_skills: { place: "/settings/skills", cynork: ["skill list"] },
  list_tasks: { place: "/tasks", cynork: ["task list"] },
  list_threads: { place: "/chat", cynork: ["chat threads"] },
  list_tools: { place: "/tools", cynork: ["tool list"] },
  list_users: { place: "/settings/people", cynork: ["user list"] },
  login: { place: "/", cynork: ["login"] },
  logout: { place: "/", cynork: ["logout"] },
  look: { reason: "The link in a notification opens a page of its own, which needs no login." },
  me: { place: "/", cynork: ["whoami"] },
  merge_pull_request: { place: "/tasks/$task", cynork: ["pr merge"] },
  metrics: { reason: "Numbers for a collector of metrics, not for a person." },
  preference_history: { place: "/settings/preferences", cynork: ["prefs history"] },
  project_pack: { reason: "The git protocol: git itself calls it, after the address that /projects/$project shows." },
  project_refs: { reason: "The git protocol: git itself calls it, after the address that /projects/$project shows." },
  propose_environment: { place: "/projects/$project", tab: "environment", cynork: ["project environment set"] },
  prove_call: { place: "/audit", cynork: ["audit prove"] },
  pull_request_files: { place: "/tasks/$task", tab: "changes", cynork: ["pr files"] },
  readiness: { place: "/settings/doctor", cynork: ["status"] },
  readyz: { reason: "A probe of the machine that supervises the process; people read /settings/doctor." },
  receive_hook: { reason: "A forge calls it and signs what it sends." },
  refresh_server: { place: "/tools/servers", cynork: ["tool refresh"] },
  reject_environment: { place: "/projects/$project", tab: "environment", cynork: ["project environment reject"] },
  remove_member: { place: "/projects/$project", tab: "members", cynork: ["project revoke"] },
  replay_decision: { place: "/tasks/$task", tab: "decisions", cynork: ["handoff replay"] },
  replay_notification: { place: "/settings/notifications", cynork: ["notification replay"] },
  rerun_evidence: { place: "/tasks/$task", tab: "evidence", cynork: ["task check"] },
  retry_task: { place: "/tasks/$task", cynork: ["task retry"] },
  review_content: { place: "/settings/skills", cynork: ["task review", "schedule review", "skill review"] },
  review_pull_request: { place: "/tasks/$task", tab: "changes", cynork: ["pr review"] },
  revoke_agent_token: { place: "/tools/tokens", cynork: ["agent-token revoke"] },
  revoke_api_key: { place: "/settings/keys", cynork: ["api-key revoke"] },
  rule_history: { place: "/tools/rules", cynork: ["rule history"] },
  rule_vocabulary: { place: "/tools/rules", cynork: ["rule vocabulary"] },
  run_schedule: { place: "/schedules", cynork: ["schedule run"] },
  search_audit: { place: "/audit", cynork: ["audit search", "audit export"] },
  set_budget: { place: "/spend", cynork: ["budget set"] },
  set_group_role: { place: "/projects/$project", tab: "members", cynork: ["project grant-group"] },
  set_member: { place: "/projects/$project", tab: "members", cynork: ["project grant"] },
  set_model: { place: "/models", cynork: ["model set"] },
  set_policy: { place: "/settings/policies", cynork: ["policy set"] },
  set_preference: { place: "/settings/preferences", cynork: ["prefs set"] },
  set_provider: { place: "/models", tab: "providers", cynork: ["provider set"] },
  set_remote: { place: "/projects/$project", cynork: ["remote set"] },
  set_rule: { place: "/tools/rules", cynork: ["rule set"] },
  set_secret: { place: "/projects/$project", tab: "secrets", cynork: ["project secret set"] },
  set_setting: { place: "/settings", cynork: ["settings set"] },
  set_tool: { place: "/tools", cynork: ["tool enable", "tool disable", "tool scope"] },
  setting_history: { place: "/settings", cynork: ["settings history"] },
  subscribe_browser: { place: "/settings/notifications", cynork: [] },
  sum_usage: { place: "/spend", cynork: ["task cost", "usage sum"] },
  task_diff: { place: "/tasks/$task", tab: "changes", cynork: ["task diff"] },
  task_evidence: { place: "/tasks/$task", tab: "evidence", cynork: ["task evidence"] },
  task_timeline: { place: "/tasks/$task", tab: "timeline", cynork: ["task plan", "task timeline"] },
  test_channel: { place: "/settings/notifications", cynork: ["channel test"] },
  tool_stats: { place: "/tools", cynork: ["tool stats"] },
  try_environment: { place: "/projects/$project", tab: "environment", cynork: ["project environment try"] },
  unarchive_project: { place: "/projects/$project", tab: "settings", cynork: ["project unarchive"] },
  uninstall_server: { place: "/tools/servers", cynork: ["tool uninstall"] },
  unpark: { place: "/tasks/$task", cynork: ["task unpark"] },
  update_channel: { place: "/settings/notifications", cynork: ["channel update"] },
  update_group: { place: "/settings/groups", cynork: ["group update"] },
  update_node: { place: "/nodes", cynork: ["node drain", "node undrain", "node label"] },
  update_project: { place: "/projects/$project", tab: "settings", cynork: ["project update"] },
  update_schedule: { place: "/schedules", cynork: ["schedule update"] },
  update_server: { place: "/tools/servers", cynork: ["tool update"] },
  update_skill: { place: "/settings/skills", cynork: ["skill update"] },
  update_user: { place: "/settings/people", cynork: ["user update"] },
  usage_series: { place: "/spend", cynork: ["usage series"] },
  verify_audit: { place: "/audit", cynork: ["audit verify"] },
  view_inbox_item: { place: "/", cynork: [] },
  web_push_key: { place: "/settings/notifications", cynork: [] },
};

/** Commands of cynork that are about the terminal, or that only a terminal can do. */
export const TERMINAL_COMMANDS: Readonly<Record<string, string>> = {
  api: "Calls any path of the interface; the console has a page for each.",
  chat: "Talks with the manager by an interface of its own, which /chat uses too.",
  completions: "Completes words in a shell.",
  "config set": "Settings of cynork itself.",
  "config show": "Settings of cynork itself.",
  "link answer": "Answers by a link, without a login.",
  "link show": "Shows what a link asks, without a login.",
  man: "Describes cynork.",
  metrics: "Numbers for a collector of metrics, not for a person.",
  "project clone": "Makes a working copy on this machine.",
  "project pull": "Renews a working copy on this machine.",
  "project use": "Chooses the project of later commands; the console takes it from the address.",
  sample: "Makes a working copy on this machine; /welcome offers the same project.",
};

export interface OperationCommand {
  /** The command of cynork. */
  cynork: string;
  place: PlacePath;
  tab: PlaceTab | undefined;
}

/** Every command of cynork that has a place, by name. */
export const OPERATION_COMMANDS: readonly OperationCommand[] = Object.values(OPERATIONS)
  .flatMap((entry) =>
    "place" in entry ? entry.cynork.map((cynork) => ({ cynork, place: entry.place, tab: entry.tab })) : [],
  )
  .sort((left, right) => left.cynork.localeCompare(right.cynork));

/**
 * Returns the address of a place. A place of one task or project is that of the page that is open; without one, the list to choose
 * from.
 */
export function addressOf(
  { place, tab }: Pick<OperationCommand, "place" | "tab">,
  open: { task?: string | undefined; project?: string | undefined },
): string {
  const part = tab ? `?tab=${tab}` : "";
  if (place === "/tasks/$task") return open.task ? `/tasks/${encodeURIComponent(open.task)}${part}` : "/tasks";
  if (place === "/projects/$project") {
    return open.project ? `/projects/${encodeURIComponent(open.project)}${part}` : "/projects";
  }
  return `${place}${part}`;
}
