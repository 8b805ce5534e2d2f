//! Chat Completions client: asks a model until the answer matches the schema, or says why none does.

use std::{collections::BTreeMap, time::Duration};

use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    AnswerSchema, AnswerValidator, decision_kind_name, first_attempt_max_tokens,
    max_tokens_for_kind,
};
use crate::{
    decision_context::{DecisionError, DecisionRequest},
    mcp_client::{RequestCredentials, describe_request_error, read_bounded_body},
};

/// Maximum number of attempts.
const MAX_COMPLETION_ATTEMPTS: u32 = 3;

/// Factor by which the timeout grows after a timeout. The slow answer may be charged, and a slow model is likely to be slow again.
const TIMEOUT_RETRY_FACTOR: u32 = 3;

/// Maximum size of an answer.
const MAX_COMPLETION_BYTES: usize = 4 * 1024 * 1024;

/// Client of a model endpoint.
#[derive(Clone, Debug)]
pub struct LlmClient {
    http: reqwest::Client,
    endpoint: String,
    pass: RequestCredentials,
    patience: Duration,
    think_seconds: BTreeMap<String, u32>,
}

/// One completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlmCompletion {
    /// Text of the answer.
    pub text: String,
    /// Whether the answer was truncated.
    pub cut: bool,
    /// Id of the model call at the inference endpoint.
    pub call: Option<String>,
    /// Number of input tokens.
    pub input_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
}

/// Error of a completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// No answer, or the connection failed.
    #[error("{0}")]
    Silent(String),
    /// The request timed out; the model may still be working.
    #[error(
        "`{model}` took longer than {patience:?}; give all models more time with `cynork settings set manager.think_timeout_seconds N`, or one with `cynork model set MODEL --think-seconds N`"
    )]
    Late {
        /// Name of the model.
        model: String,
        /// Timeout of the request.
        patience: Duration,
    },
    /// The endpoint rejected the request.
    #[error("{words}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Error code.
        code: String,
        /// Reason in words.
        words: String,
    },
}

/// Outcome of a structured completion, with all its attempts.
#[derive(Clone, Debug, PartialEq)]
pub struct StructuredCompletion {
    /// The valid answer, or why there is none.
    pub answer: Result<Value, DecisionError>,
    /// Number of attempts.
    pub attempts: u32,
    /// Validation errors of the rejected answers.
    pub complaints: Vec<String>,
    /// Every answer as received.
    pub texts: Vec<String>,
    /// Ids of the model calls.
    pub calls: Vec<String>,
    /// Total number of input tokens.
    pub input_tokens: u64,
    /// Total number of output tokens.
    pub output_tokens: u64,
    /// Total duration.
    pub latency: Duration,
}

/// Builds the request. It is the same for every attempt, plus the validation error of the last one.
pub fn build_completion_request(
    ask: &DecisionRequest,
    form: &AnswerSchema,
    model: &str,
    temperature: f64,
    complaint: Option<&str>,
) -> Value {
    let user = match complaint {
        None => ask.user.clone(),
        Some(complaint) => format!(
            "{}\n\nAn answer to this was not taken: {complaint}\nAnswer again, with one JSON value of this form and nothing else: {}",
            ask.user,
            form.to_compact_json()
        ),
    };
    json!({
        "model": model,
        "messages": [{ "role": "system", "content": ask.system }, { "role": "user", "content": user }],
        "temperature": temperature,
        "max_tokens": completion_token_limit(ask, complaint),
        "response_format": form.response_format(decision_kind_name(ask.kind)),
    })
}

/// Returns the maximum number of tokens of an answer.
const fn completion_token_limit(ask: &DecisionRequest, complaint: Option<&str>) -> u32 {
    if complaint.is_some() {
        max_tokens_for_kind(ask.kind)
    } else {
        first_attempt_max_tokens(ask.kind)
    }
}

impl LlmClient {
    /// Creates a client of an endpoint with a timeout per answer.
    pub const fn new(
        http: reqwest::Client,
        endpoint: String,
        pass: RequestCredentials,
        patience: Duration,
    ) -> Self {
        Self { http, endpoint, pass, patience, think_seconds: BTreeMap::new() }
    }

