//! Environment of the project: a person is asked about a proposal before the plan is made, and about a set-up that failed.
//!
//! No model is asked, and no agent can mend either.

use cynode_core::{
    delivery::ANSWER_RETRY,
    environments::EnvironmentRef,
    workflow::{
        StepVerdict,
        environments::{
            ACCEPT_ANSWER, EnvironmentChoice, EnvironmentOffer, GO_ON_WITHOUT_PROPOSAL,
            PROPOSAL_QUESTION_START, SETUP_FAILURE_PREFIX,
        },
        findings::{FindingSeverity, VerificationFinding},
        limits::ASK_ENVIRONMENT_PREFERENCE,
        plan::UnitKey,
        waits::{ANSWER_STOP, EndedWait, WaitReason},
    },
};
use cynode_wire::workflow::{NewWait, RunState, StepEffect};

use super::{
    CheckpointDraft, StepContext, abandonment_reason, ask_about_unit, ask_person, may_retry,
    normalize_answer, open_ended_wait, person_answer, unit_answer,
};

/// Answer that goes on without an environment whose set-up failed.
const GO_ON_WITHOUT_ANSWER: &str = "go on without";

/// Answer that sends work back whose change broke the set-up, such as a dependency that does not exist.
const REDO_ANSWER: &str = "redo";

/// Maximum number of characters of a failed set-up that a question quotes.
const MAX_QUOTED_CHARS: usize = 3000;

/// What a person says about a set-up that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetupAnswer {
    /// Nobody was asked yet.
    Unasked,
    /// It is set up again, in the version that is accepted now.
    Again,
    /// The task goes on without an environment.
    Without,
    /// The change broke the set-up: the work is sent back.
    Redo,
    /// It is none of the answers.
    Unclear,
}

/// Asks a person about a proposed environment before the plan is made, or applies their answer. Returns `None` when the plan can be
/// made.
pub(super) fn review_proposal(
    scene: &StepContext<'_>,
    state: &mut RunState,
) -> Option<CheckpointDraft> {
    let choice = state.environment.clone().unwrap_or_default();
    if choice.without || !scene.limits.ask_environment {
        return None;
    }
    let answer = person_answer(scene).filter(|wait| wait.reason == WaitReason::HumanInput);
    if let (Some(shown), Some(wait)) = (&choice.asked, answer) {
        if let Some(why) = abandonment_reason(scene) {
            return Some(CheckpointDraft::fail_task(state.clone(), why.to_owned()));
        }
        return Some(apply_proposal_answer(scene, state.clone(), shown.clone(), wait));
    }
    let facts = scene.position.environment.as_ref();
    let offer = facts.and_then(|facts| facts.proposed.as_ref());
    // A plan that exists or is being made is not held up by a later proposal, and an answer about it is not lost.
    let unplanned = state.plan.is_none() && state.planning_answer.is_none();
    let idle = answer.is_none() && scene.position.handoff.is_none();
    let Some(offer) = offer.filter(|_| unplanned && idle) else {
        state.environment = None;
        return None;
    };
    let before = if choice.accept_requested {
        let version = choice.asked.map_or(offer.reference.version, |shown| shown.version);
        format!(
            "Version {version} was not accepted: only an admin of the project may accept it, and only as it was shown.\n"
        )
    } else {
        String::new()
    };
    Some(ask_about_proposal(state.clone(), offer, &before))
}

/// Applies a person's answer about a proposed environment. The step runs again afterwards, so that the plan is made with what is
/// accepted then, and the answer is not taken for one about the plan.
fn apply_proposal_answer(
    scene: &StepContext<'_>,
    mut state: RunState,
    shown: EnvironmentRef,
    wait: &EndedWait,
) -> CheckpointDraft {
    let words = wait.answer.as_deref().unwrap_or_default().trim();
    let facts = scene.position.environment.as_ref();
    let accepted = facts.is_some_and(|facts| facts.accepted.is_some());
    match normalize_answer(words).as_str() {
        GO_ON_WITHOUT_PROPOSAL | GO_ON_WITHOUT_ANSWER => {
            state.environment = Some(EnvironmentChoice::without_environment());
            repeat_step(state, None, "a person goes on without an environment".to_owned())
        }
        // Somebody accepted one meanwhile.
        ACCEPT_ANSWER if accepted => {
            state.environment = None;
            repeat_step(state, None, "the project has an environment now".to_owned())
        }
        ACCEPT_ANSWER => {
            let note = format!("a person accepts version {} of the environment", shown.version);
            state.environment = Some(EnvironmentChoice {
                asked: Some(shown.clone()),
                accept_requested: true,
                without: false,
            });
            let effect = StepEffect::AcceptEnvironment { environment: shown };
            repeat_step(state, Some(effect), note)
        }
        _ => match facts.and_then(|facts| facts.proposed.as_ref()) {
            Some(offer) => {
                let before = format!("`{}` is none of the answers.\n", quote_answer(words));
                ask_about_proposal(state, offer, &before)
            }
            None => {
                state.environment = None;
                repeat_step(state, None, "nothing is proposed any more".to_owned())
            }
        },
    }
}

