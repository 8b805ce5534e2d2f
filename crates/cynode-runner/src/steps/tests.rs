use std::{collections::BTreeMap, sync::Mutex};

use cynode_core::{
    delivery::PullRequestRef,
    evidence::{ChangeAnomaly, CheckTally, EvidenceCheck, base::classify_base_run},
    ids::{RunId, TaskId},
    tasks::Criterion,
    workflow::{
        evidence::{BaseCheckResult, BaseChecks, CheckResult, EvidenceState, EvidenceView},
        findings::{FindingSeverity, VerificationFinding},
        handoffs::{FailureDecision, HandoffAnswer, VerifyOutcome},
        plan::{Plan, PlanText, PlannedUnit},
        units::{JobState, UnitJob, UnitState, UnitView},
        waits::{EndedWait, WaitReason, WaitResolution},
    },
};
use cynode_wire::workflow::{NextStep, StepResult, VerificationStatus};
use serde_json::{Value, json};

use super::*;
use crate::agent_backend::{
    AgentFuture, AgentReply, PlanRequest, RunSummary, SummaryRequest, VerificationResult,
    VerifyRequest,
};
use crate::handoff_backend::HandoffBackend;

mod environments;

/// A mind that says what it is told to.
struct Told {
    plan: Mutex<Vec<Result<AgentReply<Plan>, StepError>>>,
    judgement: Result<VerificationStatus, StepError>,
    slow: bool,
    /// Why a person takes it as it is.
    waived: Option<String>,
    heard: Mutex<Vec<String>>,
    /// What it was told is begun.
    begun: Mutex<Vec<UnitKey>>,
    /// How many attempts it was told are left.
    left: Mutex<Vec<u32>>,
    summary: Option<Result<AgentReply<Option<RunSummary>>, StepError>>,
}

impl AgentBackend for Told {
    fn summarize_run<'a>(&'a self, _: SummaryRequest<'a>) -> AgentFuture<'a, Option<RunSummary>> {
        Box::pin(async { self.summary.clone().unwrap_or(Ok(AgentReply::Done(None, 0))) })
    }

    fn create_plan<'a>(&'a self, request: PlanRequest<'a>) -> AgentFuture<'a, Plan> {
        Box::pin(async move {
            self.heard
                .lock()
                .unwrap()
                .extend(request.feedback.iter().map(|said| said.text.clone()));
            self.begun.lock().unwrap().extend(request.begun.keys().cloned());
            if self.slow {
                std::future::pending::<()>().await;
            }
            self.plan.lock().unwrap().pop().unwrap()
        })
    }

    fn verify_result<'a>(
        &'a self,
        request: VerifyRequest<'a>,
    ) -> AgentFuture<'a, VerificationResult> {
        Box::pin(async move {
            self.left.lock().unwrap().push(request.attempts_left);
            let outcome = match self.judgement.clone()? {
                VerificationStatus::Pass => VerifyOutcome::Accept,
                VerificationStatus::Fail | VerificationStatus::NeedsClarification => {
                    VerifyOutcome::Redo
                }
            };
            let findings = vec![VerificationFinding::new(FindingSeverity::Major, "found")];
            let (recommended_actions, note) = (Vec::new(), String::new());
            let (waived, by_person) = (self.waived.clone(), self.waived.is_some());
            let judgement = VerificationResult {
                outcome,
                findings,
                recommended_actions,
                note,
                by_person,
                waived,
            };
            Ok(AgentReply::Done(judgement, 3))
        })
    }
}

fn one_unit() -> Plan {
    let unit = PlannedUnit {
        key: "a".parse().unwrap(),
        title: "a".parse().unwrap(),
        depends_on: Vec::new(),
        payload: Value::Null,
    };
    Plan::try_from(PlanText { steps: vec![unit], assumptions: Vec::new() }).unwrap()
}

/// A scene that tests change before a node plays in it.
struct Set {
    task: TaskContext,
    position: WorkflowPosition,
    state: RunState,
    limits: RunLimits,
    mind: Told,
}

impl Set {
    fn new() -> Self {
        let task = TaskContext {
            project_id: "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
            name: "mend".parse().unwrap(),
            description: "Mend it".parse().unwrap(),
            acceptance_criteria: Vec::new(),
            preferences: BTreeMap::new(),
            trace_id: "1".repeat(32),
            plan: None,
        };
        let position = WorkflowPosition {
            evidence: Vec::new(),
            base_checks: None,
            environment: None,
            task_id: "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse::<TaskId>().unwrap(),
            run_id: "run_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse::<RunId>().unwrap(),
            sequence: 1,
            next: NextStep::End,
            wakes: 0,
            retries_used: 0,
            units: Vec::new(),
            state: None,
            ended_wait: None,
            handoff: None,
        };
        let mind = Told {
            plan: Mutex::new(vec![Ok(AgentReply::Done(one_unit(), 9))]),
            judgement: Ok(VerificationStatus::Pass),
            slow: false,
            waived: None,
            heard: Mutex::default(),
            begun: Mutex::default(),
            left: Mutex::default(),
            summary: None,
        };
        Self { task, position, state: RunState::default(), limits: RunLimits::default(), mind }
    }

    fn planning(error: StepError) -> Self {
        let set = Self::new();
        *set.mind.plan.lock().unwrap() = vec![Err(error)];
        set
    }

    /// One unit with a job in that state.
    fn unit(state: UnitState, job: JobState, attempt: u32) -> Self {
        let mut set = Self::new();
        let job =
            UnitJob { attempt, state: job, collected: false, result: Some(json!({ "n": 1 })) };
        set.position.units = vec![UnitView {
            key: "a".parse().unwrap(),
            title: "a".parse().unwrap(),
            depends_on: Vec::new(),
            state,
            attempts: attempt,
            findings: Vec::new(),
            job: Some(job),
        }];
        set.state.plan = Some(one_unit());
        set
    }

    async fn play(&self, node: WorkflowStep) -> CheckpointDraft {
        let Self { task, position, state, limits, mind } = self;
        run_step(node, &StepContext { task, position, state, limits, mind }).await
    }
}

fn key() -> UnitKey {
    "a".parse().unwrap()
}

