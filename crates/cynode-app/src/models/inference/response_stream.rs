//! Responses on their way to the client: whole or streamed. Backpressure: a bounded channel holds the chunks, and
//! reading from the provider stops while a slow client leaves it full.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cynode_core::models::{Basis, CallOutcome};
use cynode_models::{
    cassette::ResponseCassette,
    dialect::{
        Dialect, DialectCodec as _, ResponseContext, StreamEncoder,
        canonical::{CanonicalRequest, CanonicalResponse, ModelError, ModelErrorKind},
    },
    relay::{StreamAssembler, StreamRelay},
    request_rewrite::RequestRewrite,
    stream_observer::{ResponseObservation, ResponseObserver},
    tools::ToolRestorer,
    upstream::UpstreamResponse,
};
use futures::{Stream, StreamExt};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    CandidateError, InferenceAnswer, InferenceRequest, PROVIDER_IDLE_TIMEOUT, RouteError,
    caller_gone_error, decode_canonical_request, reservation::ReservedCall, routes::ModelRegistry,
};

/// Backpressure: maximum number of chunks that wait for a slow client.
const MAX_BUFFERED_CHUNKS: usize = 32;

/// How long a provider may take to close a finished stream.
const STREAM_DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// Sends a response that is available at once.
pub(super) async fn send_ready_answer(
    request: &InferenceRequest,
    mut held: ReservedCall,
    canonical: &CanonicalRequest,
    answer: Result<CanonicalResponse, ModelError>,
) -> Result<InferenceAnswer, CandidateError> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            held.release_unused(&error).await;
            return Err(CandidateError::Next(error, None));
        }
    };
    held.first_byte = Some(held.started.elapsed());
    let reply = build_reply(request, &held, canonical);
    let usage = answer.usage.unwrap_or_default();
    let call = held.call;
    let told = if canonical.stream {
        let mut writer = StreamEncoder::new(request.dialect, reply);
        let pieces: Vec<Bytes> =
            answer.to_events().into_iter().map(|event| writer.encode_event(event)).collect();
        let (sender, receiver) = mpsc::channel(pieces.len().max(1));
        for piece in pieces {
            let _ = sender.try_send(piece);
        }
        InferenceAnswer::Streamed(call, receiver)
    } else {
        match request.dialect.encode_response(&answer, &reply) {
            Ok(body) => InferenceAnswer::Whole(call, body),
            Err(error) => {
                held.release_unused(&error).await;
                return Err(CandidateError::Over(RouteError::Failed(error)));
            }
        }
    };
    held.settle_call(CallOutcome::Answered, None, usage.into(), Basis::Reported).await;
    Ok(told)
}

fn build_reply(
    request: &InferenceRequest,
    held: &ReservedCall,
    canonical: &CanonicalRequest,
) -> ResponseContext {
    let created = u64::try_from(held.app.environment().now().unix_timestamp()).unwrap_or_default();
    ResponseContext::for_request(canonical, created, request.answer_id(held.call))
}

/// Records responses that pass through.
pub(super) struct CassetteRecorder {
    pub(super) cassette: ResponseCassette,
    pub(super) registry: Arc<ModelRegistry>,
}

impl CassetteRecorder {
    /// Records a response. The recording contains no secrets.
    pub(super) async fn record_answer(
        self,
        canonical: CanonicalRequest,
        answer: CanonicalResponse,
    ) {
        let kept = tokio::task::spawn_blocking(move || {
            let mut value = json!(answer);
            self.registry.redactor.redact_json(&mut value);
            let answer = serde_json::from_value(value).map_err(|_| {
                ModelError::new(ModelErrorKind::Upstream, "without its secrets the answer is none")
            })?;
            self.cassette.record_response(&canonical, answer)
        });
        match kept.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(event = "cassette.record_failed", error = %error, "a response could not be recorded");
            }
            Err(_) => tracing::error!(
                event = "cassette.record_failed",
                "a response could not be recorded"
            ),
        }
    }
}

/// A request that a provider has accepted.
pub(super) struct RelayedCall {
    pub(super) held: ReservedCall,
    pub(super) provider: Dialect,
    pub(super) accepted: UpstreamResponse,
    pub(super) record: Option<CassetteRecorder>,
}

/// Relays a provider's response. `canonical` is the client's request in its canonical form, where the response must be translated.
pub(super) async fn relay_answer(
    request: &InferenceRequest,
    rewrite: &RequestRewrite,
    canonical: Option<CanonicalRequest>,
    accepting: RelayedCall,
) -> Result<InferenceAnswer, CandidateError> {
    let translated = canonical.is_some();
    // In the same dialect only the necessary fields are read.
    let canonical = canonical.unwrap_or_else(|| CanonicalRequest {
        stream: rewrite.is_streaming(),
        include_usage: rewrite.includes_usage(),
        ..Default::default()
    });
    let reply = build_reply(request, &accepting.held, &canonical);
    if !rewrite.is_streaming() {
        let told =
            relay_whole_answer(request, rewrite, &canonical, translated, &reply, accepting).await;
        return told.map_err(|error| CandidateError::Over(RouteError::Failed(error)));
    }
    let relay = StreamRelay::new(request.dialect, accepting.provider, &canonical, reply);
    let (sender, receiver) = mpsc::channel(MAX_BUFFERED_CHUNKS);
    let (call, answers) = (accepting.held.call, accepting.held.models.answers.clone());
    let recorded = accepting
        .record
        .is_some()
        .then(|| decode_canonical_request(request, rewrite).ok())
        .flatten();
    answers.spawn(relay_stream(accepting, relay, sender, recorded));
    Ok(InferenceAnswer::Streamed(call, receiver))
}

