//! Chat with the project manager: stores the redacted message, creates a handoff and streams the answer back.

use std::sync::Arc;

use bytes::Bytes;
use cynode_core::{
    ids::{CallId, ProjectId, ThreadId, UserId},
    models::{PROJECT_MANAGER_MODEL_ID, ProviderKind},
    roles::UserRole,
    workflow::handoffs::{ChatMessage, ChatMessageState, ChatRole, HandoffRequest},
};
use cynode_db::manager::{conversations, handoffs::HandoffRecord};
use cynode_models::{
    dialect::{
        Dialect, DialectCodec as _, ResponseContext, StreamDecoder,
        canonical::{self, CanonicalEvent, ContentPart, ModelError, ModelErrorKind},
    },
    relay::{ResponseMeter, StreamAssembler, StreamRelay},
    upstream::{UpstreamClient, UpstreamEndpoint, UpstreamResponse},
};
use cynode_net::{sse::SseEventParser, tls::ClientTls};
use cynode_wire::manager::handoffs::HandoffAssignment;
use futures::StreamExt;
use secrecy::SecretString;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::models::inference::{
    InferenceAnswer, InferenceRequest, InferenceRuntime, ManagerChat, ManagerChatFuture,
    ManagerChatRequest, ModelRegistry, PROVIDER_IDLE_TIMEOUT, ThreadChoice,
    response_stream::drain_stream, to_model_error,
};
use crate::{
    App, Ctx, Error,
    manager::{
        given_context,
        handoffs::{self, HandoffSubject},
    },
    platform::error::log_background_error,
    tasks::{profiles, projects::ProjectRef},
};

/// URL and credential of the project manager.
#[derive(Clone, Debug)]
pub struct ManagerEndpoint {
    place: UpstreamEndpoint,
    credential: SecretString,
    /// Client with a trust of its own; `None` uses that of providers.
    client: Option<UpstreamClient>,
}

impl ManagerEndpoint {
    /// Creates the endpoint of the project manager at `url`.
    pub fn new(mut url: Url, credential: SecretString) -> Self {
        let path = format!("{}/internal", url.path().trim_end_matches('/'));
        url.set_path(&path);
        let (kind, dialect) = (ProviderKind::Compatible, Dialect::Chat);
        let place = UpstreamEndpoint { kind, dialect, base_url: url };
        Self { place, credential, client: None }
    }

    /// Sets the trust with which the project manager is called.
    pub fn with_tls(mut self, tls: ClientTls) -> Result<Self, Error> {
        let client = UpstreamClient::with_tls(PROVIDER_IDLE_TIMEOUT, tls);
        let client = client.map_err(|error| Error::Internal(anyhow::anyhow!(error.message)))?;
        self.client = Some(client);
        Ok(self)
    }

    /// Connects the project manager to the chats of a runtime.
    #[must_use]
    pub fn connect_to(self, runtime: InferenceRuntime) -> InferenceRuntime {
        runtime.with_manager_chat(Arc::new(self))
    }
}

/// Idle time after which a new thread begins.
const THREAD_IDLE_TIMEOUT: time::Duration = time::Duration::hours(2);

/// Lease of a process on a chat.
const CHAT_LEASE_MS: i64 = 10 * 60 * 1000;

/// Maximum number of turns, and of bytes in total, that are handed off.
const MAX_CHAT_TURNS: usize = 200;
const MAX_CHAT_BYTES: usize = 512 * 1024;

/// Interval at which the lease of a chat is renewed.
const CHAT_RENEW_INTERVAL: std::time::Duration = std::time::Duration::from_mins(1);

/// Backpressure: maximum number of chunks that wait for a slow client.
const MAX_CHAT_CHUNKS: usize = 32;

/// Worker name under which chats are claimed: the process that holds the connection.
const CHAT_HOLDER_NAME: &str = "orchestrator";

impl ManagerChat for ManagerEndpoint {
    fn ask_manager<'a>(&'a self, request: ManagerChatRequest<'a>) -> ManagerChatFuture<'a> {
        Box::pin(answer_chat(self, request))
    }
}

