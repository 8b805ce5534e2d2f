//! Answers on their way to the client: at once, whole, or piece by piece.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cynode_core::models::{Basis, CallOutcome};
use cynode_models::{
    cassette::Cassette,
    dialect::{Dialect, Reply, Speak as _, StreamWriter},
    observe::{Observer, Seen},
    relay::{Gathering, Relay},
    shape::Shaped,
    talk::{Answer, Kind, ModelError, Request},
    tools::Restore,
    upstream::Accepted,
};
use futures::{Stream, StreamExt};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    Answered, IDLE, Question, Refused, Tried, held::Held, registry::Registry, shaped_request,
};

/// How many pieces of an answer wait for a client that is slow.
const PIECES: usize = 32;

/// How long a provider may take to end what it has said all of.
const LINGER: Duration = Duration::from_millis(250);

/// Gives an answer that is there at once.
pub(super) async fn told_at_once(
    question: &Question,
    mut held: Held,
    request: &Request,
    answer: Result<Answer, ModelError>,
) -> Result<Answered, Tried> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            held.release(&error).await;
            return Err(Tried::Next(error, None));
        }
    };
    held.first_byte = Some(held.started.elapsed());
    let reply = reply(question, &held, request);
    let usage = answer.usage.unwrap_or_default();
    let call = held.call;
    let told = if request.stream {
        let mut writer = StreamWriter::new(question.dialect, reply);
        let pieces: Vec<Bytes> =
            answer.events().into_iter().map(|event| writer.write(event)).collect();
        let (sender, receiver) = mpsc::channel(pieces.len().max(1));
        for piece in pieces {
            let _ = sender.try_send(piece);
        }
        Answered::Streamed(call, receiver)
    } else {
        match question.dialect.write_answer(&answer, &reply) {
            Ok(body) => Answered::Whole(call, body),
            Err(error) => {
                held.release(&error).await;
                return Err(Tried::Over(Refused::Failed(error)));
            }
        }
    };
    held.settle(CallOutcome::Answered, None, usage.into(), Basis::Reported).await;
    Ok(told)
}

fn reply(question: &Question, held: &Held, request: &Request) -> Reply {
    let created = u64::try_from(held.app.environment().now().unix_timestamp()).unwrap_or_default();
    Reply::to(request, created, question.answer_id(held.call))
}

/// Keeps answers that pass by.
pub(super) struct Recorder {
    pub(super) cassette: Cassette,
    pub(super) registry: Arc<Registry>,
}

impl Recorder {
    /// Keeps an answer. What is kept has no secret in it.
    pub(super) async fn keep(self, request: Request, answer: Answer) {
        let kept = tokio::task::spawn_blocking(move || {
            let mut value = json!(answer);
            self.registry.redactor.json(&mut value);
            let answer = serde_json::from_value(value).map_err(|_| {
                ModelError::new(Kind::Upstream, "without its secrets the answer is none")
            })?;
            self.cassette.keep(&request, answer)
        });
        match kept.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(event = "error", error = %error, "an answer could not be kept");
            }
            Err(_) => tracing::error!(event = "error", "an answer could not be kept"),
        }
    }
}

/// A provider that has accepted a question.
pub(super) struct Accepting {
    pub(super) held: Held,
    pub(super) provider: Dialect,
    pub(super) accepted: Accepted,
    pub(super) record: Option<Recorder>,
}

/// Passes a provider's answer on. `request` is what the client asked, where it is to be translated.
pub(super) async fn passed_on(
    question: &Question,
    shaped: &Shaped,
    request: Option<Request>,
    accepting: Accepting,
) -> Result<Answered, Tried> {
    let translated = request.is_some();
    // In the same dialect nothing is read that we need not know.
    let request = request.unwrap_or_else(|| Request {
        stream: shaped.streams(),
        include_usage: shaped.includes_usage(),
        ..Default::default()
    });
    let reply = reply(question, &accepting.held, &request);
    if !shaped.streams() {
        let told = whole(question, shaped, &request, translated, &reply, accepting).await;
        return told.map_err(|error| Tried::Over(Refused::Failed(error)));
    }
    let relay = Relay::new(question.dialect, accepting.provider, &request, reply);
    let (sender, receiver) = mpsc::channel(PIECES);
    let (call, answers) = (accepting.held.call, accepting.held.models.answers.clone());
    let asked = accepting.record.is_some().then(|| shaped_request(question, shaped).ok()).flatten();
    answers.spawn(streamed(accepting, relay, sender, asked));
    Ok(Answered::Streamed(call, receiver))
}