/// Runs the step again at once, with the state of the project as it is then.
fn repeat_step(state: RunState, effect: Option<StepEffect>, note: String) -> CheckpointDraft {
    let wait = NewWait { wake_in_ms: Some(0), ..open_ended_wait(WaitReason::Job) };
    CheckpointDraft {
        effects: effect.into_iter().collect(),
        ..CheckpointDraft::with_wait(state, wait, Some(note))
    }
}

/// Asks a person about a proposed environment.
fn ask_about_proposal(
    mut state: RunState,
    offer: &EnvironmentOffer,
    before: &str,
) -> CheckpointDraft {
    let version = offer.reference.version;
    let question = format!(
        "{before}{PROPOSAL_QUESTION_START} Version {version} is proposed:{}\n\
         Answer `{ACCEPT_ANSWER}` to use it for the project from now on, `{GO_ON_WITHOUT_PROPOSAL}` to work without it in this task, or `{ANSWER_STOP}` \
         to give the task up. An admin of the project can accept it. To see all of it: `cynork project environment show {version}`; to try it first: \
         `cynork project environment try {version}`; to be asked no more about it: `cynork project environment reject {version}`. \
         So that no task of the project is asked, also none of a schedule or an issue: `cynork prefs set {ASK_ENVIRONMENT_PREFERENCE} false --project …`.",
        offer.describe_lines()
    );
    state.environment = Some(EnvironmentChoice {
        asked: Some(offer.reference.clone()),
        ..EnvironmentChoice::default()
    });
    ask_person(state, question, 0)
}

/// Returns the first words of an answer, to be quoted.
fn quote_answer(words: &str) -> String {
    words.lines().next().unwrap_or_default().chars().take(80).collect()
}

/// Returns whether checks were not run because the environment could not be set up.
pub(super) fn is_setup_failure(error: Option<&str>) -> bool {
    error.is_some_and(|error| error.starts_with(SETUP_FAILURE_PREFIX))
}

/// Interprets a person's answer about a set-up that failed.
pub(super) fn parse_setup_answer(answer: Option<&EndedWait>) -> SetupAnswer {
    let answer = answer.filter(|wait| wait.reason == WaitReason::HumanInput);
    let Some(wait) = answer else { return SetupAnswer::Unasked };
    match normalize_answer(wait.answer.as_deref().unwrap_or_default()).as_str() {
        ANSWER_RETRY => SetupAnswer::Again,
        GO_ON_WITHOUT_ANSWER | GO_ON_WITHOUT_PROPOSAL => SetupAnswer::Without,
        REDO_ANSWER => SetupAnswer::Redo,
        _ => SetupAnswer::Unclear,
    }
}

/// Builds the question about a set-up that failed.
pub(super) fn setup_question(why: &str, answer: SetupAnswer) -> String {
    let before = match answer {
        SetupAnswer::Unclear | SetupAnswer::Redo => "That is none of the answers.\n",
        SetupAnswer::Unasked | SetupAnswer::Again | SetupAnswer::Without => "",
    };
    let why = why.strip_prefix(SETUP_FAILURE_PREFIX).unwrap_or(why);
    // The end of the output says why a step failed.
    let from = why.char_indices().rev().nth(MAX_QUOTED_CHARS).map_or(0, |(at, _)| at);
    let why = why.get(from..).unwrap_or_default().trim();
    format!(
        "{before}The project's environment could not be set up: {why}\n\
         Answer `{ANSWER_RETRY}` when the environment is changed (`cynork project environment set`, `try` and `accept`) \
         or the node is mended: the version that is accepted then is used. Answer `{GO_ON_WITHOUT_ANSWER}` to work without an environment in \
         this task, or `{ANSWER_STOP}` to give it up."
    )
}

