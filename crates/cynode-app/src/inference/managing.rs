//! Talking to the project manager: what is said is stored without secrets, handed off, and the answer passed on as it comes.

use std::sync::Arc;

use bytes::Bytes;
use cynode_core::{
    ids::{CallId, ProjectId, ThreadId, UserId},
    models::{PROJECT_MANAGER, ProviderKind},
    roles::Role,
};
use cynode_db::{chat, handoffs::Kept};
use cynode_models::{
    dialect::{Dialect, Reply, Speak as _, StreamReader},
    relay::{Gathering, Meter, Relay},
    sse::Parser,
    talk::{self, Event, Kind, ModelError, Part},
    upstream::{Accepted, Place},
};
use cynode_wire::handoffs::{ChatMessage, Handoff, HandoffRequest};
use futures::StreamExt;
use secrecy::SecretString;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Answered, IDLE, Models, Prepared, Question, Registry, answering::to_the_end, ours};
use crate::{
    App, Ctx, Error,
    error::complain,
    handoffs::{self, Subject},
};

/// Where the project manager answers, and what we show it.
#[derive(Clone, Debug)]
pub struct ManagerPlace {
    place: Place,
    credential: SecretString,
}

impl ManagerPlace {
    /// The project manager at `url`.
    pub fn new(mut url: Url, credential: SecretString) -> Self {
        let path = format!("{}/internal", url.path().trim_end_matches('/'));
        url.set_path(&path);
        let (kind, dialect) = (ProviderKind::Compatible, Dialect::Chat);
        Self { place: Place { kind, dialect, base_url: url }, credential }
    }
}

/// After so long without a word a new conversation begins.
const SILENCE: time::Duration = time::Duration::hours(2);

/// How long nothing may be heard of a process that holds a chat.
const LEASE_MS: i64 = 10 * 60 * 1000;

/// Most turns, and most bytes of all of them, that are handed off.
const MOST_TURNS: usize = 200;
const MOST_BYTES: usize = 512 * 1024;

/// How often it is said that a chat is still under way.
const KEEP: std::time::Duration = std::time::Duration::from_mins(1);

/// How many pieces of an answer wait for a client that is slow.
const PIECES: usize = 32;

/// The name under which chats are claimed: whoever holds the line.
const HOLDER: &str = "orchestrator";

/// Asks the project manager.
pub(super) async fn ask(
    app: &App,
    models: &Arc<Models>,
    registry: &Arc<Registry>,
    question: &Question,
    prepared: &mut Prepared,
) -> Result<Answered, ModelError> {
    if question.who.agent.is_some() {
        let told = "agents speak to the project manager with the tool `pm.report`";
        return Err(ModelError::new(Kind::Forbidden, told).with_code("model_not_allowed"));
    }
    let Some(manager) = &models.manager else {
        let told = "the project manager is not connected to this installation: set manager.url and manager.credential_file, or use \
                    `cynode up`; other models of `GET /v1/models` can be asked";
        return Err(ModelError::new(Kind::Unavailable, told).with_code("project_manager_absent"));
    };
    // Nothing is held back for a chat, so that nobody else notices when what is known of secrets has changed.
    let registry = models.current(app, registry).await.map_err(|error| ours(&error))?;
    prepared.ready(&registry, &question.who, PROJECT_MANAGER).await?;
    let request = question.dialect.read_request(prepared.shaped.body())?;
    let messages = turns(&request)?;
    let given = begin(app, question, messages).await.map_err(|error| match &error {
        Error::Invalid(told) => ModelError::new(Kind::BadRequest, told.clone()),
        Error::NotFound { .. } => ModelError::new(Kind::NotFound, error.to_string()),
        Error::Forbidden { .. } => ModelError::new(Kind::Forbidden, error.to_string()),
        _ => ours(&error),
    })?;
    let line = Line { app: app.clone(), registry, kept: given.kept };
    let body = match serde_json::to_vec(&given.handoff) {
        Ok(body) => body,
        Err(error) => return Err(ours(&Error::Internal(error.into()))),
    };
    let sent = models.upstream.ask(&manager.place, Some(&manager.credential), &[], body, true);
    let accepted = match sent.await {
        Ok(accepted) => accepted,
        Err(unasked) => {
            let told = format!("the project manager cannot answer now: {}", unasked.error.message);
            line.end(String::new(), Ended::Failed(told.clone())).await;
            let error = ModelError::new(Kind::Unavailable, told);
            return Err(error.with_code("project_manager_unavailable"));
        }
    };
    let call = given.call;
    let created = u64::try_from(app.environment().now().unix_timestamp()).unwrap_or_default();
    let reply = Reply::to(&request, created, question.answer_id(call));
    if request.stream {
        let relay = Relay::new(question.dialect, Dialect::Chat, &request, reply);
        let (sender, receiver) = mpsc::channel(PIECES);
        models.answers.spawn(passed_on(line, accepted, relay, sender));
        return Ok(Answered::Streamed(call, receiver));
    }
    let mut answer = whole(line, accepted, &question.left).await?;
    if question.dialect != Dialect::Chat {
        // A name in the words of another dialect is none: the client gets ours.
        answer.id.clear();
    }
    Ok(Answered::Whole(call, question.dialect.write_answer(&answer, &reply)?))
}

