//! What the orchestrator gives the project manager and the analyst to do, and what they give back. `docs/explanation/project-manager.md` is its page.
//!
//! A handoff is stored before anybody hears of it, claimed under a lease, and completed once. Whoever works on it gets a token
//! for tools and models that is tied to the person, project and task of the handoff and ends with it.

use std::collections::BTreeMap;

use cynode_core::{
    agents::AgentRole,
    ids::{GroupId, HandoffId, JobId, ProjectId, RunId, TaskId, ThreadId, UserId},
    names::DottedKey,
    tasks::Criterion,
    workflow::{
        decisions::{IssueScope, WorkClass},
        instructions::InstructionKind,
        plan::{Plan, UnitKey},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    delivery::{PullRequestRef, evidence::Evidence},
    identity::accounts::SecretText,
    manager::reports::ReportView,
    tasks::{
        CriterionView,
        findings::VerificationFinding,
        plan::{EndedWait, PlanFeedback, PlanView},
        work::JobSpec,
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
        #[schema(value_type = Option<PlanView>)]
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
    #[schema(value_type = Option<PlanView>)]
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
    /// `user`, `assistant` or `system`.
    pub role: String,
    /// What was said.
    pub content: String,
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
    #[schema(value_type = PlanView)]
    pub plan: Plan,
    /// What the input asks for.
    #[schema(value_type = String)]
    pub class: WorkClass,
    /// How much it touches.
    #[schema(value_type = String)]
    pub scope: IssueScope,
    /// What was learned of the project.
    pub project: ProjectContext,
    /// The planning, step by step: start, tools that were ranked, stop condition.
    pub trace: Vec<TraceEvent>,
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

/// One event of a plan's making.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceEvent {
    /// What happened: `plan:start`, `plan:tools`, `plan:step`, `plan:stop`, `plan:finish`.
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

/// What a judgement sends back to planning. A runner that gets [`VerifyOutcome::Revise`] gives it to the next plan as
/// [`PlanRevision::feedback`], so that the project manager can tell it from the words of a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRevision {
    /// The unit that was judged: a review, or tests.
    pub unit: UnitKey,
    /// What was found.
    pub findings: Vec<VerificationFinding>,
    /// What to do about it.
    pub recommended_actions: Vec<String>,
    /// What does not fit together, when the unit was to put it together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<UnitsConflict>,
}

/// What two units made does not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitsConflict {
    /// The unit whose work did not fit.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// Those whose work had been merged before it.
    #[schema(value_type = Vec<String>)]
    pub merged_units: Vec<UnitKey>,
    /// The files.
    pub files: Vec<String>,
}

impl PlanRevision {
    const FEEDBACK_MARKER: &str = "cynode:revision ";

    /// Whether a text begins as ours do.
    pub fn is_marked(text: &str) -> bool {
        text.trim_start().starts_with(Self::FEEDBACK_MARKER.trim_end())
    }

    /// What the judgement of a unit sends back.
    pub fn from_verify_answer(unit: UnitKey, judged: &VerifyAnswer) -> Self {
        let findings = judged.findings.clone();
        let recommended_actions = judged.recommended_actions.clone();
        Self { unit, findings, recommended_actions, conflict: None }
    }

    /// As feedback on the plan.
    pub fn to_feedback(&self) -> PlanFeedback {
        let text = serde_json::to_string(self).unwrap_or_default();
        PlanFeedback {
            kind: InstructionKind::Revise,
            text: format!("{}{text}", Self::FEEDBACK_MARKER),
        }
    }

    /// What a feedback sends back, if it is no person's.
    pub fn from_feedback(feedback: &PlanFeedback) -> Option<Self> {
        let marked = (feedback.kind == InstructionKind::Revise).then_some(&feedback.text)?;
        serde_json::from_str(marked.strip_prefix(Self::FEEDBACK_MARKER)?).ok()
    }
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

/// Asks for a handoff. Which ones is a matter of the token: the manager's or the analyst's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimHandoff {
    /// Names this claim: sent again, it gets the same handoff again.
    pub claim_id: Uuid,
    /// How long to wait for one, at most 20000 ms.
    #[serde(default)]
    pub wait_ms: Option<u32>,
    /// How long it may be silent, 1 to 3600; 60 when it is left out.
    #[serde(default)]
    pub expires_in_seconds: Option<u32>,
}

/// The answer to a claim.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClaimedHandoff {
    /// A handoff, if there was one.
    pub handoff: Option<Box<HandoffAssignment>>,
}

/// A handoff for whoever works on it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HandoffAssignment {
    /// Its id.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// Rises with every claim; an answer with an old one is refused.
    pub fencing_token: i64,
    /// How often it was begun, this time included.
    pub attempt: u32,
    /// What is asked.
    pub request: HandoffRequest,
    /// What it is about.
    pub context: HandoffContext,
    /// Opens the gate and the models, in the name of the person. Ends with the handoff.
    pub token: SecretText,
    /// The models that the token opens.
    pub models: Vec<String>,
    /// Those of them that call tools; the others are offered none.
    #[serde(default)]
    pub tool_models: Vec<String>,
    /// How many seconds an answer of each of them may take, where somebody has said.
    #[serde(default)]
    pub think_seconds: BTreeMap<String, u32>,
    /// The decisions that were made before, when somebody began it already: the answers hold.
    pub decisions: Vec<ModelDecision>,
    /// What came of what was delegated.
    pub delegated: Vec<AnalysisAnswer>,
    /// Until when silence is believed.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