/// The project manager has answered: try it again.
fn answered_handoff(about: &str) -> RunHandoff {
    let answer = HandoffAnswer::Decided {
        decision: FailureDecision::Retry,
        note: String::new(),
        by_person: false,
    };
    RunHandoff {
        handoff_id: "hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
        about: about.to_owned(),
        state: HandoffState::Done,
        answer: Some(answer),
        failure: None,
        cost_micros: 7,
    }
}

#[tokio::test]
async fn a_failure_that_may_pass_waits_longer_each_time_and_is_given_up_at_last() {
    let mut seen = Vec::new();
    for failures in 0..3 {
        let mut set = Set::planning(StepError::Transient("the model is away".into()));
        set.state.node_failures = failures;
        let step = set.play(WorkflowStep::PlanSteps).await;
        seen.push((step.verdict, step.wait.as_ref().and_then(|wait| wait.wake_in_ms)));
        assert_eq!(step.state.node_failures, failures + 1);
    }
    let expected = [
        (StepVerdict::Wait, Some(1000)),
        (StepVerdict::Wait, Some(2000)),
        (StepVerdict::Fail, None),
    ];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_is_asked_for_again_at_once() {
    let set = Set::planning(StepError::Domain("not a plan".into()));
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(
        step.wait,
        Some(NewWait { wake_in_ms: Some(0), ..open_ended_wait(WaitReason::Retry) })
    );
    assert_eq!(step.note.as_deref(), Some("Plan Steps: not a plan"));
}

#[tokio::test]
async fn a_failure_that_will_not_pass_ends_the_task_with_its_reason() {
    let set = Set::planning(StepError::Permanent("no such repository".into()));
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(step.verdict, StepVerdict::Fail);
    let mut last = Set::new();
    last.state = step.state;
    let end = last.play(WorkflowStep::MarkFailed).await;
    assert_eq!(end.note.as_deref(), Some("Plan Steps: no such repository"));
}

#[tokio::test]
async fn what_could_not_be_thought_through_is_put_before_a_person_and_tried_once_more_or_given_up()
{
    let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, 1);
    let output = json!({ "n": 1 });
    set.state.last_result = Some(StepResult { unit: key(), attempt: 1, output });
    let play = async |set: &Set| {
        let Set { task, position, state, limits, .. } = set;
        let mind = &HandoffBackend;
        run_step(
            WorkflowStep::VerifyStepResult,
            &StepContext { task, position, state, limits, mind },
        )
        .await
    };
    let asking = play(&set).await;
    let [StepEffect::HandOff { about, request }] = asking.effects.as_slice() else {
        panic!("S002-43: the step asks the project manager to verify: {asking:?}")
    };
    let failed = RunHandoff {
        state: HandoffState::Failed,
        answer: None,
        failure: Some("no usable answer".into()),
        ..answered_handoff(about)
    };
    let handoff_id = failed.handoff_id;
    set.position.handoff = Some(failed);
    set.state = asking.state.clone();
    let step = play(&set).await;
    let question = "Verify Step Result: the project manager could not decide: no usable answer\n\
        Answer `again` to have it tried once more, or `stop` to give the task up.";
    let wait =
        NewWait { question: Some(question.to_owned()), ..open_ended_wait(WaitReason::HumanInput) };
    assert_eq!((step.verdict, step.wait), (StepVerdict::Wait, Some(wait)));
    assert_eq!(step.effects, [StepEffect::TakeHandoff { handoff_id }]);
    set.position.handoff = None;
    set.state = step.state;
    let said = |words: &str| EndedWait {
        reason: WaitReason::HumanInput,
        resolution: WaitResolution::Answered,
        question: Some(question.to_owned()),
        answer: Some(words.to_owned()),
    };
    // The same is asked once more: what the person said is about no result.
    set.position.ended_wait = Some(said("again"));
    let again = play(&set).await;
    let request = request.clone();
    assert_eq!(again.effects, [StepEffect::HandOff { about: about.clone(), request }]);
    assert!(!again.state.undecided);
    set.position.ended_wait = Some(said("Stop."));
    let step = play(&set).await;
    let why = "Verify Step Result: a person gave it up";
    assert_eq!((step.verdict, step.note.as_deref()), (StepVerdict::Fail, Some(why)));
}

#[tokio::test]
async fn a_planners_question_that_is_answered_with_stop_ends_the_task() {
    let mut set = Set::new();
    set.position.ended_wait = Some(EndedWait {
        reason: WaitReason::HumanInput,
        resolution: WaitResolution::Answered,
        question: Some("Which?".into()),
        answer: Some("stop".into()),
    });
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(
        (step.verdict, step.note.as_deref()),
        (StepVerdict::Fail, Some("a person gave it up"))
    );
}

#[tokio::test]
async fn a_node_that_takes_too_long_is_a_failure_that_may_pass() {
    let mut set = Set::new();
    set.mind.slow = true;
    let preference = ("workflow.node_timeouts.plan_steps".parse().unwrap(), json!(1));
    set.limits = RunLimits::from_preferences(&BTreeMap::from([preference])).0;
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(step.wait.map(|wait| wait.reason), Some(WaitReason::Retry));
    assert_eq!(step.note.as_deref(), Some("Plan Steps: Plan Steps took longer than 1s"));
}

#[tokio::test]
async fn the_retries_of_a_whole_task_are_bounded_too() {
    let mut set = Set::planning(StepError::Transient("away".into()));
    set.position.retries_used = set.limits.retry_budget;
    assert_eq!(set.play(WorkflowStep::PlanSteps).await.verdict, StepVerdict::Fail);
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    set.position.retries_used = set.limits.retry_budget;
    assert_eq!(set.play(WorkflowStep::CollectResult).await.verdict, StepVerdict::Fail);
}

#[tokio::test]
async fn without_a_project_manager_a_run_waits_for_one() {
    let set = Set::planning(StepError::Unattended);
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(
        step.wait.map(|wait| (wait.reason, wait.wake_in_ms)),
        Some((WaitReason::Agent, Some(UNATTENDED_RECHECK_MS)))
    );
    assert_eq!(step.state.node_failures, 0);
}

