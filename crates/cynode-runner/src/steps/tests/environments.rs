//! Environments: proposals before the plan, and set-ups that fail.

use cynode_core::{
    environments::{EnvironmentRef, EnvironmentSpec, ProposalReason},
    workflow::environments::{
        EnvironmentBrief, EnvironmentChoice, EnvironmentFacts, EnvironmentOffer,
    },
};

use super::*;

const FAILED: &str = "step 2 of 3 (`npm ci`) failed with exit code 1: npm error code E404";

fn reference() -> EnvironmentRef {
    EnvironmentRef { version: 1, digest: "d".repeat(64) }
}

fn proposed() -> EnvironmentFacts {
    let line = ProposalReason {
        line: "setup: npm ci".to_owned(),
        file: "package-lock.json".to_owned(),
        reason: "the lock file names the packages".to_owned(),
    };
    let proposed = Some(EnvironmentOffer::new(reference(), &[line], &[]));
    EnvironmentFacts { accepted: None, proposed }
}

fn accepted() -> EnvironmentFacts {
    let brief = EnvironmentBrief::new(reference(), &EnvironmentSpec::default());
    EnvironmentFacts { accepted: Some(brief), proposed: None }
}

/// A person was asked about the proposal.
async fn asked() -> Set {
    let mut set = Set::new();
    set.limits.approve_plan = false;
    set.position.environment = Some(proposed());
    set.state = set.play(WorkflowStep::PlanSteps).await.state;
    set
}

#[tokio::test]
async fn a_proposed_environment_is_put_before_a_person_before_anything_is_planned() {
    let mut set = Set::new();
    set.position.environment = Some(proposed());
    let step = set.play(WorkflowStep::PlanSteps).await;
    let question = "The project has no environment, and its files say that it needs one to be built and tested. Version 1 is proposed:\n\
        - `setup: npm ci`: the lock file names the packages (package-lock.json)\n\
        Answer `accept` to use it for the project from now on, `go on` to work without it in this task, or `stop` to give the task up. An \
        admin of the project can accept it. To see all of it: `cynork project environment show 1`; to try it first: `cynork project environment \
        try 1`; to be asked no more about it: `cynork project environment reject 1`. \
        So that no task of the project is asked, also none of a schedule or an issue: `cynork prefs set workflow.ask_environment false --project …`.";
    assert_eq!(asked_of(&step), (Some(WaitReason::HumanInput), question.to_owned()));
    assert_eq!(step.effects, []);
    set.state = step.state;
    answered_with(&mut set, "hm");
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(asked_of(&step).1, format!("`hm` is none of the answers.\n{question}"));
    answered_with(&mut set, "stop");
    assert_eq!(set.play(WorkflowStep::PlanSteps).await.verdict, StepVerdict::Fail);
}

#[tokio::test]
async fn an_environment_is_accepted_by_somebody_who_may_and_the_plan_is_made_with_it() {
    let mut set = asked().await;
    answered_with(&mut set, "Accept!");
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(step.effects, [StepEffect::AcceptEnvironment { environment: reference() }]);
    assert_eq!(asked_of(&step).0, Some(WaitReason::Job));
    set.state = step.state;
    set.position.ended_wait = None;
    // Whoever answered may not accept it.
    let step = set.play(WorkflowStep::PlanSteps).await;
    let (reason, question) = asked_of(&step);
    assert_eq!(reason, Some(WaitReason::HumanInput));
    assert!(
        question
            .starts_with("Version 1 was not accepted: only an admin of the project may accept it"),
        "{question}"
    );
    // They may.
    set.position.environment = Some(accepted());
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!((step.verdict, step.cost_micros), (StepVerdict::Pass, 9));
    assert_eq!(step.state.environment, None);
}

