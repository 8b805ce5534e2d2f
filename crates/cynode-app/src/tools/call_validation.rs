//! Decisions and results by the schemas of tools. A schema of a tool server is untrusted: a validation that is not proven to be cheap runs
//! off the async workers, a few at a time, with a deadline.

use std::{sync::Arc, time::Duration};

use cynode_policy::{
    agents::AgentIdentity,
    catalogue::CatalogueTool,
    decision::{CallRequest, PolicyDecision, PolicySnapshot, decide},
    reasons::RefusalReason,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::sync::Semaphore;

use crate::platform::{body_budget::count_json_values, operation};

/// Maximum number of validations that run off the async workers at once.
static VALIDATION_PERMITS: Semaphore = Semaphore::const_new(4);

/// How long a validation may take, with the time for which it waits for its turn.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of JSON values of a result that is parsed.
const MAX_RESULT_VALUES: usize = 200_000;

/// Decides a call whose arguments are a JSON text of that many bytes. Returns the arguments with the decision.
#[operation]
pub async fn decide_call(
    agent: &Arc<AgentIdentity>,
    gate: &Arc<PolicySnapshot>,
    tool: &str,
    arguments: Value,
    bytes: usize,
) -> (PolicyDecision, Value) {
    if gate.validates_cheaply(tool, bytes) {
        let decision = decide(agent, gate, CallRequest { tool, arguments: &arguments });
        return (decision, arguments);
    }
    let (agent, gate, tool) = (agent.clone(), gate.clone(), tool.to_owned());
    let decided = run_validation(move || {
        let decision = decide(&agent, &gate, CallRequest { tool: &tool, arguments: &arguments });
        (decision, arguments)
    });
    decided.await.unwrap_or_else(|| {
        let reason = "the tool's schema takes too long to check them: send less".into();
        let refused = PolicyDecision::from_refusal(RefusalReason::InvalidArguments(reason));
        (refused, Value::Null)
    })
}

/// Checks the result of a tool server by the output schema of the tool. Fails with what is wrong.
#[operation]
pub async fn check_tool_result(
    tool: &Arc<CatalogueTool>,
    result: Box<RawValue>,
) -> Result<Box<RawValue>, String> {
    if tool.definition.output.is_none() {
        return Ok(result);
    }
    let text = result.get();
    if count_json_values(text.as_bytes()) > MAX_RESULT_VALUES {
        return Err(format!("it has more than {MAX_RESULT_VALUES} JSON values"));
    }
    if tool.validates_output_cheaply(text.len()) {
        return find_result_violation(tool, text).map_or(Ok(result), Err);
    }
    let tool = tool.clone();
    let checked = run_validation(move || match find_result_violation(&tool, result.get()) {
        None => Ok(result),
        Some(violation) => Err(violation),
    });
    checked.await.unwrap_or_else(|| Err("its schema takes too long to check it".into()))
}

fn find_result_violation(tool: &CatalogueTool, result: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct StructuredResult<'a> {
        #[serde(borrow, rename = "structuredContent")]
        content: Option<&'a RawValue>,
    }
    let result = serde_json::from_str::<StructuredResult<'_>>(result).ok();
    let content = result.and_then(|result| result.content);
    let content = content.and_then(|content| serde_json::from_str::<Value>(content.get()).ok());
    tool.find_output_violation(content.as_ref())
}

/// Runs a validation off the async workers. It keeps its permit until it ends, also when nobody waits for it any more.
async fn run_validation<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let run = async {
        let permit = VALIDATION_PERMITS.acquire().await.ok()?;
        let validation = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(permit);
            done
        });
        validation.await.ok()
    };
    tokio::time::timeout(VALIDATION_TIMEOUT, run).await.ok().flatten()
}