async fn whole(
    question: &Question,
    shaped: &Shaped,
    request: &Request,
    translated: bool,
    reply: &Reply,
    accepting: Accepting,
) -> Result<Answered, ModelError> {
    let Accepting { mut held, provider, accepted, record } = accepting;
    let body = accepted.whole().await;
    held.first_byte = Some(held.started.elapsed());
    let body = match body {
        Ok(body) => body,
        Err(error) => {
            let seen = Seen { error: Some(error.clone()), ..Seen::default() };
            held.settle_seen(&seen, false).await;
            return Err(error);
        }
    };
    let seen = Observer::new(provider).whole(&body);
    if let Some(recorder) = record
        && let (Ok(request), Ok(answer)) =
            (shaped_request(question, shaped), provider.read_answer(&body))
    {
        recorder.keep(request, answer).await;
    }
    let call = held.call;
    held.settle_seen(&seen, false).await;
    if !translated {
        return Ok(Answered::Whole(call, body));
    }
    let mut answer = provider.read_answer(&body)?;
    Restore::new(request, provider).answer(&mut answer);
    // A name in the words of another dialect is none: the client gets ours.
    answer.id.clear();
    if answer.model.is_empty() {
        answer.model.clone_from(&request.model);
    }
    Ok(Answered::Whole(call, question.dialect.write_answer(&answer, reply)?))
}

/// Passes pieces on until the provider has said all, fails, or nobody listens any more; then settles.
async fn streamed(
    accepting: Accepting,
    mut relay: Relay,
    sender: mpsc::Sender<Bytes>,
    asked: Option<Request>,
) {
    let Accepting { mut held, provider, accepted, record } = accepting;
    let mut pieces = accepted.pieces().fuse();
    let mut gathered = record.is_some().then(|| Gathering::new(provider));
    let (rest, seen, given_up) = loop {
        let next = tokio::select! {
            next = pieces.next() => next,
            // The provider is left, and stops.
            () = sender.closed() => break given_up(relay),
        };
        let out = match next {
            None => {
                let (rest, seen) = relay.end();
                break (rest, seen, false);
            }
            Some(Ok(piece)) => {
                held.first_byte.get_or_insert_with(|| held.started.elapsed());
                if let Some(gathered) = &mut gathered {
                    gathered.push(&piece);
                }
                relay.push(piece)
            }
            Some(Err(error)) => Err(error),
        };
        match out {
            Ok(out) if out.is_empty() => {}
            Ok(out) => {
                // Whoever does not read for so long has gone.
                match tokio::time::timeout(IDLE, sender.send(out)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => break given_up(relay),
                }
                // Clients leave at the end of the answer, and many providers end later.
                if relay.ended() {
                    let (rest, seen) = relay.end();
                    break (rest, seen, false);
                }
            }
            Err(error) => {
                let (rest, seen) = relay.fail(error);
                break (rest, seen, false);
            }
        }
    };
    let pieces = (seen.error.is_none() && !given_up).then_some(pieces);
    // The client gets the end without waiting for the books, and the books do not wait for the client.
    let books = async {
        if let (Some(recorder), Some(request), Some(gathered)) = (record, asked, gathered)
            && let Ok(answer) = gathered.finish()
        {
            recorder.keep(request, answer).await;
        }
        held.settle_seen(&seen, given_up).await;
    };
    let sent = async move {
        if !rest.is_empty() {
            let _ = tokio::time::timeout(IDLE, sender.send(rest)).await;
        }
    };
    tokio::join!(sent, books, to_the_end(pieces));
}

/// Reads on where an answer has ended: a connection that is left before its end is good for no other question.
pub(super) async fn to_the_end(
    pieces: Option<impl Stream<Item = Result<Bytes, ModelError>> + Unpin>,
) {
    let Some(mut pieces) = pieces else { return };
    let read = async { while let Some(Ok(_)) = pieces.next().await {} };
    let _ = tokio::time::timeout(LINGER, read).await;
}

fn given_up(relay: Relay) -> (Bytes, Seen, bool) {
    let (_, seen) = relay.end();
    (Bytes::new(), seen, true)
}
