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

/// Most answers that are asked for.
const MAX_COMPLETION_ATTEMPTS: u32 = 3;

/// How many times as long is waited when an answer took too long: it may be paid for, and whoever thinks long does so again.
const TIMEOUT_RETRY_FACTOR: u32 = 3;

/// Most bytes of an answer.
const MAX_COMPLETION_BYTES: usize = 4 * 1024 * 1024;

/// The way to a model.
#[derive(Clone, Debug)]
pub struct LlmClient {
    http: reqwest::Client,
    endpoint: String,
    pass: RequestCredentials,
    patience: Duration,
    think_seconds: BTreeMap<String, u32>,
}

/// One answer, whatever it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlmCompletion {
    /// The text.
    pub text: String,
    /// Whether it was cut off.
    pub cut: bool,
    /// The name of the call at the egress.
    pub call: Option<String>,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
}

/// Why nothing was heard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// Nobody answered, or the way is broken.
    #[error("{0}")]
    Silent(String),
    /// There was no answer for so long; whoever was asked may still be at it.
    #[error(
        "`{model}` took longer than {patience:?}; give all models more time with `cynork settings set manager.think_timeout_seconds N`, or one with `cynork model set MODEL --think-seconds N`"
    )]
    Late {
        /// The model.
        model: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// It was answered with no.
    #[error("{words}")]
    Refused {
        /// The status.
        status: u16,
        /// The finer word.
        code: String,
        /// In words.
        words: String,
    },
}

/// What came of asking until the form was right.
#[derive(Clone, Debug, PartialEq)]
pub struct StructuredCompletion {
    /// The answer, or why there is none.
    pub answer: Result<Value, DecisionError>,
    /// How often it was asked.
    pub attempts: u32,
    /// What was wrong with the answers that were not taken.
    pub complaints: Vec<String>,
    /// Every answer, as it came.
    pub texts: Vec<String>,
    /// The calls at the egress.
    pub calls: Vec<String>,
    /// Tokens in, all together.
    pub input_tokens: u64,
    /// Tokens out, all together.
    pub output_tokens: u64,
    /// How long it took.
    pub latency: Duration,
}

/// The whole question, as it is sent: the same for every attempt, with what was wrong before if something was.
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

/// Most tokens of an answer.
const fn completion_token_limit(ask: &DecisionRequest, complaint: Option<&str>) -> u32 {
    if complaint.is_some() {
        max_tokens_for_kind(ask.kind)
    } else {
        first_attempt_max_tokens(ask.kind)
    }
}

impl LlmClient {
    /// A voice towards an endpoint, with the time that one answer may take.
    pub const fn new(
        http: reqwest::Client,
        endpoint: String,
        pass: RequestCredentials,
        patience: Duration,
    ) -> Self {
        Self { http, endpoint, pass, patience, think_seconds: BTreeMap::new() }
    }

    /// The same, with the time that an answer of each model may take, where somebody has said.
    #[must_use]
    pub fn with_think_seconds(self, think_seconds: BTreeMap<String, u32>) -> Self {
        Self { think_seconds, ..self }
    }

    /// How long an answer of a model may take.
    fn timeout_for(&self, model: &str) -> Duration {
        let own = self.think_seconds.get(model).copied();
        own.map_or(self.patience, |seconds| Duration::from_secs(seconds.into()))
    }

    /// Asks until there is an answer of the right form, at most three times. Every time the question is the same, with the
    /// last complaint; earlier answers are not sent back. Silence is borne once; after an answer that took too long, more time is given.
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

    /// Asks, and gives the answer while it is made. No piece may take longer than one answer may.
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

    /// Asks once.
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

/// An answer that is being made.
#[derive(Debug)]
pub(crate) struct CompletionStream {
    answer: reqwest::Response,
    patience: Duration,
}

impl CompletionStream {
    /// The next bytes, if there are any.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, LlmError> {
        let piece =
            timeout(self.patience, self.answer.chunk()).await.map_err(|_| timeout_error())?;
        let piece = piece.map_err(|error| LlmError::Silent(describe_request_error(error)))?;
        Ok(piece.map(|bytes| bytes.to_vec()))
    }
}

/// The model that is asked.
fn requested_model(question: &Value) -> &str {
    question["model"].as_str().unwrap_or_default()
}

fn timeout_error() -> LlmError {
    LlmError::Silent("it took too long".into())
}

/// What an error of the egress says.
fn parse_refusal(status: StatusCode, body: &[u8]) -> LlmError {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let word = |name: &str| {
        body["error"][name].as_str().unwrap_or_default().chars().take(1000).collect::<String>()
    };
    let (code, words) = (word("code"), word("message"));
    let words = if words.is_empty() { format!("the egress answered {status}") } else { words };
    // Somebody's trouble on the way, not a decision.
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return LlmError::Silent(words);
    }
    LlmError::Refused { status: status.as_u16(), code, words }
}

impl LlmError {
    /// What it means for the work at a desk. Rates, quotas, parked tasks and budgets pass, some with a person's help; a token that has
    /// ended ends with its handoff.
    pub(crate) fn into_decision_error(self) -> DecisionError {
        match self {
            Self::Silent(why) => DecisionError::Transient(format!("no model answered: {why}")),
            Self::Late { .. } => DecisionError::Late(format!("no model answered: {self}")),
            Self::Refused { status, code, words } => match (status, code.as_str()) {
                (
                    _,
                    "quota_exhausted" | "budget_exhausted" | "task_parked" | "rate_limit_exceeded",
                )
                | (401 | 402 | 429, _) => DecisionError::Transient(words),
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

/// What a call used.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct LlmUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
}
