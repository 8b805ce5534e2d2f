//! Plants secrets in requests, in tool results and in responses: the provider must receive none of them. It also measures how
//! much ordinary code is redacted by mistake.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use anyhow::{Context, ensure};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::post,
};
use clap::Args;
use cynode_models::{
    dialect::{
        Dialect, DialectCodec as _, ResponseContext, StreamEncoder,
        canonical::{
            CanonicalEvent, CanonicalResponse, ContentPart, ModelError, ModelErrorKind, StopReason,
            TokenUsage, ToolCall, ToolInput,
        },
    },
    relay::StreamAssembler,
};
use cynode_testkit::secrets::{self, Planted, SETTINGS};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::search::{Pieces, Secret};
use crate::gateway::wire::Endpoint;

/// Asks with secrets in every place, and looks at what the provider gets.
#[derive(Args)]
pub(crate) struct Plant {
    /// Where the provider is to listen, at `/v1`, and at `/fail/STATUS/v1` where it fails.
    #[arg(long)]
    listen: SocketAddr,
    /// Where people ask: `http://ADDRESS:PORT`. The models `plain-DIALECT` and `kept-DIALECT` lead to the provider, and
    /// `fail-STATUS` to where it fails; `fail-200` fails in the middle of its answer.
    #[arg(long)]
    target: Endpoint,
    /// Their key. It is planted, too.
    #[arg(long)]
    key: String,
    /// A secret that the installation holds. May be given again.
    #[arg(long)]
    known: Vec<String>,
    /// How many secrets are planted.
    #[arg(long, default_value_t = 500)]
    count: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Statuses with which it fails.
    #[arg(long = "fail", default_values_t = [200_u16, 400, 401, 404, 429, 500])]
    fails: Vec<u16>,
    /// Where the list of secrets is written.
    #[arg(long)]
    secrets: PathBuf,
    /// Directories with ordinary code. May be given again.
    #[arg(long)]
    ordinary: Vec<PathBuf>,
    /// Blocks of it that are looked at, at most.
    #[arg(long, default_value_t = 20_000)]
    blocks: usize,
    /// Exclusive maximum share of changed blocks, in percent.
    #[arg(long, default_value_t = 1.0)]
    max_changed: f64,
}

const DIALECTS: [Dialect; 3] = [Dialect::Chat, Dialect::Responses, Dialect::Messages];

/// One request.
struct PlantCase {
    planted: Planted,
    /// The secret with its surrounding text.
    text: String,
    asks: Dialect,
    model: String,
    streams: bool,
}

struct Provider {
    cases: Vec<PlantCase>,
    pieces: Pieces,
    seen: Mutex<ProviderLog>,
}

#[derive(Default)]
struct ProviderLog {
    /// Requests that arrived, and those among them that contained a secret.
    cases: BTreeSet<usize>,
    leaks: Vec<String>,
    /// Ordinary text, as it arrived.
    ordinary: BTreeMap<usize, Vec<String>>,
    strange: usize,
}

/// Returns the number between two markers.
fn marked(text: &str, mark: &str) -> Option<usize> {
    let (_, rest) = text.split_once(mark)?;
    rest.get(..7)?.parse().ok()
}

const CASE: &str = "case-";
const ORDINARY: &str = "ordinary-";

fn dialect_of(path: &str) -> Dialect {
    if path.ends_with("/responses") {
        Dialect::Responses
    } else if path.ends_with("/messages") {
        Dialect::Messages
    } else {
        Dialect::Chat
    }
}

async fn provide(State(provider): State<Arc<Provider>>, uri: Uri, body: Bytes) -> Response {
    let text = String::from_utf8_lossy(&body);
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let dialect = dialect_of(uri.path());
    let mut seen = provider.seen.lock().unwrap();
    if let Some(number) = marked(&text, ORDINARY) {
        let blocks = asked["messages"][0]["content"].as_array().cloned().unwrap_or_default();
        let blocks =
            blocks.iter().map(|block| block["text"].as_str().unwrap_or_default().to_owned());
        seen.ordinary.insert(number, blocks.collect());
        drop(seen);
        return answered(dialect, &asked, "Fine.", 4096);
    }
    if let Some((number, around)) = provider.pieces.first(&body) {
        seen.leaks.push(format!("{} of secret {number}: {around}", uri.path()));
    }
    let Some(case) = marked(&text, CASE).filter(|number| *number < provider.cases.len()) else {
        seen.strange += 1;
        return StatusCode::BAD_REQUEST.into_response();
    };
    seen.cases.insert(case);
    drop(seen);
    let said = &provider.cases[case].text;
    match uri.path().strip_prefix("/fail/").and_then(|rest| rest.get(..3)?.parse().ok()) {
        Some(200) => breaking(dialect, said),
        Some(status) => failed(status, said),
        None => answered(dialect, &asked, said, 30_000),
    }
}

