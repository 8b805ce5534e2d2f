//! The contract between the orchestrator and whoever drives a task, in any language. `docs/explanation/workflow.md` is its page.

pub mod jobs;
pub mod reviews;
pub mod schedules;
pub mod timeline;

use std::collections::BTreeMap;

use cynode_core::{
    environments::EnvironmentRef,
    evidence::{ChangeAnomaly, EvidenceCheck},
    ids::{HandoffId, ProjectId, RunId, TaskId},
    names::{DottedKey, Prose, TaskName},
    tasks::Criterion,
    workflow::{
        StepVerdict, WorkflowStep,
        environments::{EnvironmentChoice, EnvironmentFacts},
        evidence::{BaseChecks, EvidenceView},
        findings::VerificationFinding,
        handoffs::{HandoffRequest, RunHandoff},
        jobs::JobSpec,
        plan::{Plan, PlanFeedback, PlannedUnit, UnitKey},
        units::UnitView,
        waits::{EndedWait, WaitOwner, WaitReason},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::tasks::CriterionView;

/// Asks for the lease of a task, and for everything needed to drive it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartWorkflow {
    /// The task. Nothing else is passed: the first node loads the context.
    #[schema(value_type = String, example = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub task_id: TaskId,
    /// Who asks: the name of the runner, the same for all its processes.
    #[schema(example = "runner")]
    pub holder: String,
    /// Names this attempt at driving; it becomes the lease's id. The same holder with the same key gets the same lease again.
    pub idempotency_key: String,
    /// The process, and after a `#` which of its attempts this is. When the same call moves to another process, or begins again in the same
    /// one, the fencing token rises and the attempt before is shut out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// How long the lease lasts, 1 to 3600; 30 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u32>,
}

/// Asks where a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeWorkflow {
    /// The task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Answers only when more than this has happened to the run (see [`WorkflowPosition::wakes`]), or when `wait_ms` is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_wakes: Option<i64>,
    /// How long to wait for it, at most 20000; 0 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u32>,
}

/// Names a lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRef {
    /// The task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// The lease.
    pub lease_id: String,
    /// The token of the grant.
    pub fencing_token: i64,
}

/// Asks for more time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewLease {
    /// The task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// The lease.
    pub lease_id: String,
    /// The token of the grant.
    pub fencing_token: i64,
    /// How long the lease lasts from now, 1 to 3600; 30 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u32>,
}

/// What a node did: state, history and effects are stored together or not at all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepCheckpoint {
    /// The lease under which it was done.
    pub lease: LeaseRef,
    /// The number of this checkpoint: one more than the last.
    pub sequence: i64,
    /// The node that ran.
    #[schema(value_type = WorkflowStepView)]
    pub node: WorkflowStep,
    /// What it found.
    #[schema(value_type = StepVerdictView)]
    pub verdict: StepVerdict,
    /// What later nodes need.
    pub state: RunState,
    /// What it changes.
    #[serde(default)]
    pub effects: Vec<StepEffect>,
    /// What is waited for; with the verdict `wait`, and only with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<NewWait>,
    /// How many things had happened to the run when the node looked; see [`WorkflowPosition::wakes`].
    pub seen_wakes: i64,
    /// The unit it was about, for the timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub unit: Option<UnitKey>,
    /// Which attempt of the node it was.
    pub attempt: u32,
    /// How long it took.
    pub duration_ms: u64,
    /// What it cost, in millionths of the installation's currency.
    #[serde(default)]
    pub cost_micros: u64,
    /// A sentence for the timeline: why it failed, waits, or is redone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One change that a node makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "effect", rename_all = "snake_case", deny_unknown_fields)]
