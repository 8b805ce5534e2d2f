//! Backend of a task that was given its plan: no manager and no model takes part.

use cynode_core::workflow::{
    handoffs::{FailureDecision, VerifyOutcome},
    plan::Plan,
};
use serde_json::Value;

use crate::agent_backend::{
    AgentBackend, AgentFuture, AgentReply, FailureRemedy, FailureRequest, PlanRequest, StepError,
    VerificationResult, VerifyRequest,
};

/// Answers every question from the plan that was given with the task. A unit is accepted when all its commands succeeded.
pub(crate) struct GivenPlanBackend {
    plan: Plan,
}

impl GivenPlanBackend {
    /// Creates the backend of a plan.
    pub(crate) const fn new(plan: Plan) -> Self {
        Self { plan }
    }
}

impl AgentBackend for GivenPlanBackend {
    fn create_plan<'a>(&'a self, request: PlanRequest<'a>) -> AgentFuture<'a, Plan> {
        Box::pin(async move {
            if !request.feedback.is_empty() {
                let why = "the plan was given with the task and cannot be changed: cancel the task and ask for another one";
                return Err(StepError::Permanent(why.into()));
            }
            Ok(AgentReply::Done(self.plan.clone(), 0))
        })
    }

    fn verify_result<'a>(
        &'a self,
        request: VerifyRequest<'a>,
    ) -> AgentFuture<'a, VerificationResult> {
        Box::pin(async move { Ok(AgentReply::Done(verify_commands(request.output), 0)) })
    }

    fn handle_unit_failure<'a>(&'a self, _: FailureRequest<'a>) -> AgentFuture<'a, FailureRemedy> {
        Box::pin(async {
            let (decision, note, by_person) = (FailureDecision::Escalate, None, false);
            Ok(AgentReply::Done(FailureRemedy { decision, note, by_person }, 0))
        })
    }
}

/// Verifies a result by the exit codes of its commands.
fn verify_commands(output: &Value) -> VerificationResult {
    let steps = output["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let failed: Vec<String> = steps
        .iter()
        .filter(|step| step["exit_code"] != 0)
        .map(|step| format!("`{}`", command_of(step)))
        .collect();
    let (outcome, note) = if steps.is_empty() {
        (VerifyOutcome::GiveUp, "no command was run".to_owned())
    } else if failed.is_empty() {
        (VerifyOutcome::Accept, String::new())
    } else {
        let (count, all) = (failed.len(), steps.len());
        (VerifyOutcome::GiveUp, format!("{count} of {all} commands failed: {}", failed.join(", ")))
    };
    VerificationResult {
        outcome,
        findings: Vec::new(),
        recommended_actions: Vec::new(),
        note,
        by_person: false,
        waived: None,
    }
}

/// Returns the command of a step, without the shell that runs it.
fn command_of(step: &Value) -> String {
    let argv: Vec<&str> =
        step["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match argv.as_slice() {
        ["sh", "-c", command] => (*command).to_owned(),
        argv => argv.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_result_is_accepted_when_every_command_succeeded_and_names_those_that_did_not() {
        let step = |command: &str, code: Option<i32>| json!({ "argv": ["sh", "-c", command], "exit_code": code });
        let good = verify_commands(&json!({ "steps": [step("make", Some(0))] }));
        assert_eq!((good.outcome, good.note.as_str()), (VerifyOutcome::Accept, ""));
        let bad = json!({ "steps": [step("make", Some(0)), step("make check", Some(2)), step("x", None)] });
        let bad = verify_commands(&bad);
        assert_eq!(bad.outcome, VerifyOutcome::GiveUp);
        assert_eq!(bad.note, "2 of 3 commands failed: `make check`, `x`");
        assert_eq!(verify_commands(&json!({})).outcome, VerifyOutcome::GiveUp);
    }
}
