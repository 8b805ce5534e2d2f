//! The contract of every command with programs: its words, the operations it may call, and the form of its `--json` output.
//! `docs/cynork.json` is its written form; tests compare both, and `prove/conformance/cli-contract` compares them with a real
//! server.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value, json};

use crate::operations::{self, Operation};

mod forms;

/// The output of a command with `--json`.
#[derive(Clone, Copy, Debug)]
pub enum JsonAnswer {
    /// One value of this schema of the OpenAPI document.
    Document(&'static str),
    /// One value per line, of this schema of the OpenAPI document.
    Lines(&'static str),
    /// One value of a schema of its own.
    Own(fn() -> Value),
    /// `null`: the command succeeded.
    Nothing,
    /// The unchanged response of the server.
    Anything,
}

/// The contract of one command.
#[derive(Clone, Copy, Debug)]
pub struct CommandContract {
    /// Its words, without `cynork`.
    pub command: &'static str,
    /// The operations it may call; the response of the last one is the output.
    pub operations: &'static [Operation],
    /// Its output with `--json`.
    pub answer: JsonAnswer,
}

macro_rules! promises {
    ($($command:literal calls [$($operation:ident)*] gives $answer:expr;)*) => {
        /// Every contract, by noun.
        pub const PROMISES: &[CommandContract] = &[$(CommandContract {
            command: $command,
            operations: &[$(operations::$operation),*],
            answer: $answer,
        }),*];
    };
}

use JsonAnswer::{Anything, Document, Lines, Nothing, Own};

promises! {
    "setup" calls [LOGIN BOOTSTRAP] gives Document("UserView");
    "login" calls [LOGIN BEGIN_DEVICE_LOGIN REDEEM_DEVICE_CODE ME] gives Document("MeView");
    "logout" calls [LOGOUT] gives Nothing;
    "whoami" calls [ME] gives Document("MeView");
    "password" calls [CHANGE_PASSWORD] gives Nothing;
    "break-glass" calls [REDEEM_BREAK_GLASS ME] gives Document("MeView");
    "second-factor show" calls [GET_SECOND_FACTOR] gives Document("SecondFactorView");
    "second-factor enrol" calls [BEGIN_SECOND_FACTOR CONFIRM_SECOND_FACTOR] gives Document("RecoveryCodes");
    "second-factor verify" calls [VERIFY_SECOND_FACTOR] gives Document("SecondFactorView");
    "second-factor recovery-codes" calls [ISSUE_RECOVERY_CODES] gives Document("RecoveryCodes");
    "second-factor delete" calls [DELETE_SECOND_FACTOR] gives Nothing;
    "status" calls [HEALTHZ READYZ READINESS GET_PROJECT] gives Own(forms::status_schema);
    "doctor" calls [DIAGNOSE] gives Document("Diagnosis");
    "keyring" calls [GET_KEYRING] gives Document("KeyringView");
    "run" calls [ME READINESS GET_PROJECT CREATE_PROJECT GET_REPOSITORY IMPORT_REPOSITORY CREATE_TASK LIST_TASKS GET_TASK
        FOLLOW_EVENTS TASK_TIMELINE LIST_HANDOFFS GET_HANDOFF LIST_REPORTS SUM_USAGE JOB_EVENTS LIST_APPROVALS
        GET_APPROVAL DECIDE_APPROVAL EXPLAIN_MODELS EFFECTIVE_PREFERENCES APPROVE_TASK ANSWER_TASK TASK_EVIDENCE PULL_REQUEST_FILES
        GET_PULL_REQUEST] gives Own(forms::run_schema);
    "schedule list" calls [LIST_SCHEDULES] gives Document("Page_ScheduleView");
    "schedule show" calls [LIST_SCHEDULES GET_SCHEDULE] gives Document("ScheduleView");
    "schedule create" calls [GET_PROJECT CREATE_SCHEDULE] gives Document("ScheduleView");
    "schedule update" calls [LIST_SCHEDULES GET_SCHEDULE UPDATE_SCHEDULE] gives Document("ScheduleView");
    "schedule run" calls [LIST_SCHEDULES RUN_SCHEDULE] gives Document("FiringView");
    "schedule review" calls [LIST_SCHEDULES REVIEW_CONTENT] gives Nothing;
    "schedule delete" calls [LIST_SCHEDULES DELETE_SCHEDULE] gives Nothing;
    "skill list" calls [LIST_SKILLS] gives Document("UnpagedList_SkillSummary");
    "skill show" calls [LIST_SKILLS GET_SKILL] gives Document("SkillView");
    "skill create" calls [GET_PROJECT CREATE_SKILL] gives Document("SkillView");
    "skill update" calls [LIST_SKILLS GET_SKILL UPDATE_SKILL] gives Document("SkillView");
    "skill import" calls [GET_PROJECT LIST_SKILLS IMPORT_SKILL] gives Document("SkillView");
    "skill export" calls [LIST_SKILLS EXPORT_SKILL] gives Document("SkillExport");
    "skill versions" calls [LIST_SKILLS LIST_SKILL_VERSIONS] gives Document("UnpagedList_SkillVersionSummary");
    "skill version" calls [LIST_SKILLS GET_SKILL_VERSION] gives Document("SkillVersionView");
    "skill review" calls [LIST_SKILLS REVIEW_CONTENT] gives Nothing;
    "skill delete" calls [LIST_SKILLS DELETE_SKILL] gives Nothing;
    "audit verify" calls [VERIFY_AUDIT] gives Document("AuditReport");
    "audit prove" calls [PROVE_CALL] gives Document("UnpagedList_AuditProof");
    "audit head" calls [AUDIT_HEADS] gives Document("AuditHeads");
    "audit consistency" calls [AUDIT_CONSISTENCY] gives Document("AuditConsistency");
    "audit bundle" calls [GET_PROJECT ME LIST_TASKS GET_TASK EXPORT_AUDIT] gives Lines("AuditBundleLine");
    "audit sink list" calls [LIST_AUDIT_SINKS] gives Document("UnpagedList_AuditSinkView");
    "audit sink set" calls [SET_AUDIT_SINK] gives Document("AuditSinkView");
    "audit sink delete" calls [DELETE_AUDIT_SINK] gives Nothing;
    "sample" calls [ME SET_PROVIDER SET_MODEL CREATE_PROJECT IMPORT_REPOSITORY SET_PREFERENCE] gives Own(forms::sample_schema);
    "project pull" calls [GET_REPOSITORY PROJECT_REFS PROJECT_PACK] gives Own(forms::pull_schema);
    "project clone" calls [GET_REPOSITORY PROJECT_REFS PROJECT_PACK] gives Own(forms::clone_schema);
    "task create" calls [GET_PROJECT ME LIST_TASKS GET_TASK CREATE_TASK] gives Document("TaskView");
    "task list" calls [LIST_TASKS] gives Document("Page_TaskView");
    "task show" calls [ME LIST_TASKS TASK_TIMELINE GET_PROJECT GET_TASK] gives Document("TaskView");
    "task watch" calls [ME LIST_TASKS GET_TASK FOLLOW_EVENTS TASK_TIMELINE LIST_HANDOFFS GET_HANDOFF LIST_REPORTS SUM_USAGE JOB_EVENTS LIST_APPROVALS
        GET_APPROVAL DECIDE_APPROVAL EXPLAIN_MODELS EFFECTIVE_PREFERENCES APPROVE_TASK ANSWER_TASK TASK_EVIDENCE PULL_REQUEST_FILES
        GET_PULL_REQUEST] gives Own(forms::run_schema);
    "task plan" calls [ME LIST_TASKS GET_TASK LIST_HANDOFFS GET_HANDOFF TASK_TIMELINE] gives Own(forms::plan_schema);
    "task timeline" calls [ME LIST_TASKS GET_TASK TASK_TIMELINE] gives Document("TaskTimeline");
    "task logs" calls [ME LIST_TASKS GET_TASK TASK_TIMELINE FOLLOW_EVENTS FOLLOW_JOB_EVENTS JOB_EVENTS] gives Own(forms::logs_schema);
    "task diff" calls [ME LIST_TASKS GET_TASK TASK_TIMELINE PULL_REQUEST_FILES DIFF_PULL_REQUEST TASK_DIFF] gives Own(forms::diff_schema);
    "task evidence" calls [ME LIST_TASKS GET_TASK TASK_EVIDENCE] gives Document("TaskEvidence");
    "task check" calls [ME LIST_TASKS GET_TASK RERUN_EVIDENCE] gives Document("TaskEvidence");
    "task estimate" calls [ME GET_PROJECT ESTIMATE_TASK] gives Document("TaskEstimate");
    "task cost" calls [ME LIST_TASKS GET_TASK TASK_TIMELINE SUM_USAGE] gives Own(forms::cost_schema);
    "task reports" calls [ME LIST_TASKS GET_TASK LIST_REPORTS] gives Document("UnpagedList_ReportView");
    "task approve" calls [ME LIST_TASKS GET_TASK SUM_USAGE EXPLAIN_MODELS EFFECTIVE_PREFERENCES TASK_TIMELINE LIST_HANDOFFS GET_HANDOFF APPROVE_TASK] gives Document("TaskView");
    "task answer" calls [ME LIST_TASKS GET_TASK TASK_TIMELINE ANSWER_TASK] gives Document("TaskView");
    "task pause" calls [ME LIST_TASKS GET_TASK INSTRUCT_TASK] gives Document("InstructionReceipt");
    "task resume" calls [ME LIST_TASKS GET_TASK INSTRUCT_TASK] gives Document("InstructionReceipt");
    "task revise" calls [ME LIST_TASKS GET_TASK INSTRUCT_TASK] gives Document("InstructionReceipt");
    "task expand" calls [ME LIST_TASKS GET_TASK INSTRUCT_TASK] gives Document("InstructionReceipt");
    "task reduce" calls [ME LIST_TASKS GET_TASK INSTRUCT_TASK] gives Document("InstructionReceipt");
    "task abort" calls [ME LIST_TASKS GET_TASK INSTRUCT_TASK] gives Document("InstructionReceipt");
    "task retry" calls [ME LIST_TASKS GET_TASK TASK_TIMELINE INSTRUCT_TASK ANSWER_TASK RETRY_TASK] gives Document("TaskView");
    "task review" calls [ME LIST_TASKS GET_TASK REVIEW_CONTENT] gives Nothing;
    "task cancel" calls [ME LIST_TASKS GET_TASK CANCEL_TASK] gives Document("TaskView");
    "task parked" calls [ME LIST_TASKS GET_TASK GET_PARK] gives Own(forms::park_schema);
    "task unpark" calls [ME LIST_TASKS GET_TASK UNPARK] gives Nothing;
    "project list" calls [LIST_PROJECTS] gives Document("Page_ProjectView");
    "project create" calls [CREATE_PROJECT] gives Document("ProjectView");
    "project show" calls [GET_PROJECT] gives Document("ProjectView");
    "project update" calls [UPDATE_PROJECT] gives Document("ProjectView");
    "project archive" calls [ARCHIVE_PROJECT] gives Document("ProjectView");
    "project unarchive" calls [UNARCHIVE_PROJECT] gives Document("ProjectView");
    "project delete" calls [GET_PROJECT DELETE_PROJECT] gives Nothing;
    "project members" calls [LIST_MEMBERS] gives Document("Page_MemberView");
    "project grant" calls [LIST_USERS ME SET_MEMBER] gives Nothing;
    "project revoke" calls [LIST_USERS ME REMOVE_MEMBER] gives Nothing;
    "project grant-group" calls [LIST_GROUPS SET_GROUP_ROLE] gives Nothing;
    "project repository" calls [GET_REPOSITORY] gives Document("RepositoryView");
    "project import" calls [IMPORT_REPOSITORY] gives Document("RepositoryView");
    "project environment show" calls [LIST_ENVIRONMENTS ACCEPTED_ENVIRONMENT GET_ENVIRONMENT] gives Document("EnvironmentView");
    "project environment list" calls [LIST_ENVIRONMENTS] gives Document("UnpagedList_EnvironmentView");
    "project environment detect" calls [DETECT_ENVIRONMENT ACCEPT_ENVIRONMENT] gives Document("EnvironmentView");
    "project environment try" calls [LIST_ENVIRONMENTS ACCEPTED_ENVIRONMENT GET_ENVIRONMENT TRY_ENVIRONMENT GET_TASK FOLLOW_EVENTS TASK_TIMELINE LIST_HANDOFFS GET_HANDOFF JOB_EVENTS LIST_REPORTS TASK_EVIDENCE LIST_APPROVALS
        GET_APPROVAL SUM_USAGE] gives Own(forms::trial_schema);
    "project environment set" calls [PROPOSE_ENVIRONMENT ACCEPT_ENVIRONMENT] gives Document("EnvironmentView");
    "project environment accept" calls [ACCEPT_ENVIRONMENT] gives Document("EnvironmentView");
    "project environment reject" calls [REJECT_ENVIRONMENT] gives Document("EnvironmentView");
    "project secret set" calls [SET_SECRET] gives Document("ProjectSecretView");
    "project secret list" calls [LIST_SECRETS] gives Document("UnpagedList_ProjectSecretView");
    "project secret delete" calls [DELETE_SECRET] gives Nothing;
    "project packages" calls [ME LIST_TASKS GET_TASK LIST_PACKAGES] gives Document("UnpagedList_PackageFetchView");
    "project use" calls [GET_PROJECT] gives Document("ProjectView");
    "remote show" calls [GET_REMOTE] gives Document("RemoteView");
    "remote set" calls [SET_REMOTE] gives Document("RemoteView");
    "remote delete" calls [DELETE_REMOTE] gives Nothing;
    "remote issues" calls [LIST_ISSUES] gives Document("UnpagedList_WantedIssueView");
    "pr list" calls [LIST_PULL_REQUESTS] gives Document("Page_PullRequestView");
    "pr show" calls [LIST_PULL_REQUESTS GET_PULL_REQUEST] gives Document("PullRequestDetail");
    "pr files" calls [LIST_PULL_REQUESTS PULL_REQUEST_FILES] gives Document("ChangedFiles");
    "pr diff" calls [LIST_PULL_REQUESTS DIFF_PULL_REQUEST] gives Document("DiffView");
    "pr comment" calls [LIST_PULL_REQUESTS COMMENT_PULL_REQUEST] gives Document("CommentView");
    "pr review" calls [LIST_PULL_REQUESTS REVIEW_PULL_REQUEST] gives Document("ReviewReceipt");
    "pr merge" calls [LIST_PULL_REQUESTS MERGE_PULL_REQUEST] gives Document("PullRequestView");
    "pr close" calls [LIST_PULL_REQUESTS CLOSE_PULL_REQUEST] gives Document("PullRequestView");
    "chat" calls [GET_PROJECT COMPLETIONS] gives Own(forms::chat_schema);
    "chat threads" calls [LIST_THREADS] gives Document("Page_ThreadView");
    "chat show" calls [LIST_THREADS LIST_MESSAGES] gives Document("UnpagedList_ChatTurn");
    "inbox" calls [LIST_INBOX] gives Document("InboxView");
    "artifact list" calls [ME LIST_TASKS GET_TASK LIST_ARTIFACTS] gives Document("UnpagedList_ArtifactView");
    "artifact get" calls [GET_ARTIFACT] gives Own(forms::download_schema);
    "memory ingest" calls [CREATE_INGEST GET_INGEST] gives Document("IngestView");
    "memory ingests" calls [LIST_INGESTS] gives Document("Page_IngestView");
    "memory cancel-ingest" calls [CANCEL_INGEST] gives Document("IngestView");
    "memory search" calls [SEARCH_MEMORIES] gives Own(forms::memory_search_schema);
    "memory list" calls [LIST_MEMORIES] gives Document("Page_MemoryView");
    "memory show" calls [GET_MEMORY] gives Document("MemoryView");
    "memory remember" calls [CREATE_MEMORY] gives Document("MemoryView");
    "memory correct" calls [UPDATE_MEMORY] gives Document("MemoryView");
    "memory accept" calls [ACCEPT_MEMORY] gives Document("MemoryView");
    "memory reject" calls [REJECT_MEMORY] gives Document("MemoryView");
    "memory pin" calls [UPDATE_MEMORY] gives Document("MemoryView");
    "memory forget" calls [DELETE_MEMORY FORGET_MEMORIES] gives Own(forms::forgotten_schema);
    "memory export" calls [EXPORT_MEMORIES] gives Lines("MemoryView");
    "approval list" calls [LIST_APPROVALS] gives Document("UnpagedList_ApprovalView");
    "approval show" calls [GET_APPROVAL] gives Document("ApprovalView");
    "approval approve" calls [GET_APPROVAL DECIDE_APPROVAL] gives Document("ApprovalView");
    "approval deny" calls [DECIDE_APPROVAL] gives Document("ApprovalView");
    "approval draft-rule" calls [DRAFT_RULE] gives Document("RuleDraftView");
    "events" calls [GET_PROJECT ME LIST_TASKS GET_TASK FOLLOW_EVENTS] gives Lines("EventView");
    "model list" calls [ME LIST_REGISTRY] gives Document("UnpagedList_ModelView");
    "model explain" calls [GET_PROJECT EXPLAIN_MODELS] gives Document("ModelChoices");
    "model set" calls [GET_PROJECT LIST_REGISTRY SET_MODEL] gives Document("ModelView");
    "model delete" calls [DELETE_MODEL] gives Nothing;
    "provider list" calls [LIST_PROVIDERS] gives Document("UnpagedList_ProviderView");
    "provider set" calls [SET_PROVIDER] gives Document("ProviderView");
    "provider add-key" calls [ADD_PROVIDER_KEY] gives Document("ProviderKeyView");
    "provider delete-key" calls [LIST_PROVIDERS DELETE_PROVIDER_KEY] gives Nothing;
    "provider delete" calls [DELETE_PROVIDER] gives Nothing;
    "budget list" calls [GET_PROJECT LIST_TASKS GET_TASK LIST_USERS ME LIST_BUDGETS] gives Document("UnpagedList_BudgetStatusView");
    "budget set" calls [GET_PROJECT LIST_TASKS GET_TASK LIST_USERS ME SET_BUDGET] gives Document("BudgetStatusView");
    "budget delete" calls [DELETE_BUDGET] gives Nothing;
    "usage sum" calls [GET_PROJECT LIST_TASKS GET_TASK LIST_USERS ME SUM_USAGE] gives Document("UnpagedList_UsageSum");
    "usage series" calls [GET_PROJECT LIST_TASKS GET_TASK LIST_USERS ME USAGE_SERIES] gives Document("UnpagedList_UsagePoint");
    "usage calls" calls [GET_PROJECT LIST_TASKS GET_TASK LIST_USERS ME LIST_CALLS] gives Document("Page_UsageCall");
    "tool list" calls [LIST_TOOLS] gives Document("UnpagedList_ToolView");
    "tool stats" calls [GET_PROJECT TOOL_STATS] gives Document("ToolStats");
    "tool enable" calls [SET_TOOL] gives Document("ToolView");
    "tool disable" calls [SET_TOOL] gives Document("ToolView");
    "tool scope" calls [SET_TOOL] gives Document("ToolView");
    "tool allowlists" calls [LIST_ALLOWLISTS] gives Document("UnpagedList_AllowlistView");
    "tool explain" calls [EXPLAIN] gives Document("PolicyExplanation");
    "tool explain-call" calls [EXPLAIN_RECORDED_CALL] gives Document("CallExplanation");
    "tool install" calls [GET_PROJECT INSTALL_SERVER] gives Document("ServerView");
    "tool servers" calls [LIST_SERVERS] gives Document("UnpagedList_ServerView");
    "tool server" calls [LIST_SERVERS GET_SERVER] gives Document("ServerView");
    "tool update" calls [LIST_SERVERS UPDATE_SERVER] gives Document("ServerView");
    "tool accept" calls [LIST_SERVERS GET_SERVER ACCEPT_TOOLS] gives Document("ServerView");
    "tool refresh" calls [LIST_SERVERS REFRESH_SERVER] gives Document("ServerView");
    "tool annotate" calls [LIST_SERVERS ANNOTATE_TOOL] gives Document("ServerView");
    "tool uninstall" calls [LIST_SERVERS UNINSTALL_SERVER] gives Nothing;
    "rule list" calls [LIST_RULES] gives Document("UnpagedList_RuleView");
    "rule set" calls [SET_RULE] gives Document("RuleView");
    "rule delete" calls [DELETE_RULE] gives Nothing;
    "rule check" calls [CHECK_RULE] gives Document("RuleCheckView");
    "rule backtest" calls [GET_PROJECT BACKTEST_RULE] gives Document("BacktestReport");
    "rule history" calls [RULE_HISTORY] gives Document("UnpagedList_RuleVersionView");
    "rule vocabulary" calls [RULE_VOCABULARY] gives Document("RuleVocabulary");
    "profile list" calls [GET_PROJECT LIST_PROFILES] gives Document("UnpagedList_ProfileView");
    "profile show" calls [GET_PROJECT GET_PROFILE] gives Document("ProfileView");
    "profile create" calls [GET_PROJECT GET_PROFILE CREATE_PROFILE] gives Document("ProfileView");
    "profile update" calls [GET_PROJECT GET_PROFILE UPDATE_PROFILE] gives Document("ProfileView");
    "profile delete" calls [GET_PROJECT DELETE_PROFILE] gives Nothing;
    "profile history" calls [GET_PROJECT LIST_PROFILE_VERSIONS] gives Document("UnpagedList_ProfileVersionView");
    "profile check" calls [GET_PROJECT CHECK_PROFILE] gives Document("ProfileDecisions");
    "api-key list" calls [LIST_USERS ME LIST_API_KEYS] gives Document("Page_ApiKeyView");
    "api-key create" calls [GET_PROJECT CREATE_API_KEY] gives Document("CreatedApiKey");
    "api-key revoke" calls [LIST_API_KEYS REVOKE_API_KEY] gives Document("ApiKeyView");
    "scim-token list" calls [LIST_SCIM_TOKENS] gives Document("UnpagedList_ScimTokenView");
    "scim-token create" calls [CREATE_SCIM_TOKEN] gives Document("CreatedScimToken");
    "scim-token revoke" calls [LIST_SCIM_TOKENS REVOKE_SCIM_TOKEN] gives Document("ScimTokenView");
    "agent-token list" calls [GET_PROJECT LIST_AGENT_TOKENS] gives Document("Page_AgentTokenView");
    "agent-token issue" calls [GET_PROJECT ME LIST_TASKS GET_TASK ISSUE_AGENT_TOKEN] gives Document("IssuedAgentToken");
    "agent-token revoke" calls [REVOKE_AGENT_TOKEN] gives Nothing;
    "audit search" calls [GET_PROJECT ME LIST_TASKS GET_TASK SEARCH_AUDIT] gives Document("AuditPage");
    "audit export" calls [GET_PROJECT ME LIST_TASKS GET_TASK SEARCH_AUDIT] gives Lines("AuditView");
    "node list" calls [LIST_NODES] gives Document("UnpagedList_NodeView");
    "node show" calls [LIST_NODES GET_NODE] gives Document("NodeView");
    "node join-token" calls [ISSUE_JOIN_TOKEN] gives Document("IssuedJoinToken");
    "node drain" calls [LIST_NODES UPDATE_NODE] gives Document("NodeView");
    "node undrain" calls [LIST_NODES UPDATE_NODE] gives Document("NodeView");
    "node label" calls [LIST_NODES UPDATE_NODE] gives Document("NodeView");
    "node delete" calls [LIST_NODES DELETE_NODE] gives Nothing;
    "backup list" calls [LIST_BACKUPS] gives Document("UnpagedList_BackupView");
    "process list" calls [LIST_PROCESSES] gives Document("UnpagedList_ProcessView");
    "certificate list" calls [LIST_CERTIFICATES] gives Document("UnpagedList_CertificateView");
    "image list" calls [LIST_IMAGES] gives Document("UnpagedList_String");
    "image allow" calls [ALLOW_IMAGE] gives Nothing;
    "image disallow" calls [DISALLOW_IMAGE] gives Nothing;
    "prefs list" calls [LIST_GROUPS LIST_USERS ME GET_PROJECT LIST_TASKS GET_TASK LIST_PREFERENCES] gives Document("ValueList");
    "prefs get" calls [LIST_GROUPS LIST_USERS ME GET_PROJECT LIST_TASKS GET_TASK GET_PREFERENCE] gives Document("ValueView");
    "prefs set" calls [LIST_GROUPS LIST_USERS ME GET_PROJECT LIST_TASKS GET_TASK GET_PREFERENCE SET_PREFERENCE]
        gives Document("ValueView");
    "prefs delete" calls [LIST_GROUPS LIST_USERS ME GET_PROJECT LIST_TASKS GET_TASK GET_PREFERENCE DELETE_PREFERENCE] gives Nothing;
    "prefs history" calls [LIST_GROUPS LIST_USERS ME GET_PROJECT LIST_TASKS GET_TASK PREFERENCE_HISTORY] gives Document("ValueHistory");
    "prefs effective" calls [GET_PROJECT ME LIST_TASKS GET_TASK EFFECTIVE_PREFERENCES] gives Document("EffectiveView");
    "policy list" calls [LIST_GROUPS GET_PROJECT LIST_POLICIES] gives Document("PolicyList");
    "policy set" calls [LIST_GROUPS GET_PROJECT SET_POLICY] gives Document("PolicyList");
    "policy delete" calls [LIST_GROUPS GET_PROJECT DELETE_POLICY] gives Nothing;
    "policy explain" calls [GET_PROJECT ME LIST_TASKS GET_TASK EFFECTIVE_POLICIES] gives Document("EffectivePolicyList");
    "settings list" calls [LIST_SETTINGS] gives Document("ValueList");
    "settings get" calls [GET_SETTING] gives Document("ValueView");
    "settings set" calls [GET_SETTING SET_SETTING] gives Document("ValueView");
    "settings delete" calls [GET_SETTING DELETE_SETTING] gives Nothing;
    "settings history" calls [SETTING_HISTORY] gives Document("ValueHistory");
    "user list" calls [LIST_USERS] gives Document("Page_UserView");
    "user create" calls [CREATE_USER] gives Document("UserView");
    "user show" calls [LIST_USERS ME GET_USER] gives Document("UserView");
    "user update" calls [LIST_USERS ME UPDATE_USER] gives Document("UserView");
    "identity-provider list" calls [LIST_IDENTITY_PROVIDERS] gives Document("IdentityProviderList");
    "identity-provider set" calls [LIST_IDENTITY_PROVIDERS LIST_GROUPS SET_IDENTITY_PROVIDER] gives Document("IdentityProviderView");
    "identity-provider test" calls [TEST_IDENTITY_PROVIDER] gives Document("DiscoveryView");
    "identity-provider delete" calls [DELETE_IDENTITY_PROVIDER] gives Nothing;
    "identity list" calls [LIST_USERS ME LIST_IDENTITIES LIST_USER_IDENTITIES] gives Document("IdentityList");
    "identity unlink" calls [LIST_USERS ME UNLINK_IDENTITY REMOVE_USER_IDENTITY] gives Nothing;
    "session list" calls [LIST_USERS ME LIST_SESSIONS] gives Document("Page_OpenSessionView");
    "session end" calls [END_SESSION] gives Nothing;
    "device show" calls [GET_DEVICE_LOGIN] gives Document("DeviceLoginView");
    "device approve" calls [GET_DEVICE_LOGIN DECIDE_DEVICE_LOGIN] gives Document("DeviceLoginView");
    "device deny" calls [DECIDE_DEVICE_LOGIN] gives Document("DeviceLoginView");
    "group list" calls [LIST_GROUPS] gives Document("Page_GroupView");
    "group create" calls [CREATE_GROUP] gives Document("GroupView");
    "group update" calls [LIST_GROUPS LIST_USERS ME UPDATE_GROUP] gives Document("GroupView");
    "channel list" calls [LIST_CHANNELS] gives Document("Page_ChannelView");
    "channel show" calls [LIST_CHANNELS GET_CHANNEL] gives Document("ChannelView");
    "channel create" calls [GET_PROJECT CREATE_CHANNEL] gives Document("ChannelWithSecret");
    "channel update" calls [LIST_CHANNELS UPDATE_CHANNEL] gives Document("ChannelWithSecret");
    "channel delete" calls [LIST_CHANNELS DELETE_CHANNEL] gives Nothing;
    "channel test" calls [LIST_CHANNELS TEST_CHANNEL] gives Document("NotificationView");
    "notification list" calls [LIST_NOTIFICATIONS] gives Document("Page_NotificationView");
    "notification replay" calls [REPLAY_NOTIFICATION] gives Document("NotificationView");
    "handoff list" calls [ME LIST_TASKS GET_TASK LIST_HANDOFFS] gives Document("Page_HandoffView");
    "handoff show" calls [ME GET_HANDOFF] gives Document("HandoffView");
    "handoff prompt" calls [GET_PROMPT] gives Own(forms::object_schema);
    "handoff replay" calls [ME REPLAY_DECISION] gives Document("DecisionReplayView");
    "handoff compare" calls [ME LIST_REPLAYS] gives Document("DecisionReplays");
    "link show" calls [LOOK] gives Own(forms::link_schema);
    "link answer" calls [ANSWER] gives Own(forms::link_answer_schema);
    "metrics" calls [METRICS] gives Own(forms::metrics_schema);
    "api" calls [HOME RECEIVE_HOOK SUBSCRIBE_BROWSER VIEW_INBOX_ITEM WEB_PUSH_KEY LOGIN_OPTIONS START_PROVIDER_LOGIN
        FINISH_PROVIDER_LOGIN BACKCHANNEL_LOGOUT LINK_IDENTITY PROVIDER_LOGOUT] gives Anything;
    "completions" calls [] gives Own(forms::completions_schema);
    "man" calls [] gives Own(forms::man_pages_schema);
    "config show" calls [] gives Own(forms::config_schema);
    "config set" calls [] gives Own(forms::config_schema);
    "contract" calls [] gives Own(forms::object_schema);
}

/// An executable command, with its words.
#[derive(Clone, Debug)]
pub struct LeafCommand {
    /// Its words, without `cynork`.
    pub command: String,
    /// Its definition.
    pub parsed: Command,
}

/// Returns every executable command, in the order of the help.
pub fn list_leaf_commands() -> Vec<LeafCommand> {
    let mut root = crate::build_command();
    root.build();
    root.get_subcommands().flat_map(|command| collect_leaf_commands(command, "")).collect()
}

fn collect_leaf_commands(command: &Command, above: &str) -> Vec<LeafCommand> {
    let words = format!("{above} {}", command.get_name()).trim().to_owned();
    let inner = command.get_subcommands().flat_map(|it| collect_leaf_commands(it, &words));
    let mut found: Vec<LeafCommand> = inner.collect();
    // A command with subcommands is executable only if it works without one.
    if !command.has_subcommands() || !command.is_subcommand_required_set() {
        found.insert(0, LeafCommand { command: words, parsed: command.clone() });
    }
    found
}

impl LeafCommand {
    /// Returns its usage example.
    pub fn usage_example(&self) -> Option<String> {
        let help = self.parsed.get_after_help()?.to_string();
        help.lines().find_map(|line| line.strip_prefix("Example: ")).map(str::to_owned)
    }

    /// Returns its contract.
    pub fn find_contract(&self) -> Option<&'static CommandContract> {
        PROMISES.iter().find(|promise| promise.command == self.command)
    }
}

/// Returns whether every command takes an argument.
fn is_global_argument(argument: &Arg) -> bool {
    argument.is_global_set() || matches!(argument.get_id().as_str(), "help" | "version")
}

fn describe_argument(argument: &Arg) -> Value {
    let mut about = Map::new();
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    match argument.get_long() {
        Some(long) => about.insert("flag".into(), format!("--{long}").into()),
        None => about.insert("argument".into(), argument.get_id().as_str().into()),
    };
    if let Some(short) = argument.get_short() {
        about.insert("short".into(), format!("-{short}").into());
    }
    about.insert("about".into(), help.into());
    let takes = argument.get_action().takes_values();
    about.insert("takes_value".into(), takes.into());
    about.insert("required".into(), argument.is_required_set().into());
    let many = argument.get_num_args().is_some_and(|range| range.max_values() > 1);
    about.insert(
        "repeated".into(),
        (many || matches!(argument.get_action(), ArgAction::Append)).into(),
    );
    let values = argument.get_possible_values();
    if takes && !values.is_empty() {
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        about.insert("values".into(), json!(names));
    }
    Value::Object(about)
}

fn answer_schema(answer: JsonAnswer) -> Value {
    let reference =
        |name: &str| json!({ "$ref": format!("openapi.json#/components/schemas/{name}") });
    let (form, schema) = match answer {
        Document(name) => ("value", reference(name)),
        Lines(name) => ("lines", reference(name)),
        Own(schema) => ("value", schema()),
        Nothing => ("value", json!({ "type": "null" })),
        Anything => ("value", json!(true)),
    };
    json!({ "form": form, "schema": schema })
}

/// Returns the whole contract, as in `docs/cynork.json`.
pub fn contract_document() -> Value {
    let mut root = crate::build_command();
    root.build();
    let globals: Vec<Value> =
        root.get_arguments().filter(|it| it.is_global_set()).map(describe_argument).collect();
    let commands = list_leaf_commands().into_iter().map(|leaf| {
        let promise = leaf.find_contract();
        let calls = promise.map_or(&[][..], |it| it.operations);
        let arguments =
            leaf.parsed.get_arguments().filter(|it| !is_global_argument(it)).map(describe_argument);
        json!({
            "command": leaf.command,
            "about": leaf.parsed.get_about().map(ToString::to_string),
            "example": leaf.usage_example(),
            "hidden": leaf.parsed.is_hide_set(),
            "arguments": arguments.collect::<Vec<_>>(),
            "operations": calls.iter().map(|it| it.id).collect::<Vec<_>>(),
            "answer": promise.map(|it| answer_schema(it.answer)),
        })
    });
    json!({
        "title": "Contract of every cynork command",
        "exit_codes": forms::exit_codes(),
        "everywhere": globals,
        "commands": commands.collect::<Vec<_>>(),
    })
}

/// Returns the commands as a Markdown table, as in `docs/reference/cynork.md`.
pub fn commands_table() -> String {
    let mut text = "| command | what it does |\n|---|---|\n".to_owned();
    for leaf in list_leaf_commands().iter().filter(|leaf| !leaf.parsed.is_hide_set()) {
        let usage = leaf.parsed.clone().render_usage().to_string();
        let usage = usage.lines().next().unwrap_or_default();
        let usage =
            usage.trim_start_matches("Usage: ").replace(" [OPTIONS]", "").replace('|', "\\|");
        let about = leaf.parsed.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| `{usage}` | {} |", about.replace('|', "\\|"));
    }
    text
}