async fn relay_whole_answer(
    request: &InferenceRequest,
    rewrite: &RequestRewrite,
    canonical: &CanonicalRequest,
    translated: bool,
    reply: &ResponseContext,
    accepting: RelayedCall,
) -> Result<InferenceAnswer, ModelError> {
    let RelayedCall { mut held, provider, accepted, record } = accepting;
    let body = tokio::select! {
        body = accepted.read_json() => body,
        // Dropping the connection stops the provider.
        () = request.left.cancelled() => {
            held.settle_observed(&ResponseObservation::default(), true).await;
            return Err(caller_gone_error());
        }
    };
    held.first_byte = Some(held.started.elapsed());
    let body = match body {
        Ok(body) => body,
        Err(error) => {
            let seen = ResponseObservation {
                error: Some(error.clone()),
                ..ResponseObservation::default()
            };
            held.settle_observed(&seen, false).await;
            return Err(error);
        }
    };
    let seen = ResponseObserver::new(provider).observe_response(&body);
    if let Some(recorder) = record
        && let (Ok(canonical), Ok(answer)) =
            (decode_canonical_request(request, rewrite), provider.decode_response(&body))
    {
        recorder.record_answer(canonical, answer).await;
    }
    let call = held.call;
    held.settle_observed(&seen, false).await;
    if !translated {
        return Ok(InferenceAnswer::Whole(call, body));
    }
    let mut answer = provider.decode_response(&body)?;
    ToolRestorer::new(canonical, provider).restore_response(&mut answer);
    // An id of another dialect is invalid: the client gets one of ours.
    answer.id.clear();
    if answer.model.is_empty() {
        answer.model.clone_from(&canonical.model);
    }
    Ok(InferenceAnswer::Whole(call, request.dialect.encode_response(&answer, reply)?))
}

/// Relays chunks until the provider ends or fails, or the client disconnects. Then settles the call.
async fn relay_stream(
    accepting: RelayedCall,
    mut relay: StreamRelay,
    sender: mpsc::Sender<Bytes>,
    recorded: Option<CanonicalRequest>,
) {
    let RelayedCall { mut held, provider, accepted, record } = accepting;
    let mut pieces = accepted.into_byte_stream().fuse();
    let mut gathered = record.is_some().then(|| StreamAssembler::new(provider));
    let (rest, seen, given_up) = loop {
        let next = tokio::select! {
            next = pieces.next() => next,
            // Dropping the connection stops the provider.
            () = sender.closed() => break abandon_relay(relay),
        };
        let out = match next {
            None => {
                let (rest, seen) = relay.finish_stream();
                break (rest, seen, false);
            }
            Some(Ok(piece)) => {
                held.first_byte.get_or_insert_with(|| held.started.elapsed());
                if let Some(gathered) = &mut gathered {
                    gathered.push_bytes(&piece);
                }
                relay.push_bytes(piece)
            }
            Some(Err(error)) => Err(error),
        };
        match out {
            Ok(out) if out.is_empty() => {}
            Ok(out) => {
                // A client that does not read for this long counts as disconnected.
                match tokio::time::timeout(PROVIDER_IDLE_TIMEOUT, sender.send(out)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => break abandon_relay(relay),
                }
                // Clients disconnect at the end of the response, and many providers close the stream later.
                if relay.has_ended() {
                    let (rest, seen) = relay.finish_stream();
                    break (rest, seen, false);
                }
            }
            Err(error) => {
                let (rest, seen) = relay.fail_stream(error);
                break (rest, seen, false);
            }
        }
    };
    let pieces = (seen.error.is_none() && !given_up).then_some(pieces);
    // The end of the response and the settlement run concurrently: neither waits for the other.
    let books = async {
        if let (Some(recorder), Some(canonical), Some(gathered)) = (record, recorded, gathered)
            && let Ok(answer) = gathered.finish_response()
        {
            recorder.record_answer(canonical, answer).await;
        }
        held.settle_observed(&seen, given_up).await;
    };
    let sent = async move {
        if !rest.is_empty() {
            let _ = tokio::time::timeout(PROVIDER_IDLE_TIMEOUT, sender.send(rest)).await;
        }
    };
    tokio::join!(sent, books, drain_stream(pieces));
}

/// Reads a finished stream to its end. A connection that is dropped earlier cannot be reused.
pub(crate) async fn drain_stream(
    pieces: Option<impl Stream<Item = Result<Bytes, ModelError>> + Unpin>,
) {
    let Some(mut pieces) = pieces else { return };
    let read = async { while let Some(Ok(_)) = pieces.next().await {} };
    let _ = tokio::time::timeout(STREAM_DRAIN_TIMEOUT, read).await;
}

fn abandon_relay(relay: StreamRelay) -> (Bytes, ResponseObservation, bool) {
    let (_, seen) = relay.finish_stream();
    (Bytes::new(), seen, true)
}