pub enum StepEffect {
    /// The plan's units exist from now on. Units that are done stay; others that the plan does not name are cancelled with their jobs.
    PlanUnits {
        /// Every unit of the plan.
        units: Vec<PlannedUnit>,
    },
    /// The project manager is asked something; the run is woken by the answer. What was asked before is dropped.
    HandOff {
        /// Names the question, so that the node knows the answer: see [`WorkflowPosition::handoff`].
        about: String,
        /// What is asked.
        #[schema(value_type = HandoffRequest)]
        request: Box<HandoffRequest>,
    },
    /// The answer to what was asked is taken.
    TakeHandoff {
        /// Which.
        #[schema(value_type = String)]
        handoff_id: HandoffId,
    },
    /// A unit that is pending gets a job.
    CreateJob {
        /// The unit.
        #[schema(value_type = String)]
        unit: UnitKey,
        /// Which attempt: one more than before.
        attempt: u32,
        /// What the job is given beside the unit's own payload: feedback of the last attempt.
        #[serde(default)]
        remedy: Value,
        /// Who does it, where that was not in the plan; it becomes `work` of the unit's payload.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<JobSpec>)]
        work: Option<Box<JobSpec>>,
        /// Most seconds from claim to result.
        timeout_seconds: u32,
    },
    /// The result of a unit's job is taken; the unit waits to be judged.
    CollectJob {
        /// The unit.
        #[schema(value_type = String)]
        unit: UnitKey,
        /// The attempt.
        attempt: u32,
    },
    /// Checks are run over what a unit brought, in a sandbox of their own; the run is woken when they have ended. Asked for again, what is
    /// known stays, and what came to nothing is begun anew.
    GatherEvidence {
        /// The unit, which waits to be judged.
        #[schema(value_type = String)]
        unit: UnitKey,
        /// The attempt.
        attempt: u32,
        /// The checks.
        checks: Vec<EvidenceCheck>,
        /// Most seconds from claim to result.
        timeout_seconds: u32,
        /// Whether checks that could not run on the machine are run again: somebody has mended it since.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        rerun: bool,
    },
    /// Checks are tried on the base commit, before any change; the run is woken when they have ended. What is known stays; what could not
    /// run is tried again.
    TryChecks {
        /// The checks.
        checks: Vec<EvidenceCheck>,
    },
    /// Checks that no node has taken need not be tried any more.
    SkipChecks,
    /// A person wants the proposed environment of the project to be accepted. It is, if they may accept it; see
    /// [`WorkflowPosition::environment`].
    AcceptEnvironment {
        /// The version that they were shown.
        environment: EnvironmentRef,
    },
    /// The task is done when this is shown: a person named another check.
    SetCriteria {
        /// What must be shown.
        #[schema(value_type = Vec<CriterionView>)]
        criteria: Vec<Criterion>,
    },
    /// A unit's job came to nothing, or its result was judged bad: it is to be tried again.
    RetryUnit {
        /// The unit.
        #[schema(value_type = String)]
        unit: UnitKey,
        /// The attempt that was not good.
        attempt: u32,
        /// Why.
        #[serde(default)]
        findings: Vec<VerificationFinding>,
    },
    /// A unit's result was judged good.
    AcceptUnit {
        /// The unit.
        #[schema(value_type = String)]
        unit: UnitKey,
        /// The attempt.
        attempt: u32,
        /// What was noted.
        #[serde(default)]
        findings: Vec<VerificationFinding>,
        /// Why it is taken though its evidence is not good: a person's word, or a policy's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waived: Option<String>,
        /// Whether a person said so: then the anomalies that they were shown are accepted for the whole task.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_person: bool,
        /// The anomalies that this person was shown.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schema(value_type = Vec<serde_json::Value>)]
        shown_anomalies: Vec<ChangeAnomaly>,
    },
    /// A unit is given up.
    FailUnit {
        /// The unit.
        #[schema(value_type = String)]
        unit: UnitKey,
        /// The attempt.
        attempt: u32,
        /// Why.
        #[serde(default)]
        findings: Vec<VerificationFinding>,
    },
}