/// Returns an error that repeats its input, or another text that must not be stored.
fn failed(status: u16, said: &str) -> Response {
    let code = if status == 429 { "insufficient_quota" } else { "strange" };
    let error = json!({ "type": "error", "error": { "type": "oh", "code": code, "message": format!("not with {said}") } });
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    (status, [(header::CONTENT_TYPE, "application/json")], error.to_string()).into_response()
}

fn reply() -> ResponseContext {
    ResponseContext {
        created: 1,
        id: "answer-1".into(),
        include_usage: true,
        ..ResponseContext::default()
    }
}

fn breaking(dialect: Dialect, said: &str) -> Response {
    let mut writer = StreamEncoder::new(dialect, reply());
    let mut bytes = Vec::new();
    for event in answer_of("m", "Well, ").to_events().into_iter().take(3) {
        bytes.extend_from_slice(&writer.encode_event(event));
    }
    let error = ModelError::new(ModelErrorKind::Overloaded, format!("not with {said}"));
    bytes.extend_from_slice(&writer.encode_event(CanonicalEvent::Failed(error)));
    ([(header::CONTENT_TYPE, "text/event-stream")], bytes).into_response()
}

fn answer_of(model: &str, said: &str) -> CanonicalResponse {
    let call = ToolCall {
        id: "call_2".into(),
        name: "shell".into(),
        namespace: None,
        input: ToolInput::Json(json!({ "command": said }).to_string()),
        extras: cynode_models::dialect::canonical::DialectExtras::default(),
    };
    CanonicalResponse {
        id: "answer-1".into(),
        model: model.to_owned(),
        parts: vec![ContentPart::from_text(said), ContentPart::ToolCall(call)],
        stop: StopReason::ToolCalls,
        usage: Some(TokenUsage { input: 20, output: 3, ..TokenUsage::default() }),
    }
}