#[tokio::test]
async fn a_person_goes_on_without_an_environment_and_is_not_asked_again() {
    let mut set = asked().await;
    answered_with(&mut set, "go on");
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!((asked_of(&step).0, step.effects), (Some(WaitReason::Job), vec![]));
    assert_eq!(step.state.environment, Some(EnvironmentChoice::without_environment()));
    set.state = step.state;
    set.position.ended_wait = None;
    let step = set.play(WorkflowStep::PlanSteps).await;
    assert_eq!(step.verdict, StepVerdict::Pass);
    assert_eq!(step.state.environment, Some(EnvironmentChoice::without_environment()));
}

#[tokio::test]
async fn nobody_is_asked_about_an_environment_where_nobody_wants_it_or_a_plan_is_there() {
    let plan = async |change: fn(&mut Set)| {
        let mut set = Set::new();
        set.limits.approve_plan = false;
        set.position.environment = Some(proposed());
        change(&mut set);
        set.play(WorkflowStep::PlanSteps).await.verdict
    };
    assert_eq!(plan(|set| set.limits.ask_environment = false).await, StepVerdict::Pass);
    assert_eq!(plan(|set| set.state.plan = Some(one_unit())).await, StepVerdict::Pass);
    assert_eq!(plan(|set| answered_with(set, "the second")).await, StepVerdict::Pass);
    assert_eq!(plan(|_| {}).await, StepVerdict::Wait);
}

/// A unit whose environment could not be set up.
fn not_set_up() -> Set {
    let mut set = Set::unit(UnitState::Dispatched, JobState::Failed, 1);
    let result = json!({ "summary": FAILED, "stop_reason": "environment", "steps": [] });
    set.position.units[0].job.as_mut().unwrap().result = Some(result);
    set
}

#[tokio::test]
async fn a_set_up_that_fails_is_put_before_a_person_and_no_model_is_asked() {
    let mut set = not_set_up();
    let step = set.play(WorkflowStep::CollectResult).await;
    let question = format!(
        "The project's environment could not be set up: {FAILED}\n\
         Answer `again` when the environment is changed (`cynork project environment set`, `try` and `accept`) or the \
         node is mended: the version that is accepted then is used. Answer `go on without` to work without an environment in this task, or \
         `stop` to give it up."
    );
    assert_eq!(asked_of(&step), (Some(WaitReason::HumanInput), question.clone()));
    set.state = step.state;
    assert_eq!(set.state.question_unit, Some(key()));

    answered_with(&mut set, "again");
    let retry = [StepEffect::RetryUnit { unit: key(), attempt: 1, findings: vec![] }];
    let step = set.play(WorkflowStep::CollectResult).await;
    assert_eq!((step.verdict, step.effects.as_slice()), (StepVerdict::Redo, &retry[..]));
    assert_eq!(step.state.environment, None);

    answered_with(&mut set, "Go on without.");
    let step = set.play(WorkflowStep::CollectResult).await;
    assert_eq!((step.verdict, step.effects.as_slice()), (StepVerdict::Redo, &retry[..]));
    assert_eq!(step.state.environment, Some(EnvironmentChoice::without_environment()));

    answered_with(&mut set, "why?");
    let step = set.play(WorkflowStep::CollectResult).await;
    assert_eq!(asked_of(&step).1, format!("That is none of the answers.\n{question}"));

    answered_with(&mut set, "stop");
    assert_eq!(set.play(WorkflowStep::CollectResult).await.verdict, StepVerdict::Fail);

    // A plan that names the worker itself has nobody to ask: it fails as any other.
    let mut given = not_set_up();
    let unit = PlannedUnit {
        payload: json!({ "work": { "role": "tester" } }),
        ..one_unit().planned_units()[0].clone()
    };
    let text = PlanText { steps: vec![unit], assumptions: Vec::new() };
    given.state.plan = Some(Plan::try_from(text).unwrap());
    assert_ne!(
        asked_of(&given.play(WorkflowStep::CollectResult).await).0,
        Some(WaitReason::HumanInput)
    );

    // Another unit failed for the same reason: a person has answered already.
    let mut other = not_set_up();
    other.state.environment = Some(EnvironmentChoice::without_environment());
    assert_eq!(other.play(WorkflowStep::CollectResult).await.verdict, StepVerdict::Redo);
}