async fn answer_chat(
    manager: &ManagerEndpoint,
    chat: ManagerChatRequest<'_>,
) -> Result<InferenceAnswer, ModelError> {
    let ManagerChatRequest { app, models, registry, request, draft } = chat;
    if !request.who.can_chat {
        let told = "this API key does not open the project manager, which acts with all rights of its user: \
            it takes a key with the scope `manager` and without a list of projects";
        return Err(ModelError::new(ModelErrorKind::Forbidden, told));
    }
    // A chat reserves no budget, so no reservation would notice that the known secrets have changed. The registry is
    // refreshed here.
    let registry =
        models.refresh_registry(app, registry).await.map_err(|error| to_model_error(&error))?;
    draft.prepare_for_registry(&registry, &request.who, PROJECT_MANAGER_MODEL_ID).await?;
    let canonical = request.dialect.decode_request(draft.rewrite.as_body())?;
    let messages = to_chat_messages(&canonical)?;
    let given = begin_chat(app, request, messages).await.map_err(|error| match &error {
        Error::Invalid(told) => ModelError::new(ModelErrorKind::BadRequest, told.clone()),
        Error::NotFound { .. } => ModelError::new(ModelErrorKind::NotFound, error.to_string()),
        Error::Forbidden { .. } => ModelError::new(ModelErrorKind::Forbidden, error.to_string()),
        _ => to_model_error(&error),
    })?;
    let patience = registry.manager_idle_timeout();
    let line = ChatSession { app: app.clone(), registry, kept: given.kept };
    let body = match serde_json::to_vec(&given.handoff) {
        Ok(body) => body,
        Err(error) => return Err(to_model_error(&Error::Internal(error.into()))),
    };
    let upstream = manager.client.as_ref().unwrap_or(&models.upstream);
    let sent =
        upstream.send_request(&manager.place, Some(&manager.credential), &[], body, true, patience);
    let accepted = match sent.await {
        Ok(accepted) => accepted,
        Err(unasked) => {
            let told = format!("the project manager cannot answer now: {}", unasked.error.message);
            line.finish_chat(String::new(), ChatOutcome::Failed(told.clone())).await;
            let error = ModelError::new(ModelErrorKind::Unavailable, told);
            return Err(error.with_code("project_manager_unavailable"));
        }
    };
    let call = given.call;
    let created = u64::try_from(app.environment().now().unix_timestamp()).unwrap_or_default();
    let reply = ResponseContext::for_request(&canonical, created, request.answer_id(call));
    if canonical.stream {
        let relay = StreamRelay::new(request.dialect, Dialect::Chat, &canonical, reply);
        let (sender, receiver) = mpsc::channel(MAX_CHAT_CHUNKS);
        models.answers.spawn(relay_chat_stream(line, accepted, relay, sender));
        return Ok(InferenceAnswer::Streamed(call, receiver));
    }
    let mut answer = collect_chat_answer(line, accepted, &request.left).await?;
    if request.dialect != Dialect::Chat {
        // An id of another dialect is invalid: the client gets one of ours.
        answer.id.clear();
    }
    Ok(InferenceAnswer::Whole(call, request.dialect.encode_response(&answer, &reply)?))
}