/// Decides about a unit whose job failed because the environment could not be set up. It says nothing about the work, so that a person
/// is asked and no model is.
pub(super) fn handle_failed_setup(
    scene: &StepContext<'_>,
    mut state: RunState,
    unit: UnitKey,
    attempt: u32,
    why: &str,
) -> CheckpointDraft {
    let answer = unit_answer(scene, &unit);
    // Another unit failed for the same reason, and a person has answered.
    let without = state.environment.as_ref().is_some_and(|choice| choice.without);
    let parsed = match parse_setup_answer(answer) {
        SetupAnswer::Unasked if without && may_retry(scene, attempt) => SetupAnswer::Again,
        parsed => parsed,
    };
    if let Some(reason) = answer.and_then(|_| abandonment_reason(scene)) {
        let text = format!("unit `{unit}`: {reason}");
        let found = format!("{SETUP_FAILURE_PREFIX}{why}");
        let findings = vec![VerificationFinding::new(FindingSeverity::Critical, found)];
        let effects = vec![StepEffect::FailUnit { unit: unit.clone(), attempt, findings }];
        let step = CheckpointDraft::fail_task(state, text);
        return CheckpointDraft { effects, unit: Some(unit), ..step };
    }
    match parsed {
        SetupAnswer::Unasked | SetupAnswer::Redo | SetupAnswer::Unclear => {
            ask_about_unit(state, &unit, setup_question(why, parsed), 0)
        }
        SetupAnswer::Again | SetupAnswer::Without => {
            if parsed == SetupAnswer::Without {
                state.environment = Some(EnvironmentChoice::without_environment());
            }
            // The next attempt has nothing to mend.
            let findings = Vec::new();
            let effects = vec![StepEffect::RetryUnit { unit: unit.clone(), attempt, findings }];
            let note = Some("the environment could not be set up".to_owned());
            let step = CheckpointDraft::new(StepVerdict::Redo, state);
            CheckpointDraft { effects, unit: Some(unit), note, ..step }
        }
    }
}

/// Checks of a unit that were not run because the environment could not be set up for its commit.
pub(super) struct UnrunChecks<'a> {
    /// The unit.
    pub(super) unit: &'a UnitKey,
    /// The attempt that can be sent back; none once the unit is done.
    pub(super) attempt: Option<u32>,
    /// Why the set-up failed.
    pub(super) why: &'a str,
    /// Runs the checks again.
    pub(super) gather: StepEffect,
}

/// Decides about checks that were not run. The change may have broken the set-up, so that the work can be sent back too.
pub(super) fn handle_unrun_checks(
    scene: &StepContext<'_>,
    mut state: RunState,
    checks: UnrunChecks<'_>,
) -> CheckpointDraft {
    let UnrunChecks { unit, attempt, why, gather } = checks;
    let answer = unit_answer(scene, unit);
    if let Some(reason) = answer.and_then(|_| abandonment_reason(scene)) {
        let step = CheckpointDraft::fail_task(state, format!("unit `{unit}`: {reason}"));
        return CheckpointDraft { unit: Some(unit.clone()), ..step };
    }
    let parsed = parse_setup_answer(answer);
    match (parsed, attempt) {
        (SetupAnswer::Redo, Some(attempt)) => {
            let note = why.to_owned();
            let findings = vec![VerificationFinding::new(FindingSeverity::Critical, why)];
            let effects = vec![StepEffect::RetryUnit { unit: unit.clone(), attempt, findings }];
            let step = CheckpointDraft::new(StepVerdict::Redo, state);
            CheckpointDraft { effects, unit: Some(unit.clone()), note: Some(note), ..step }
        }
        (SetupAnswer::Again | SetupAnswer::Without, _) => {
            if parsed == SetupAnswer::Without {
                state.environment = Some(EnvironmentChoice::without_environment());
            }
            let wait = open_ended_wait(WaitReason::Job);
            let step = CheckpointDraft::with_wait(state, wait, None);
            CheckpointDraft { effects: vec![gather], unit: Some(unit.clone()), ..step }
        }
        (SetupAnswer::Unasked | SetupAnswer::Unclear | SetupAnswer::Redo, _) => {
            let mut question = setup_question(why, parsed);
            if attempt.is_some() {
                question.push_str(" If the change itself broke it, answer `redo`: the work is sent back with this as a finding.");
            }
            ask_about_unit(state, unit, question, 0)
        }
    }
}