/// The conversation as the project manager gets it: words only.
fn turns(request: &talk::Request) -> Result<Vec<ChatMessage>, ModelError> {
    let words = |parts: &[Part]| -> String {
        let texts = parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    };
    let mut turns = Vec::new();
    let instructions: Vec<_> = request.instructions.iter().map(|text| text.text.as_str()).collect();
    if !instructions.is_empty() {
        turns.push(ChatMessage { role: "system".into(), content: instructions.join("\n") });
    }
    for message in &request.messages {
        let role = match message.role {
            talk::Role::System => "system",
            talk::Role::User => "user",
            talk::Role::Assistant => "assistant",
            talk::Role::Tool => continue,
        };
        let content = words(&message.parts);
        if !content.trim().is_empty() {
            turns.push(ChatMessage { role: role.into(), content });
        }
    }
    if turns.last().is_none_or(|last| last.role != "user") {
        let told = "the last message must be the user's, with text in it";
        return Err(ModelError::new(Kind::BadRequest, told));
    }
    let bytes: usize = turns.iter().map(|turn| turn.content.len()).sum();
    if turns.len() > MOST_TURNS || bytes > MOST_BYTES {
        let told = format!(
            "a conversation has at most {MOST_TURNS} turns and {MOST_BYTES} bytes; begin a new one"
        );
        return Err(ModelError::new(Kind::TooLarge, told));
    }
    Ok(turns)
}

struct Given {
    call: CallId,
    kept: Kept,
    handoff: Handoff,
}

/// Stores what was said and the handoff before anybody hears of it.
async fn begin(app: &App, question: &Question, messages: Vec<ChatMessage>) -> Result<Given, Error> {
    let menu = super::menu(app).await?;
    let mut ctx = app.open(&question.request()).await?;
    let user = question.who.user;
    let project = match question.who.project {
        Some(project) => project,
        None => default_project(&mut ctx, user, question.who.role_everywhere).await?,
    };
    let said = messages.last().map(|last| last.content.clone()).unwrap_or_default();
    let (call, now) = (CallId::from_uuid(ctx.uuid()), ctx.now);
    let thread = match chat::open(ctx.conn(), user, project, SILENCE, now).await? {
        Some(thread) => thread.id,
        None => {
            let id = ThreadId::from_uuid(ctx.uuid());
            let title: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
            let title = title.chars().take(80).collect();
            let thread =
                chat::Thread { id, user, project, title, created_at: now, updated_at: now };
            chat::begin(ctx.conn(), &thread).await?;
            id
        }
    };
    chat::say(ctx.conn(), thread, "user", &said, "whole", now).await?;
    let subject = Subject { user, project, task: None, run: None, job: None, thread: Some(thread) };
    let request = HandoffRequest::Chat { messages };
    let id = handoffs::hand_off(&mut ctx, subject, None, None, &request).await?;
    let taken = cynode_db::handoffs::take_chat(ctx.conn(), id, HOLDER, LEASE_MS).await?;
    let kept = taken.ok_or_else(|| Error::not_found("handoff", id))?;
    let handoff = handoffs::given(&mut ctx, &kept, &menu).await?;
    app.commit(ctx).await?;
    Ok(Given { call, kept, handoff })
}

