//! Base checks: run once the plan exists, before a person approves it and before any work.
//!
//! No model is asked. A check that cannot run here is shown to a person once; a check that fails before any change is
//! only reported.

use std::fmt::Write as _;

use cynode_core::{
    delivery::ANSWER_RETRY,
    evidence::{
        EvidenceCheck,
        base::{BASE_CHECK_CLAIM_SECONDS, BaseOutcome, MAX_BASE_CHECKS},
    },
    tasks::Criterion,
    workflow::{
        environments::EnvironmentChoice,
        evidence::{BaseChecks, EvidenceState},
        plan::{Plan, PlanText},
        waits::{ANSWER_STOP, EndedWait, WaitReason},
    },
};
use cynode_wire::workflow::{CheckTrial, NewWait, RunState, StepEffect};

use serde_json::Value;

use super::{
    CheckpointDraft, StepContext, abandonment_reason, ask_person,
    environment::{SetupAnswer, is_setup_failure, parse_setup_answer, setup_question},
    normalize_answer, open_ended_wait, person_answer, plan,
};

/// Maximum number of jobs that are started when their nodes become unreachable.
const MAX_TRIAL_ATTEMPTS: u32 = 2;

/// Answer that accepts checks that cannot run here.
const GO_ON_ANSWER: &str = "go on";

/// Prefix of an answer that names another check.
const CHECK_ANSWER_PREFIX: &str = "check:";

/// Returns the trial that the plan waits for.
pub(super) fn open_trial(state: &RunState) -> Option<CheckTrial> {
    state.check_trial.clone().filter(|trial| trial.open)
}

/// Starts a trial of the checks that were not tried yet. Without any, the plan is presented.
pub(super) fn begin_trial(
    scene: &StepContext<'_>,
    mut state: RunState,
    approve_plan: bool,
) -> CheckpointDraft {
    let accepted = state.check_trial.take().map(|trial| trial.accepted).unwrap_or_default();
    let base = scene.position.base_checks.as_ref();
    let trial = CheckTrial { open: false, approve_plan, accepted };
    // Once work has started, the state before any change is not worth waiting for.
    let tries = scene.limits.try_checks && state.attempts_by_step.is_empty();
    let wanted = if tries { required_checks(&state) } else { Vec::new() };
    if wanted.is_empty() {
        store_accepted_checks(&mut state, trial);
        return plan::present_plan(state, approve_plan, base.filter(|_| tries));
    }
    advance_trial(scene, state, trial, wanted)
}

/// Continues a trial with its result, or with a person's answer about it.
pub(super) fn resume_trial(scene: &StepContext<'_>, state: RunState) -> CheckpointDraft {
    let trial = state.check_trial.clone().unwrap_or_default();
    if let Some(why) = abandonment_reason(scene) {
        return CheckpointDraft::fail_task(state, why.to_owned());
    }
    let wanted = required_checks(&state);
    match person_answer(scene).filter(|wait| wait.reason == WaitReason::HumanInput) {
        Some(wait) => apply_answer(scene, state, trial, wanted, wait),
        None => advance_trial(scene, state, trial, wanted),
    }
}

/// Applies a person's answer about checks that cannot run here.
fn apply_answer(
    scene: &StepContext<'_>,
    mut state: RunState,
    mut trial: CheckTrial,
    wanted: Vec<EvidenceCheck>,
    wait: &EndedWait,
) -> CheckpointDraft {
    let Some(base) = required_base_checks(scene, &wanted) else {
        return advance_trial(scene, state, trial, wanted);
    };
    if is_setup_failure(base.error.as_deref()) {
        let parsed = parse_setup_answer(Some(wait));
        return match parsed {
            SetupAnswer::Unasked | SetupAnswer::Redo | SetupAnswer::Unclear => {
                ask_about_setup(state, trial, &base, parsed)
            }
            SetupAnswer::Again | SetupAnswer::Without => {
                if parsed == SetupAnswer::Without {
                    state.environment = Some(EnvironmentChoice::without_environment());
                }
                wait_for_trial(state, trial, Some(StepEffect::TryChecks { checks: wanted }))
            }
        };
    }
    let words = wait.answer.as_deref().unwrap_or_default().trim();
    let stuck: Vec<EvidenceCheck> = base
        .blocked_checks()
        .filter(|it| !trial.accepted.contains(&it.check))
        .map(|it| it.check.clone())
        .collect();
    if normalize_answer(words) == GO_ON_ANSWER {
        trial.accepted.extend(stuck);
        return advance_trial(scene, state, trial, wanted);
    }
    if normalize_answer(words) == ANSWER_RETRY {
        return wait_for_trial(state, trial, Some(StepEffect::TryChecks { checks: wanted }));
    }
    let command = words
        .get(..CHECK_ANSWER_PREFIX.len())
        .filter(|start| start.eq_ignore_ascii_case(CHECK_ANSWER_PREFIX));
    let command = command
        .and_then(|_| words.get(CHECK_ANSWER_PREFIX.len()..))
        .map(|it| it.trim().trim_matches('`'));
    let check = command.filter(|it| !it.is_empty()).map(EvidenceCheck::from_shell_line);
    match check.filter(|check| check.validation_error().is_none()) {
        Some(check) => {
            let effects = replace_checks(&mut state, &stuck, &check);
            let wanted = self::required_checks(&state);
            let step = wait_for_trial(state, trial, Some(StepEffect::TryChecks { checks: wanted }));
            CheckpointDraft { effects: [effects, step.effects].concat(), ..step }
        }
        None => {
            let first: String = words.lines().next().unwrap_or_default().chars().take(80).collect();
            let again = format!("`{first}` is none of the answers.\n");
            ask_about_stuck_checks(state, trial, &base, &stuck, &again)
        }
    }
}