#[tokio::test]
async fn a_plan_is_stored_and_waits_for_a_yes_unless_somebody_said_otherwise() {
    let mut set = Set::new();
    set.limits.approve_plan = false;
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!((step.verdict, step.cost_micros), (StepVerdict::Pass, 9));
    assert_eq!(
        step.effects,
        [StepEffect::PlanUnits { units: one_unit().planned_units().to_vec() }]
    );
    // Whoever says nothing is asked.
    let step = Set::new().play(WorkflowStep::PlanSteps).await;
    assert_eq!(step.wait.map(|wait| wait.reason), Some(WaitReason::Approval));
    for (resolution, verdict) in [
        (WaitResolution::Approved, StepVerdict::Pass),
        (WaitResolution::Expired, StepVerdict::Fail),
    ] {
        let mut set = Set::new();
        set.state.plan = Some(one_unit());
        set.position.ended_wait = Some(EndedWait {
            reason: WaitReason::Approval,
            resolution,
            question: None,
            answer: None,
        });
        assert_eq!(set.play(WorkflowStep::PlanSteps).await.verdict, verdict);
    }
}

#[tokio::test]
async fn a_no_becomes_feedback_for_the_next_plan() {
    let mut set = Set::new();
    set.state.plan = Some(one_unit());
    set.position.ended_wait = Some(EndedWait {
        reason: WaitReason::Approval,
        resolution: WaitResolution::Rejected,
        question: None,
        answer: Some("smaller".into()),
    });
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(*set.mind.heard.lock().unwrap(), ["smaller"]);
    assert!(step.state.feedback.is_empty(), "the plan was made with it");
}

#[tokio::test]
async fn an_answer_is_kept_until_the_plan_is_made_with_it_also_when_more_is_said_meanwhile() {
    let said = EndedWait {
        reason: WaitReason::HumanInput,
        resolution: WaitResolution::Answered,
        question: Some("Which colour?".into()),
        answer: Some("Blue".into()),
    };
    kept_while_more_is_said(said, 1).await;
    let no = EndedWait {
        reason: WaitReason::Approval,
        resolution: WaitResolution::Rejected,
        question: None,
        answer: Some("Not like that".into()),
    };
    kept_while_more_is_said(no, 2).await;
}

async fn kept_while_more_is_said(said: EndedWait, remarks: usize) {
    let mut set = Set::new();
    set.position.ended_wait = Some(said.clone());
    let Set { task, position, state, limits, .. } = &set;
    let mind = &HandoffBackend;
    let asking =
        run_step(WorkflowStep::PlanSteps, &StepContext { task, position, state, limits, mind })
            .await;
    // The run waits for the plan, and is woken by something else.
    set.state = asking.state;
    set.state.feedback.push(cynode_core::workflow::plan::PlanFeedback {
        kind: cynode_core::workflow::instructions::InstructionKind::ExpandScope,
        text: "And the docs".into(),
    });
    set.position.ended_wait = None;
    let Set { task, position, state, limits, .. } = &set;
    let anew =
        run_step(WorkflowStep::PlanSteps, &StepContext { task, position, state, limits, mind })
            .await;
    let [StepEffect::HandOff { request, .. }] = anew.effects.as_slice() else { panic!("{anew:?}") };
    let HandoffRequest::Plan { feedback, answer, .. } = request.as_ref() else {
        panic!("{request:?}")
    };
    assert_eq!((feedback.len(), answer), (remarks, &Some(said)));
    set.state = anew.state;
    assert_eq!(set.play(WorkflowStep::PlanSteps).await.state.planning_answer, None);
}

#[tokio::test]
async fn a_unit_that_failed_is_not_begun_for_whoever_plans_anew() {
    let mut seen = Vec::new();
    for state in [UnitState::Failed, UnitState::Pending, UnitState::Dispatched, UnitState::Done] {
        let mut set = Set::unit(state, JobState::Failed, 1);
        set.state.attempts_by_step = BTreeMap::from([(key(), 1)]);
        set.play(WorkflowStep::PlanSteps).await;
        seen.push(set.mind.begun.lock().unwrap().clone());
    }
    assert_eq!(seen, [vec![], vec![key()], vec![key()], vec![key()]]);
}

#[tokio::test]
async fn a_question_waits_for_a_person() {
    let set = Set::new();
    *set.mind.plan.lock().unwrap() = vec![Ok(AgentReply::Ask("Which?".into(), 0))];
    let step = set.play(WorkflowStep::PlanSteps).await;
    let wait = step.wait.unwrap();
    assert_eq!((wait.reason, wait.question.as_deref()), (WaitReason::HumanInput, Some("Which?")));
}

#[tokio::test]
async fn ready_units_are_sent_with_what_was_found_about_them() {
    let mut set = Set::unit(UnitState::Pending, JobState::Failed, 1);
    let found = VerificationFinding::new(FindingSeverity::Major, "found");
    set.position.units[0].findings = vec![found.clone()];
    let step = set.play(WorkflowStep::DispatchStep).await;
    assert_eq!(step.verdict, StepVerdict::Pass);
    let remedy = json!({ "findings": [found] });
    let job =
        StepEffect::CreateJob { unit: key(), attempt: 2, remedy, work: None, timeout_seconds: 600 };
    assert_eq!(step.effects, [job]);
    assert_eq!(step.state.attempts_by_step, BTreeMap::from([(key(), 2)]));
}

#[tokio::test]
async fn when_all_is_done_the_task_is_finished_and_summed_up() {
    let set = Set::unit(UnitState::Done, JobState::Succeeded, 2);
    assert_eq!(set.play(WorkflowStep::DispatchStep).await.verdict, StepVerdict::Done);
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    assert_eq!(step.state.summary.as_deref(), Some("1 unit done:\n- a (2 attempts)"));
}

/// A unit that is done and left a commit.
fn brought() -> Set {
    let mut set = Set::unit(UnitState::Done, JobState::Succeeded, 1);
    set.position.units[0].job.as_mut().unwrap().result = Some(json!({ "commit": "abc" }));
    set
}

#[tokio::test]
async fn the_summary_names_the_pull_request() {
    let mut set = brought();
    let pull_request = Some(PullRequestRef { number: 7, url: "https://x/7".into() });
    let summary = RunSummary { text: "A toggle was added.".into(), pull_request };
    set.mind.summary = Some(Ok(AgentReply::Done(Some(summary), 5)));
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    let words = "A toggle was added.\n\n1 unit done:\n- a\n\nPull request #7: https://x/7";
    assert_eq!((step.verdict, step.state.summary.as_deref()), (StepVerdict::Pass, Some(words)));
}