/// A wait to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWait {
    /// What is waited for.
    pub reason: WaitReason,
    /// What the owner is asked, for `approval` and `human_input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// After how many milliseconds the run is due by itself: the time of a retry, the end of a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_in_ms: Option<u64>,
    /// After how many seconds nobody is waited for any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// The state of a run between nodes: the checkpoint's `state` column, with these fields and no others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// What must be shown for the task to be done.
    #[serde(default)]
    #[schema(value_type = Vec<CriterionView>)]
    pub acceptance_criteria: Vec<Criterion>,
    /// The preferences that held when the context was loaded.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>)]
    pub preferences_effective: BTreeMap<DottedKey, Value>,
    /// The plan, once there is one.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// How many units of the plan are done.
    #[serde(default)]
    pub current_step_index: u32,
    /// How often each unit was tried.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, u32>)]
    pub attempts_by_step: BTreeMap<UnitKey, u32>,
    /// The result that is being judged, or was judged last.
    #[serde(default)]
    pub last_result: Option<StepResult>,
    /// The last judgement.
    #[serde(default)]
    pub verification: Option<StepVerification>,
    /// What people said since the plan was made.
    #[serde(default)]
    pub feedback: Vec<PlanFeedback>,
    /// The unit that a person, or the project manager after a failure, was last asked about: the answer is about no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub question_unit: Option<UnitKey>,
    /// What a person answered to whoever plans, until the plan is made with it: more may be said meanwhile, and it is asked for anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planning_answer: Option<EndedWait>,
    /// Whether a person was asked because the node that is next could not be decided: the answer is about that, and about nothing in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
    /// Where trying the checks on the base commit stands, once it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_trial: Option<CheckTrial>,
    /// What people decided about the environment of the task, once they were asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentChoice>,
    /// How often less was planned because a unit came to nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub scope_reductions: u32,
    /// How often the node that is next has failed in a row for reasons that may pass.
    #[serde(default)]
    pub node_failures: u32,
    /// Why the task is given up, once that is clear.
    #[serde(default)]
    pub failure: Option<String>,
    /// The summary, once the task has ended.
    #[serde(default)]
    pub summary: Option<String>,
    /// What the runner keeps for itself; nobody else reads it. Another runner that drives in between keeps it as it is: say in
    /// it of which sequence it is.
    #[serde(default)]
    pub runner: Value,
}

/// Where trying the checks on the base commit stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CheckTrial {
    /// Whether the plan waits for it.
    pub open: bool,
    /// Whether a person is asked about the plan afterwards.
    pub approve_plan: bool,
    /// Checks that cannot run here and that a person wants to go on with: they are asked about them once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<EvidenceCheck>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The result of a unit's job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepResult {
    /// The unit.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// The attempt.
    pub attempt: u32,
    /// What the worker reported.
    pub output: Value,
}

/// A judgement of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepVerification {
    /// The unit.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// Whether it was judged good.
    pub status: VerificationStatus,
    /// What was found.
    #[serde(default)]
    pub findings: Vec<VerificationFinding>,
    /// What to do about it.
    #[serde(default)]
    pub recommended_actions: Vec<String>,
}

/// Whether a result was judged good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerificationStatus {
    /// It was.
    Pass,
    /// It was not.
    Fail,
    /// It could not be told.
    NeedsClarification,
}

/// Where a run stands, and everything that its next node needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkflowPosition {
    /// The task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// The run.
    #[schema(value_type = String)]
    pub run_id: RunId,
    /// The number of the last checkpoint; 0 before the first.
    pub sequence: i64,
    /// What follows.
    pub next: NextStep,
    /// How many things have happened to the run from outside: results, answers, instructions. A checkpoint says how many
    /// it had seen, so that a run about to wait cannot miss one.
    pub wakes: i64,
    /// How many retries the task has used, of units and nodes together.
    pub retries_used: u32,
    /// The plan's units and their jobs, in the order of the plan; for nodes that go by them: Dispatch Step, Collect Result,
    /// Finalize Summary, and a run that waits.
    pub units: Vec<UnitView>,
    /// The state after the last checkpoint; left out in the answer to a checkpoint that it came with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// The wait that was ended last, if the run has not gone on since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_wait: Option<EndedWait>,
    /// What the project manager was asked, until the answer is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handoff: Option<RunHandoff>,
    /// What is known about the results that wait to be judged; for Verify Step Result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<EvidenceView>,
    /// What the checks came to on the base commit; for Plan Steps, once they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_checks: Option<BaseChecks>,
    /// What is known of the project's environment; for Plan Steps, where there is one or a proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentFacts>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum NextStep {
    /// Run this node.
    Run {
        /// The node.
        #[schema(value_type = WorkflowStepView)]
        node: WorkflowStep,
    },
    /// Stop driving: the run waits, and the lease was given back. Whoever is needed then starts it again.
    Wait {
        /// The node that will run.
        #[schema(value_type = WorkflowStepView)]
        node: WorkflowStep,
        /// What is waited for.
        reason: WaitReason,
        /// Who can end it.
        #[schema(value_type = WaitOwnerView)]
        owner: WaitOwner,
    },
    /// Stop driving: the task has ended, and the lease was given back.
    End,
}