#[tokio::test]
async fn checks_whose_environment_cannot_be_set_up_are_run_again_only_when_a_person_wants_it() {
    let mut set = Set::unit(UnitState::Collected, JobState::Succeeded, 1);
    let checks = checked(&mut set);
    let mut known = view(&[], EvidenceState::Unable, CheckTally::Again);
    known.error = Some(format!("the environment could not be set up: {FAILED}"));
    set.position.evidence = vec![known];
    let step = set.play(WorkflowStep::VerifyStepResult).await;
    let (reason, question) = asked_of(&step);
    assert_eq!((reason, step.effects), (Some(WaitReason::HumanInput), vec![]));
    assert!(
        question.starts_with(&format!("The project's environment could not be set up: {FAILED}\n")),
        "{question}"
    );
    assert!(question.ends_with("answer `redo`: the work is sent back with this as a finding."));
    set.state = step.state;
    answered_with(&mut set, "redo");
    let step = set.play(WorkflowStep::VerifyStepResult).await;
    let found = VerificationFinding::new(
        FindingSeverity::Critical,
        format!("the environment could not be set up: {FAILED}"),
    );
    let back = StepEffect::RetryUnit { unit: key(), attempt: 1, findings: vec![found] };
    assert_eq!((step.verdict, step.effects), (StepVerdict::Redo, vec![back]));
    answered_with(&mut set, "go on without");
    let step = set.play(WorkflowStep::VerifyStepResult).await;
    let again = StepEffect::GatherEvidence {
        unit: key(),
        attempt: 1,
        checks: checks.to_vec(),
        timeout_seconds: 600,
        rerun: true,
    };
    assert_eq!(step.effects, [again]);
    assert_eq!(step.state.environment, Some(EnvironmentChoice::without_environment()));
}

#[tokio::test]
async fn base_checks_whose_environment_cannot_be_set_up_are_put_before_a_person() {
    let (mut set, checks) = to_be_planned();
    set.state = set.play(WorkflowStep::PlanSteps).await.state;
    set.position.base_checks = Some(BaseChecks {
        error: Some(format!("the environment could not be set up: {FAILED}")),
        ..base(&[], EvidenceState::Unable)
    });
    let step = set.play(WorkflowStep::PlanSteps).await;
    let (reason, question) = asked_of(&step);
    assert_eq!(reason, Some(WaitReason::HumanInput));
    assert!(question.contains("`npm ci`"), "{question}");
    set.state = step.state;
    for (words, without) in [("again", false), ("go on without", true)] {
        answered_with(&mut set, words);
        let step = set.play(WorkflowStep::PlanSteps).await;
        assert_eq!(step.effects, [StepEffect::TryChecks { checks: checks.to_vec() }], "{words}");
        assert_eq!(step.state.environment.is_some(), without, "{words}");
    }
    answered_with(&mut set, "stop");
    assert_eq!(set.play(WorkflowStep::PlanSteps).await.verdict, StepVerdict::Fail);
}

#[tokio::test]
async fn a_unit_that_asks_for_more_time_gets_it() {
    let mut set = Set::unit(UnitState::Pending, JobState::Failed, 0);
    let unit = PlannedUnit {
        payload: json!({ "needs": { "minutes": 30 } }),
        ..one_unit().planned_units()[0].clone()
    };
    let text = PlanText { steps: vec![unit], assumptions: Vec::new() };
    set.state.plan = Some(Plan::try_from(text).unwrap());
    let step = set.play(WorkflowStep::DispatchStep).await;
    let [StepEffect::CreateJob { timeout_seconds, .. }] = step.effects.as_slice() else {
        panic!("{step:?}")
    };
    assert_eq!(*timeout_seconds, 1800);
}
