//! Speaks to a model over Chat Completions until it gives an answer of the right form, or says why there is none.

use std::time::Duration;

use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{Check, Form, first_tokens, most_tokens, name};
use crate::{
    desk::{Ask, Trouble},
    gate::{Pass, bounded, told},
};

/// Most answers that are asked for.
const MOST_ATTEMPTS: u32 = 3;

/// How many times as long is waited when an answer took too long: it may be paid for, and whoever thinks long does so again.
const LONGER: u32 = 3;

/// Most bytes of an answer.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// The way to a model.
#[derive(Clone, Debug)]
pub struct Voice {
    http: reqwest::Client,
    endpoint: String,
    pass: Pass,
    patience: Duration,
}

/// One answer, whatever it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
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
pub enum VoiceError {
    /// Nobody answered, or the way is broken.
    #[error("{0}")]
    Silent(String),
    /// There was no answer for so long; whoever was asked may still be at it.
    #[error("it took longer than {0:?}; `think-seconds` says how long it may take")]
    Late(Duration),
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
pub struct Insisted {
    /// The answer, or why there is none.
    pub answer: Result<Value, Trouble>,
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
pub fn question(
    ask: &Ask,
    form: &Form,
    model: &str,
    temperature: f64,
    complaint: Option<&str>,
) -> Value {
    let user = match complaint {
        None => ask.user.clone(),
        Some(complaint) => format!(
            "{}\n\nAn answer to this was not taken: {complaint}\nAnswer again, with one JSON value of this form and nothing else: {}",
            ask.user,
            form.told()
        ),
    };
    json!({
        "model": model,
        "messages": [{ "role": "system", "content": ask.system }, { "role": "user", "content": user }],
        "temperature": temperature,
        "max_tokens": room(ask, complaint),
        "response_format": form.response_format(name(ask.kind)),
    })
}

/// Most tokens of an answer.
const fn room(ask: &Ask, complaint: Option<&str>) -> u32 {
    if complaint.is_some() { most_tokens(ask.kind) } else { first_tokens(ask.kind) }
}

impl Voice {
    /// A voice towards an endpoint, with the time that one answer may take.
    pub const fn new(
        http: reqwest::Client,
        endpoint: String,
        pass: Pass,
        patience: Duration,
    ) -> Self {
        Self { http, endpoint, pass, patience }
    }

    /// Asks until there is an answer of the right form, at most three times. Every time the question is the same, with the
    /// last complaint; earlier answers are not sent back. Silence is borne once; after an answer that took too long, more time is given.
    pub async fn insist(
        &self,
        ask: &Ask,
        form: &Form,
        model: &str,
        temperature: f64,
        check: Check<'_>,
    ) -> Insisted {
        let begun = Instant::now();
        let mut all = Insisted {
            answer: Err(Trouble::Permanent(String::new())),
            attempts: 0,
            complaints: Vec::new(),
            texts: Vec::new(),
            calls: Vec::new(),
            input_tokens: 0,
            output_tokens: 0,
            latency: Duration::ZERO,
        };
        let (mut silent, mut patience) = (false, self.patience);
        let mut heard = 0;
        all.answer = loop {
            all.attempts += 1;
            let complaint = all.complaints.last().map(String::as_str);
            let most = room(ask, complaint);
            let question = question(ask, form, model, temperature, complaint);
            let said = match self.say_within(&question, patience).await {
                Ok(said) => said,
                Err(VoiceError::Silent(_)) if !silent => {
                    silent = true;
                    continue;
                }
                Err(VoiceError::Late(_)) if !silent => {
                    (silent, patience) = (true, patience.saturating_mul(LONGER));
                    continue;
                }
                Err(error) => break Err(error.trouble()),
            };
            heard += 1;
            all.input_tokens += said.input_tokens;
            all.output_tokens += said.output_tokens;
            all.calls.extend(said.call);
            let read = form.read(&said.text, check);
            all.texts.push(said.text);
            match read {
                Ok(value) => break Ok(value),
                Err(_) if said.cut => {
                    all.complaints.push(format!("it was cut off at {most} tokens: be shorter"));
                }
                Err(complaint) => all.complaints.push(complaint),
            }
            if heard == MOST_ATTEMPTS {
                let complaint = all.complaints.last().map_or("", String::as_str);
                let kind = name(ask.kind);
                break Err(Trouble::Permanent(format!(
                    "`{model}` gave no usable answer to `{kind}` in {heard} attempts: {complaint}"
                )));
            }
        };
        all.latency = begun.elapsed();
        all
    }