/// Whom and what a handoff is about. Ids that do not exist are absent; nobody guesses them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HandoffContext {
    /// The trace it belongs to.
    pub trace_id: String,
    /// The person.
    #[schema(value_type = Option<String>)]
    pub user_id: Option<UserId>,
    /// Their groups.
    #[schema(value_type = Vec<String>)]
    pub group_ids: Vec<GroupId>,
    /// The project.
    pub project: Option<ProjectFacts>,
    /// The task.
    pub task: Option<TaskFacts>,
    /// The chat.
    #[schema(value_type = Option<String>)]
    pub thread_id: Option<ThreadId>,
    /// The run.
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// What people want to be said to this role in addition.
    pub additional_context: Option<String>,
    /// The preferences that hold for this role; nothing of another's.
    #[schema(value_type = BTreeMap<String, Value>)]
    pub preferences: BTreeMap<DottedKey, Value>,
    /// Where each of them comes from.
    #[schema(value_type = BTreeMap<String, AppliedPreference>)]
    pub preferences_applied: BTreeMap<DottedKey, AppliedPreference>,
    /// What agents reported about the unit's last attempt, oldest first.
    pub reports: Vec<ReportView>,
    /// How the present plan came about.
    pub planned: Option<Box<PlanAnswer>>,
    /// The skill that says how to work with this system.
    pub skill: Option<String>,
}

/// A project, as agents are told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectFacts {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ProjectId,
    /// Its name.
    pub name: String,
    /// Its short name.
    pub slug: String,
    /// What it is for.
    pub description: String,
    /// The commit that work begins from, if it has a repository.
    pub head: Option<String>,
}

/// A task, as agents are told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskFacts {
    /// Its id.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// Its name.
    pub name: String,
    /// What is to be done.
    pub description: String,
    /// What must be shown.
    #[schema(value_type = Vec<CriterionView>)]
    pub acceptance_criteria: Vec<Criterion>,
    /// Where it stands.
    pub status: String,
}

/// Says that somebody still works on a handoff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewHandoff {
    /// Which.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// Of the claim.
    pub fencing_token: i64,
    /// How long it may be silent from now.
    #[serde(default)]
    pub expires_in_seconds: Option<u32>,
}

/// Ends a handoff well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteHandoff {
    /// Which.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// Of the claim.
    pub fencing_token: i64,
    /// What came of it.
    pub answer: HandoffAnswer,
}

/// Says that a handoff came to nothing this time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailHandoff {
    /// Which.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// Of the claim.
    pub fencing_token: i64,
    /// Whether it may pass: then it is tried again after a while.
    pub transient: bool,
    /// Whether a model was waited for in vain, which may be paid for all the same: where no task is parked for it, it is tried a few
    /// times only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Why, in words for a person.
    pub reason: String,
}

/// Gives the analyst its share; the handoff comes back when the analyst has answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DelegateHandoff {
    /// Which.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// Of the claim.
    pub fencing_token: i64,
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

/// Says that a model is about to be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginDecision {
    /// The handoff.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// Of the claim.
    pub fencing_token: i64,
}

/// Whether a model may be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DecisionPermit {
    /// A person paused the task. The handoff was taken back, with its decisions; it is given again when the task goes on.
    pub paused: bool,
}

/// Records a decision before anything is done with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordDecision {
    /// The handoff.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// Of the claim.
    pub fencing_token: i64,
    /// The decision.
    pub decision: ModelDecision,
    /// The whole question, kept apart and not for ever.
    pub prompt: Value,
    /// The calls at the model egress that it took.
    pub calls: Vec<String>,
}

/// A handoff, as people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HandoffView {
    /// Its id.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// What is asked for.
    pub kind: HandoffKind,
    /// Which of the five kinds of work it is.
    pub category: HandoffCategory,
    /// Who does it.
    #[schema(value_type = String)]
    pub role: AgentRole,
    /// `queued`, `claimed`, `delegated`, `done`, `failed` or `cancelled`.
    pub state: HandoffState,
    /// The handoff it is a share of.
    #[schema(value_type = Option<String>)]
    pub parent_id: Option<HandoffId>,
    /// In whose name.
    #[schema(value_type = String)]
    pub user_id: UserId,
    /// Where.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// For which task.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// In which run.
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// About which job.
    #[schema(value_type = Option<String>)]
    pub job_id: Option<JobId>,
    /// In which chat.
    #[schema(value_type = Option<String>)]
    pub thread_id: Option<ThreadId>,
    /// How often it was begun.
    pub attempt: u32,
    /// By whom last.
    pub worker: Option<String>,
    /// What it cost, in millionths.
    pub cost_micros: i64,
    /// Why it failed.
    pub failure: Option<String>,
    /// Its trace.
    pub trace_id: String,
    /// When it was stored.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// The decisions that a model was asked for.
    pub decisions: Vec<ModelDecision>,
    /// What was asked; only where one handoff is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<HandoffRequest>>,
    /// What came of it; only where one handoff is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Box<HandoffAnswer>>,
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

/// A conversation with the project manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThreadView {
    /// Its id.
    #[schema(value_type = String)]
    pub thread_id: ThreadId,
    /// Where.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// What it is called: its first words.
    pub title: String,
    /// When it began.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When something was said last.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// One turn of it, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatTurn {
    /// Its place, from 1.
    pub number: i64,
    /// `user` or `assistant`.
    pub role: String,
    /// What was said, without secrets.
    pub content: String,
    /// `whole`, `interrupted` or `failed`.
    pub state: String,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}