#[tokio::test]
async fn the_summary_names_a_local_pull_request_without_the_path_of_the_api() {
    let mut set = brought();
    let pull_request = Some(PullRequestRef { number: 7, url: "/v1/pull-requests/pul_1".into() });
    let summary = RunSummary { text: "A toggle was added.".into(), pull_request };
    set.mind.summary = Some(Ok(AgentReply::Done(Some(summary), 5)));
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    let words = "A toggle was added.\n\n1 unit done:\n- a\n\nPull request #7";
    assert_eq!((step.verdict, step.state.summary.as_deref()), (StepVerdict::Pass, Some(words)));
}

#[tokio::test]
async fn what_cannot_be_delivered_waits_for_a_person_who_has_the_last_word() {
    let mut set = brought();
    let question = |step: &CheckpointDraft| {
        step.wait.clone().map(|wait| (wait.reason, wait.question.unwrap()))
    };
    set.mind.summary = Some(Ok(AgentReply::Ask("again, or end without?".into(), 5)));
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    let asked = (WaitReason::HumanInput, "again, or end without?".to_owned());
    assert_eq!(question(&step), Some(asked));
    // Also when nobody could even say why.
    set.mind.summary = Some(Err(StepError::Permanent("no model".into())));
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    let words = "What was done could not be delivered: no model\nAnswer `again` to try it once more, or `end without` to end the \
        task without a pull request.";
    assert_eq!(question(&step), Some((WaitReason::HumanInput, words.to_owned())));
    set.mind.summary = Some(Err(StepError::Transient("away".into())));
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    assert_eq!(step.wait.map(|wait| wait.reason), Some(WaitReason::Retry));
    let said = |words: &str| EndedWait {
        reason: WaitReason::HumanInput,
        resolution: WaitResolution::Answered,
        question: None,
        answer: Some(words.to_owned()),
    };
    set.position.ended_wait = Some(said("again"));
    assert_eq!(set.play(WorkflowStep::FinalizeSummary).await.verdict, StepVerdict::Wait);
    set.position.ended_wait = Some(said("End without"));
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    let words = "1 unit done:\n- a\n\nA person decided that it ends without a pull request.";
    assert_eq!((step.verdict, step.state.summary.as_deref()), (StepVerdict::Pass, Some(words)));
}

#[tokio::test]
async fn work_that_nobody_wants_delivered_ends_also_for_want_of_words() {
    let mut set = brought();
    set.mind.summary = Some(Err(StepError::Permanent("no model".into())));
    set.state.preferences_effective.insert("delivery.mode".parse().unwrap(), json!("none"));
    assert_eq!(set.play(WorkflowStep::FinalizeSummary).await.verdict, StepVerdict::Pass);
}

#[tokio::test]
async fn the_first_step_loads_the_context_of_the_task_into_the_state() {
    let mut set = Set::new();
    set.task.acceptance_criteria =
        vec![Criterion { text: "it holds".parse().unwrap(), check: None }];
    let step = set.play(WorkflowStep::FIRST).await;
    assert_eq!(step.state.acceptance_criteria, set.task.acceptance_criteria, "S002-24");
}

#[tokio::test]
async fn a_result_is_collected_a_failure_tried_again_and_silence_waited_for() {
    let set = Set::unit(UnitState::Dispatched, JobState::Succeeded, 1);
    let step = set.play(WorkflowStep::CollectResult).await;
    let collects = [StepEffect::CollectJob { unit: key(), attempt: 1 }];
    assert_eq!(step.effects, collects, "S002-27");
    assert_eq!(step.state.last_result.unwrap().output, json!({ "n": 1 }));

    let verdict = |job, attempt| async move {
        Set::unit(UnitState::Dispatched, job, attempt)
            .play(WorkflowStep::CollectResult)
            .await
            .verdict
    };
    assert_eq!(verdict(JobState::Failed, 1).await, StepVerdict::Redo, "B004-51, X-11");
    assert_eq!(verdict(JobState::Lost, 2).await, StepVerdict::Redo, "B004-51");
    assert_eq!(verdict(JobState::Failed, 3).await, StepVerdict::Fail, "B004-51");
    assert_eq!(verdict(JobState::Running, 1).await, StepVerdict::Wait);
    assert_eq!(
        Set::unit(UnitState::Done, JobState::Succeeded, 1)
            .play(WorkflowStep::CollectResult)
            .await
            .verdict,
        StepVerdict::Done
    );
}

#[tokio::test]
async fn what_the_project_manager_said_of_a_failure_is_used_though_another_result_has_come() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    let play = async |set: &Set| {
        let Set { task, position, state, limits, .. } = set;
        let mind = &HandoffBackend;
        run_step(WorkflowStep::CollectResult, &StepContext { task, position, state, limits, mind })
            .await
    };
    let asking = play(&set).await;
    let [StepEffect::HandOff { about, .. }] = asking.effects.as_slice() else {
        panic!("{asking:?}")
    };
    set.position.handoff = Some(answered_handoff(about));
    set.state = asking.state;
    let mut other = set.position.units[0].clone();
    other.key = "b".parse().unwrap();
    other.job.as_mut().unwrap().state = JobState::Succeeded;
    set.position.units.insert(0, other);
    let handoff_id = set.position.handoff.as_ref().unwrap().handoff_id;
    let why = "the job failed: {\"n\":1}";
    let findings = vec![VerificationFinding::new(FindingSeverity::Critical, why)];
    let step = play(&set).await;
    assert_eq!(
        step.effects,
        [
            StepEffect::TakeHandoff { handoff_id },
            StepEffect::RetryUnit { unit: key(), attempt: 1, findings },
        ]
    );
    assert_eq!(step.state.question_unit, None);
    // Then the other one.
    set.position.handoff = None;
    set.position.units.remove(1);
    set.state = step.state;
    let other = StepEffect::CollectJob { unit: "b".parse().unwrap(), attempt: 1 };
    assert_eq!(play(&set).await.effects, [other]);
}