/// Returns a response with this text, letter by letter; streams shorter than `bytewise` are sent byte by byte.
fn answered(dialect: Dialect, asked: &Value, said: &str, bytewise: usize) -> Response {
    let answer = answer_of(asked["model"].as_str().unwrap_or_default(), said);
    if asked["stream"] != json!(true) {
        return match dialect.encode_response(&answer, &reply()) {
            Ok(body) => {
                ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
            }
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        };
    }
    let mut writer = StreamEncoder::new(dialect, reply());
    let mut bytes = Vec::new();
    for event in answer.to_events() {
        for event in letters(event) {
            bytes.extend_from_slice(&writer.encode_event(event));
        }
    }
    let bytes = Bytes::from(bytes);
    let step = if bytes.len() < bytewise { 1 } else { 61 };
    let pieces = (0..bytes.len())
        .step_by(step)
        .map(move |at| Ok::<_, Infallible>(bytes.slice(at..(at + step).min(bytes.len()))));
    let body = Body::from_stream(stream::iter(pieces));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

fn letters(event: CanonicalEvent) -> Vec<CanonicalEvent> {
    let each = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
    match event {
        CanonicalEvent::TextDelta { index, text } => {
            each(&text).into_iter().map(|text| CanonicalEvent::TextDelta { index, text }).collect()
        }
        CanonicalEvent::ArgumentsDelta { index, text } => each(&text)
            .into_iter()
            .map(|text| CanonicalEvent::ArgumentsDelta { index, text })
            .collect(),
        event => vec![event],
    }
}

impl PlantCase {
    /// Builds the request: the secret is in its instructions, in the messages, in a tool call and in its result.
    fn body(&self, number: usize) -> Value {
        let text = &self.text;
        let (model, stream) = (&self.model, self.streams);
        let system = format!("{CASE}{number:07} {text}");
        let arguments = json!({ "command": text }).to_string();
        let result = json!({ "exit": 0, "stdout": text, "lines": [text] }).to_string();
        let schema = json!({ "type": "object", "properties": { "command": { "type": "string" } } });
        match self.asks {
            Dialect::Chat => json!({
                "model": model, "stream": stream, "max_tokens": 100, "user": text,
                "messages": [
                    { "role": "system", "content": system },
                    { "role": "user", "content": [{ "type": "text", "text": text }] },
                    { "role": "assistant", "content": text, "tool_calls": [
                        { "id": "call_1", "type": "function", "function": { "name": "shell", "arguments": arguments } }] },
                    { "role": "tool", "tool_call_id": "call_1", "content": result },
                    { "role": "user", "content": "Go on." },
                ],
                "tools": [{ "type": "function", "function": { "name": "shell", "description": text, "parameters": schema } }],
            }),
            Dialect::Responses => json!({
                "model": model, "stream": stream, "max_output_tokens": 100, "instructions": system, "user": text,
                "input": [
                    { "role": "user", "content": [{ "type": "input_text", "text": text }] },
                    { "role": "assistant", "content": [{ "type": "output_text", "text": text }] },
                    { "type": "function_call", "call_id": "call_1", "name": "shell", "arguments": arguments },
                    { "type": "function_call_output", "call_id": "call_1", "output": result },
                    { "role": "user", "content": "Go on." },
                ],
                "tools": [{ "type": "function", "name": "shell", "description": text, "parameters": schema, "strict": false }],
            }),
            Dialect::Messages => json!({
                "model": model, "stream": stream, "max_tokens": 100, "system": system, "metadata": { "user_id": text },
                "messages": [
                    { "role": "user", "content": text },
                    { "role": "assistant", "content": [
                        { "type": "text", "text": text },
                        { "type": "tool_use", "id": "call_1", "name": "shell", "input": { "command": text } }] },
                    { "role": "user", "content": [
                        { "type": "tool_result", "tool_use_id": "call_1", "content": result },
                        { "type": "text", "text": "Go on." }] },
                ],
                "tools": [{ "name": "shell", "description": text, "input_schema": schema }],
            }),
        }
    }
}

const fn path(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "/v1/chat/completions",
        Dialect::Responses => "/v1/responses",
        Dialect::Messages => "/v1/messages",
    }
}

fn cases(plant: &Plant) -> Vec<PlantCase> {
    let mut all = secrets::secrets(plant.seed, plant.count);
    for known in plant.known.iter().chain([&plant.key]) {
        all.push(Planted { kind: "known", text: known.clone(), secret: known.clone() });
    }
    let mut cases = Vec::new();
    for (number, planted) in all.iter().enumerate() {
        // The steps are coprime to the number of settings, so that every kind eventually meets every path.
        let (asks, speaks) = (DIALECTS[number % 3], DIALECTS[number / 3 % 3]);
        let kept = if number / 9 % 2 == 0 { "plain" } else { "kept" };
        cases.push(PlantCase {
            text: SETTINGS[number % SETTINGS.len()](&planted.text),
            planted: planted.clone(),
            asks,
            model: format!("{kept}-{}", speaks.as_str()),
            streams: number % 5 != 4,
        });
    }
    // Secrets in failures occur nowhere else.
    let mut more = secrets::secrets(plant.seed.wrapping_add(1), plant.fails.len() * 3).into_iter();
    for status in &plant.fails {
        for (asks, planted) in DIALECTS.into_iter().zip(more.by_ref()) {
            cases.push(PlantCase {
                text: planted.text.clone(),
                planted,
                asks,
                model: format!("fail-{status}"),
                streams: true,
            });
        }
    }
    cases
}

