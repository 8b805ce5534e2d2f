//! Finalize Summary: has delivered what was brought, and says what was done.

use cynode_core::{
    delivery::{AGAIN, DeliveryMode, END_WITHOUT, ends_without},
    evidence::Check,
    workflow::{Verdict, units::UnitState, waits::WaitReason},
};
use cynode_wire::{
    evidence::Evidence,
    handoffs::Revision,
    workflow::{RunState, UnitView},
};

use super::{
    Scene, Step, answered, ask, await_answer, hand_off,
    shown::{Shown, due, gather, lasting, shown},
    waiting,
};
use crate::mind::{NodeError, Reply, Summary, SummaryRequest};

struct Input<'a> {
    units: &'a [UnitView],
    said: Option<Summary>,
    without: bool,
}

struct Output {
    summary: String,
}

fn run(input: Input<'_>) -> Output {
    let done: Vec<_> = input.units.iter().filter(|unit| unit.state == UnitState::Done).collect();
    let lines = done.iter().map(|unit| match unit.attempts {
        1 => format!("- {}", unit.title),
        attempts => format!("- {} ({attempts} attempts)", unit.title),
    });
    let lines: Vec<_> = lines.collect();
    let counted = format!("{} units done:\n{}", done.len(), lines.join("\n"));
    let (text, delivered) = match input.said {
        Some(Summary { text, pull_request }) => (Some(text), pull_request),
        None => (None, None),
    };
    let delivered = delivered.map(|it| format!("Pull request #{}: {}", it.number, it.url));
    let without =
        input.without.then(|| "A person decided that it ends without a pull request.".to_owned());
    let parts = [text, Some(counted), delivered, without];
    Output { summary: parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n") }
}

/// Whether something would be lost if the task ended now.
fn is_to_be_delivered(state: &RunState, units: &[UnitView]) -> bool {
    let left_commit = |unit: &UnitView| {
        let result = unit.job.as_ref().and_then(|job| job.result.as_ref());
        result.is_some_and(|result| result["commit"].is_string())
    };
    let said = state.preferences_effective.iter();
    let mut said =
        said.filter(|(key, _)| key.as_str() == DeliveryMode::KEY).map(|(_, value)| value);
    DeliveryMode::of(said.next_back()) != DeliveryMode::None && units.iter().any(left_commit)
}

/// What has to be shown first of what the task leaves: plans change, and so does which unit is the last.
fn unshown(scene: &Scene<'_>) -> Result<Option<Step>, NodeError> {
    let Some(plan) = scene.state.plan.as_ref() else { return Ok(None) };
    let mut checks = Vec::new();
    for key in lasting(plan) {
        let unit = scene.position.units.iter().find(|unit| unit.key == *key);
        let unit = unit.filter(|unit| unit.state == UnitState::Done);
        let Some(output) = unit.and_then(|unit| unit.job.as_ref()?.result.as_ref()) else {
            continue;
        };
        let attempt = unit.map_or(1, |unit| unit.attempts);
        let view =
            scene.position.evidence.iter().find(|it| it.unit == *key && it.attempt == attempt);
        let has = |check: &Check| {
            view.is_some_and(|view| view.checks.iter().any(|it| it.check == *check))
        };
        // Who took a result all the same took what was checked of it.
        if view.is_some_and(|view| view.waived.is_some()) && due(scene, key).iter().all(has) {
            continue;
        }
        match shown(scene, key, attempt, output) {
            // What was odd about it was answered for when it was taken.
            Shown::Known(Evidence { checks, .. }) if checks.iter().all(|it| it.tally.is_good()) => {
            }
            Shown::Known(evidence) if evidence.commit.is_none() => {}
            Shown::Known(evidence) => {
                let mut state = scene.state.clone();
                let findings = evidence.findings();
                let why = format!("what unit `{key}` left does not hold in the end");
                let (recommended_actions, conflict) = (Vec::new(), None);
                let revision =
                    Revision { unit: key.clone(), findings, recommended_actions, conflict };
                state.feedback.push(revision.feedback());
                let step = Step::new(Verdict::Revise, state);
                return Ok(Some(Step { unit: Some(key.clone()), note: Some(why), ..step }));
            }
            Shown::Missing(due) => checks.push(Some(gather(scene, key, attempt, due))),
            Shown::Gathering => checks.push(None),
            Shown::Unable(why) => return Err(NodeError::Permanent(why)),
        }
    }
    if checks.is_empty() {
        return Ok(None);
    }
    let effects = checks.into_iter().flatten().collect();
    let step = Step::wait(scene.state.clone(), waiting(WaitReason::Job), None);
    Ok(Some(Step { effects, ..step }))
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let units = &scene.position.units;
    let mut state = scene.state.clone();
    if let Some(step) = unshown(scene)? {
        return Ok(step);
    }
    let answer = answered(scene);
    let words = answer.and_then(|wait| wait.answer.as_deref()).unwrap_or_default();
    let without = ends_without(words);
    let request = SummaryRequest { units, answer, handed: scene.position.handoff.as_ref() };
    let (said, cost_micros) = if without {
        // A person has the last word, also when nobody is there who could say more.
        (None, 0)
    } else {
        match scene.mind.summarise(request).await {
            Ok(Reply::Done(said, cost)) => (said, cost),
            Ok(Reply::Later(request, about)) => return Ok(hand_off(state, *request, about)),
            Ok(Reply::Waiting) => return Ok(await_answer(state)),
            Ok(Reply::Ask(question, cost)) => return Ok(ask(state, question, cost)),
            // What was brought is not lost because nobody could deliver it.
            Err(NodeError::Permanent(why) | NodeError::Undecided(why) | NodeError::Domain(why))
                if is_to_be_delivered(&state, units) =>
            {
                let question = format!(
                    "What was done could not be delivered: {why}\nAnswer `{AGAIN}` to try it once more, or `{END_WITHOUT}` to \
                     end the task without a pull request."
                );
                return Ok(ask(state, question, 0));
            }
            Err(error) if is_to_be_delivered(&state, units) => return Err(error),
            // Work that is done does not fail for want of words about it.
            Err(_) => (None, 0),
        }
    };
    let Output { summary } = run(Input { units, said, without });
    state.current_step_index = u32::try_from(scene.position.units.len()).unwrap_or(u32::MAX);
    state.summary = Some(summary);
    Ok(Step { cost_micros, ..Step::new(Verdict::Pass, state) })
}
