//! Handoffs: what the orchestrator asks of the project manager and the analyst, and what they answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    agents::AgentRole,
    delivery::PullRequestRef,
    ids::{HandoffId, TaskId},
    names::DottedKey,
    workflow::{
        decisions::{IssueScope, WorkClass},
        evidence::Evidence,
        findings::VerificationFinding,
        jobs::JobSpec,
        plan::{Plan, PlanFeedback, UnitKey},
        reports::ReportView,
        waits::EndedWait,
    },
};

/// What a handoff asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandoffKind {
    /// An answer in a chat.
    Chat,
    /// A plan for a task, or the next one.
    Plan,
    /// Who does which unit, where.
    Dispatch,
    /// A judgement of a unit's result.
    Verify,
    /// The analyst's share of a judgement.
    Analyse,
    /// What to do about a unit that came to nothing.
    Failure,
    /// What to tell an agent that asks in the middle of its work.
    Report,
    /// The summary of a task.
    Summarise,
    /// What a schedule that has fired means.
    Schedule,
}

/// The five kinds of work that are handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandoffCategory {
    /// Chat completion.
    Chat,
    /// Planning and refinement.
    Planning,
    /// Dispatch of jobs.
    Dispatch,
    /// Analysts.
    Analysis,
    /// Anything else that needs inference.
    Other,
}

impl HandoffKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Chat,
        Self::Plan,
        Self::Dispatch,
        Self::Verify,
        Self::Analyse,
        Self::Failure,
        Self::Report,
        Self::Summarise,
        Self::Schedule,
    ];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Plan => "plan",
            Self::Dispatch => "dispatch",
            Self::Verify => "verify",
            Self::Analyse => "analyse",
            Self::Failure => "failure",
            Self::Report => "report",
            Self::Summarise => "summarise",
            Self::Schedule => "schedule",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Which of the five it is.
    pub const fn handoff_category(self) -> HandoffCategory {
        match self {
            Self::Chat => HandoffCategory::Chat,
            Self::Plan => HandoffCategory::Planning,
            Self::Dispatch => HandoffCategory::Dispatch,
            Self::Verify | Self::Analyse => HandoffCategory::Analysis,
            Self::Failure | Self::Report | Self::Summarise | Self::Schedule => {
                HandoffCategory::Other
            }
        }
    }

    /// Who does it.
    pub const fn assigned_role(self) -> AgentRole {
        match self {
            Self::Analyse => AgentRole::ProjectAnalyst,
            Self::Chat
            | Self::Plan
            | Self::Dispatch
            | Self::Verify
            | Self::Failure
            | Self::Report
            | Self::Summarise
            | Self::Schedule => AgentRole::ProjectManager,
        }
    }
}

/// What is asked, with what it is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum HandoffRequest {
    /// An answer in a chat.
    Chat {
        /// The conversation, oldest first; the last is the person's.
        messages: Vec<ChatMessage>,
    },
    /// A plan.
    Plan {
        /// The plan before, when a new one is made.
        previous_plan: Option<Plan>,
        /// What was said since.
        feedback: Vec<PlanFeedback>,
        /// The answer to the last question.
        answer: Option<EndedWait>,
        /// Which attempt it is.
        attempt: u32,
        /// The units of the plan before that were started.
        #[serde(default)]
        #[schema(value_type = Vec<String>)]
        started_units: Vec<UnitKey>,
    },
    /// Who does these units, and where. Each may be sent now.
    Dispatch {
        /// The units.
        units: Vec<ReadyUnit>,
    },
    /// A judgement of a result.
    Verify(ResultVerification),
    /// The analyst's share of it.
    Analyse(ResultVerification),
    /// What to do about a unit that came to nothing.
    Failure {
        /// The unit.
        #[schema(value_type = String)]
        unit: UnitKey,
        /// What was to be done.
        title: String,
        /// What the unit was given.
        payload: Value,
        /// The attempt that came to nothing.
        attempt: u32,
        /// How many are left.
        attempts_left: u32,
        /// Why it came to nothing, in words.
        reason: String,
        /// The answer to the last question.
        answer: Option<EndedWait>,
    },
    /// What to tell an agent that asks in the middle of its work.
    Report {
        /// What it says.
        report: ReportView,
    },
    /// The summary of a task whose units are done.
    Summarise {
        /// The units, with what was found.
        units: Vec<EndedUnit>,
        /// The answer to the last question.
        #[serde(default)]
        answer: Option<EndedWait>,
    },
    /// What a schedule that has fired means.
    Schedule {
        /// The schedule.
        schedule: String,
        /// What it says.
        text: String,
    },
}

