use std::{collections::BTreeMap, sync::Mutex};

use cynode_core::{
    evidence::{Check, Odd, Tally},
    ids::{RunId, TaskId},
    tasks::Criterion,
    workflow::{
        plan::{Plan, PlanText, PlannedUnit},
        units::{JobState, UnitState},
        waits::WaitReason,
    },
};
use cynode_wire::evidence::{CheckResult, EvidenceState, EvidenceView};
use cynode_wire::workflow::{
    EndedWait, Finding, NextStep, Resolution, Severity, StepResult, UnitJob, UnitView,
    VerificationStatus,
};
use cynode_wire::{
    delivery::PullRequestRef,
    handoffs::{FailureDecision, HandoffAnswer, JudgedOutcome},
};
use serde_json::{Value, json};

use super::*;
use crate::handed::Manager;
use crate::mind::{
    Judgement, PlanRequest, Reply, Summary, SummaryRequest, Thinking, VerifyRequest,
};

/// A mind that says what it is told to.
struct Told {
    plan: Mutex<Vec<Result<Reply<Plan>, NodeError>>>,
    judgement: Result<VerificationStatus, NodeError>,
    slow: bool,
    /// Why a person takes it as it is.
    waived: Option<String>,
    heard: Mutex<Vec<String>>,
    /// What it was told is begun.
    begun: Mutex<Vec<UnitKey>>,
    /// How many attempts it was told are left.
    left: Mutex<Vec<u32>>,
    summary: Option<Result<Reply<Option<Summary>>, NodeError>>,
}

impl Mind for Told {
    fn summarise<'a>(&'a self, _: SummaryRequest<'a>) -> Thinking<'a, Option<Summary>> {
        Box::pin(async { self.summary.clone().unwrap_or(Ok(Reply::Done(None, 0))) })
    }