/// Decides the next step from the results of the checks.
fn advance_trial(
    scene: &StepContext<'_>,
    mut state: RunState,
    trial: CheckTrial,
    wanted: Vec<EvidenceCheck>,
) -> CheckpointDraft {
    let Some(mut base) = required_base_checks(scene, &wanted) else {
        return wait_for_trial(state, trial, Some(StepEffect::TryChecks { checks: wanted }));
    };
    let tried = |check: &EvidenceCheck| {
        let mut checks = base.checks.iter();
        checks.any(|it| it.check == *check && it.outcome != BaseOutcome::NotTried)
    };
    let whole = wanted.iter().all(tried);
    let mut effects = Vec::new();
    match base.state {
        EvidenceState::Gathering if base.unclaimed => {
            base.error = Some(format!("no node took the job within {BASE_CHECK_CLAIM_SECONDS} s"));
            effects.push(StepEffect::SkipChecks);
        }
        EvidenceState::Gathering => return wait_for_trial(state, trial, None),
        EvidenceState::Unable if is_setup_failure(base.error.as_deref()) => {
            return ask_about_setup(state, trial, &base, SetupAnswer::Unasked);
        }
        // The sandbox failed, or the node became unreachable.
        EvidenceState::Unable if base.attempts < MAX_TRIAL_ATTEMPTS && base.commit.is_some() => {
            return wait_for_trial(state, trial, Some(StepEffect::TryChecks { checks: wanted }));
        }
        EvidenceState::Unable => {}
        EvidenceState::Passed | EvidenceState::Failed if !whole => {
            return wait_for_trial(state, trial, Some(StepEffect::TryChecks { checks: wanted }));
        }
        EvidenceState::Passed | EvidenceState::Failed => {
            let stuck: Vec<EvidenceCheck> = base
                .blocked_checks()
                .filter(|it| !trial.accepted.contains(&it.check))
                .map(|it| it.check.clone())
                .collect();
            if !stuck.is_empty() {
                return ask_about_stuck_checks(state, trial, &base, &stuck, "");
            }
        }
    }
    let approve_plan = trial.approve_plan;
    store_accepted_checks(&mut state, CheckTrial { open: false, ..trial });
    let step = plan::present_plan(state, approve_plan, Some(&base));
    CheckpointDraft { effects: [effects, step.effects].concat(), ..step }
}

/// Returns the base results that cover the required checks.
fn required_base_checks(scene: &StepContext<'_>, wanted: &[EvidenceCheck]) -> Option<BaseChecks> {
    let mut base = scene.position.base_checks.clone()?;
    base.checks.retain(|it| wanted.contains(&it.check));
    Some(base)
}

/// Waits for a node to try the checks.
fn wait_for_trial(
    mut state: RunState,
    trial: CheckTrial,
    effect: Option<StepEffect>,
) -> CheckpointDraft {
    state.check_trial = Some(CheckTrial { open: true, ..trial });
    let wake_in_ms = Some(u64::from(BASE_CHECK_CLAIM_SECONDS) * 1000 + 500);
    let wait = NewWait { wake_in_ms, ..open_ended_wait(WaitReason::Job) };
    let note = effect.as_ref().map(|_| "the checks are tried before any change".to_owned());
    CheckpointDraft {
        effects: effect.into_iter().collect(),
        ..CheckpointDraft::with_wait(state, wait, note)
    }
}

/// Asks a person about an environment that could not be set up for the checks.
fn ask_about_setup(
    mut state: RunState,
    trial: CheckTrial,
    base: &BaseChecks,
    answer: SetupAnswer,
) -> CheckpointDraft {
    let question = setup_question(base.error.as_deref().unwrap_or_default(), answer);
    state.check_trial = Some(CheckTrial { open: true, ..trial });
    let note = Some("the environment could not be set up".to_owned());
    CheckpointDraft { note, ..ask_person(state, question, 0) }
}