pub(crate) async fn run(plant: Plant) -> anyhow::Result<bool> {
    let cases = cases(&plant);
    let kinds: BTreeSet<_> = cases.iter().map(|case| case.planted.kind).collect();
    let list: Vec<_> = cases
        .iter()
        .map(|case| Secret {
            kind: format!("{} of {}", case.planted.kind, case.model),
            secret: case.planted.secret.clone(),
        })
        .collect();
    fs::write(&plant.secrets, serde_json::to_vec(&list)?)?;
    let pieces = Pieces::of(list.iter().map(|secret| secret.secret.as_str()));
    let count = cases.len();
    let provider = Arc::new(Provider { cases, pieces, seen: Mutex::default() });
    let listener = TcpListener::bind(plant.listen).await?;
    let router = Router::new()
        .route("/{*path}", post(provide))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(provider.clone());
    TaskTracker::new().spawn(async move { axum::serve(listener, router).await });

    let client = reqwest::Client::builder().no_proxy().build()?;
    let asked = stream::iter(0..count).map(|number| ask(&plant, &client, &provider, number));
    let heard: Vec<anyhow::Result<AnswerCheck>> = asked.buffer_unordered(8).collect().await;
    let heard = heard.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let mut problems: Vec<String> =
        heard.iter().filter_map(|heard| heard.problem.clone()).collect();

    at_the_doors(&plant, &client, &provider).await?;
    let (blocks, changed) = ordinary(&plant, &client, &provider).await?;
    let seen = provider.seen.lock().unwrap();
    let left_out = (0..count).filter(|number| !seen.cases.contains(number));
    let left_out: Vec<_> = left_out.map(|number| &provider.cases[number].model).collect();
    // The circuit breaker opens for those that fail.
    if let Some(model) = left_out.iter().find(|model| !model.starts_with("fail-")) {
        problems.push(format!("{} questions did not come, one of them to {model}", left_out.len()));
    }
    let came = |model: &String| seen.cases.iter().any(|case| provider.cases[*case].model == *model);
    for model in plant.fails.iter().map(|status| format!("fail-{status}")) {
        if !came(&model) {
            problems.push(format!("no question came to {model}"));
        }
    }
    if seen.strange > 0 {
        problems.push(format!("{} requests came that nobody made", seen.strange));
    }
    let leaks = seen.leaks.len();
    let share = share(changed.len(), blocks);
    if share >= plant.max_changed || (blocks == 0 && !plant.ordinary.is_empty()) {
        problems.push(format!("{share:.2} % of ordinary code is taken for secrets"));
    }
    problems.truncate(20);
    println!(
        "{}",
        json!({
            "secrets": plant.count + plant.known.len() + 1, "kinds": kinds.len(), "questions": count,
            "answers_with_the_secret": heard.iter().filter(|heard| heard.secret).count(),
            "leaks_to_the_provider": leaks, "leaks": seen.leaks.iter().take(10).collect::<Vec<_>>(),
            "ordinary_blocks": blocks, "changed_blocks": changed.len(), "changed_percent": (share * 1000.0).round() / 1000.0,
            "changed": changed.iter().take(10).collect::<Vec<_>>(), "problems": problems,
        })
    );
    Ok(leaks == 0 && problems.is_empty() && kinds.len() > 40)
}

fn share(part: usize, whole: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    if whole == 0 { 0.0 } else { 100.0 * number(part) / number(whole) }
}

/// Outcome of a request.
struct AnswerCheck {
    /// Whether the secret of the response reached the client.
    secret: bool,
    problem: Option<String>,
}

async fn ask(
    plant: &Plant,
    client: &reqwest::Client,
    provider: &Provider,
    number: usize,
) -> anyhow::Result<AnswerCheck> {
    let case = &provider.cases[number];
    let body = case.body(number).to_string();
    ensure!(provider.pieces.first(body.as_bytes()).is_some(), "no secret in question {number}");
    let (status, answer) = send(plant, client, case.asks, body).await?;
    if case.model.starts_with("fail-") {
        return Ok(AnswerCheck { secret: false, problem: None });
    }
    let told = || format!("question {number} ({}, {}): {status}", case.asks.as_str(), case.model);
    if status != 200 {
        let problem = format!("{} {}", told(), String::from_utf8_lossy(&answer));
        return Ok(AnswerCheck { secret: false, problem: Some(problem) });
    }
    let answer = if case.streams {
        let mut gathering = StreamAssembler::new(case.asks);
        gathering.push_bytes(&answer);
        gathering.finish_response()
    } else {
        case.asks.decode_response(&serde_json::from_slice(&answer)?)
    };
    Ok(match answer {
        Ok(answer) => {
            let text = json!(answer).to_string();
            AnswerCheck { secret: provider.pieces.first(text.as_bytes()).is_some(), problem: None }
        }
        Err(error) => AnswerCheck { secret: false, problem: Some(format!("{} {error}", told())) },
    })
}