#[tokio::test]
async fn less_is_planned_for_what_comes_to_nothing_only_so_often_and_then_a_person_is_asked() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    let play = async |set: &Set| {
        let Set { task, position, state, limits, .. } = set;
        let mind = &HandoffBackend;
        run_step(WorkflowStep::CollectResult, &StepContext { task, position, state, limits, mind })
            .await
    };
    let mut seen = Vec::new();
    for _ in 0..4 {
        set.position.handoff = None;
        let asking = play(&set).await;
        let [StepEffect::HandOff { about, .. }] = asking.effects.as_slice() else {
            panic!("{asking:?}")
        };
        let answer = HandoffAnswer::Decided {
            decision: FailureDecision::ReduceScope,
            note: "only the half".into(),
            by_person: false,
        };
        let handoff = RunHandoff { answer: Some(answer), ..answered_handoff(about) };
        set.position.handoff = Some(handoff);
        set.state = asking.state;
        let step = play(&set).await;
        seen.push((step.verdict, step.wait.and_then(|wait| wait.question)));
        set.state = step.state;
    }
    let question = "Unit `a` came to nothing in attempt 1: the job failed: {\"n\":1}\nLess was planned 3 times already. Answer `stop` to \
        give the task up, or say what is to be done otherwise: then it is tried again.";
    let less = (StepVerdict::Revise, None);
    let asked = (StepVerdict::Wait, Some(question.to_owned()));
    assert_eq!(seen, [less.clone(), less.clone(), less, asked]);
    assert_eq!(set.state.question_unit, Some(key()), "what a person answers is about this unit");
}

#[tokio::test]
async fn a_judgement_is_written_into_the_state_and_decides() {
    for (status, attempt, left, verdict) in [
        (VerificationStatus::Pass, 1, 2, StepVerdict::Pass),
        (VerificationStatus::Fail, 1, 2, StepVerdict::Redo),
        (VerificationStatus::Fail, 3, 0, StepVerdict::Fail),
    ] {
        let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, attempt);
        set.mind.judgement = Ok(status);
        set.state.last_result = Some(StepResult { unit: key(), attempt, output: Value::Null });
        let step = set.play(WorkflowStep::VerifyStepResult).await;
        assert_eq!(step.verdict, verdict, "S002-05, S002-33, S002-44: the step decides");
        assert_eq!(*set.mind.left.lock().unwrap(), [left]);
        let written = step.state.verification.unwrap();
        let found = (written.status, written.findings.len());
        assert_eq!(found, (status, 1), "S002-33, S002-44: findings are in the state");
        assert_eq!(step.effects.len(), 1);
    }
    let set = Set::new();
    assert_eq!(
        set.play(WorkflowStep::VerifyStepResult).await.verdict,
        StepVerdict::Fail,
        "there is no result"
    );
}

/// A plan of one unit with a check of its own, and a criterion with one.
fn checked(set: &mut Set) -> [EvidenceCheck; 2] {
    let (own, task) = (
        EvidenceCheck::from_shell_line("make test"),
        EvidenceCheck::new(vec!["./holds.sh".into()]),
    );
    let unit = PlannedUnit {
        payload: json!({ "kind": "implementation", "checks": [own] }),
        ..one_unit().planned_units()[0].clone()
    };
    let text = PlanText { steps: vec![unit], assumptions: Vec::new() };
    set.state.plan = Some(Plan::try_from(text).unwrap());
    set.state.acceptance_criteria =
        vec![Criterion { text: "it holds".parse().unwrap(), check: Some(task.clone()) }];
    let result = json!({ "commit": "c".repeat(40), "base": "b".repeat(40), "anomalies": [] });
    set.position.units[0].job.as_mut().unwrap().result = Some(result.clone());
    set.state.last_result = Some(StepResult { unit: key(), attempt: 1, output: result });
    [own, task]
}

fn view(checks: &[EvidenceCheck], state: EvidenceState, tally: CheckTally) -> EvidenceView {
    let of = |check: &EvidenceCheck| CheckResult {
        check: check.clone(),
        tally,
        rounds: 1,
        exit_code: Some(1),
        sha256: String::new(),
        excerpt: "no".into(),
        milliseconds: 1,
        repeated: false,
        tests: None,
    };
    EvidenceView {
        evidence_id: "evd_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
        unit: key(),
        attempt: 1,
        commit: Some("c".repeat(40)),
        state,
        stale: false,
        checks: checks.iter().map(of).collect(),
        waived: None,
        error: (state == EvidenceState::Unable).then(|| "no sandbox".into()),
        attempts: 1,
        opened_at: time::OffsetDateTime::UNIX_EPOCH,
        ended_at: None,
    }
}

#[tokio::test]
async fn a_result_is_checked_before_it_is_judged_by_its_own_checks_and_those_of_the_task() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Succeeded, 1);
    let checks = checked(&mut set);
    let gathers = StepEffect::GatherEvidence {
        unit: key(),
        attempt: 1,
        checks: checks.to_vec(),
        timeout_seconds: 600,
        rerun: false,
    };
    let step = set.play(WorkflowStep::CollectResult).await;
    assert_eq!(step.wait.map(|wait| wait.reason), Some(WaitReason::Job));
    assert_eq!(step.effects, std::slice::from_ref(&gathers));

    set.position.evidence = vec![view(&checks, EvidenceState::Gathering, CheckTally::Again)];
    let step = set.play(WorkflowStep::CollectResult).await;
    assert_eq!((step.wait.map(|wait| wait.reason), step.effects), (Some(WaitReason::Job), vec![]));

    // What came to nothing is begun anew; what lacks a check is asked for again.
    for known in [
        view(&checks, EvidenceState::Unable, CheckTally::Again),
        view(&checks[..1], EvidenceState::Passed, CheckTally::Passed),
    ] {
        set.position.evidence = vec![known];
        assert_eq!(
            set.play(WorkflowStep::CollectResult).await.effects,
            std::slice::from_ref(&gathers)
        );
    }

    set.position.evidence = vec![view(&checks, EvidenceState::Failed, CheckTally::Failed)];
    let step = set.play(WorkflowStep::CollectResult).await;
    assert_eq!(step.effects, [StepEffect::CollectJob { unit: key(), attempt: 1 }]);
}

