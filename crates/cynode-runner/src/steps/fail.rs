//! Mark Failed: records why the task failed.

use cynode_core::workflow::StepVerdict;
use cynode_wire::workflow::StepVerification;

use super::{CheckpointDraft, StepContext};

struct FailInput<'a> {
    failure: Option<&'a str>,
    verification: Option<&'a StepVerification>,
}

struct FailOutput {
    reason: String,
}

fn failure_reason(input: &FailInput<'_>) -> FailOutput {
    let found = input.verification.and_then(|last| last.findings.last());
    let reason = input.failure.or(found.map(|finding| finding.text.as_str()));
    FailOutput { reason: reason.unwrap_or("it was given up").to_owned() }
}

pub(super) fn run_fail_step(scene: &StepContext<'_>) -> CheckpointDraft {
    let state = scene.state.clone();
    let input =
        FailInput { failure: state.failure.as_deref(), verification: state.verification.as_ref() };
    let FailOutput { reason } = failure_reason(&input);
    CheckpointDraft { note: Some(reason), ..CheckpointDraft::new(StepVerdict::Pass, state) }
}
