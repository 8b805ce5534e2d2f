//! Streamed answers: progress notifications, then the result. Backpressure: progress that a slow reader leaves no room
//! for is dropped; the result is never dropped.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::event_stream;
use crate::{
    GatewayShared, PendingCallKey,
    calls::{AdmittedCall, Cancellation, ConnectionGuard},
    responses::with_call_id,
    upstream::CallProgress,
};

/// Capacity of the progress channel. Progress beyond it is dropped.
const PROGRESS_CHANNEL_CAPACITY: usize = 64;

/// Executes a call and streams its progress.
pub(super) fn stream_progress(
    inner: Arc<GatewayShared>,
    admitted: AdmittedCall,
    hangup: Cancellation,
    key: PendingCallKey,
) -> Response {
    let call = admitted.call_id();
    let label = admitted.progress_token().unwrap_or(Value::Null);
    let (sender, receiver) = mpsc::channel::<CallProgress>(PROGRESS_CHANNEL_CAPACITY);
    let work = TaskTracker::new().spawn(async move {
        let answer = admitted.execute_call(hangup.clone(), Some(sender)).await;
        inner.remove_pending(&key, &hangup);
        match answer.said {
            Ok(body) => body,
            Err(failure) => failure.to_json().to_string(),
        }
    });
    let told = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|progress| (progress, receiver))
    });
    let told =
        told.map(move |progress| sse_event(&progress_notification(&label, &progress).to_string()));
    let end = stream::once(async move {
        let body = work.await.unwrap_or_else(|_| "{}".into());
        sse_event(&body)
    });
    let body = Body::from_stream(told.chain(end).map(Ok::<_, std::convert::Infallible>));
    with_call_id(event_stream(body), call)
}

fn progress_notification(label: &Value, progress: &CallProgress) -> Value {
    let mut params = json!({ "progressToken": label, "progress": progress.progress });
    if let Some(total) = &progress.total {
        params["total"] = json!(total);
    }
    if let Some(message) = &progress.message {
        params["message"] = json!(message);
    }
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
}

fn sse_event(message: &str) -> Bytes {
    // A line break inside JSON is only white space; inside an event it would end the line.
    let message = message.replace(['\r', '\n'], " ");
    Bytes::from(format!("event: message\ndata: {message}\n\n"))
}

/// Returns a body that holds the caller's connection guard until it was sent or dropped.
pub(super) fn guard_body(body: Body, line: ConnectionGuard) -> Body {
    let held = GuardedBody { body: body.into_data_stream(), line: Some(line) };
    Body::from_stream(held)
}

struct GuardedBody {
    body: axum::body::BodyDataStream,
    line: Option<ConnectionGuard>,
}

impl Stream for GuardedBody {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.body).poll_next(context);
        if matches!(next, Poll::Ready(None)) {
            self.line = None;
        }
        next
    }
}