    /// Sets timeouts per model, where they are configured.
    #[must_use]
    pub fn with_think_seconds(self, think_seconds: BTreeMap<String, u32>) -> Self {
        Self { think_seconds, ..self }
    }

    /// Returns the timeout of a model.
    fn timeout_for(&self, model: &str) -> Duration {
        let own = self.think_seconds.get(model).copied();
        own.map_or(self.patience, |seconds| Duration::from_secs(seconds.into()))
    }

    /// Requests an answer until it matches the schema, at most three times. Every attempt sends the same request plus the last validation
    /// error; earlier answers are not sent back. One missing answer is tolerated; after a timeout the next attempt gets more time.
    pub async fn complete_structured(
        &self,
        ask: &DecisionRequest,
        form: &AnswerSchema,
        model: &str,
        temperature: f64,
        check: AnswerValidator<'_>,
    ) -> StructuredCompletion {
        let begun = Instant::now();
        let mut all = StructuredCompletion {
            answer: Err(DecisionError::Permanent(String::new())),
            attempts: 0,
            complaints: Vec::new(),
            texts: Vec::new(),
            calls: Vec::new(),
            input_tokens: 0,
            output_tokens: 0,
            latency: Duration::ZERO,
        };
        let (mut silent, mut patience) = (false, self.timeout_for(model));
        let mut heard = 0;
        all.answer = loop {
            all.attempts += 1;
            let complaint = all.complaints.last().map(String::as_str);
            let most = completion_token_limit(ask, complaint);
            let question = build_completion_request(ask, form, model, temperature, complaint);
            let said = match self.complete_within(&question, patience).await {
                Ok(said) => said,
                Err(LlmError::Silent(_)) if !silent => {
                    silent = true;
                    continue;
                }
                Err(LlmError::Late { .. }) if !silent => {
                    (silent, patience) = (true, patience.saturating_mul(TIMEOUT_RETRY_FACTOR));
                    continue;
                }
                Err(error) => break Err(error.into_decision_error()),
            };
            heard += 1;
            all.input_tokens += said.input_tokens;
            all.output_tokens += said.output_tokens;
            all.calls.extend(said.call);
            let read = form.parse_answer(&said.text, check);
            all.texts.push(said.text);
            match read {
                Ok(value) => break Ok(value),
                Err(_) if said.cut => {
                    all.complaints.push(format!("it was cut off at {most} tokens: be shorter"));
                }
                Err(complaint) => all.complaints.push(complaint),
            }
            if heard == MAX_COMPLETION_ATTEMPTS {
                let complaint = all.complaints.last().map_or("", String::as_str);
                let kind = decision_kind_name(ask.kind);
                break Err(DecisionError::Permanent(format!(
                    "`{model}` gave no usable answer to `{kind}` in {heard} attempts: {complaint}"
                )));
            }
        };
        all.latency = begun.elapsed();
        all
    }

    /// Requests a completion as a stream. The timeout applies to each chunk.
    pub(crate) async fn stream_completion(
        &self,
        question: &Value,
    ) -> Result<CompletionStream, LlmError> {
        let request =
            self.pass.authorize_request(self.http.post(&self.endpoint).json(question)).send();
        let patience = self.timeout_for(requested_model(question));
        let answer = timeout(patience, request).await.map_err(|_| timeout_error())?;
        let answer = answer.map_err(|error| LlmError::Silent(describe_request_error(error)))?;
        let status = answer.status();
        if !status.is_success() {
            let body = timeout(patience, read_bounded_body(answer, MAX_COMPLETION_BYTES)).await;
            return Err(parse_refusal(
                status,
                &body.map_err(|_| timeout_error())?.unwrap_or_default(),
            ));
        }
        Ok(CompletionStream { answer, patience })
    }

    /// Requests one completion.
    pub async fn complete_once(&self, question: &Value) -> Result<LlmCompletion, LlmError> {
        self.complete_within(question, self.timeout_for(requested_model(question))).await
    }