    /// Asks, and gives the answer while it is made. No piece may take longer than one answer may.
    pub(crate) async fn stream(&self, question: &Value) -> Result<Spoken, VoiceError> {
        let request = self.pass.show(self.http.post(&self.endpoint).json(question)).send();
        let answer = timeout(self.patience, request).await.map_err(|_| late())?;
        let answer = answer.map_err(|error| VoiceError::Silent(told(error)))?;
        let status = answer.status();
        if !status.is_success() {
            let body = timeout(self.patience, bounded(answer, MOST_BYTES)).await;
            return Err(refusal(status, &body.map_err(|_| late())?.unwrap_or_default()));
        }
        Ok(Spoken { answer, patience: self.patience })
    }

    /// Asks once.
    pub async fn say(&self, question: &Value) -> Result<Heard, VoiceError> {
        self.say_within(question, self.patience).await
    }

    async fn say_within(&self, question: &Value, patience: Duration) -> Result<Heard, VoiceError> {
        let heard = timeout(patience, self.hear(question)).await;
        heard.unwrap_or(Err(VoiceError::Late(patience)))
    }

    async fn hear(&self, question: &Value) -> Result<Heard, VoiceError> {
        let request = self.http.post(&self.endpoint).json(question);
        let silent = |error| VoiceError::Silent(told(error));
        let answer = self.pass.show(request).send().await.map_err(silent)?;
        let call = answer.headers().get("x-cynode-call");
        let call = call.and_then(|call| call.to_str().ok()).map(str::to_owned);
        let status = answer.status();
        let body = bounded(answer, MOST_BYTES).await.map_err(VoiceError::Silent)?;
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        let reply: Reply = serde_json::from_slice(&body)
            .map_err(|error| VoiceError::Silent(format!("an answer cannot be read: {error}")))?;
        let choice = reply.choices.into_iter().next().unwrap_or_default();
        let message = choice.message;
        Ok(Heard {
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
pub(crate) struct Spoken {
    answer: reqwest::Response,
    patience: Duration,
}

impl Spoken {
    /// The next bytes, if there are any.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, VoiceError> {
        let piece = timeout(self.patience, self.answer.chunk()).await.map_err(|_| late())?;
        let piece = piece.map_err(|error| VoiceError::Silent(told(error)))?;
        Ok(piece.map(|bytes| bytes.to_vec()))
    }
}

fn late() -> VoiceError {
    VoiceError::Silent("it took too long".into())
}

/// What an error of the egress says.
fn refusal(status: StatusCode, body: &[u8]) -> VoiceError {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let word = |name: &str| {
        body["error"][name].as_str().unwrap_or_default().chars().take(1000).collect::<String>()
    };
    let (code, words) = (word("code"), word("message"));
    let words = if words.is_empty() { format!("the egress answered {status}") } else { words };
    // Somebody's trouble on the way, not a decision.
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return VoiceError::Silent(words);
    }
    VoiceError::Refused { status: status.as_u16(), code, words }
}

impl VoiceError {
    /// What it means for the work at a desk. Rates, quotas, parked tasks and budgets pass, some with a person's help; a token that has
    /// ended ends with its handoff.
    pub(crate) fn trouble(self) -> Trouble {
        match self {
            Self::Silent(why) => Trouble::Transient(format!("no model answered: {why}")),
            Self::Late(_) => Trouble::Late(format!("no model answered: {self}")),
            Self::Refused { status, code, words } => match (status, code.as_str()) {
                (
                    _,
                    "quota_exhausted" | "budget_exhausted" | "task_parked" | "rate_limit_exceeded",
                )
                | (401 | 402 | 429, _) => Trouble::Transient(words),
                _ => Trouble::Permanent(words),
            },
        }
    }
}

#[derive(Deserialize)]
struct Reply {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Usage,
}

#[derive(Default, Deserialize)]
struct Choice {
    message: Message,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Message {
    content: Option<String>,
    refusal: Option<String>,
}

/// What a call used.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}