    fn plan<'a>(&'a self, request: PlanRequest<'a>) -> Thinking<'a, Plan> {
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

    fn verify<'a>(&'a self, request: VerifyRequest<'a>) -> Thinking<'a, Judgement> {
        Box::pin(async move {
            self.left.lock().unwrap().push(request.attempts_left);
            let outcome = match self.judgement.clone()? {
                VerificationStatus::Pass => JudgedOutcome::Accept,
                VerificationStatus::Fail | VerificationStatus::NeedsClarification => {
                    JudgedOutcome::Redo
                }
            };
            let findings = vec![Finding::new(Severity::Major, "found")];
            let (recommended_actions, note) = (Vec::new(), String::new());
            let (waived, by_person) = (self.waived.clone(), self.waived.is_some());
            let judgement =
                Judgement { outcome, findings, recommended_actions, note, by_person, waived };
            Ok(Reply::Done(judgement, 3))
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
    position: Position,
    state: RunState,
    limits: Limits,
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
        };
        let position = Position {
            evidence: Vec::new(),
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
            plan: Mutex::new(vec![Ok(Reply::Done(one_unit(), 9))]),
            judgement: Ok(VerificationStatus::Pass),
            slow: false,
            waived: None,
            heard: Mutex::default(),
            begun: Mutex::default(),
            left: Mutex::default(),
            summary: None,
        };
        Self { task, position, state: RunState::default(), limits: Limits::default(), mind }
    }

    fn planning(error: NodeError) -> Self {
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

    async fn play(&self, node: Node) -> Step {
        let Self { task, position, state, limits, mind } = self;
        run(node, &Scene { task, position, state, limits, mind }).await
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
        let mut set = Set::planning(NodeError::Transient("the model is away".into()));
        set.state.node_failures = failures;
        let step = set.play(Node::PlanSteps).await;
        seen.push((step.verdict, step.wait.as_ref().and_then(|wait| wait.wake_in_ms)));
        assert_eq!(step.state.node_failures, failures + 1);
    }
    let expected =
        [(Verdict::Wait, Some(1000)), (Verdict::Wait, Some(2000)), (Verdict::Fail, None)];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_is_asked_for_again_at_once() {
    let set = Set::planning(NodeError::Domain("not a plan".into()));
    let step = set.play(Node::PlanSteps).await;
    assert_eq!(step.wait, Some(NewWait { wake_in_ms: Some(0), ..waiting(WaitReason::Retry) }));
    assert_eq!(step.note.as_deref(), Some("Plan Steps: not a plan"));
}

#[tokio::test]
async fn a_failure_that_will_not_pass_ends_the_task_with_its_reason() {
    let set = Set::planning(NodeError::Permanent("no such repository".into()));
    let step = set.play(Node::PlanSteps).await;
    assert_eq!(step.verdict, Verdict::Fail);
    let mut last = Set::new();
    last.state = step.state;
    let end = last.play(Node::MarkFailed).await;
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
        let mind = &Manager;
        run(Node::VerifyStepResult, &Scene { task, position, state, limits, mind }).await
    };
    let asking = play(&set).await;
    let [Effect::HandOff { about, request }] = asking.effects.as_slice() else {
        panic!("{asking:?}")
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
    let wait = NewWait { question: Some(question.to_owned()), ..waiting(WaitReason::HumanInput) };
    assert_eq!((step.verdict, step.wait), (Verdict::Wait, Some(wait)));
    assert_eq!(step.effects, [Effect::TakeHandoff { handoff_id }]);
    set.position.handoff = None;
    set.state = step.state;
    let said = |words: &str| EndedWait {
        reason: WaitReason::HumanInput,
        resolution: Resolution::Answered,
        question: Some(question.to_owned()),
        answer: Some(words.to_owned()),
    };
    // The same is asked once more: what the person said is about no result.
    set.position.ended_wait = Some(said("again"));
    let again = play(&set).await;
    let request = request.clone();
    assert_eq!(again.effects, [Effect::HandOff { about: about.clone(), request }]);
    assert!(!again.state.undecided);
    set.position.ended_wait = Some(said("Stop."));
    let step = play(&set).await;
    let why = "Verify Step Result: a person gave it up";
    assert_eq!((step.verdict, step.note.as_deref()), (Verdict::Fail, Some(why)));
}

#[tokio::test]
async fn a_planners_question_that_is_answered_with_stop_ends_the_task() {
    let mut set = Set::new();
    set.position.ended_wait = Some(EndedWait {
        reason: WaitReason::HumanInput,
        resolution: Resolution::Answered,
        question: Some("Which?".into()),
        answer: Some("stop".into()),
    });
    let step = set.play(Node::PlanSteps).await;
    assert_eq!((step.verdict, step.note.as_deref()), (Verdict::Fail, Some("a person gave it up")));
}

#[tokio::test]
async fn a_node_that_takes_too_long_is_a_failure_that_may_pass() {
    let mut set = Set::new();
    set.mind.slow = true;
    let preference = ("workflow.node_timeouts.plan_steps".parse().unwrap(), json!(1));
    set.limits = Limits::read(&BTreeMap::from([preference])).0;
    let step = set.play(Node::PlanSteps).await;
    assert_eq!(step.wait.map(|wait| wait.reason), Some(WaitReason::Retry));
    assert_eq!(step.note.as_deref(), Some("Plan Steps: Plan Steps took longer than 1s"));
}

#[tokio::test]
async fn the_retries_of_a_whole_task_are_bounded_too() {
    let mut set = Set::planning(NodeError::Transient("away".into()));
    set.position.retries_used = set.limits.retry_budget;
    assert_eq!(set.play(Node::PlanSteps).await.verdict, Verdict::Fail);
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    set.position.retries_used = set.limits.retry_budget;
    assert_eq!(set.play(Node::CollectResult).await.verdict, Verdict::Fail);
}

#[tokio::test]
async fn without_a_project_manager_a_run_waits_for_one() {
    let set = Set::planning(NodeError::Unattended);
    let step = set.play(Node::PlanSteps).await;
    assert_eq!(
        step.wait.map(|wait| (wait.reason, wait.wake_in_ms)),
        Some((WaitReason::Agent, Some(UNATTENDED_MS)))
    );
    assert_eq!(step.state.node_failures, 0);
}

#[tokio::test]
async fn a_plan_is_stored_and_waits_for_a_yes_only_where_one_is_wanted() {
    let mut set = Set::new();
    let step = set.play(Node::PlanSteps).await;
    assert_eq!((step.verdict, step.cost_micros), (Verdict::Pass, 9));
    assert_eq!(step.effects, [Effect::PlanUnits { units: one_unit().steps().to_vec() }]);
    set = Set::new();
    set.limits.approve_plan = true;
    let step = set.play(Node::PlanSteps).await;
    assert_eq!(step.wait.map(|wait| wait.reason), Some(WaitReason::Approval));
    for (resolution, verdict) in
        [(Resolution::Approved, Verdict::Pass), (Resolution::Expired, Verdict::Fail)]
    {
        let mut set = Set::new();
        set.limits.approve_plan = true;
        set.state.plan = Some(one_unit());
        set.position.ended_wait = Some(EndedWait {
            reason: WaitReason::Approval,
            resolution,
            question: None,
            answer: None,
        });
        assert_eq!(set.play(Node::PlanSteps).await.verdict, verdict);
    }
}

#[tokio::test]
async fn a_no_becomes_feedback_for_the_next_plan() {
    let mut set = Set::new();
    set.state.plan = Some(one_unit());
    set.position.ended_wait = Some(EndedWait {
        reason: WaitReason::Approval,
        resolution: Resolution::Rejected,
        question: None,
        answer: Some("smaller".into()),
    });
    let step = set.play(Node::PlanSteps).await;
    assert_eq!(*set.mind.heard.lock().unwrap(), ["smaller"]);
    assert!(step.state.feedback.is_empty(), "the plan was made with it");
}

#[tokio::test]
async fn an_answer_is_kept_until_the_plan_is_made_with_it_also_when_more_is_said_meanwhile() {
    let said = EndedWait {
        reason: WaitReason::HumanInput,
        resolution: Resolution::Answered,
        question: Some("Which colour?".into()),
        answer: Some("Blue".into()),
    };
    kept_while_more_is_said(said, 1).await;
    let no = EndedWait {
        reason: WaitReason::Approval,
        resolution: Resolution::Rejected,
        question: None,
        answer: Some("Not like that".into()),
    };
    kept_while_more_is_said(no, 2).await;
}

async fn kept_while_more_is_said(said: EndedWait, remarks: usize) {
    let mut set = Set::new();
    set.position.ended_wait = Some(said.clone());
    let Set { task, position, state, limits, .. } = &set;
    let mind = &Manager;
    let asking = run(Node::PlanSteps, &Scene { task, position, state, limits, mind }).await;
    // The run waits for the plan, and is woken by something else.
    set.state = asking.state;
    set.state.feedback.push(cynode_wire::workflow::Feedback {
        kind: cynode_core::workflow::instructions::InstructionKind::ExpandScope,
        text: "And the docs".into(),
    });
    set.position.ended_wait = None;
    let Set { task, position, state, limits, .. } = &set;
    let anew = run(Node::PlanSteps, &Scene { task, position, state, limits, mind }).await;
    let [Effect::HandOff { request, .. }] = anew.effects.as_slice() else { panic!("{anew:?}") };
    let HandoffRequest::Plan { feedback, answer, .. } = request.as_ref() else {
        panic!("{request:?}")
    };
    assert_eq!((feedback.len(), answer), (remarks, &Some(said)));
    set.state = anew.state;
    assert_eq!(set.play(Node::PlanSteps).await.state.answered, None);
}

#[tokio::test]
async fn a_unit_that_failed_is_not_begun_for_whoever_plans_anew() {
    let mut seen = Vec::new();
    for state in [UnitState::Failed, UnitState::Pending, UnitState::Dispatched, UnitState::Done] {
        let mut set = Set::unit(state, JobState::Failed, 1);
        set.state.attempts_by_step = BTreeMap::from([(key(), 1)]);
        set.play(Node::PlanSteps).await;
        seen.push(set.mind.begun.lock().unwrap().clone());
    }
    assert_eq!(seen, [vec![], vec![key()], vec![key()], vec![key()]]);
}

#[tokio::test]
async fn a_question_waits_for_a_person() {
    let set = Set::new();
    *set.mind.plan.lock().unwrap() = vec![Ok(Reply::Ask("Which?".into(), 0))];
    let step = set.play(Node::PlanSteps).await;
    let wait = step.wait.unwrap();
    assert_eq!((wait.reason, wait.question.as_deref()), (WaitReason::HumanInput, Some("Which?")));
}

#[tokio::test]
async fn ready_units_are_sent_with_what_was_found_about_them() {
    let mut set = Set::unit(UnitState::Pending, JobState::Failed, 1);
    let found = Finding::new(Severity::Major, "found");
    set.position.units[0].findings = vec![found.clone()];
    let step = set.play(Node::DispatchStep).await;
    assert_eq!(step.verdict, Verdict::Pass);
    let remedy = json!({ "findings": [found] });
    let job =
        Effect::CreateJob { unit: key(), attempt: 2, remedy, work: None, timeout_seconds: 600 };
    assert_eq!(step.effects, [job]);
    assert_eq!(step.state.attempts_by_step, BTreeMap::from([(key(), 2)]));
}

#[tokio::test]
async fn when_all_is_done_the_task_is_finished_and_summed_up() {
    let set = Set::unit(UnitState::Done, JobState::Succeeded, 2);
    assert_eq!(set.play(Node::DispatchStep).await.verdict, Verdict::Done);
    let step = set.play(Node::FinalizeSummary).await;
    assert_eq!(step.state.summary.as_deref(), Some("1 units done:\n- a (2 attempts)"));
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
    let summary = Summary { text: "A toggle was added.".into(), pull_request };
    set.mind.summary = Some(Ok(Reply::Done(Some(summary), 5)));
    let step = set.play(Node::FinalizeSummary).await;
    let words = "A toggle was added.\n\n1 units done:\n- a\n\nPull request #7: https://x/7";
    assert_eq!((step.verdict, step.state.summary.as_deref()), (Verdict::Pass, Some(words)));
}

#[tokio::test]
async fn what_cannot_be_delivered_waits_for_a_person_who_has_the_last_word() {
    let mut set = brought();
    let question =
        |step: &Step| step.wait.clone().map(|wait| (wait.reason, wait.question.unwrap()));
    set.mind.summary = Some(Ok(Reply::Ask("again, or end without?".into(), 5)));
    let step = set.play(Node::FinalizeSummary).await;
    let asked = (WaitReason::HumanInput, "again, or end without?".to_owned());
    assert_eq!(question(&step), Some(asked));
    // Also when nobody could even say why.
    set.mind.summary = Some(Err(NodeError::Permanent("no model".into())));
    let step = set.play(Node::FinalizeSummary).await;
    let words = "What was done could not be delivered: no model\nAnswer `again` to try it once more, or `end without` to end the \
        task without a pull request.";
    assert_eq!(question(&step), Some((WaitReason::HumanInput, words.to_owned())));
    set.mind.summary = Some(Err(NodeError::Transient("away".into())));
    let step = set.play(Node::FinalizeSummary).await;
    assert_eq!(step.wait.map(|wait| wait.reason), Some(WaitReason::Retry));
    let said = |words: &str| EndedWait {
        reason: WaitReason::HumanInput,
        resolution: Resolution::Answered,
        question: None,
        answer: Some(words.to_owned()),
    };
    set.position.ended_wait = Some(said("again"));
    assert_eq!(set.play(Node::FinalizeSummary).await.verdict, Verdict::Wait);
    set.position.ended_wait = Some(said("End without"));
    let step = set.play(Node::FinalizeSummary).await;
    let words = "1 units done:\n- a\n\nA person decided that it ends without a pull request.";
    assert_eq!((step.verdict, step.state.summary.as_deref()), (Verdict::Pass, Some(words)));
}

#[tokio::test]
async fn work_that_nobody_wants_delivered_ends_also_for_want_of_words() {
    let mut set = brought();
    set.mind.summary = Some(Err(NodeError::Permanent("no model".into())));
    set.state.preferences_effective.insert("delivery.mode".parse().unwrap(), json!("none"));
    assert_eq!(set.play(Node::FinalizeSummary).await.verdict, Verdict::Pass);
}

#[tokio::test]
async fn a_result_is_collected_a_failure_tried_again_and_silence_waited_for() {
    let set = Set::unit(UnitState::Dispatched, JobState::Succeeded, 1);
    let step = set.play(Node::CollectResult).await;
    assert_eq!(step.effects, [Effect::CollectJob { unit: key(), attempt: 1 }]);
    assert_eq!(step.state.last_result.unwrap().output, json!({ "n": 1 }));

    let verdict = |job, attempt| async move {
        Set::unit(UnitState::Dispatched, job, attempt).play(Node::CollectResult).await.verdict
    };
    assert_eq!(verdict(JobState::Failed, 1).await, Verdict::Redo);
    assert_eq!(verdict(JobState::Lost, 2).await, Verdict::Redo);
    assert_eq!(verdict(JobState::Failed, 3).await, Verdict::Fail);
    assert_eq!(verdict(JobState::Running, 1).await, Verdict::Wait);
    assert_eq!(
        Set::unit(UnitState::Done, JobState::Succeeded, 1).play(Node::CollectResult).await.verdict,
        Verdict::Done
    );
}

#[tokio::test]
async fn what_the_project_manager_said_of_a_failure_is_used_though_another_result_has_come() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    let play = async |set: &Set| {
        let Set { task, position, state, limits, .. } = set;
        let mind = &Manager;
        run(Node::CollectResult, &Scene { task, position, state, limits, mind }).await
    };
    let asking = play(&set).await;
    let [Effect::HandOff { about, .. }] = asking.effects.as_slice() else { panic!("{asking:?}") };
    set.position.handoff = Some(answered_handoff(about));
    set.state = asking.state;
    let mut other = set.position.units[0].clone();
    other.key = "b".parse().unwrap();
    other.job.as_mut().unwrap().state = JobState::Succeeded;
    set.position.units.insert(0, other);
    let handoff_id = set.position.handoff.as_ref().unwrap().handoff_id;
    let why = "the job failed: {\"n\":1}";
    let findings = vec![Finding::new(Severity::Critical, why)];
    let step = play(&set).await;
    assert_eq!(
        step.effects,
        [
            Effect::TakeHandoff { handoff_id },
            Effect::RetryUnit { unit: key(), attempt: 1, findings },
        ]
    );
    assert_eq!(step.state.asked, None);
    // Then the other one.
    set.position.handoff = None;
    set.position.units.remove(1);
    set.state = step.state;
    let other = Effect::CollectJob { unit: "b".parse().unwrap(), attempt: 1 };
    assert_eq!(play(&set).await.effects, [other]);
}

#[tokio::test]
async fn less_is_planned_for_what_comes_to_nothing_only_so_often_and_then_a_person_is_asked() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    let play = async |set: &Set| {
        let Set { task, position, state, limits, .. } = set;
        let mind = &Manager;
        run(Node::CollectResult, &Scene { task, position, state, limits, mind }).await
    };
    let mut seen = Vec::new();
    for _ in 0..4 {
        set.position.handoff = None;
        let asking = play(&set).await;
        let [Effect::HandOff { about, .. }] = asking.effects.as_slice() else {
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
    let less = (Verdict::Revise, None);
    let asked = (Verdict::Wait, Some(question.to_owned()));
    assert_eq!(seen, [less.clone(), less.clone(), less, asked]);
    assert_eq!(set.state.asked, Some(key()), "what a person answers is about this unit");
}

#[tokio::test]
async fn a_judgement_is_written_into_the_state_and_decides() {
    for (status, attempt, left, verdict) in [
        (VerificationStatus::Pass, 1, 2, Verdict::Pass),
        (VerificationStatus::Fail, 1, 2, Verdict::Redo),
        (VerificationStatus::Fail, 3, 0, Verdict::Fail),
    ] {
        let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, attempt);
        set.mind.judgement = Ok(status);
        set.state.last_result = Some(StepResult { unit: key(), attempt, output: Value::Null });
        let step = set.play(Node::VerifyStepResult).await;
        assert_eq!(step.verdict, verdict);
        assert_eq!(*set.mind.left.lock().unwrap(), [left]);
        let written = step.state.verification.unwrap();
        assert_eq!((written.status, written.findings.len()), (status, 1));
        assert_eq!(step.effects.len(), 1);
    }
    let set = Set::new();
    assert_eq!(set.play(Node::VerifyStepResult).await.verdict, Verdict::Fail, "there is no result");
}

/// A plan of one unit with a check of its own, and a criterion with one.
fn checked(set: &mut Set) -> [Check; 2] {
    let (own, task) = (Check::line("make test"), Check::new(vec!["./holds.sh".into()]));
    let unit = PlannedUnit {
        payload: json!({ "kind": "implementation", "checks": [own] }),
        ..one_unit().steps()[0].clone()
    };
    let text = PlanText { steps: vec![unit], assumptions: Vec::new() };
    set.state.plan = Some(Plan::try_from(text).unwrap());
    set.state.acceptance_criteria =
        vec![Criterion { text: "it holds".parse().unwrap(), check: Some(task.clone()) }];
    let result = json!({ "commit": "c".repeat(40), "base": "b".repeat(40), "odd": [] });
    set.position.units[0].job.as_mut().unwrap().result = Some(result.clone());
    set.state.last_result = Some(StepResult { unit: key(), attempt: 1, output: result });
    [own, task]
}

fn view(checks: &[Check], state: EvidenceState, tally: Tally) -> EvidenceView {
    let of = |check: &Check| CheckResult {
        check: check.clone(),
        tally,
        rounds: 1,
        exit_code: Some(1),
        sha256: String::new(),
        excerpt: "no".into(),
        milliseconds: 1,
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
        trouble: (state == EvidenceState::Unable).then(|| "no sandbox".into()),
        tries: 1,
        opened_at: time::OffsetDateTime::UNIX_EPOCH,
        ended_at: None,
    }
}

#[tokio::test]
async fn a_result_is_checked_before_it_is_judged_by_its_own_checks_and_those_of_the_task() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Succeeded, 1);
    let checks = checked(&mut set);
    let gathers = Effect::GatherEvidence {
        unit: key(),
        attempt: 1,
        checks: checks.to_vec(),
        timeout_seconds: 600,
    };
    let step = set.play(Node::CollectResult).await;
    assert_eq!(step.wait.map(|wait| wait.reason), Some(WaitReason::Job));
    assert_eq!(step.effects, std::slice::from_ref(&gathers));

    set.position.evidence = vec![view(&checks, EvidenceState::Gathering, Tally::Again)];
    let step = set.play(Node::CollectResult).await;
    assert_eq!((step.wait.map(|wait| wait.reason), step.effects), (Some(WaitReason::Job), vec![]));

    // What came to nothing is begun anew; what lacks a check is asked for again.
    for known in [
        view(&checks, EvidenceState::Unable, Tally::Again),
        view(&checks[..1], EvidenceState::Passed, Tally::Passed),
    ] {
        set.position.evidence = vec![known];
        assert_eq!(set.play(Node::CollectResult).await.effects, std::slice::from_ref(&gathers));
    }

    set.position.evidence = vec![view(&checks, EvidenceState::Failed, Tally::Failed)];
    let step = set.play(Node::CollectResult).await;
    assert_eq!(step.effects, [Effect::CollectJob { unit: key(), attempt: 1 }]);
}

#[tokio::test]
async fn a_person_takes_what_they_were_shown_of_what_is_odd() {
    let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, 1);
    let odd: Vec<Odd> =
        (0..12).map(|number| Odd::TestRemoved { path: format!("tests/t{number}.py") }).collect();
    let output = json!({ "commit": "c".repeat(40), "odd": odd });
    set.state.last_result = Some(StepResult { unit: key(), attempt: 1, output });
    for (waived, shown) in [(None, &[][..]), (Some("a person took it".to_owned()), &odd[..10])] {
        set.mind.waived.clone_from(&waived);
        let accept = Effect::AcceptUnit {
            unit: key(),
            attempt: 1,
            findings: vec![Finding::new(Severity::Major, "found")],
            by_person: waived.is_some(),
            waived,
            shown: shown.to_vec(),
        };
        assert_eq!(set.play(Node::VerifyStepResult).await.effects, [accept]);
    }
}

