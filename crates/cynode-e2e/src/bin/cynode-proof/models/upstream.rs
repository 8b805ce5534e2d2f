//! A provider with minimal cost, to measure gateways with. Each chunk of its responses contains its send time.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
    serve::ListenerExt,
};
use clap::Args;
use cynode_models::dialect::{
    Dialect, DialectCodec as _, ResponseContext, StreamEncoder,
    canonical::{CanonicalEvent, CanonicalResponse, ContentPart, StopReason, TokenUsage},
};
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::net::TcpListener;

use super::wire::clock;
use crate::gateway::pause;

/// A very fast provider, to put behind a gateway.
#[derive(Args)]
pub(crate) struct Upstream {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    manner: Manner,
}

/// How it answers.
#[derive(Args)]
struct Manner {
    /// Pieces of an answer.
    #[arg(long, default_value_t = 10)]
    chunks: u64,
    /// How long it waits before each piece, in microseconds.
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
    /// What it says was used: IN,OUT.
    #[arg(long, default_value = "200,100", value_parser = usage)]
    usage: TokenUsage,
    /// Of so many requests one is not told what was used; none when it is 0.
    #[arg(long, default_value_t = 0)]
    silent_every: u64,
    /// Of so many requests one fails; none when it is 0.
    #[arg(long, default_value_t = 0)]
    fail_every: u64,
}

fn usage(text: &str) -> anyhow::Result<TokenUsage> {
    let (input, output) = text.split_once(',').context("IN,OUT is needed")?;
    Ok(TokenUsage { input: input.parse()?, output: output.parse()?, ..TokenUsage::default() })
}

struct UpstreamState {
    manner: Manner,
    requests: AtomicU64,
}

pub(crate) async fn run(upstream: Upstream) -> anyhow::Result<()> {
    let listener = TcpListener::bind(upstream.listen).await?.tap_io(|stream| {
        // Without it a chunk may wait for the acknowledgement of the previous one.
        let _ = stream.set_nodelay(true);
    });
    let served = Arc::new(UpstreamState { manner: upstream.manner, requests: AtomicU64::new(0) });
    let router = Router::new()
        .route("/v1/chat/completions", post(answer))
        .route("/v1/responses", post(answer))
        .route("/v1/messages", post(answer))
        .with_state(served)
        .route("/healthz", get(|| async { "good" }));
    Ok(axum::serve(listener, router).await?)
}

/// The part of a request that is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RequestOptions {
    stream: bool,
    stream_options: Option<StreamOptions>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
}

async fn answer(State(served): State<Arc<UpstreamState>>, uri: Uri, body: Bytes) -> Response {
    let number = served.requests.fetch_add(1, Ordering::Relaxed) + 1;
    let every = |count: u64| count > 0 && number.is_multiple_of(count);
    let Ok(options) = serde_json::from_slice::<RequestOptions>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    if every(served.manner.fail_every) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let usage = (!every(served.manner.silent_every)).then_some(served.manner.usage);
    let include_usage = options.stream_options.unwrap_or_default().include_usage;
    let dialect = match uri.path() {
        "/v1/chat/completions" => Dialect::Chat,
        "/v1/responses" => Dialect::Responses,
        _ => Dialect::Messages,
    };
    match (dialect, options.stream) {
        (Dialect::Chat, true) => streamed(chat(served, usage.filter(|_| include_usage))),
        (_, true) => streamed(spoken(served, dialect, usage)),
        (_, false) => whole(dialect, usage),
    }
}

fn streamed(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let body = Body::from_stream(pieces.map(Ok::<_, Infallible>));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

impl UpstreamState {
    async fn wait(&self) {
        if self.manner.pause_us > 0 {
            pause(Duration::from_micros(self.manner.pause_us)).await;
        }
    }
}

const HEAD: &str = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"fast","choices":["#;

/// Streams Chat Completions, written by hand: nothing is cheaper.
fn chat(served: Arc<UpstreamState>, usage: Option<TokenUsage>) -> impl Stream<Item = Bytes> + Send {
    let last = served.manner.chunks + 1;
    stream::iter(0..=last).then(move |at| {
        let served = served.clone();
        async move {
            if at == last {
                let end = r#"{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
                let used = usage.map(|TokenUsage { input, output, .. }| {
                    let total = input + output;
                    format!(
                        "{HEAD}],\"usage\":{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":{total}}}}}\n\n"
                    )
                });
                let used = used.unwrap_or_default();
                return Bytes::from(format!("{HEAD}{end}\n\n{used}data: [DONE]\n\n"));
            }
            let delta = if at == 0 {
                r#"{"role":"assistant","content":""}"#.to_owned()
            } else {
                served.wait().await;
                format!(r#"{{"content":"@{}@ words "}}"#, clock())
            };
            Bytes::from(format!(
                "{HEAD}{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n"
            ))
        }
    })
}

fn answered(usage: Option<TokenUsage>, text: String) -> CanonicalResponse {
    CanonicalResponse {
        id: "answer-1".into(),
        model: "fast".into(),
        parts: vec![ContentPart::from_text(text)],
        stop: StopReason::EndTurn,
        usage,
    }
}

fn reply() -> ResponseContext {
    ResponseContext {
        created: 1,
        id: "answer-1".into(),
        include_usage: true,
        ..ResponseContext::default()
    }
}

/// Streams the other dialects with our own encoder.
fn spoken(
    served: Arc<UpstreamState>,
    dialect: Dialect,
    usage: Option<TokenUsage>,
) -> impl Stream<Item = Bytes> + Send {
    let mut events = Vec::new();
    for event in answered(usage, "words".into()).to_events() {
        match event {
            CanonicalEvent::TextDelta { index, .. } => {
                let piece = CanonicalEvent::TextDelta { index, text: String::new() };
                events.extend(std::iter::repeat_n(
                    piece,
                    usize::try_from(served.manner.chunks).unwrap_or(0),
                ));
            }
            event => events.push(event),
        }
    }
    let state = (StreamEncoder::new(dialect, reply()), events.into_iter(), served);
    stream::unfold(state, |(mut writer, mut events, served)| async move {
        let mut event = events.next()?;
        if let CanonicalEvent::TextDelta { text, .. } = &mut event {
            served.wait().await;
            *text = format!("@{}@ words ", clock());
        }
        let piece = writer.encode_event(event);
        Some((piece, (writer, events, served)))
    })
    .filter(|piece| std::future::ready(!piece.is_empty()))
}

fn whole(dialect: Dialect, usage: Option<TokenUsage>) -> Response {
    match dialect.encode_response(&answered(usage, format!("@{}@ words ", clock())), &reply()) {
        Ok(body) => {
            ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
