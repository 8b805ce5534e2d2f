//! Verify Step Result: has the result judged, and decides from the judgement in the state.

use cynode_core::workflow::Verdict;
use cynode_wire::workflow::{Effect, StepResult, Verification, VerificationStatus};

use super::{Scene, Step, ask, may_retry};
use crate::mind::{Judgement, NodeError, Reply, VerifyRequest};

struct Input<'a> {
    result: &'a StepResult,
}

enum Output {
    Judged(Judgement, u64),
    Ask(String),
}

async fn run(input: Input<'_>, scene: &Scene<'_>) -> Result<Output, NodeError> {
    let Input { result } = input;
    let unit = scene
        .state
        .plan
        .as_ref()
        .and_then(|plan| plan.steps().iter().find(|unit| unit.key == result.unit));
    let Some(unit) = unit else {
        return Err(NodeError::Permanent(format!("unit `{}` is not in the plan", result.unit)));
    };
    let reply = scene.mind.verify(VerifyRequest {
        task: scene.task,
        criteria: &scene.state.acceptance_criteria,
        unit: &unit.key,
        title: &unit.title,
        unit_attempt: result.attempt,
        output: &result.output,
        answer: scene.position.ended_wait.as_ref(),
        attempt: scene.state.node_failures + 1,
    });
    Ok(match reply.await? {
        Reply::Done(judgement, cost) => Output::Judged(judgement, cost),
        Reply::Ask(question) => Output::Ask(question),
    })
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let mut state = scene.state.clone();
    let Some(result) = scene.state.last_result.as_ref() else {
        return Err(NodeError::Permanent("there is no result to judge".into()));
    };
    let (unit, attempt) = (result.unit.clone(), result.attempt);
    let (judgement, cost_micros) = match run(Input { result }, scene).await? {
        Output::Ask(question) => return Ok(ask(state, question)),
        Output::Judged(judgement, cost) => (judgement, cost),
    };
    let Judgement { status, findings, recommended_actions } = judgement;
    state.verification = Some(Verification {
        unit: unit.clone(),
        status,
        findings: findings.clone(),
        recommended_actions,
    });
    let key = unit.clone();
    let (step, effect) = match status {
        VerificationStatus::Pass => {
            (Step::new(Verdict::Pass, state), Effect::AcceptUnit { unit, attempt, findings })
        }
        VerificationStatus::Fail => {
            let why = findings.iter().map(|finding| finding.text.as_str()).collect::<Vec<_>>();
            let why = if why.is_empty() { "it was judged bad".to_owned() } else { why.join("; ") };
            if may_retry(scene, attempt) {
                let step = Step { note: Some(why), ..Step::new(Verdict::Redo, state) };
                (step, Effect::RetryUnit { unit, attempt, findings })
            } else {
                let why = format!("unit `{unit}` was judged bad {attempt} times: {why}");
                (Step::give_up(state, why), Effect::FailUnit { unit, attempt, findings })
            }
        }
    };
    Ok(Step { effects: vec![effect], unit: Some(key), cost_micros, ..step })
}