/// A result to be judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResultVerification {
    /// The unit.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// What was to be done.
    pub title: String,
    /// What the unit was given.
    pub payload: Value,
    /// Which attempt of the unit.
    pub unit_attempt: u32,
    /// How often the unit may be tried again; not known when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_left: Option<u32>,
    /// What the worker brought: a claim, not evidence.
    pub output: Value,
    /// What the orchestrator's own checks showed of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// The plan it belongs to.
    pub plan: Option<Plan>,
    /// The answer to the last question.
    pub answer: Option<EndedWait>,
    /// Which attempt of the judgement it is.
    pub attempt: u32,
}

/// A unit that may be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadyUnit {
    /// Its key.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// What is to be done.
    pub title: String,
    /// What the plan says of it.
    pub payload: Value,
    /// Which attempt it will be.
    pub attempt: u32,
    /// What was found about the attempt before.
    pub findings: Vec<VerificationFinding>,
    /// What the units it depends on brought, by key.
    pub results: BTreeMap<String, Value>,
}

/// A unit that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndedUnit {
    /// Its key.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// What was to be done.
    pub title: String,
    /// How often it was tried.
    pub attempts: u32,
    /// What was noted.
    pub findings: Vec<VerificationFinding>,
    /// What it brought.
    pub output: Value,
}

/// One turn of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// Who said it.
    pub role: ChatRole,
    /// What was said.
    pub content: String,
}

/// Who says something in a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChatRole {
    /// The person.
    User,
    /// The project manager.
    Assistant,
    /// The person's client. Its turns are not stored in the thread.
    System,
}

impl ChatRole {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::User, Self::Assistant, Self::System];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::System => "system",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// Whether a message of a chat is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChatMessageState {
    /// It is complete.
    Whole,
    /// The person left before its end.
    Interrupted,
    /// An error ended it.
    Failed,
}

impl ChatMessageState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Whole, Self::Interrupted, Self::Failed];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

impl HandoffRequest {
    /// What kind it is.
    pub const fn handoff_kind(&self) -> HandoffKind {
        match self {
            Self::Chat { .. } => HandoffKind::Chat,
            Self::Plan { .. } => HandoffKind::Plan,
            Self::Dispatch { .. } => HandoffKind::Dispatch,
            Self::Verify(_) => HandoffKind::Verify,
            Self::Analyse(_) => HandoffKind::Analyse,
            Self::Failure { .. } => HandoffKind::Failure,
            Self::Report { .. } => HandoffKind::Report,
            Self::Summarise { .. } => HandoffKind::Summarise,
            Self::Schedule { .. } => HandoffKind::Schedule,
        }
    }
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum HandoffAnswer {
    /// A person must say something first. Taken for every kind but `chat`, `analyse` and `schedule`.
    Ask {
        /// The question.
        question: String,
    },
    /// The plan.
    Planned(PlanAnswer),
    /// Who does what.
    Assigned {
        /// One for each unit that was asked for.
        assignments: Vec<WorkAssignment>,
    },
    /// The judgement.
    Judged(VerifyAnswer),
    /// The analyst's.
    Analysed(AnalysisAnswer),
    /// What to do about a failure.
    Decided {
        /// The decision.
        decision: FailureDecision,
        /// Why, and what is to be done otherwise.
        note: String,
        /// A person decided it: it counts whatever the number of attempts.
        #[serde(default)]
        by_person: bool,
    },
    /// An agent was answered, by instructions or in vain.
    Replied {
        /// What was done.
        note: String,
    },
    /// The summary.
    Summarised {
        /// For whoever asked for the task.
        summary: String,
        /// What the work was delivered as.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pull_request: Option<PullRequestRef>,
    },
    /// What a schedule meant.
    Interpreted {
        /// The tasks that were made.
        #[schema(value_type = Vec<String>)]
        tasks: Vec<TaskId>,
        /// Why these.
        note: String,
    },
    /// What was said in a chat.
    Chatted {
        /// The text.
        content: String,
    },
}

/// A plan, and how it came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanAnswer {
    /// The plan. Its units have no `work` yet: that is decided when they are sent.
    pub plan: Plan,
    /// What the input asks for.
    #[schema(value_type = String)]
    pub class: WorkClass,
    /// How much it touches.
    #[schema(value_type = String)]
    pub scope: IssueScope,
    /// What was learned of the project.
    pub project: ProjectContext,
}

/// How the project manager understood a task when it planned it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRefinement {
    /// What the input asks for.
    #[schema(value_type = String)]
    pub class: WorkClass,
    /// How much it touches.
    #[schema(value_type = String)]
    pub scope: IssueScope,
    /// What must hold when the task is done, in the words of the plan.
    pub requirements: Vec<String>,
    /// What the plan takes for granted.
    pub assumptions: Vec<String>,
}