/// Converts the conversation to the text-only messages of the project manager.
fn to_chat_messages(request: &canonical::CanonicalRequest) -> Result<Vec<ChatMessage>, ModelError> {
    let words = |parts: &[ContentPart]| -> String {
        let texts = parts.iter().filter_map(|part| match part {
            ContentPart::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    };
    let mut turns = Vec::new();
    let instructions: Vec<_> = request.instructions.iter().map(|text| text.text.as_str()).collect();
    if !instructions.is_empty() {
        turns.push(ChatMessage { role: ChatRole::System, content: instructions.join("\n") });
    }
    for message in &request.messages {
        let role = match message.role {
            canonical::MessageRole::System => ChatRole::System,
            canonical::MessageRole::User => ChatRole::User,
            canonical::MessageRole::Assistant => ChatRole::Assistant,
            canonical::MessageRole::Tool => continue,
        };
        let content = words(&message.parts);
        if !content.trim().is_empty() {
            turns.push(ChatMessage { role, content });
        }
    }
    if turns.last().is_none_or(|last| last.role != ChatRole::User) {
        let told = "the last message must be the user's, with text in it";
        return Err(ModelError::new(ModelErrorKind::BadRequest, told));
    }
    let bytes: usize = turns.iter().map(|turn| turn.content.len()).sum();
    if turns.len() > MAX_CHAT_TURNS || bytes > MAX_CHAT_BYTES {
        let told = format!(
            "a conversation has at most {MAX_CHAT_TURNS} turns and {MAX_CHAT_BYTES} bytes; begin a new one"
        );
        return Err(ModelError::new(ModelErrorKind::TooLarge, told));
    }
    Ok(turns)
}

struct ChatHandoff {
    call: CallId,
    kept: HandoffRecord,
    handoff: HandoffAssignment,
}

/// Stores the message and the handoff before the project manager is called.
async fn begin_chat(
    app: &App,
    request: &InferenceRequest,
    messages: Vec<ChatMessage>,
) -> Result<ChatHandoff, Error> {
    let menu = crate::models::inference::load_model_snapshot(app).await?;
    let operation = request.to_operation_request();
    let mut ctx = app.begin_transaction(&operation).await?;
    let user = request.who.user;
    let project = match request.who.project {
        Some(project) => project,
        None => default_project(&mut ctx, user, request.who.role_everywhere).await?,
    };
    crate::tasks::projects::require_active_project(ctx.conn(), project).await?;
    let said = messages.last().map(|last| last.content.clone()).unwrap_or_default();
    let (call, now) = (CallId::from_uuid(ctx.new_uuid()), ctx.now);
    let profile = request.profile.as_ref();
    profiles::require_named_profile(ctx.conn(), project, profile).await?;
    let thread = match find_thread(&mut ctx, request, user, project).await? {
        Some(thread) => thread,
        None => {
            let id = ThreadId::from_uuid(ctx.new_uuid());
            let title: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
            let title = title.chars().take(80).collect();
            let thread = conversations::ChatThread {
                id,
                user,
                project,
                title,
                profile: profile.cloned(),
                created_at: now,
                updated_at: now,
            };
            conversations::insert_thread(ctx.conn(), &thread).await?;
            id
        }
    };
    let (role, state) = (ChatRole::User, ChatMessageState::Whole);
    conversations::append_message(ctx.conn(), thread, role, &said, state, now).await?;
    let subject =
        HandoffSubject { user, project, task: None, run: None, job: None, thread: Some(thread) };
    let request = HandoffRequest::Chat { messages };
    let id = handoffs::store_handoff(&mut ctx, subject, None, None, &request).await?;
    let taken =
        cynode_db::manager::handoffs::claim_chat(ctx.conn(), id, CHAT_HOLDER_NAME, CHAT_LEASE_MS)
            .await?;
    let kept = taken.ok_or_else(|| Error::not_found("handoff", id))?;
    let mut handoff = handoffs::build_handoff(&mut ctx, &kept, &menu).await?;
    app.commit_operation(ctx).await?;
    given_context::give_to_handoff(app, &operation, project, &mut handoff).await;
    Ok(ChatHandoff { call, kept, handoff })
}

/// Returns the thread that a message belongs to, or none if it begins one. Threads of others do not exist for the user. A thread keeps its
/// profile: a message that names another one begins a thread, or is refused where it names the thread too.
async fn find_thread(
    ctx: &mut Ctx,
    request: &InferenceRequest,
    user: UserId,
    project: ProjectId,
) -> Result<Option<ThreadId>, Error> {
    let now = ctx.now;
    let fits = |thread: &conversations::ChatThread| {
        request.profile.is_none() || thread.profile == request.profile
    };
    match request.thread {
        ThreadChoice::New => Ok(None),
        ThreadChoice::Recent => {
            let idle = THREAD_IDLE_TIMEOUT;
            let recent =
                conversations::lock_recent_thread(ctx.conn(), user, project, idle, now).await?;
            Ok(recent.filter(fits).map(|thread| thread.id))
        }
        ThreadChoice::Existing(id) => {
            let thread = conversations::get_thread(ctx.conn(), id).await?;
            let own = thread.filter(|thread| thread.user == user && thread.project == project);
            let own = own.ok_or_else(|| Error::not_found("conversation", id))?;
            if !fits(&own) {
                return Err(Error::Invalid(
                    "the conversation has another profile: begin a new one for this profile".into(),
                ));
            }
            Ok(Some(own.id))
        }
    }
}

/// Returns the project of a chat that names none: the preferred one, or the only one of the user.
async fn default_project(
    ctx: &mut Ctx,
    user: UserId,
    everywhere: Option<UserRole>,
) -> Result<ProjectId, Error> {
    let held =
        crate::tasks::preferences::resolve_effective(ctx.conn(), None, user, None, None).await?;
    let wished = held.text_of_key("chat.default_project").and_then(|named| named.parse().ok());
    let project = match wished {
        Some(ProjectRef::Id(project)) => Some(project),
        Some(ProjectRef::Slug(slug)) => {
            cynode_db::tasks::projects::find_project_id(ctx.conn(), &slug).await?
        }
        None => conversations::only_project(ctx.conn(), user).await?,
    };
    let project = project.ok_or_else(|| {
        let told = "name the project: send its name or id in the header `OpenAI-Project`, or set the preference `chat.default_project`";
        Error::Invalid(told.into())
    })?;
    let role = cynode_db::identity::authentication::project_role(ctx.conn(), user, project).await?;
    if role.max(everywhere) >= Some(UserRole::Operator) {
        return Ok(project);
    }
    Err(Error::forbidden(UserRole::Operator, "in the project"))
}

/// Outcome of a chat.
enum ChatOutcome {
    Whole,
    Interrupted,
    Failed(String),
}

/// A chat in progress.
struct ChatSession {
    app: App,
    registry: Arc<ModelRegistry>,
    kept: HandoffRecord,
}

impl ChatSession {
    /// Renews the lease of the chat.
    async fn renew_lease(&self) {
        handoffs::renew_chat_claim(&self.app, &self.kept, CHAT_LEASE_MS).await;
    }

    /// Stores the redacted answer and ends the handoff with it. A failure is logged, because nobody waits for it.
    async fn finish_chat(&self, content: String, ended: ChatOutcome) {
        let content = self.registry.redactor.redact_text(&content).value.into_owned();
        let (state, outcome) = match ended {
            ChatOutcome::Whole => (ChatMessageState::Whole, Ok(content.clone())),
            ChatOutcome::Interrupted => {
                (ChatMessageState::Interrupted, Err("the person left".to_owned()))
            }
            ChatOutcome::Failed(why) => {
                let why = self.registry.redactor.redact_text(&why).value.into_owned();
                (ChatMessageState::Failed, Err(why))
            }
        };
        let stored = async {
            let request = crate::OperationRequest {
                caller: None,
                trace: self.app.environment().new_trace_id(),
                attempt: None,
            };
            let mut ctx = self.app.begin_transaction(&request).await?;
            let now = ctx.now;
            if let Some(thread) = self.kept.thread {
                conversations::append_message(
                    ctx.conn(),
                    thread,
                    ChatRole::Assistant,
                    &content,
                    state,
                    now,
                )
                .await?;
            }
            handoffs::end_chat(&mut ctx, &self.kept, outcome).await?;
            self.app.commit_operation(ctx).await
        };
        if let Err(error) = stored.await {
            log_background_error(
                "chat.persist_failed",
                &error,
                "the project manager's answer could not be stored; the chat expires",
            );
        }
    }
}

/// Decodes and collects the answer of the project manager.
struct ChatTranscript {
    parser: SseEventParser,
    reader: StreamDecoder,
    meter: ResponseMeter,
    text: String,
    ended: bool,
    failure: Option<String>,
}

impl ChatTranscript {
    fn new() -> Self {
        let (parser, reader) =
            (SseEventParser::new(1024 * 1024), StreamDecoder::new(Dialect::Chat));
        let (meter, text) = (ResponseMeter::default(), String::new());
        Self { parser, reader, meter, text, ended: false, failure: None }
    }

    fn push(&mut self, bytes: &[u8]) {
        if let Err(error) = self.meter.count_bytes(bytes) {
            self.failure = Some(error.message);
            return;
        }
        let mut events = Vec::new();
        if self.parser.push_bytes(bytes, &mut events).is_err() {
            self.failure = Some("an event is too long".into());
        }
        for event in events {
            for event in self.reader.decode_event(&event) {
                match event {
                    CanonicalEvent::TextDelta { text, .. } => self.text.push_str(&text),
                    CanonicalEvent::Ended { .. } => self.ended = true,
                    CanonicalEvent::Failed(error) => self.failure = Some(error.message),
                    _ => {}
                }
            }
        }
    }

    fn into_outcome(self) -> (String, ChatOutcome) {
        let ended = match (self.failure, self.ended) {
            (Some(why), _) => ChatOutcome::Failed(why),
            (None, true) => ChatOutcome::Whole,
            (None, false) => ChatOutcome::Failed("the project manager broke off".into()),
        };
        (self.text, ended)
    }

    /// Returns the outcome when the client disconnected. A client that leaves after the end has received the whole
    /// answer.
    fn into_interrupted_outcome(self) -> (String, ChatOutcome) {
        if self.ended { self.into_outcome() } else { (self.text, ChatOutcome::Interrupted) }
    }
}

/// Relays chunks until the answer ends or fails, or the client disconnects. A disconnect cancels everything upstream.
async fn relay_chat_stream(
    line: ChatSession,
    accepted: UpstreamResponse,
    mut relay: StreamRelay,
    sender: mpsc::Sender<Bytes>,
) {
    let mut pieces = accepted.into_byte_stream().fuse();
    let mut heard = ChatTranscript::new();
    let mut turn = tokio::time::interval(CHAT_RENEW_INTERVAL);
    let rest = loop {
        let next = tokio::select! {
            next = pieces.next() => next,
            _ = turn.tick() => {
                line.renew_lease().await;
                continue;
            }
            () = sender.closed() => {
                drop(pieces);
                let (text, ended) = heard.into_interrupted_outcome();
                return line.finish_chat(text, ended).await;
            }
        };
        let out = match next {
            None => break relay.finish_stream().0,
            Some(Ok(piece)) => {
                heard.push(&piece);
                relay.push_bytes(piece)
            }
            Some(Err(error)) => Err(error),
        };
        match out {
            Ok(out) if out.is_empty() => {}
            Ok(out) => {
                if !matches!(
                    tokio::time::timeout(PROVIDER_IDLE_TIMEOUT, sender.send(out)).await,
                    Ok(Ok(()))
                ) {
                    drop(pieces);
                    let (text, ended) = heard.into_interrupted_outcome();
                    return line.finish_chat(text, ended).await;
                }
                if relay.has_ended() {
                    break relay.finish_stream().0;
                }
            }
            Err(error) => {
                tracing::warn!(event = "chat.interrupted", error = %error, "the project manager's stream ended early");
                let told = "the project manager broke off; ask again";
                heard.failure = Some(told.to_owned());
                break relay.fail_stream(ModelError::new(ModelErrorKind::Upstream, told)).0;
            }
        }
    };
    let pieces = heard.failure.is_none().then_some(pieces);
    let (text, ended) = heard.into_outcome();
    line.finish_chat(text, ended).await;
    if !rest.is_empty() {
        let _ = tokio::time::timeout(PROVIDER_IDLE_TIMEOUT, sender.send(rest)).await;
    }
    drop(sender);
    drain_stream(pieces).await;
}

/// Collects the whole answer, unless the client disconnects first.
async fn collect_chat_answer(
    line: ChatSession,
    accepted: UpstreamResponse,
    left: &CancellationToken,
) -> Result<canonical::CanonicalResponse, ModelError> {
    let mut pieces = accepted.into_byte_stream().fuse();
    let (mut heard, mut gathering) = (ChatTranscript::new(), StreamAssembler::new(Dialect::Chat));
    let mut turn = tokio::time::interval(CHAT_RENEW_INTERVAL);
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            _ = turn.tick() => {
                line.renew_lease().await;
                continue;
            }
            () = left.cancelled() => {
                drop(pieces);
                line.finish_chat(heard.text, ChatOutcome::Interrupted).await;
                return Err(ModelError::new(ModelErrorKind::Timeout, "whoever asked has gone"));
            }
        };
        let Some(piece) = piece else { break };
        match piece {
            Ok(piece) => {
                heard.push(&piece);
                gathering.push_bytes(&piece);
                if gathering.has_failed() || heard.ended {
                    break;
                }
            }
            Err(error) => {
                line.finish_chat(heard.text, ChatOutcome::Failed(error.message.clone())).await;
                return Err(error);
            }
        }
    }
    let pieces = heard.failure.is_none().then_some(pieces);
    let (text, ended) = heard.into_outcome();
    tokio::join!(line.finish_chat(text, ended), drain_stream(pieces));
    gathering.finish_response()
}

#[cfg(test)]
mod tests {
    use cynode_models::relay::MAX_RESPONSE_BYTES;

    use super::*;

    #[test]
    fn a_manager_that_never_stops_is_not_heard_to_an_end() {
        let mut heard = ChatTranscript::new();
        let silence = format!(":{}\n", " ".repeat(500_000));
        for _ in 0..=MAX_RESPONSE_BYTES / silence.len() {
            heard.push(silence.as_bytes());
        }
        let (text, ChatOutcome::Failed(why)) = heard.into_outcome() else { panic!("it was heard") };
        let told = format!("the provider's answer is longer than {MAX_RESPONSE_BYTES} bytes");
        assert_eq!((text, why), (String::new(), told));
    }
}