/// The answer to a start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartWorkflowResult {
    /// `started`, or `already_running` when the same holder has it under the same key.
    pub status: StartStatus,
    /// The lease.
    pub lease: LeaseView,
    /// The task.
    pub task: TaskContext,
    /// Where the run stands.
    pub position: WorkflowPosition,
}

/// Whether a start began something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartStatus {
    /// The lease was granted.
    Started,
    /// The same holder has it already, under the same key.
    AlreadyRunning,
}

/// The answer to a resume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResumeWorkflowResult {
    /// The task.
    pub task: TaskContext,
    /// Where the run stands.
    pub position: WorkflowPosition,
    /// The node that ran last.
    #[serde(default)]
    #[schema(value_type = Option<WorkflowStepView>)]
    pub last_node: Option<WorkflowStep>,
    /// When the last checkpoint was written.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    /// Its id.
    pub lease_id: String,
    /// Who has it.
    pub holder: String,
    /// The token that every write must carry.
    pub fencing_token: i64,
    /// Until when, by the database's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

/// What the first node loads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskContext {
    /// Where the task lives.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// Its name.
    #[schema(value_type = String)]
    pub name: TaskName,
    /// What is to be done.
    #[schema(value_type = String)]
    pub description: Prose,
    /// What must be shown for it to be done.
    #[schema(value_type = Vec<CriterionView>)]
    pub acceptance_criteria: Vec<Criterion>,
    /// The preferences that hold for it.
    #[schema(value_type = BTreeMap<String, Value>)]
    pub preferences: BTreeMap<DottedKey, Value>,
    /// The trace that everything about the run carries.
    pub trace_id: String,
    /// The plan that was given with the task: no manager plans it, and no model is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
}

/// Names of `WorkflowNode` for the document.
#[derive(ToSchema)]
#[schema(as = WorkflowNode, rename_all = "snake_case")]
pub enum WorkflowStepView {
    /// Reads the task, its criteria and the preferences that hold.
    LoadTaskContext,
    /// Makes the plan: a graph of work units.
    PlanSteps,
    /// Sends every unit that is ready, up to the limit.
    DispatchStep,
    /// Takes whichever result has come.
    CollectResult,
    /// Judges that result by evidence.
    VerifyStepResult,
    /// Says what was done, and ends the task well.
    FinalizeSummary,
    /// Says why it was given up, and ends the task.
    MarkFailed,
}

/// Names of `Verdict` for the document.
#[derive(ToSchema)]
#[schema(as = Verdict, rename_all = "snake_case")]
pub enum StepVerdictView {
    /// Its work is done; the next node follows.
    Pass,
    /// Nothing is left to do.
    Done,
    /// The work unit must be tried again.
    Redo,
    /// The plan must be made anew, with feedback.
    Revise,
    /// Nothing can be done before something happens elsewhere.
    Wait,
    /// It cannot succeed.
    Fail,
}

/// Names of [`WaitOwner`] for the document.
#[derive(ToSchema)]
#[schema(as = WaitOwner, rename_all = "snake_case")]
pub enum WaitOwnerView {
    /// Whoever works on the jobs.
    Worker,
    /// A person who may steer the task.
    Person,
    /// The clock.
    Clock,
    /// Whoever runs the installation.
    Operator,
}
