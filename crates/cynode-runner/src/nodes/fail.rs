//! Mark Failed: says why the task was given up.

use cynode_core::workflow::Verdict;
use cynode_wire::workflow::Verification;

use super::{Scene, Step};

struct Input<'a> {
    failure: Option<&'a str>,
    verification: Option<&'a Verification>,
}

struct Output {
    reason: String,
}

fn run(input: &Input<'_>) -> Output {
    let found = input.verification.and_then(|last| last.findings.last());
    let reason = input.failure.or(found.map(|finding| finding.text.as_str()));
    Output { reason: reason.unwrap_or("it was given up").to_owned() }
}

pub(super) fn step(scene: &Scene<'_>) -> Step {
    let state = scene.state.clone();
    let input =
        Input { failure: state.failure.as_deref(), verification: state.verification.as_ref() };
    let Output { reason } = run(&input);
    Step { note: Some(reason), ..Step::new(Verdict::Pass, state) }
}