/// What the project manager knows of a project's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProjectContext {
    /// The project's own words for agents, as they stand in its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claude_md: Option<String>,
    /// How it is laid out.
    pub architecture: String,
    /// Places worth knowing: what is there, by path.
    pub key_paths: BTreeMap<String, String>,
    /// How things are done, by name.
    pub patterns: BTreeMap<String, String>,
    /// What builds and tests it.
    pub build_commands: Vec<String>,
}

/// Kinds of events of planning, in the order in which they first occur.
pub const TRACE_EVENT_KINDS: [&str; 8] = [
    "plan:start",
    "plan:tools",
    "plan:call",
    "plan:observe",
    "plan:reason",
    "plan:act",
    "plan:stop",
    "plan:finish",
];

/// One event of a plan's making.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceEvent {
    /// Number of the event in its attempt, from 1.
    pub number: u32,
    /// What happened: one of `TRACE_EVENT_KINDS`.
    pub event: String,
    /// The trace.
    pub trace_id: String,
    /// The step it is about; 0 for the plan itself.
    pub step: u32,
    /// Under which profile.
    pub profile: String,
    /// More of it.
    #[serde(default)]
    pub data: Value,
}

/// Who does a unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkAssignment {
    /// The unit.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// By whom, with what context, where.
    pub work: JobSpec,
}

/// A judgement of a unit's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifyAnswer {
    /// What follows.
    pub outcome: VerifyOutcome,
    /// What was found.
    pub findings: Vec<VerificationFinding>,
    /// What to do about it.
    pub recommended_actions: Vec<String>,
    /// For the timeline.
    pub note: String,
    /// A person decided it: it counts whatever the number of attempts.
    #[serde(default)]
    pub by_person: bool,
    /// Why it is accepted though evidence speaks against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waived: Option<String>,
}

/// What follows a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifyOutcome {
    /// The unit is done.
    Accept,
    /// The unit is tried again with the findings.
    Redo,
    /// The unit did its part, and the plan is made anew with the findings: a review that wants changes.
    Revise,
    /// The task is given up.
    GiveUp,
}

/// What an analyst found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnalysisAnswer {
    /// The task; the one that was handed off.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Whether it is good.
    pub status: AnalysisStatus,
    /// What was found.
    pub findings: Vec<VerificationFinding>,
    /// What to do about it.
    pub recommended_actions: Vec<String>,
    /// The preferences that were applied: scope and version by key.
    #[schema(value_type = BTreeMap<String, AppliedPreference>)]
    pub preferences_applied: BTreeMap<DottedKey, AppliedPreference>,
}

/// Whether an analyst finds work good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnalysisStatus {
    /// It is.
    Pass,
    /// It is not.
    Fail,
    /// It cannot be told.
    NeedsClarification,
}

/// Where a preference that was applied comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppliedPreference {
    /// `task`, `project`, `user`, `group` or `system`.
    pub scope: String,
    /// The version of the entry.
    pub version: i64,
}

/// What to do about a unit that came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureDecision {
    /// Try it again.
    Retry,
    /// Plan less.
    ReduceScope,
    /// Ask a person.
    Escalate,
}

/// One decision that a model was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelDecision {
    /// The number of the decision in its handoff, from 0.
    pub step: u32,
    /// What was decided: `classify`, `assess_scope`, …
    pub kind: String,
    /// Digest of the whole question, hex. The answer holds for the same question only.
    pub prompt_digest: String,
    /// Digest of the form that was asked for, hex.
    pub schema_digest: String,
    /// The model that was asked for.
    pub model: String,
    /// The answer, of the form that was asked for; absent when there was none.
    pub output: Option<Value>,
    /// How often it was asked.
    pub attempts: u32,
    /// What was wrong with the answers that were not taken.
    #[serde(default)]
    pub validation_errors: Vec<String>,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// How long it took.
    pub latency_ms: u64,
}

/// Where a handoff stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandoffState {
    /// Nobody works on it.
    Queued,
    /// Somebody does.
    Claimed,
    /// An analyst does its share.
    Delegated,
    /// It was answered.
    Done,
    /// It came to nothing.
    Failed,
    /// Nobody wants it any more.
    Cancelled,
}

impl HandoffState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Claimed, Self::Delegated, Self::Done, Self::Failed, Self::Cancelled];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Claimed => "claimed",
            Self::Delegated => "delegated",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// The answer to a run's handoff, for the node that asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunHandoff {
    /// Which.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// What was asked, as the node named it.
    pub about: String,
    /// Where it stands.
    pub state: HandoffState,
    /// What came of it.
    pub answer: Option<HandoffAnswer>,
    /// Why it came to nothing.
    pub failure: Option<String>,
    /// What it cost, in millionths.
    pub cost_micros: u64,
}
