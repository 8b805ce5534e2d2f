//! What the orchestrator gives the project manager and the analyst to do, and what they give back. `docs/explanation/project-manager.md` is its page.
//!
//! A handoff is stored before anybody hears of it, claimed under a lease, and completed once. Whoever works on it gets a token
//! for tools and models that is tied to the person, project and task of the handoff and ends with it.

use std::collections::BTreeMap;

use cynode_core::{
    agents::AgentRole,
    ids::{
        CallId, GroupId, HandoffId, JobId, ProjectId, ReplayId, RunId, TaskId, ThreadId, UserId,
    },
    memory::PromptMemory,
    names::{DottedKey, ProfileName},
    skills::SelectedSkill,
    tasks::Criterion,
    workflow::{
        environments::EnvironmentFacts,
        findings::VerificationFinding,
        given_context::GivenContext,
        handoffs::{
            AnalysisAnswer, AppliedPreference, ChatMessageState, ChatRole, HandoffAnswer,
            HandoffCategory, HandoffKind, HandoffRequest, HandoffState, ModelDecision, PlanAnswer,
            TraceEvent, VerifyAnswer,
        },
        instructions::InstructionKind,
        plan::{PlanFeedback, UnitKey},
        replays::{FieldDifference, ReplayState},
        reports::ReportView,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{identity::accounts::SecretText, tasks::CriterionView};

/// What a judgement sends back to planning. A runner that gets
/// [`VerifyOutcome::Revise`](cynode_core::workflow::handoffs::VerifyOutcome::Revise) gives it to the next plan by
/// [`PlanRevision::to_feedback`], so that the project manager can tell it from the words of a person.
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
    /// The profile that the token of the handoff works under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What the project knows about the request, the best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memories: Vec<PromptMemory>,
    /// Skills that people wrote and that fit the request, the best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SelectedSkill>,
    /// The project's environment, or the proposal of one; for plans and the dispatch of units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentFacts>,
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

/// Records events of planning when they happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordPlanning {
    /// The handoff.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// Of the claim.
    pub fencing_token: i64,
    /// The events, in the order of their numbers.
    pub events: Vec<TraceEvent>,
}

/// An event of planning, as it was stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanningEventView {
    /// The claim under which it happened; a handoff that was claimed again is planned from the start.
    pub fencing_token: i64,
    /// When it was stored.
    #[serde(with = "time::serde::rfc3339")]
    pub recorded_at: OffsetDateTime,
    /// Its number in the claim, from 1.
    pub number: u32,
    /// What happened: `plan:start`, `plan:tools`, `plan:call`, `plan:observe`, `plan:reason`, `plan:act`, `plan:stop` or `plan:finish`.
    pub event: String,
    /// The trace.
    pub trace_id: String,
    /// The step it is about; 0 for the plan itself.
    pub step: u32,
    /// Under which profile.
    pub profile: String,
    /// More of it.
    pub data: Value,
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
    /// How many of these attempts ended because nothing was heard of the process that had it.
    #[serde(default)]
    pub expired_leases: u32,
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
    /// How a plan was made, event by event; only where one handoff is looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planning: Vec<PlanningEventView>,
    /// What it was given beside its question, claim by claim: records of memory and skills; only where one handoff is looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenContext>,
}

/// Has a decision asked again, with the prompt that was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayDecision {
    /// The model to ask, by id or tier; the one that was asked then when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// A replay of a decision. It changed nothing of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionReplayView {
    /// Unique id of the replay.
    #[schema(value_type = String)]
    pub replay_id: ReplayId,
    /// The handoff of the decision.
    #[schema(value_type = String)]
    pub handoff_id: HandoffId,
    /// The number of the decision in its handoff, from 0.
    pub step: u32,
    /// `running`, `answered`, `invalid` (not of the form that was asked for) or `failed`.
    pub state: ReplayState,
    /// Who asked.
    #[schema(value_type = String)]
    pub user_id: UserId,
    /// The model that was asked for.
    pub model: String,
    /// The provider that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The name of the model at that provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// The answer, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The text of an answer that is not of the form that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_text: Option<String>,
    /// Why there is no answer, or what is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where the answer differs from the recorded one; empty unless both are there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<FieldDifference>,
    /// Whether the answer is the recorded one; absent unless both are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_same: Option<bool>,
    /// The call at the model gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub call_id: Option<CallId>,
    /// Tokens in; absent when they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens out; absent when they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// What it cost, in millionths; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it ended.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub ended_at: Option<OffsetDateTime>,
}

/// A recorded decision and its replays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionReplays {
    /// The decision as it was recorded.
    pub decision: ModelDecision,
    /// What it cost, in millionths.
    pub cost_micros: i64,
    /// Whether its prompt is still held, so that it can be asked again.
    pub prompt_held: bool,
    /// Its replays, newest first.
    pub replays: Vec<DecisionReplayView>,
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
    /// The profile that the project manager answers under, where the conversation names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub profile: Option<ProfileName>,
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
    /// Who said it.
    pub role: ChatRole,
    /// What was said, without secrets.
    pub content: String,
    /// Whether it is complete.
    pub state: ChatMessageState,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}