#[tokio::test]
async fn a_person_takes_what_they_were_shown_of_what_is_odd() {
    let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, 1);
    let anomalies: Vec<ChangeAnomaly> = (0..12)
        .map(|number| ChangeAnomaly::TestRemoved { path: format!("tests/t{number}.py") })
        .collect();
    let output = json!({ "commit": "c".repeat(40), "anomalies": anomalies });
    set.state.last_result = Some(StepResult { unit: key(), attempt: 1, output });
    let person = Some("a person took it".to_owned());
    for (waived, shown) in [(None, &[][..]), (person, &anomalies[..10])] {
        set.mind.waived.clone_from(&waived);
        let accept = StepEffect::AcceptUnit {
            unit: key(),
            attempt: 1,
            findings: vec![VerificationFinding::new(FindingSeverity::Major, "found")],
            by_person: waived.is_some(),
            waived,
            shown_anomalies: shown.to_vec(),
        };
        assert_eq!(set.play(WorkflowStep::VerifyStepResult).await.effects, [accept]);
    }
}

#[tokio::test]
async fn tests_that_are_put_back_are_no_part_of_the_state() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Succeeded, 1);
    let result = json!({ "commit": "c", "anomalies": [], "restored_tests": ["tests/sum.py"] });
    set.position.units[0].job.as_mut().unwrap().result = Some(result);
    let output = json!({ "commit": "c", "anomalies": [] });
    let kept = StepResult { unit: key(), attempt: 1, output };
    assert_eq!(set.play(WorkflowStep::CollectResult).await.state.last_result, Some(kept));
}

#[tokio::test]
async fn checks_that_cannot_be_run_time_and_again_end_the_task_with_the_reason() {
    let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, 1);
    let checks = checked(&mut set);
    let unable = view(&checks, EvidenceState::Unable, CheckTally::Again);
    set.position.evidence = vec![EvidenceView { attempts: 5, ..unable }];
    let step = set.play(WorkflowStep::VerifyStepResult).await;
    let why = "Verify Step Result: the checks could not be run 5 times: no sandbox";
    assert_eq!((step.verdict, step.note.as_deref()), (StepVerdict::Fail, Some(why)));
}

#[tokio::test]
async fn what_a_task_leaves_is_checked_in_the_end_even_if_nobody_did_before() {
    let mut set = Set::unit(UnitState::Done, JobState::Succeeded, 1);
    let checks = checked(&mut set);
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    assert!(matches!(step.effects.as_slice(), [StepEffect::GatherEvidence { .. }]), "{step:?}");
    set.position.evidence = vec![view(&checks, EvidenceState::Failed, CheckTally::Failed)];
    let step = set.play(WorkflowStep::FinalizeSummary).await;
    assert_eq!(step.verdict, StepVerdict::Revise);
    let sent_back =
        cynode_wire::manager::handoffs::PlanRevision::from_feedback(&step.state.feedback[0])
            .unwrap();
    assert_eq!((sent_back.unit, sent_back.findings.len()), (key(), 2));
    // Taken by a person as it is, it is not asked again.
    let waived = view(&checks, EvidenceState::Failed, CheckTally::Failed);
    set.position.evidence = vec![EvidenceView { waived: Some("a person".into()), ..waived }];
    assert_eq!(set.play(WorkflowStep::FinalizeSummary).await.verdict, StepVerdict::Pass);
    set.position.evidence = vec![view(&checks, EvidenceState::Passed, CheckTally::Passed)];
    assert_eq!(set.play(WorkflowStep::FinalizeSummary).await.verdict, StepVerdict::Pass);
}

#[tokio::test]
async fn changes_that_do_not_fit_together_go_back_to_planning_with_the_units_and_files() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    let conflict = json!({ "commit": "d", "merged_commits": [], "files": ["a.rs"], "unit": "right", "merged_units": ["left"] });
    set.position.units[0].job.as_mut().unwrap().result =
        Some(json!({ "stop_reason": "conflict", "conflict": conflict }));
    let step = set.play(WorkflowStep::CollectResult).await;
    assert_eq!(step.verdict, StepVerdict::Revise);
    let sent_back =
        cynode_wire::manager::handoffs::PlanRevision::from_feedback(&step.state.feedback[0])
            .unwrap();
    let meant = cynode_wire::manager::handoffs::UnitsConflict {
        unit: "right".parse().unwrap(),
        merged_units: vec!["left".parse().unwrap()],
        files: vec!["a.rs".into()],
    };
    assert_eq!(sent_back.conflict, Some(meant));
}

#[tokio::test]
async fn an_answer_about_one_unit_is_not_taken_for_another() {
    let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, 1);
    let result = json!({ "n": 1 });
    set.state.last_result = Some(StepResult { unit: key(), attempt: 1, output: result });
    let (reason, answer) = (WaitReason::HumanInput, Some("proceed".to_owned()));
    let (resolution, question) = (WaitResolution::Answered, None);
    set.position.ended_wait =
        Some(EndedWait { reason, resolution, question, answer: answer.clone() });
    for (asked, heard) in [(Some("a"), answer.clone()), (Some("b"), None), (None, answer)] {
        set.state.question_unit = asked.map(|key| key.parse().unwrap());
        let Set { task, position, state, limits, mind } = &set;
        let scene = StepContext { task, position, state, limits, mind };
        let told = unit_answer(&scene, &key()).and_then(|wait| wait.answer.clone());
        assert_eq!(told, heard, "{asked:?}");
    }
}

#[test]
fn work_that_may_not_end_yet_is_not_given_up_but_asked_about() {
    let state = RunState { summary: Some("all of it".into()), ..RunState::default() };
    let why = "nothing shows that `make test` holds";
    let steps = refusal_fallbacks(WorkflowStep::FinalizeSummary, 422, &state, None, why);
    let [asked, given_up] = steps.as_slice() else { panic!("{steps:?}") };
    let wait = asked.wait.as_ref().unwrap();
    assert_eq!((asked.verdict, wait.reason), (StepVerdict::Wait, WaitReason::HumanInput));
    assert_eq!(asked.state, state);
    let question = wait.question.as_deref().unwrap();
    assert!(question.contains(why) && question.contains("`again`"), "{question}");
    assert_eq!(given_up.verdict, StepVerdict::Fail);
    // What can never be stored, and what fails in the middle, is given up.
    for (node, status) in
        [(WorkflowStep::FinalizeSummary, 413), (WorkflowStep::VerifyStepResult, 422)]
    {
        let steps = refusal_fallbacks(node, status, &state, None, why);
        let verdicts: Vec<_> = steps.iter().map(|step| step.verdict).collect();
        assert_eq!(verdicts, [StepVerdict::Fail]);
    }
}