#[tokio::test]
async fn tests_that_are_put_back_are_no_part_of_the_state() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Succeeded, 1);
    let result = json!({ "commit": "c", "odd": [], "put_back": ["tests/sum.py"] });
    set.position.units[0].job.as_mut().unwrap().result = Some(result);
    let output = json!({ "commit": "c", "odd": [] });
    let kept = StepResult { unit: key(), attempt: 1, output };
    assert_eq!(set.play(Node::CollectResult).await.state.last_result, Some(kept));
}

#[tokio::test]
async fn checks_that_cannot_be_run_time_and_again_end_the_task_with_the_reason() {
    let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, 1);
    let checks = checked(&mut set);
    let unable = view(&checks, EvidenceState::Unable, Tally::Again);
    set.position.evidence = vec![EvidenceView { tries: 5, ..unable }];
    let step = set.play(Node::VerifyStepResult).await;
    let why = "Verify Step Result: the checks could not be run 5 times: no sandbox";
    assert_eq!((step.verdict, step.note.as_deref()), (Verdict::Fail, Some(why)));
}

#[tokio::test]
async fn what_a_task_leaves_is_checked_in_the_end_even_if_nobody_did_before() {
    let mut set = Set::unit(UnitState::Done, JobState::Succeeded, 1);
    let checks = checked(&mut set);
    let step = set.play(Node::FinalizeSummary).await;
    assert!(matches!(step.effects.as_slice(), [Effect::GatherEvidence { .. }]), "{step:?}");
    set.position.evidence = vec![view(&checks, EvidenceState::Failed, Tally::Failed)];
    let step = set.play(Node::FinalizeSummary).await;
    assert_eq!(step.verdict, Verdict::Revise);
    let sent_back = cynode_wire::handoffs::Revision::read(&step.state.feedback[0]).unwrap();
    assert_eq!((sent_back.unit, sent_back.findings.len()), (key(), 2));
    // Taken by a person as it is, it is not asked again.
    let waived = view(&checks, EvidenceState::Failed, Tally::Failed);
    set.position.evidence = vec![EvidenceView { waived: Some("a person".into()), ..waived }];
    assert_eq!(set.play(Node::FinalizeSummary).await.verdict, Verdict::Pass);
    set.position.evidence = vec![view(&checks, EvidenceState::Passed, Tally::Passed)];
    assert_eq!(set.play(Node::FinalizeSummary).await.verdict, Verdict::Pass);
}