/// Asks a person about checks that cannot run here.
fn ask_about_stuck_checks(
    mut state: RunState,
    trial: CheckTrial,
    base: &BaseChecks,
    stuck: &[EvidenceCheck],
    before: &str,
) -> CheckpointDraft {
    let mut question = format!("{before}Before any agent works, the checks were tried");
    if let Some(commit) = &base.commit {
        question.push_str(" on commit ");
        question.push_str(commit.get(..10).unwrap_or(commit));
    }
    question.push(':');
    let is_stuck = |check: &EvidenceCheck| stuck.contains(check);
    let (first, rest): (Vec<_>, Vec<_>) = base.checks.iter().partition(|it| is_stuck(&it.check));
    for result in first.into_iter().chain(rest) {
        question.push_str("\n- ");
        question.push_str(&result.describe_result());
    }
    let (it, them) = if stuck.len() == 1 { ("it", "it") } else { ("they", "them") };
    let _ = write!(
        question,
        "\nAnswer `{ANSWER_RETRY}` when {it} can run, `{GO_ON_ANSWER}` to go on with {them} as planned, `{CHECK_ANSWER_PREFIX} COMMAND` to have COMMAND \
         checked in place of {them}, or `{ANSWER_STOP}` to give the task up."
    );
    state.check_trial = Some(CheckTrial { open: true, ..trial });
    let note = Some(base.summary_line());
    CheckpointDraft { note, ..ask_person(state, question, 0) }
}

/// Replaces checks by another one, in the criteria of the task and in the plan.
fn replace_checks(
    state: &mut RunState,
    stuck: &[EvidenceCheck],
    by: &EvidenceCheck,
) -> Vec<StepEffect> {
    let mut effects = Vec::new();
    let of_task = |it: &Criterion| it.check.as_ref().is_some_and(|check| stuck.contains(check));
    if state.acceptance_criteria.iter().any(of_task) {
        for criterion in state.acceptance_criteria.iter_mut().filter(|it| of_task(it)) {
            let says = criterion.check.as_ref().map(EvidenceCheck::command_line);
            // A criterion whose text contains the command gets the new command.
            if says.as_deref().is_some_and(|says| criterion.text.as_str().contains(says))
                && let Ok(text) = criterion
                    .text
                    .as_str()
                    .replace(says.as_deref().unwrap_or_default(), &by.command_line())
                    .parse()
            {
                criterion.text = text;
            }
            criterion.check = Some(by.clone());
        }
        effects.push(StepEffect::SetCriteria { criteria: state.acceptance_criteria.clone() });
    }
    if let Some(plan) = state.plan.take() {
        let mut steps = plan.planned_units().to_vec();
        let mut changed = false;
        for unit in &mut steps {
            let listed = unit.payload.get_mut("checks").and_then(Value::as_array_mut);
            for listed in listed.into_iter().flatten() {
                let own = serde_json::from_value::<EvidenceCheck>(listed.clone());
                if own.is_ok_and(|own| stuck.contains(&own))
                    && let Ok(new) = serde_json::to_value(by)
                {
                    *listed = new;
                    changed = true;
                }
            }
        }
        let text = PlanText { steps, assumptions: plan.assumptions().to_vec() };
        let new = Plan::try_from(text).ok().filter(|_| changed);
        if let Some(new) = &new {
            effects.push(StepEffect::PlanUnits { units: new.planned_units().to_vec() });
        }
        state.plan = Some(new.unwrap_or(plan));
    }
    effects
}

/// Returns the checks of the task and its plan, the task's first.
fn required_checks(state: &RunState) -> Vec<EvidenceCheck> {
    let mut wanted: Vec<EvidenceCheck> = Vec::new();
    let criteria = state.acceptance_criteria.iter().filter_map(|it| it.check.clone());
    let steps = state.plan.as_ref().map_or(&[][..], Plan::planned_units);
    let planned = steps
        .iter()
        .flat_map(|unit| unit.payload["checks"].as_array().map_or(&[][..], Vec::as_slice))
        .filter_map(|it| serde_json::from_value::<EvidenceCheck>(it.clone()).ok());
    for check in criteria.chain(planned).filter(|check| check.validation_error().is_none()) {
        if !wanted.contains(&check) && wanted.len() < MAX_BASE_CHECKS {
            wanted.push(check);
        }
    }
    wanted
}

/// Keeps the part of a trial that later plans need: the accepted checks.
fn store_accepted_checks(state: &mut RunState, trial: CheckTrial) {
    state.check_trial = Some(trial).filter(|trial| !trial.accepted.is_empty());
}