/// Where a person talks who names no project: where they said, or the only place there is.
async fn default_project(
    ctx: &mut Ctx,
    user: UserId,
    everywhere: Option<Role>,
) -> Result<ProjectId, Error> {
    let entries = crate::preferences::entries(ctx.conn(), user, None, None).await?;
    let held = cynode_core::preferences::resolve(entries);
    let wished = held.text("chat.default_project").and_then(|id| id.parse::<ProjectId>().ok());
    let project = match wished {
        Some(project) => Some(project),
        None => chat::only_project(ctx.conn(), user).await?,
    };
    let project = project.ok_or_else(|| {
        let told = "name the project: send its id in the header `OpenAI-Project`, or set the preference `chat.default_project`";
        Error::Invalid(told.into())
    })?;
    let role = cynode_db::authentication::project_role(ctx.conn(), user, project).await?;
    if role.max(everywhere) >= Some(Role::Operator) {
        return Ok(project);
    }
    Err(Error::forbidden(Role::Operator, "in the project"))
}

/// How a chat ended.
enum Ended {
    Whole,
    Interrupted,
    Failed(String),
}

/// A chat that is under way.
struct Line {
    app: App,
    registry: Arc<Registry>,
    kept: Kept,
}

impl Line {
    /// Says that it is still being talked.
    async fn keep(&self) {
        handoffs::keep_chat(&self.app, &self.kept, LEASE_MS).await;
    }

    /// Stores what was said, without secrets, and ends the handoff with it; a failure is logged, since nobody is there to be told.
    async fn end(&self, content: String, ended: Ended) {
        let content = self.registry.redactor.text(&content).value.into_owned();
        let (state, outcome) = match ended {
            Ended::Whole => ("whole", Ok(content.clone())),
            Ended::Interrupted => ("interrupted", Err("the person left".to_owned())),
            Ended::Failed(why) => {
                ("failed", Err(self.registry.redactor.text(&why).value.into_owned()))
            }
        };
        let stored = async {
            let request = crate::Request {
                caller: None,
                trace: self.app.environment().trace(),
                attempt: None,
            };
            let mut ctx = self.app.open(&request).await?;
            let now = ctx.now;
            if let Some(thread) = self.kept.thread {
                chat::say(ctx.conn(), thread, "assistant", &content, state, now).await?;
            }
            handoffs::end_chat(&mut ctx, &self.kept, outcome).await?;
            self.app.commit(ctx).await
        };
        if let Err(error) = stored.await {
            complain(
                &error,
                "what the project manager said could not be stored; the chat ends by itself",
            );
        }
    }
}

/// Listens to what the project manager says.
struct Heard {
    parser: Parser,
    reader: StreamReader,
    meter: Meter,
    text: String,
    ended: bool,
    failure: Option<String>,
}

impl Heard {
    fn new() -> Self {
        let (parser, reader) = (Parser::new(1024 * 1024), StreamReader::new(Dialect::Chat));
        let (meter, text) = (Meter::default(), String::new());
        Self { parser, reader, meter, text, ended: false, failure: None }
    }

    fn push(&mut self, bytes: &[u8]) {
        if let Err(error) = self.meter.count(bytes) {
            self.failure = Some(error.message);
            return;
        }
        let mut events = Vec::new();
        if self.parser.push(bytes, &mut events).is_err() {
            self.failure = Some("an event is too long".into());
        }
        for event in events {
            for event in self.reader.read(&event) {
                match event {
                    Event::TextDelta { text, .. } => self.text.push_str(&text),
                    Event::Ended { .. } => self.ended = true,
                    Event::Failed(error) => self.failure = Some(error.message),
                    _ => {}
                }
            }
        }
    }

    fn outcome(self) -> (String, Ended) {
        let ended = match (self.failure, self.ended) {
            (Some(why), _) => Ended::Failed(why),
            (None, true) => Ended::Whole,
            (None, false) => Ended::Failed("the project manager broke off".into()),
        };
        (self.text, ended)
    }

