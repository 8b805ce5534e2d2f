//! `model.*`: the models that an agent may ask, and one question to one of them. A question takes the way of every model call: token and
//! profile must have the model, secrets are redacted, and the budget of the agent's task is charged.

use cynode_app::models::inference::{
    self, Dialect, InferenceAnswer, InferenceRequest, ModelError, ModelErrorKind,
};
use cynode_core::{agents::ToolScope, ids::CallId, tools::ToolAnnotations};
use cynode_policy::catalogue::IdBinding;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec};

/// Maximum size of a question with its instructions, in bytes.
const MAX_QUESTION_BYTES: usize = 256 * 1024;

/// Maximum number of characters of an answer that is returned.
const MAX_ANSWER_CHARS: usize = 64 * 1024;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ModelListArgs {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ModelAskArgs {
    /// Id of the model, as `model.list` gives it.
    model: String,
    /// The question.
    prompt: String,
    /// How the model is to answer.
    instructions: Option<String>,
    /// Most tokens of the answer.
    max_output_tokens: Option<u32>,
}

pub(super) fn model_tools() -> Vec<NativeTool> {
    let about = |name, title, description, annotations| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Both,
        binding: IdBinding::NONE,
        annotations,
    };
    let asks = ToolAnnotations { open_world: true, ..ToolAnnotations::ADDITIVE_WRITE };
    vec![
        about(
            "model.list",
            "The models that you may ask",
            "The models that your token opens and your profile has, by id.",
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(list_models),
        about(
            "model.ask",
            "Ask a model",
            "Asks a model one question and returns its answer as text. Your task pays for it.",
            asks,
        )
        .with_handler(ask_model),
    ]
}

async fn list_models(
    invocation: ToolInvocation,
    ModelListArgs {}: ModelListArgs,
) -> Result<Value, ToolError> {
    let who = inference::caller_of_agent(invocation.token.clone())?;
    let offered = inference::list_offered_models(&invocation.app, &who).await?;
    let models: Vec<Value> = offered
        .iter()
        .map(|model| json!({ "model": model.id, "title": model.title, "owner": model.owner }))
        .collect();
    Ok(json!({ "models": models }))
}

async fn ask_model(
    invocation: ToolInvocation,
    arguments: ModelAskArgs,
) -> Result<Value, ToolError> {
    let who = inference::caller_of_agent(invocation.token.clone())?;
    let question = build_question(arguments);
    let size = question.to_string().len();
    if size > MAX_QUESTION_BYTES {
        let rule = format!("a question has at most {MAX_QUESTION_BYTES} bytes, got {size}");
        return Err(ToolError::invalid_arguments(rule));
    }
    let trace = invocation.trace_id();
    let mut request = InferenceRequest::new(Dialect::Chat, question, size, who, trace, Vec::new());
    request.left = invocation.gone.clone();
    match inference::ask_model(&invocation.app, request).await {
        Ok(InferenceAnswer::Whole(call, answer)) => Ok(to_result(call, &answer)),
        Ok(InferenceAnswer::Streamed(..)) => Err(ToolError {
            code: "upstream_rejected",
            detail: "the model answered with a stream".into(),
            fix: None,
        }),
        Err(error) => Err(to_tool_error(error)),
    }
}

/// Builds the request in the dialect of chat completions.
fn build_question(arguments: ModelAskArgs) -> Value {
    let ModelAskArgs { model, prompt, instructions, max_output_tokens } = arguments;
    let system = instructions.map(|text| json!({ "role": "system", "content": text }));
    let user = json!({ "role": "user", "content": prompt });
    let messages: Vec<Value> = system.into_iter().chain([user]).collect();
    let mut question = json!({ "model": model, "messages": messages });
    if let Some(most) = max_output_tokens {
        question["max_completion_tokens"] = json!(most);
    }
    question
}

/// Returns the answer for the agent. What a model says is data, and no instruction.
fn to_result(call: CallId, answer: &Value) -> Value {
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    let text = message["content"].as_str().or_else(|| message["refusal"].as_str());
    let text = text.unwrap_or_default();
    let shown: String = text.chars().take(MAX_ANSWER_CHARS).collect();
    json!({
        "call_id": call,
        "model": answer["model"],
        "truncated": shown.len() < text.len(),
        "text": shown,
        "finish_reason": choice["finish_reason"],
        "usage": answer["usage"],
        "untrusted": true,
    })
}

fn to_tool_error(error: ModelError) -> ToolError {
    let code = match (error.kind, error.code.as_deref()) {
        (_, Some("model_not_in_profile")) => "model_not_in_profile",
        (_, Some("unknown_profile")) => "unknown_profile",
        (ModelErrorKind::Forbidden | ModelErrorKind::Unauthorized, _) => "model_not_allowed",
        (ModelErrorKind::NotFound, _) => "not_found",
        (ModelErrorKind::BadRequest, _) => "invalid",
        (ModelErrorKind::TooLarge, _) => "too_large",
        (ModelErrorKind::BudgetExhausted, _) => "budget_exhausted",
        (ModelErrorKind::RateLimited | ModelErrorKind::QuotaExhausted, _) => "rate_limited",
        (ModelErrorKind::Overloaded, _) => "overloaded",
        (ModelErrorKind::Timeout, _) => "timeout",
        (ModelErrorKind::Unavailable, _) => "upstream_unavailable",
        (ModelErrorKind::Upstream | ModelErrorKind::ContentRefused, _) => "upstream_rejected",
    };
    ToolError { code, detail: error.message, fix: None }
}
