//! The operations of the HTTP API, each with its command. A test compares them with the OpenAPI document, so that every
//! operation has a command.

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its operation id in the OpenAPI document.
    pub id: &'static str,
    /// HTTP method.
    pub method: &'static str,
    /// Path, with parameters in braces.
    pub path: &'static str,
    /// The command that calls it.
    pub command: &'static str,
}

macro_rules! operations {
    ($($name:ident = $id:literal $method:literal $path:literal by $command:literal;)*) => {
        $(
            #[doc = concat!("`", $method, " ", $path, "`")]
            pub const $name: Operation =
                Operation { id: $id, method: $method, path: $path, command: $command };
        )*

        /// All operations, by name.
        pub const ALL: &[Operation] = &[$($name),*];
    };
}

/// The inference endpoint. It is not in the OpenAPI document: clients of models know it.
pub const COMPLETIONS: Operation = Operation {
    id: "chat_completions",
    method: "POST",
    path: "/v1/chat/completions",
    command: "chat",
};

operations! {
    ACCEPTED_ENVIRONMENT = "accepted_environment" "GET" "/v1/projects/{project}/environments/accepted" by "project environment show";
    ACCEPT_ENVIRONMENT = "accept_environment" "POST" "/v1/projects/{project}/environments/{version}/accept" by "project environment accept";
    ACCEPT_MEMORY = "accept_memory" "POST" "/v1/memories/{memory}/accept" by "memory accept";
    ACCEPT_TOOLS = "accept_tools" "POST" "/v1/tool-servers/{server}/accept" by "tool accept";
    ADD_PROVIDER_KEY = "add_provider_key" "POST" "/v1/providers/{name}/keys" by "provider add-key";
    ALLOW_IMAGE = "allow_image" "POST" "/v1/allowed-images" by "image allow";
    ANNOTATE_TOOL = "annotate_tool" "PUT" "/v1/tool-servers/{server}/tools/{tool}/annotations" by "tool annotate";
    ANSWER = "answer" "POST" "/answer/{token}" by "link answer";
    ANSWER_TASK = "answer_task" "POST" "/v1/tasks/{task}/answer" by "task answer";
    APPROVE_TASK = "approve_task" "POST" "/v1/tasks/{task}/approve" by "task approve";
    ARCHIVE_PROJECT = "archive_project" "POST" "/v1/projects/{project}/archive" by "project archive";
    AUDIT_CONSISTENCY = "audit_consistency" "GET" "/v1/audit/consistency" by "audit consistency";
    AUDIT_HEADS = "audit_heads" "GET" "/v1/audit/head" by "audit head";
    BACKCHANNEL_LOGOUT = "backchannel_logout" "POST" "/v1/sso/{provider}/backchannel-logout" by "api";
    BACKTEST_RULE = "backtest_rule" "POST" "/v1/rules/backtest" by "rule backtest";
    BEGIN_DEVICE_LOGIN = "begin_device_login" "POST" "/v1/device-logins" by "login";
    BEGIN_SECOND_FACTOR = "begin_second_factor" "POST" "/v1/me/second-factor" by "second-factor enrol";
    BOOTSTRAP = "bootstrap" "POST" "/v1/bootstrap" by "setup";
    CANCEL_INGEST = "cancel_ingest" "POST" "/v1/memory-ingests/{ingest}/cancel" by "memory cancel-ingest";
    CANCEL_TASK = "cancel_task" "POST" "/v1/tasks/{task}/cancel" by "task cancel";
    CHANGE_PASSWORD = "change_password" "PUT" "/v1/me/password" by "password";
    CHECK_PROFILE = "check_profile" "POST" "/v1/profiles/{name}/check" by "profile check";
    CHECK_RULE = "check_rule" "POST" "/v1/rules/check" by "rule check";
    CLOSE_PULL_REQUEST = "close_pull_request" "POST" "/v1/pull-requests/{pull_request}/close" by "pr close";
    COMMENT_PULL_REQUEST = "comment_pull_request" "POST" "/v1/pull-requests/{pull_request}/comments" by "pr comment";
    CONFIRM_SECOND_FACTOR = "confirm_second_factor" "POST" "/v1/me/second-factor/confirm" by "second-factor enrol";
    CREATE_API_KEY = "create_api_key" "POST" "/v1/api-keys" by "api-key create";
    CREATE_CHANNEL = "create_channel" "POST" "/v1/notification-channels" by "channel create";
    CREATE_GROUP = "create_group" "POST" "/v1/groups" by "group create";
    CREATE_INGEST = "create_ingest" "POST" "/v1/projects/{project}/memory-ingests" by "memory ingest";
    CREATE_MEMORY = "create_memory" "POST" "/v1/projects/{project}/memories" by "memory remember";
    CREATE_PROFILE = "create_profile" "POST" "/v1/profiles" by "profile create";
    CREATE_PROJECT = "create_project" "POST" "/v1/projects" by "project create";
    CREATE_SCHEDULE = "create_schedule" "POST" "/v1/schedules" by "schedule create";
    CREATE_SCIM_TOKEN = "create_scim_token" "POST" "/v1/scim-tokens" by "scim-token create";
    CREATE_SKILL = "create_skill" "POST" "/v1/skills" by "skill create";
    CREATE_TASK = "create_task" "POST" "/v1/tasks" by "task create";
    CREATE_USER = "create_user" "POST" "/v1/users" by "user create";
    DECIDE_APPROVAL = "decide_approval" "POST" "/v1/approvals/{approval}" by "approval approve";
    DECIDE_DEVICE_LOGIN = "decide_device_login" "POST" "/v1/device-logins/{code}" by "device approve";
    DELETE_AUDIT_SINK = "delete_audit_sink" "DELETE" "/v1/audit/sinks/{name}" by "audit sink delete";
    DELETE_BUDGET = "delete_budget" "DELETE" "/v1/budgets/{budget}" by "budget delete";
    DELETE_CHANNEL = "delete_channel" "DELETE" "/v1/notification-channels/{channel}" by "channel delete";
    DELETE_IDENTITY_PROVIDER = "delete_identity_provider" "DELETE" "/v1/identity-providers/{name}" by "identity-provider delete";
    DELETE_MEMORY = "delete_memory" "DELETE" "/v1/memories/{memory}" by "memory forget";
    DELETE_MODEL = "delete_model" "DELETE" "/v1/model-registry/{id}" by "model delete";
    DELETE_NODE = "delete_node" "DELETE" "/v1/nodes/{node}" by "node delete";
    DELETE_POLICY = "delete_policy" "DELETE" "/v1/policies/{key}" by "policy delete";
    DELETE_PREFERENCE = "delete_preference" "DELETE" "/v1/preferences/{key}" by "prefs delete";
    DELETE_PROFILE = "delete_profile" "DELETE" "/v1/profiles/{name}" by "profile delete";
    DELETE_PROJECT = "delete_project" "DELETE" "/v1/projects/{project}" by "project delete";
    DELETE_PROVIDER = "delete_provider" "DELETE" "/v1/providers/{name}" by "provider delete";
    DELETE_PROVIDER_KEY = "delete_provider_key" "DELETE" "/v1/providers/{name}/keys/{key}" by "provider delete-key";
    DELETE_REMOTE = "delete_remote" "DELETE" "/v1/projects/{project}/remote" by "remote delete";
    DELETE_RULE = "delete_rule" "DELETE" "/v1/rules/{name}" by "rule delete";
    DELETE_SCHEDULE = "delete_schedule" "DELETE" "/v1/schedules/{schedule}" by "schedule delete";
    DELETE_SECOND_FACTOR = "delete_second_factor" "POST" "/v1/me/second-factor/delete" by "second-factor delete";
    DELETE_SECRET = "delete_secret" "DELETE" "/v1/projects/{project}/secrets/{secret}" by "project secret delete";
    DELETE_SETTING = "delete_setting" "DELETE" "/v1/settings/{key}" by "settings delete";
    DELETE_SKILL = "delete_skill" "DELETE" "/v1/skills/{skill}" by "skill delete";
    DETECT_ENVIRONMENT = "detect_environment" "POST" "/v1/projects/{project}/environments/detect" by "project environment detect";
    DIAGNOSE = "diagnose" "GET" "/v1/doctor" by "doctor";
    DIFF_PULL_REQUEST = "diff_pull_request" "GET" "/v1/pull-requests/{pull_request}/diff" by "pr diff";
    DISALLOW_IMAGE = "disallow_image" "DELETE" "/v1/allowed-images" by "image disallow";
    DRAFT_RULE = "draft_rule" "POST" "/v1/approvals/{approval}/draft-rule" by "approval draft-rule";
    EFFECTIVE_POLICIES = "effective_policies" "GET" "/v1/effective-policies" by "policy explain";
    EFFECTIVE_PREFERENCES = "effective_preferences" "GET" "/v1/effective-preferences" by "prefs effective";
    END_SESSION = "end_session" "DELETE" "/v1/sessions/{session}" by "session end";
    ESTIMATE_TASK = "estimate_task" "POST" "/v1/task-estimates" by "task estimate";
    EXPLAIN = "explain" "POST" "/v1/policy/explain" by "tool explain";
    EXPLAIN_MODELS = "explain_models" "GET" "/v1/model-choices" by "model explain";
    EXPLAIN_RECORDED_CALL = "explain_recorded_call" "POST" "/v1/policy/explain-call" by "tool explain-call";
    EXPORT_AUDIT = "export_audit" "GET" "/v1/audit/export" by "audit bundle";
    EXPORT_MEMORIES = "export_memories" "GET" "/v1/projects/{project}/memories/export" by "memory export";
    EXPORT_SKILL = "export_skill" "GET" "/v1/skills/{skill}/export" by "skill export";
    FINISH_PROVIDER_LOGIN = "finish_provider_login" "GET" "/v1/sso/{provider}/callback" by "api";
    FOLLOW_EVENTS = "follow_events" "GET" "/v1/events" by "events";
    FOLLOW_JOB_EVENTS = "follow_job_events" "GET" "/v1/jobs/{job}/events/stream" by "task logs";
    FORGET_MEMORIES = "forget_memories" "POST" "/v1/projects/{project}/memories/forget" by "memory forget";
    GET_APPROVAL = "get_approval" "GET" "/v1/approvals/{approval}" by "approval show";
    GET_ARTIFACT = "get_artifact" "GET" "/v1/artifacts/{artifact}" by "artifact get";
    GET_CHANNEL = "get_channel" "GET" "/v1/notification-channels/{channel}" by "channel show";
    GET_DEVICE_LOGIN = "get_device_login" "GET" "/v1/device-logins/{code}" by "device show";
    GET_ENVIRONMENT = "get_environment" "GET" "/v1/projects/{project}/environments/{version}" by "project environment show";
    GET_HANDOFF = "get_handoff" "GET" "/v1/handoffs/{handoff}" by "handoff show";
    GET_INGEST = "get_ingest" "GET" "/v1/memory-ingests/{ingest}" by "memory ingest";
    GET_KEYRING = "get_keyring" "GET" "/v1/keyring" by "keyring";
    GET_MEMORY = "get_memory" "GET" "/v1/memories/{memory}" by "memory show";
    GET_NODE = "get_node" "GET" "/v1/nodes/{node}" by "node show";
    GET_PARK = "get_park" "GET" "/v1/tasks/{task}/park" by "task parked";
    GET_PREFERENCE = "get_preference" "GET" "/v1/preferences/{key}" by "prefs get";
    GET_PROFILE = "get_profile" "GET" "/v1/profiles/{name}" by "profile show";
    GET_PROJECT = "get_project" "GET" "/v1/projects/{project}" by "project show";
    GET_PROMPT = "get_prompt" "GET" "/v1/handoffs/{handoff}/decisions/{step}/prompt" by "handoff prompt";
    GET_PULL_REQUEST = "get_pull_request" "GET" "/v1/pull-requests/{pull_request}" by "pr show";
    GET_REMOTE = "get_remote" "GET" "/v1/projects/{project}/remote" by "remote show";
    GET_REPOSITORY = "get_repository" "GET" "/v1/projects/{project}/repository" by "project repository";
    GET_SCHEDULE = "get_schedule" "GET" "/v1/schedules/{schedule}" by "schedule show";
    GET_SECOND_FACTOR = "get_second_factor" "GET" "/v1/me/second-factor" by "second-factor show";
    GET_SERVER = "get_server" "GET" "/v1/tool-servers/{server}" by "tool server";
    GET_SETTING = "get_setting" "GET" "/v1/settings/{key}" by "settings get";
    GET_SKILL = "get_skill" "GET" "/v1/skills/{skill}" by "skill show";
    GET_SKILL_VERSION = "get_skill_version" "GET" "/v1/skills/{skill}/versions/{version}" by "skill version";
    GET_TASK = "get_task" "GET" "/v1/tasks/{task}" by "task show";
    GET_USER = "get_user" "GET" "/v1/users/{user}" by "user show";
    HEALTHZ = "healthz" "GET" "/healthz" by "status";
    HOME = "home" "GET" "/" by "api";
    IMPORT_REPOSITORY = "import_repository" "PUT" "/v1/projects/{project}/repository" by "project import";
    IMPORT_SKILL = "import_skill" "POST" "/v1/skills/import" by "skill import";
    INSTALL_SERVER = "install_server" "POST" "/v1/tool-servers" by "tool install";
    INSTRUCT_TASK = "instruct_task" "POST" "/v1/tasks/{task}/instructions" by "task pause";
    ISSUE_AGENT_TOKEN = "issue_agent_token" "POST" "/v1/agent-tokens" by "agent-token issue";
    ISSUE_JOIN_TOKEN = "issue_join_token" "POST" "/v1/nodes/join-tokens" by "node join-token";
    ISSUE_RECOVERY_CODES = "issue_recovery_codes" "POST" "/v1/me/second-factor/recovery-codes" by "second-factor recovery-codes";
    JOB_EVENTS = "job_events" "GET" "/v1/jobs/{job}/events" by "task logs";
    LINK_IDENTITY = "link_identity" "POST" "/v1/me/identities" by "api";
    LIST_AGENT_TOKENS = "list_agent_tokens" "GET" "/v1/agent-tokens" by "agent-token list";
    LIST_ALLOWLISTS = "list_allowlists" "GET" "/v1/allowlists" by "tool allowlists";
    LIST_API_KEYS = "list_api_keys" "GET" "/v1/api-keys" by "api-key list";
    LIST_APPROVALS = "list_approvals" "GET" "/v1/approvals" by "approval list";
    LIST_ARTIFACTS = "list_artifacts" "GET" "/v1/tasks/{task}/artifacts" by "artifact list";
    LIST_AUDIT_SINKS = "list_audit_sinks" "GET" "/v1/audit/sinks" by "audit sink list";
    LIST_BACKUPS = "list_backups" "GET" "/v1/backups" by "backup list";
    LIST_BUDGETS = "list_budgets" "GET" "/v1/budgets" by "budget list";
    LIST_CALLS = "list_calls" "GET" "/v1/usage/calls" by "usage calls";
    LIST_CERTIFICATES = "list_certificates" "GET" "/v1/certificates" by "certificate list";
    LIST_CHANNELS = "list_channels" "GET" "/v1/notification-channels" by "channel list";
    LIST_ENVIRONMENTS = "list_environments" "GET" "/v1/projects/{project}/environments" by "project environment list";
    LIST_GROUPS = "list_groups" "GET" "/v1/groups" by "group list";
    LIST_HANDOFFS = "list_handoffs" "GET" "/v1/projects/{project}/handoffs" by "handoff list";
    LIST_IDENTITIES = "list_identities" "GET" "/v1/me/identities" by "identity list";
    LIST_IDENTITY_PROVIDERS = "list_identity_providers" "GET" "/v1/identity-providers" by "identity-provider list";
    LIST_IMAGES = "list_images" "GET" "/v1/allowed-images" by "image list";
    LIST_INBOX = "list_inbox" "GET" "/v1/inbox" by "inbox";
    LIST_INGESTS = "list_ingests" "GET" "/v1/projects/{project}/memory-ingests" by "memory ingests";
    LIST_ISSUES = "list_issues" "GET" "/v1/projects/{project}/remote/issues" by "remote issues";
    LIST_MEMBERS = "list_members" "GET" "/v1/projects/{project}/members" by "project members";
    LIST_MEMORIES = "list_memories" "GET" "/v1/projects/{project}/memories" by "memory list";
    LIST_MESSAGES = "list_messages" "GET" "/v1/chat/threads/{thread}/messages" by "chat show";
    LIST_NODES = "list_nodes" "GET" "/v1/nodes" by "node list";
    LIST_NOTIFICATIONS = "list_notifications" "GET" "/v1/notifications" by "notification list";
    LIST_PACKAGES = "list_packages" "GET" "/v1/projects/{project}/packages" by "project packages";
    LIST_POLICIES = "list_policies" "GET" "/v1/policies" by "policy list";
    LIST_PREFERENCES = "list_preferences" "GET" "/v1/preferences" by "prefs list";
    LIST_PROCESSES = "list_processes" "GET" "/v1/processes" by "process list";
    LIST_PROFILES = "list_profiles" "GET" "/v1/profiles" by "profile list";
    LIST_PROFILE_VERSIONS = "list_profile_versions" "GET" "/v1/profiles/{name}/versions" by "profile history";
    LIST_PROJECTS = "list_projects" "GET" "/v1/projects" by "project list";
    LIST_PROVIDERS = "list_providers" "GET" "/v1/providers" by "provider list";
    LIST_PULL_REQUESTS = "list_pull_requests" "GET" "/v1/projects/{project}/pull-requests" by "pr list";
    LIST_REGISTRY = "list_registry" "GET" "/v1/model-registry" by "model list";
    LIST_REPLAYS = "list_replays" "GET" "/v1/handoffs/{handoff}/decisions/{step}/replays" by "handoff compare";
    LIST_REPORTS = "list_reports" "GET" "/v1/tasks/{task}/reports" by "task reports";
    LIST_RULES = "list_rules" "GET" "/v1/rules" by "rule list";
    LIST_SCHEDULES = "list_schedules" "GET" "/v1/schedules" by "schedule list";
    LIST_SCIM_TOKENS = "list_scim_tokens" "GET" "/v1/scim-tokens" by "scim-token list";
    LIST_SECRETS = "list_secrets" "GET" "/v1/projects/{project}/secrets" by "project secret list";
    LIST_SERVERS = "list_servers" "GET" "/v1/tool-servers" by "tool servers";
    LIST_SESSIONS = "list_sessions" "GET" "/v1/sessions" by "session list";
    LIST_SETTINGS = "list_settings" "GET" "/v1/settings" by "settings list";
    LIST_SKILLS = "list_skills" "GET" "/v1/skills" by "skill list";
    LIST_SKILL_VERSIONS = "list_skill_versions" "GET" "/v1/skills/{skill}/versions" by "skill versions";
    LIST_TASKS = "list_tasks" "GET" "/v1/tasks" by "task list";
    LIST_THREADS = "list_threads" "GET" "/v1/chat/threads" by "chat threads";
    LIST_TOOLS = "list_tools" "GET" "/v1/tools" by "tool list";
    LIST_USER_IDENTITIES = "list_user_identities" "GET" "/v1/users/{user}/identities" by "identity list";
    LIST_USERS = "list_users" "GET" "/v1/users" by "user list";
    LOGIN = "login" "POST" "/v1/sessions" by "login";
    LOGIN_OPTIONS = "login_options" "GET" "/v1/login-options" by "api";
    LOGOUT = "logout" "DELETE" "/v1/sessions/current" by "logout";
    LOOK = "look" "GET" "/answer/{token}" by "link show";
    ME = "me" "GET" "/v1/me" by "whoami";
    MERGE_PULL_REQUEST = "merge_pull_request" "POST" "/v1/pull-requests/{pull_request}/merge" by "pr merge";
    METRICS = "metrics" "GET" "/metrics" by "metrics";
    PREFERENCE_HISTORY = "preference_history" "GET" "/v1/preferences/{key}/history" by "prefs history";
    PROJECT_PACK = "project_pack" "POST" "/v1/projects/{project}/git/git-upload-pack" by "project pull";
    PROJECT_REFS = "project_refs" "GET" "/v1/projects/{project}/git/info/refs" by "project pull";
    PROPOSE_ENVIRONMENT = "propose_environment" "POST" "/v1/projects/{project}/environments" by "project environment set";
    PROVE_CALL = "prove_call" "GET" "/v1/audit/{call}/proof" by "audit prove";
    PROVIDER_LOGOUT = "provider_logout" "POST" "/v1/sessions/current/provider-logout" by "api";
    PULL_REQUEST_FILES = "pull_request_files" "GET" "/v1/pull-requests/{pull_request}/files" by "pr files";
    READINESS = "readiness" "GET" "/v1/readiness" by "status";
    READYZ = "readyz" "GET" "/readyz" by "status";
    RECEIVE_HOOK = "receive_hook" "POST" "/v1/hooks/{project}/{forge}" by "api";
    REDEEM_BREAK_GLASS = "redeem_break_glass" "POST" "/v1/break-glass" by "break-glass";
    REDEEM_DEVICE_CODE = "redeem_device_code" "POST" "/v1/device-logins/token" by "login";
    REFRESH_SERVER = "refresh_server" "POST" "/v1/tool-servers/{server}/refresh" by "tool refresh";
    REJECT_ENVIRONMENT = "reject_environment" "POST" "/v1/projects/{project}/environments/{version}/reject" by "project environment reject";
    REJECT_MEMORY = "reject_memory" "POST" "/v1/memories/{memory}/reject" by "memory reject";
    REMOVE_MEMBER = "remove_member" "DELETE" "/v1/projects/{project}/members/{user}" by "project revoke";
    REMOVE_USER_IDENTITY = "remove_user_identity" "DELETE" "/v1/users/{user}/identities/{identity}" by "identity unlink";
    REPLAY_DECISION = "replay_decision" "POST" "/v1/handoffs/{handoff}/decisions/{step}/replays" by "handoff replay";
    REPLAY_NOTIFICATION = "replay_notification" "POST" "/v1/notifications/{notification}/replay" by "notification replay";
    RERUN_EVIDENCE = "rerun_evidence" "POST" "/v1/tasks/{task}/evidence/rerun" by "task check";
    RETRY_TASK = "retry_task" "POST" "/v1/tasks/{task}/retry" by "task retry";
    REVIEW_CONTENT = "review_content" "POST" "/v1/reviews" by "task review";
    REVIEW_PULL_REQUEST = "review_pull_request" "POST" "/v1/pull-requests/{pull_request}/reviews" by "pr review";
    REVOKE_AGENT_TOKEN = "revoke_agent_token" "DELETE" "/v1/agent-tokens/{token}" by "agent-token revoke";
    REVOKE_API_KEY = "revoke_api_key" "DELETE" "/v1/api-keys/{api_key}" by "api-key revoke";
    REVOKE_SCIM_TOKEN = "revoke_scim_token" "DELETE" "/v1/scim-tokens/{scim_token}" by "scim-token revoke";
    RULE_HISTORY = "rule_history" "GET" "/v1/rules/{name}/history" by "rule history";
    RULE_VOCABULARY = "rule_vocabulary" "GET" "/v1/rules/vocabulary" by "rule vocabulary";
    RUN_SCHEDULE = "run_schedule" "POST" "/v1/schedules/{schedule}/run" by "schedule run";
    SEARCH_AUDIT = "search_audit" "GET" "/v1/audit" by "audit search";
    SEARCH_MEMORIES = "search_memories" "POST" "/v1/projects/{project}/memories/search" by "memory search";
    SETTING_HISTORY = "setting_history" "GET" "/v1/settings/{key}/history" by "settings history";
    SET_AUDIT_SINK = "set_audit_sink" "PUT" "/v1/audit/sinks/{name}" by "audit sink set";
    SET_BUDGET = "set_budget" "PUT" "/v1/budgets" by "budget set";
    SET_GROUP_ROLE = "set_group_role" "PUT" "/v1/projects/{project}/groups/{group}" by "project grant-group";
    SET_IDENTITY_PROVIDER = "set_identity_provider" "PUT" "/v1/identity-providers/{name}" by "identity-provider set";
    SET_MEMBER = "set_member" "PUT" "/v1/projects/{project}/members/{user}" by "project grant";
    SET_MODEL = "set_model" "PUT" "/v1/model-registry/{id}" by "model set";
    SET_POLICY = "set_policy" "PUT" "/v1/policies/{key}" by "policy set";
    SET_PREFERENCE = "set_preference" "PUT" "/v1/preferences/{key}" by "prefs set";
    SET_PROVIDER = "set_provider" "PUT" "/v1/providers/{name}" by "provider set";
    SET_REMOTE = "set_remote" "PUT" "/v1/projects/{project}/remote" by "remote set";
    SET_RULE = "set_rule" "PUT" "/v1/rules/{name}" by "rule set";
    SET_SECRET = "set_secret" "PUT" "/v1/projects/{project}/secrets/{secret}" by "project secret set";
    SET_SETTING = "set_setting" "PUT" "/v1/settings/{key}" by "settings set";
    SET_TOOL = "set_tool" "PUT" "/v1/tools/{name}" by "tool enable";
    START_PROVIDER_LOGIN = "start_provider_login" "GET" "/v1/sso/{provider}/login" by "api";
    SUBSCRIBE_BROWSER = "subscribe_browser" "POST" "/v1/web-push/subscriptions" by "api";
    SUM_USAGE = "sum_usage" "GET" "/v1/usage" by "usage sum";
    TASK_DIFF = "task_diff" "GET" "/v1/tasks/{task}/diff" by "task diff";
    TASK_EVIDENCE = "task_evidence" "GET" "/v1/tasks/{task}/evidence" by "task evidence";
    TASK_TIMELINE = "task_timeline" "GET" "/v1/tasks/{task}/timeline" by "task timeline";
    TEST_CHANNEL = "test_channel" "POST" "/v1/notification-channels/{channel}/test" by "channel test";
    TEST_IDENTITY_PROVIDER = "test_identity_provider" "POST" "/v1/identity-providers/{name}/test" by "identity-provider test";
    TOOL_STATS = "tool_stats" "GET" "/v1/tool-stats" by "tool stats";
    TRY_ENVIRONMENT = "try_environment" "POST" "/v1/projects/{project}/environments/try" by "project environment try";
    UNARCHIVE_PROJECT = "unarchive_project" "POST" "/v1/projects/{project}/unarchive" by "project unarchive";
    UNINSTALL_SERVER = "uninstall_server" "DELETE" "/v1/tool-servers/{server}" by "tool uninstall";
    UNLINK_IDENTITY = "unlink_identity" "DELETE" "/v1/me/identities/{identity}" by "identity unlink";
    UNPARK = "unpark" "DELETE" "/v1/tasks/{task}/park" by "task unpark";
    UPDATE_CHANNEL = "update_channel" "PATCH" "/v1/notification-channels/{channel}" by "channel update";
    UPDATE_GROUP = "update_group" "PATCH" "/v1/groups/{group}" by "group update";
    UPDATE_MEMORY = "update_memory" "PATCH" "/v1/memories/{memory}" by "memory correct";
    UPDATE_NODE = "update_node" "PATCH" "/v1/nodes/{node}" by "node drain";
    UPDATE_PROFILE = "update_profile" "PUT" "/v1/profiles/{name}" by "profile update";
    UPDATE_PROJECT = "update_project" "PATCH" "/v1/projects/{project}" by "project update";
    UPDATE_SCHEDULE = "update_schedule" "PATCH" "/v1/schedules/{schedule}" by "schedule update";
    UPDATE_SERVER = "update_server" "PATCH" "/v1/tool-servers/{server}" by "tool update";
    UPDATE_SKILL = "update_skill" "PUT" "/v1/skills/{skill}" by "skill update";
    UPDATE_USER = "update_user" "PATCH" "/v1/users/{user}" by "user update";
    USAGE_SERIES = "usage_series" "GET" "/v1/usage/series" by "usage series";
    VERIFY_AUDIT = "verify_audit" "GET" "/v1/audit/verify" by "audit verify";
    VERIFY_SECOND_FACTOR = "verify_second_factor" "POST" "/v1/me/second-factor/verify" by "second-factor verify";
    VIEW_INBOX_ITEM = "view_inbox_item" "PUT" "/v1/inbox/{item}/presence" by "api";
    WEB_PUSH_KEY = "web_push_key" "GET" "/v1/web-push/key" by "api";
}