#[test]
fn whoever_asks_why_the_task_may_not_end_takes_the_answer_that_did_not_lead_there() {
    let handoff = answered_handoff("summarise:1");
    let state = RunState::default();
    let steps = refusal_fallbacks(
        WorkflowStep::FinalizeSummary,
        422,
        &state,
        Some(&handoff),
        "not delivered",
    );
    let effects: Vec<_> = steps.iter().map(|step| step.effects.clone()).collect();
    let taken = vec![StepEffect::TakeHandoff { handoff_id: handoff.handoff_id }];
    assert_eq!(effects, [taken, Vec::new()]);
}

/// What checks came to before any change.
fn base(of: &[(&EvidenceCheck, i32, &str)], state: EvidenceState) -> BaseChecks {
    let result = |(check, code, output): &(&EvidenceCheck, i32, &str)| BaseCheckResult {
        check: (*check).clone(),
        outcome: classify_base_run(check, *code == 0, Some(*code), output),
        exit_code: Some(*code),
        excerpt: (*output).to_owned(),
        milliseconds: 1,
        tests: None,
    };
    BaseChecks {
        commit: Some("c".repeat(40)),
        state,
        unclaimed: false,
        checks: of.iter().map(result).collect(),
        error: None,
        attempts: 1,
        opened_at: time::OffsetDateTime::UNIX_EPOCH,
        ended_at: None,
    }
}

/// Planning is about to be done, with a check of the plan and one of the task.
fn to_be_planned() -> (Set, [EvidenceCheck; 2]) {
    let mut planned = Set::unit(UnitState::Pending, JobState::Queued, 0);
    let [own, task] = checked(&mut planned);
    let mut set = Set::new();
    set.limits.approve_plan = true;
    set.state.acceptance_criteria = planned.state.acceptance_criteria;
    *set.mind.plan.lock().unwrap() = vec![Ok(AgentReply::Done(planned.state.plan.unwrap(), 9))];
    (set, [task, own])
}

/// Planning is done, and what the checks came to is known.
async fn tried(results: &[(i32, &str)]) -> (Set, [EvidenceCheck; 2]) {
    let (mut set, checks) = to_be_planned();
    set.state = set.play(WorkflowStep::PlanSteps).await.state;
    let all: Vec<_> =
        checks.iter().zip(results).map(|(check, (code, output))| (check, *code, *output)).collect();
    set.position.base_checks = Some(base(&all, EvidenceState::Failed));
    (set, checks)
}

fn asked_of(step: &CheckpointDraft) -> (Option<WaitReason>, String) {
    let wait = step.wait.as_ref();
    let question = wait.and_then(|wait| wait.question.clone()).unwrap_or_default();
    (wait.map(|wait| wait.reason), question)
}

fn answered_with(set: &mut Set, words: &str) {
    let (reason, resolution) = (WaitReason::HumanInput, WaitResolution::Answered);
    let answer = Some(words.to_owned());
    set.position.ended_wait = Some(EndedWait { reason, resolution, question: None, answer });
}

#[tokio::test]
async fn checks_are_tried_before_anybody_is_asked_about_the_plan_and_no_model_is_asked_for_it() {
    let (mut set, checks) = to_be_planned();
    let step = set.play(WorkflowStep::PlanSteps).await;
    let [StepEffect::PlanUnits { .. }, StepEffect::TryChecks { checks: sent }] =
        step.effects.as_slice()
    else {
        panic!("{step:?}")
    };
    assert_eq!((sent.as_slice(), step.cost_micros), (&checks[..], 9));
    assert_eq!(asked_of(&step).0, Some(WaitReason::Job));
    set.state = step.state;
    // Nobody plans again: the mind has no further plan to give.
    set.position.base_checks = Some(base(&[], EvidenceState::Gathering));
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!((asked_of(&step).0, step.effects), (Some(WaitReason::Job), vec![]));
    let known = base(&[(&checks[0], 1, "no"), (&checks[1], 0, "")], EvidenceState::Failed);
    set.position.base_checks = Some(known);
    let step = set.play(WorkflowStep::PlanSteps).await;
    let question = "May the plan of 1 unit be carried out?\n\
        - `./holds.sh` fails before any change (exit code 1): the work has to make it pass\n\
        - `make test` passes before any change";
    assert_eq!(asked_of(&step), (Some(WaitReason::Approval), question.to_owned()));
    // Without a yes to ask for it goes on, and says so.
    set.state.check_trial.as_mut().unwrap().approve_plan = false;
    let step = set.play(WorkflowStep::PlanSteps).await;
    let note = "checks before any change: 1 pass, 1 fail";
    assert_eq!((step.verdict, step.note.as_deref()), (StepVerdict::Pass, Some(note)));
}

#[tokio::test]
async fn checks_are_not_tried_where_nobody_wants_it_or_work_has_begun() {
    let (mut set, _) = to_be_planned();
    set.limits.try_checks = false;
    assert_eq!(asked_of(&set.play(WorkflowStep::PlanSteps).await).0, Some(WaitReason::Approval));
    let (mut set, _) = to_be_planned();
    set.state.attempts_by_step = BTreeMap::from([(key(), 1)]);
    assert_eq!(asked_of(&set.play(WorkflowStep::PlanSteps).await).0, Some(WaitReason::Approval));
}

#[tokio::test]
async fn a_check_that_cannot_run_here_is_put_before_a_person_once() {
    let missing = (127, "sh: 1: pytest: not found");
    let (mut set, checks) = tried(&[(0, ""), missing]).await;
    let step = set.play(WorkflowStep::PlanSteps).await;
    let question = "Before any agent works, the checks were tried on commit cccccccccc:\n\
        - `make test` cannot run here: program `pytest` is not found (exit code 127). Install it on the node, name its directory \
        with `show` in node.toml, and put it on the PATH of the check: `PATH=/opt/DIRECTORY/bin:$PATH make test`.\n\
        - `./holds.sh` passes before any change\n\
        Answer `again` when it can run, `go on` to go on with it as planned, `check: COMMAND` to have COMMAND checked in place of it, \
        or `stop` to give the task up.";
    assert_eq!(asked_of(&step), (Some(WaitReason::HumanInput), question.to_owned()));
    set.state = step.state;

    answered_with(&mut set, "again");
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(step.effects, [StepEffect::TryChecks { checks: checks.to_vec() }]);

    answered_with(&mut set, "well, perhaps");
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert!(asked_of(&step).1.starts_with("`well, perhaps` is none of the answers.\n"), "{step:?}");

    answered_with(&mut set, "stop");
    assert_eq!(set.play(WorkflowStep::PlanSteps).await.verdict, StepVerdict::Fail);

    answered_with(&mut set, "Go on.");
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(asked_of(&step).0, Some(WaitReason::Approval));
    // A plan that is made anew does not ask once more.
    let mut again = to_be_planned().0;
    again.state.check_trial = step.state.check_trial;
    again.position.base_checks = set.position.base_checks;
    assert_eq!(asked_of(&again.play(WorkflowStep::PlanSteps).await).0, Some(WaitReason::Approval));
}