async fn send(
    plant: &Plant,
    client: &reqwest::Client,
    dialect: Dialect,
    body: String,
) -> anyhow::Result<(u16, Bytes)> {
    let url = format!("http://{}{}", plant.target.address, path(dialect));
    let request =
        client.post(url).bearer_auth(&plant.key).header("content-type", "application/json");
    let response = request.body(body).send().await?;
    let status = response.status().as_u16();
    Ok((status, response.bytes().await?))
}

/// Sends secrets to places where none belongs: the requests are refused, and the log must not contain the secrets.
async fn at_the_doors(
    plant: &Plant,
    client: &reqwest::Client,
    provider: &Provider,
) -> anyhow::Result<()> {
    for (dialect, case) in DIALECTS.into_iter().zip(&provider.cases) {
        let secret = case.planted.secret.lines().next().unwrap_or_default();
        let misnamed = json!({ "model": secret, "messages": [], "input": secret });
        let refusals = [
            send(plant, client, dialect, misnamed.to_string()).await?.0,
            send(plant, client, dialect, format!("{{\"model\": {secret}")).await?.0,
            send(plant, client, dialect, json!({ secret: secret }).to_string()).await?.0,
        ];
        let root = format!("http://{}", plant.target.address);
        let ask = || client.post(format!("{root}{}", path(dialect)));
        let named = ask().bearer_auth(&plant.key).header("openai-project", secret);
        let stranger = ask().bearer_auth(secret);
        let looked = client.get(format!("{root}/v1/models/{secret}")).bearer_auth(&plant.key);
        for request in [named, stranger, looked] {
            let status = request.send().await?.status();
            ensure!(status.is_client_error(), "a secret at the door was answered with {status}");
        }
        ensure!(refusals.iter().all(|status| (400..500).contains(status)), "{refusals:?}");
    }
    Ok(())
}

/// Lines of a block of ordinary code.
const LINES: usize = 20;

/// Blocks in a request.
const TOGETHER: usize = 50;

/// Sends ordinary code. Returns the number of blocks, and the blocks that were changed.
async fn ordinary(
    plant: &Plant,
    client: &reqwest::Client,
    provider: &Provider,
) -> anyhow::Result<(usize, Vec<String>)> {
    let mut files = Vec::new();
    for directory in &plant.ordinary {
        code(directory, &mut files).with_context(|| directory.display().to_string())?;
    }
    files.sort();
    let mut blocks = Vec::new();
    for file in &files {
        let Ok(text) = fs::read_to_string(file) else { continue };
        let lines: Vec<_> = text.lines().collect();
        blocks.extend(lines.chunks(LINES).map(|lines| (file, lines.join("\n"))));
    }
    // A deterministic selection from all files.
    let step = blocks.len().div_ceil(plant.blocks.max(1)).max(1);
    let blocks: Vec<_> = blocks.into_iter().step_by(step).collect();
    let mut changed = Vec::new();
    for (number, together) in blocks.chunks(TOGETHER).enumerate() {
        let mut content = vec![json!({ "type": "text", "text": format!("{ORDINARY}{number:07}") })];
        content.extend(together.iter().map(|(_, text)| json!({ "type": "text", "text": text })));
        let body =
            json!({ "model": "plain-chat", "messages": [{ "role": "user", "content": content }] });
        let (status, answer) = send(plant, client, Dialect::Chat, body.to_string()).await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&answer));
        let came = provider.seen.lock().unwrap().ordinary.remove(&number).unwrap_or_default();
        ensure!(came.len() == together.len() + 1, "ordinary code did not come as it was sent");
        for ((file, sent), came) in together.iter().zip(&came[1..]) {
            if sent != came {
                let line = sent.lines().zip(came.lines()).find(|(sent, came)| sent != came);
                let line = line.map(|(sent, _)| sent.trim().chars().take(160).collect::<String>());
                changed.push(format!("{}: {}", file.display(), line.unwrap_or_default()));
            }
        }
    }
    Ok((blocks.len(), changed))
}

/// Collects files of code, settings and notes.
fn code(path: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    const ENDINGS: [&str; 12] =
        ["rs", "toml", "md", "json", "sql", "sh", "py", "yml", "yaml", "c", "h", "lock"];
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_dir() {
            code(&path, found)?;
        } else if path
            .extension()
            .and_then(|ending| ending.to_str())
            .is_some_and(|ending| ENDINGS.contains(&ending))
        {
            found.push(path);
        }
    }
    Ok(())
}