    async fn complete_within(
        &self,
        question: &Value,
        patience: Duration,
    ) -> Result<LlmCompletion, LlmError> {
        let heard = timeout(patience, self.send_request(question)).await;
        let model = requested_model(question).to_owned();
        heard.unwrap_or(Err(LlmError::Late { model, patience }))
    }

    async fn send_request(&self, question: &Value) -> Result<LlmCompletion, LlmError> {
        let request = self.http.post(&self.endpoint).json(question);
        let silent = |error| LlmError::Silent(describe_request_error(error));
        let answer = self.pass.authorize_request(request).send().await.map_err(silent)?;
        let call = answer.headers().get("x-cynode-call");
        let call = call.and_then(|call| call.to_str().ok()).map(str::to_owned);
        let status = answer.status();
        let body =
            read_bounded_body(answer, MAX_COMPLETION_BYTES).await.map_err(LlmError::Silent)?;
        if !status.is_success() {
            return Err(parse_refusal(status, &body));
        }
        let reply: LlmResponse = serde_json::from_slice(&body)
            .map_err(|error| LlmError::Silent(format!("an answer cannot be read: {error}")))?;
        let choice = reply.choices.into_iter().next().unwrap_or_default();
        let message = choice.message;
        Ok(LlmCompletion {
            text: message.content.or(message.refusal).unwrap_or_default(),
            cut: choice.finish_reason.as_deref() == Some("length"),
            call,
            input_tokens: reply.usage.prompt_tokens,
            output_tokens: reply.usage.completion_tokens,
        })
    }
}

/// A streamed completion.
#[derive(Debug)]
pub(crate) struct CompletionStream {
    answer: reqwest::Response,
    patience: Duration,
}

impl CompletionStream {
    /// Returns the next bytes, if there are any.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, LlmError> {
        let piece =
            timeout(self.patience, self.answer.chunk()).await.map_err(|_| timeout_error())?;
        let piece = piece.map_err(|error| LlmError::Silent(describe_request_error(error)))?;
        Ok(piece.map(|bytes| bytes.to_vec()))
    }
}

/// Returns the requested model.
fn requested_model(question: &Value) -> &str {
    question["model"].as_str().unwrap_or_default()
}

fn timeout_error() -> LlmError {
    LlmError::Silent("it took too long".into())
}

/// Parses an error of the inference endpoint.
fn parse_refusal(status: StatusCode, body: &[u8]) -> LlmError {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let word = |name: &str| {
        body["error"][name].as_str().unwrap_or_default().chars().take(1000).collect::<String>()
    };
    let (code, words) = (word("code"), word("message"));
    let words = if words.is_empty() { format!("the egress answered {status}") } else { words };
    // A server error is transient and not a refusal.
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return LlmError::Silent(words);
    }
    LlmError::Refused { status: status.as_u16(), code, words }
}

impl LlmError {
    /// Converts the error for a decision. Rate limits, quotas, paused tasks and budgets are transient, some with a person's help; an
    /// expired token ends with its handoff.
    pub(crate) fn into_decision_error(self) -> DecisionError {
        match self {
            Self::Silent(why) => DecisionError::Transient(format!("no model answered: {why}")),
            Self::Late { .. } => DecisionError::Late(format!("no model answered: {self}")),
            Self::Refused { status, code, words } => match (status, code.as_str()) {
                (_, "quota_exhausted" | "budget_exhausted" | "task_parked") => {
                    DecisionError::Budget(words)
                }
                (_, "rate_limit_exceeded") | (401 | 402 | 429, _) => {
                    DecisionError::Transient(words)
                }
                _ => DecisionError::Permanent(words),
            },
        }
    }
}

#[derive(Deserialize)]
struct LlmResponse {
    choices: Vec<LlmChoice>,
    #[serde(default)]
    usage: LlmUsage,
}

#[derive(Default, Deserialize)]
struct LlmChoice {
    message: LlmMessage,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct LlmMessage {
    content: Option<String>,
    refusal: Option<String>,
}

/// Token usage of a call.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct LlmUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
}