#[tokio::test]
async fn changes_that_do_not_fit_together_go_back_to_planning_with_the_units_and_files() {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    let conflict = json!({ "commit": "d", "with": [], "files": ["a.rs"], "unit": "right", "with_units": ["left"] });
    set.position.units[0].job.as_mut().unwrap().result =
        Some(json!({ "stop": "conflict", "conflict": conflict }));
    let step = set.play(Node::CollectResult).await;
    assert_eq!(step.verdict, Verdict::Revise);
    let sent_back = cynode_wire::handoffs::Revision::read(&step.state.feedback[0]).unwrap();
    let meant = cynode_wire::handoffs::UnitsConflict {
        unit: "right".parse().unwrap(),
        with: vec!["left".parse().unwrap()],
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
    let (resolution, question) = (Resolution::Answered, None);
    set.position.ended_wait =
        Some(EndedWait { reason, resolution, question, answer: answer.clone() });
    for (asked, heard) in [(Some("a"), answer.clone()), (Some("b"), None), (None, answer)] {
        set.state.asked = asked.map(|key| key.parse().unwrap());
        let Set { task, position, state, limits, mind } = &set;
        let scene = Scene { task, position, state, limits, mind };
        let told = answered_about(&scene, &key()).and_then(|wait| wait.answer.clone());
        assert_eq!(told, heard, "{asked:?}");
    }
}

#[test]
fn work_that_may_not_end_yet_is_not_given_up_but_asked_about() {
    let state = RunState { summary: Some("all of it".into()), ..RunState::default() };
    let why = "nothing shows that `make test` holds";
    let steps = after_refusal(Node::FinalizeSummary, 422, &state, None, why);
    let [asked, given_up] = steps.as_slice() else { panic!("{steps:?}") };
    let wait = asked.wait.as_ref().unwrap();
    assert_eq!((asked.verdict, wait.reason), (Verdict::Wait, WaitReason::HumanInput));
    assert_eq!(asked.state, state);
    let question = wait.question.as_deref().unwrap();
    assert!(question.contains(why) && question.contains("`again`"), "{question}");
    assert_eq!(given_up.verdict, Verdict::Fail);
    // What can never be stored, and what fails in the middle, is given up.
    for (node, status) in [(Node::FinalizeSummary, 413), (Node::VerifyStepResult, 422)] {
        let steps = after_refusal(node, status, &state, None, why);
        let verdicts: Vec<_> = steps.iter().map(|step| step.verdict).collect();
        assert_eq!(verdicts, [Verdict::Fail]);
    }
}

#[test]
fn whoever_asks_why_the_task_may_not_end_takes_the_answer_that_did_not_lead_there() {
    let handoff = answered_handoff("summarise:1");
    let state = RunState::default();
    let steps = after_refusal(Node::FinalizeSummary, 422, &state, Some(&handoff), "not delivered");
    let effects: Vec<_> = steps.iter().map(|step| step.effects.clone()).collect();
    let taken = vec![Effect::TakeHandoff { handoff_id: handoff.handoff_id }];
    assert_eq!(effects, [taken, Vec::new()]);
}