    /// The same when nobody listens any more: whoever leaves at the end has heard all.
    fn left(self) -> (String, Ended) {
        if self.ended { self.outcome() } else { (self.text, Ended::Interrupted) }
    }
}

/// Passes pieces on until all is said, it fails, or nobody listens any more. Whoever leaves stops everything behind.
async fn passed_on(line: Line, accepted: Accepted, mut relay: Relay, sender: mpsc::Sender<Bytes>) {
    let mut pieces = accepted.pieces().fuse();
    let mut heard = Heard::new();
    let mut turn = tokio::time::interval(KEEP);
    let rest = loop {
        let next = tokio::select! {
            next = pieces.next() => next,
            _ = turn.tick() => {
                line.keep().await;
                continue;
            }
            () = sender.closed() => {
                drop(pieces);
                let (text, ended) = heard.left();
                return line.end(text, ended).await;
            }
        };
        let out = match next {
            None => break relay.end().0,
            Some(Ok(piece)) => {
                heard.push(&piece);
                relay.push(piece)
            }
            Some(Err(error)) => Err(error),
        };
        match out {
            Ok(out) if out.is_empty() => {}
            Ok(out) => {
                if !matches!(tokio::time::timeout(IDLE, sender.send(out)).await, Ok(Ok(()))) {
                    drop(pieces);
                    let (text, ended) = heard.left();
                    return line.end(text, ended).await;
                }
                if relay.ended() {
                    break relay.end().0;
                }
            }
            Err(error) => {
                tracing::warn!(event = "chat.broken", error = %error, "the project manager broke off");
                let told = "the project manager broke off; ask again";
                heard.failure = Some(told.to_owned());
                break relay.fail(ModelError::new(Kind::Upstream, told)).0;
            }
        }
    };
    let pieces = heard.failure.is_none().then_some(pieces);
    let (text, ended) = heard.outcome();
    line.end(text, ended).await;
    if !rest.is_empty() {
        let _ = tokio::time::timeout(IDLE, sender.send(rest)).await;
    }
    drop(sender);
    to_the_end(pieces).await;
}

/// The whole answer, unless whoever asked goes before it is there.
async fn whole(
    line: Line,
    accepted: Accepted,
    left: &CancellationToken,
) -> Result<talk::Answer, ModelError> {
    let mut pieces = accepted.pieces().fuse();
    let (mut heard, mut gathering) = (Heard::new(), Gathering::new(Dialect::Chat));
    let mut turn = tokio::time::interval(KEEP);
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            _ = turn.tick() => {
                line.keep().await;
                continue;
            }
            () = left.cancelled() => {
                drop(pieces);
                line.end(heard.text, Ended::Interrupted).await;
                return Err(ModelError::new(Kind::Timeout, "whoever asked has gone"));
            }
        };
        let Some(piece) = piece else { break };
        match piece {
            Ok(piece) => {
                heard.push(&piece);
                gathering.push(&piece);
                if gathering.has_failed() || heard.ended {
                    break;
                }
            }
            Err(error) => {
                line.end(heard.text, Ended::Failed(error.message.clone())).await;
                return Err(error);
            }
        }
    }
    let pieces = heard.failure.is_none().then_some(pieces);
    let (text, ended) = heard.outcome();
    tokio::join!(line.end(text, ended), to_the_end(pieces));
    gathering.finish()
}

#[cfg(test)]
mod tests {
    use cynode_models::relay::MOST_ANSWER;

    use super::*;

    #[test]
    fn a_manager_that_never_stops_is_not_heard_to_an_end() {
        let mut heard = Heard::new();
        let silence = format!(":{}\n", " ".repeat(500_000));
        for _ in 0..=MOST_ANSWER / silence.len() {
            heard.push(silence.as_bytes());
        }
        let (text, Ended::Failed(why)) = heard.outcome() else { panic!("it was heard") };
        let told = format!("the provider's answer is longer than {MOST_ANSWER} bytes");
        assert_eq!((text, why), (String::new(), told));
    }
}