#[tokio::test]
async fn a_person_may_name_another_check_for_one_that_cannot_run() {
    let missing = (127, "sh: 1: pytest: not found");
    let (mut set, [task, own]) = tried(&[(0, ""), missing]).await;
    let new = EvidenceCheck::from_shell_line("PATH=/opt/venv/bin:$PATH pytest");
    answered_with(&mut set, "check: PATH=/opt/venv/bin:$PATH pytest");
    let step = set.play(WorkflowStep::PlanSteps).await;
    let [StepEffect::PlanUnits { units }, StepEffect::TryChecks { checks }] =
        step.effects.as_slice()
    else {
        panic!("{step:?}")
    };
    assert_eq!(units[0].payload["checks"], json!([new]));
    assert_eq!(*checks, [task.clone(), new.clone()]);

    let all = [(&task, 127, "./holds.sh: 1: nope: not found"), (&own, 0, "")];
    set.position.base_checks = Some(base(&all, EvidenceState::Failed));
    let step = set.play(WorkflowStep::PlanSteps).await;
    let [StepEffect::SetCriteria { criteria }, StepEffect::TryChecks { .. }] =
        step.effects.as_slice()
    else {
        panic!("{step:?}")
    };
    assert_eq!(criteria[0].check, Some(new));
}

#[tokio::test]
async fn checks_that_count_only_where_they_run_are_not_asked_about() {
    let (mut set, _) = to_be_planned();
    set.state.acceptance_criteria.clear();
    let own = EvidenceCheck { if_runnable: true, ..EvidenceCheck::from_shell_line("ruff check") };
    let unit = PlannedUnit {
        payload: json!({ "kind": "implementation", "checks": [own] }),
        ..one_unit().planned_units()[0].clone()
    };
    let text = PlanText { steps: vec![unit], assumptions: Vec::new() };
    *set.mind.plan.lock().unwrap() = vec![Ok(AgentReply::Done(Plan::try_from(text).unwrap(), 9))];
    let known = base(&[(&own, 127, "sh: 1: ruff: not found")], EvidenceState::Failed);
    set.position.base_checks = Some(known);
    let (reason, question) = asked_of(&set.play(WorkflowStep::PlanSteps).await);
    assert_eq!(reason, Some(WaitReason::Approval));
    assert!(question.contains("`ruff check` cannot run here"), "{question}");
}

#[tokio::test]
async fn without_a_node_the_plan_goes_on_and_says_that_nothing_was_tried() {
    let (mut set, checks) = tried(&[(0, ""), (0, "")]).await;
    let waits = base(&[(&checks[0], 0, "")], EvidenceState::Gathering);
    set.position.base_checks = Some(BaseChecks { unclaimed: true, ..waits.clone() });
    let step = set.play(WorkflowStep::PlanSteps).await;
    let question = "May the plan of 1 unit be carried out?\n\
        - the checks could not be tried before the work: no node took the job within 60 s";
    assert_eq!(asked_of(&step), (Some(WaitReason::Approval), question.to_owned()));
    assert_eq!(step.effects, [StepEffect::SkipChecks]);
    // A node that is not heard of any more is no reason yet: another may try.
    let lost = BaseChecks {
        state: EvidenceState::Unable,
        error: Some("nothing was heard of the node any more".into()),
        ..waits
    };
    set.position.base_checks = Some(lost.clone());
    assert_eq!(asked_of(&set.play(WorkflowStep::PlanSteps).await).0, Some(WaitReason::Job));
    set.position.base_checks = Some(BaseChecks { attempts: 2, ..lost });
    assert_eq!(asked_of(&set.play(WorkflowStep::PlanSteps).await).0, Some(WaitReason::Approval));
}

#[tokio::test]
async fn what_a_person_says_while_checks_are_tried_is_planned_with() {
    let (mut set, _) = to_be_planned();
    set.state = set.play(WorkflowStep::PlanSteps).await.state;
    *set.mind.plan.lock().unwrap() = vec![Ok(AgentReply::Done(one_unit(), 9))];
    let kind = cynode_core::workflow::instructions::InstructionKind::Revise;
    set.state.feedback =
        vec![cynode_core::workflow::plan::PlanFeedback { kind, text: "smaller".to_owned() }];
    set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(*set.mind.heard.lock().unwrap(), ["smaller"]);
}

#[tokio::test]
async fn a_check_that_could_not_run_is_run_again_when_a_person_has_mended_the_machine() {
    let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, 1);
    let checks = checked(&mut set);
    let mut known = view(&checks, EvidenceState::Failed, CheckTally::Failed);
    known.checks[0].exit_code = Some(127);
    known.checks[0].excerpt = "sh: 1: make: not found".into();
    set.position.evidence = vec![known];
    set.state.question_unit = Some(key());
    answered_with(&mut set, "again");
    let again = StepEffect::GatherEvidence {
        unit: key(),
        attempt: 1,
        checks: checks.to_vec(),
        timeout_seconds: 600,
        rerun: true,
    };
    assert_eq!(set.play(WorkflowStep::VerifyStepResult).await.effects, [again]);
    // At the end the work is not sent back for it either.
    set.position.units[0].state = UnitState::Done;
    set.position.ended_wait = None;
    let (reason, question) = asked_of(&set.play(WorkflowStep::FinalizeSummary).await);
    assert_eq!(reason, Some(WaitReason::HumanInput));
    assert!(
        question.starts_with("`make test` cannot run here: program `make` is not found."),
        "{question}"
    );
}
