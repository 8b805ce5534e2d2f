//! Tool servers that people install: where they are, what they offer, what of it was accepted.
//!
//! A server's word is never taken as it is: what it offers is quarantined until a person has accepted exactly that, and
//! every later change is quarantined again.

mod import;
mod naming;

use std::{collections::BTreeMap, future::Future, time::Duration};

use cynode_core::{events::EventKind, ids::ServerId, roles::Role};
use cynode_db::{
    DbError, gate,
    servers::{self, ServerTool, ToolServer},
};
use cynode_policy::{
    catalogue::{Annotations, Audience, Binding, Definition, Origin, Pin},
    digest::Digest,
};
use cynode_wire::{
    accounts::SecretText,
    gate::{
        AcceptTools, AudienceView, InstallServer, ServerToolView, ServerTransport, ServerView,
        UpdateServer,
    },
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    App, Ctx, Error, Request,
    context::Told,
    gate::{Parts, sees, still_fits},
    keys::Keys,
};

/// A server that may be called, with its credentials in the open. It never leaves the process.
#[derive(Clone, Debug)]
pub struct Reachable {
    /// Its id.
    pub id: ServerId,
    /// How it is reached.
    pub transport: ServerTransport,
    /// Headers of each request, or variables of the program.
    pub secrets: Vec<(String, SecretString)>,
    /// Whether it may be on this machine or in a private network: an admin put it there.
    pub private: bool,
    /// How long a call may take.
    pub timeout: Duration,
    /// Most calls at once.
    pub max_in_flight: usize,
}

/// A tool as a server offers it.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    /// What the server calls it.
    pub tool: String,
    /// The whole object as the server gave it.
    pub definition: Value,
}

/// What a server offers, or why it does not say.
pub type Listing<'a> =
    std::pin::Pin<Box<dyn Future<Output = Result<Vec<Offered>, String>> + Send + 'a>>;

/// The way to servers.
pub trait Reach: Send + Sync {
    /// Asks a server what it offers.
    fn list<'a>(&'a self, server: &'a Reachable) -> Listing<'a>;

    /// Drops what is kept open to a server.
    fn forget(&self, server: ServerId);
}

/// How a server is reached, as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    transport: ServerTransport,
    private: bool,
    secrets: Vec<String>,
}

impl Stored {
    fn of(server: &ToolServer) -> Result<Self, Error> {
        serde_json::from_value(server.transport.clone())
            .map_err(|_| DbError::Corrupt { table: "tool_servers", column: "transport" }.into())
    }
}

impl Reachable {
    /// Opens the credentials of a server.
    pub(crate) fn open(server: &ToolServer, keys: &Keys) -> Result<Self, Error> {
        let stored = Stored::of(server)?;
        let secrets = match &server.sealed {
            None => Vec::new(),
            Some(sealed) => {
                let text = keys.open(server.id.as_uuid().as_bytes(), sealed)?;
                let pairs: BTreeMap<String, String> = serde_json::from_slice(&text)
                    .map_err(|_| DbError::Corrupt { table: "tool_servers", column: "sealed" })?;
                pairs.into_iter().map(|(name, value)| (name, SecretString::from(value))).collect()
            }
        };
        Ok(Self {
            id: server.id,
            transport: stored.transport,
            secrets,
            private: stored.private,
            timeout: Duration::from_millis(server.timeout_ms.unsigned_abs().into()),
            max_in_flight: usize::try_from(server.max_in_flight).unwrap_or(1),
        })
    }
}

/// The definition of an offered tool for the catalogue: what was accepted, or, quarantined, what is offered.
pub(crate) fn definition(server: &ToolServer, tool: &ServerTool) -> (Definition, Pin) {
    let said = tool.accepted.as_ref().unwrap_or(&tool.definition);
    let unchanged = tool.accepted.as_ref() == Some(&tool.definition) && !tool.gone;
    let text = |key: &str| said.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let reaches = Stored::of(server).is_ok_and(|stored| match stored.transport {
        ServerTransport::Http { .. } => true,
        ServerTransport::Stdio { network, .. } => network,
    });
    let annotations = serde_json::from_value(tool.annotations.clone());
    let definition = Definition {
        name: tool.name.clone(),
        aliases: Vec::new(),
        title: text("title").unwrap_or(&tool.tool).to_owned(),
        description: text("description").unwrap_or(&tool.tool).to_owned(),
        input: said.get("inputSchema").cloned().unwrap_or(Value::Null),
        output: said.get("outputSchema").cloned(),
        scope: server.scope,
        binding: Binding::NONE,
        annotations: annotations.unwrap_or(Annotations::UNKNOWN),
        origin: Origin::Server {
            id: server.id,
            tool: tool.tool.clone(),
            audience: server.audience,
        },
        network: reaches,
        missing: None,
    };
    (definition, if unchanged { Pin::Accepted } else { Pin::Quarantined })
}

/// Installs a server. Its tools are read when somebody asks for it or within a minute, and wait for a person in any case.
#[tracing::instrument(name = "app.servers.install", skip_all)]
pub async fn install(
    ctx: &mut Ctx,
    parts: &Parts,
    body: InstallServer,
) -> Result<ToolServer, Error> {
    let caller = ctx.caller()?;
    let admin = caller.role >= Some(Role::Admin);
    let transport = match (body.transport, &body.server_json) {
        (Some(transport), None) => transport,
        (None, Some(document)) => import::transport(document)?,
        _ => return Err(Error::Invalid("give `transport` or `server_json`".into())),
    };
    let private = import::check(&transport, admin)?;
    let audience = match (body.audience.unwrap_or(AudienceView::User), body.project_id) {
        (AudienceView::Everybody, None) => {
            ctx.require(Role::Admin)?;
            Audience::Everybody
        }
        (AudienceView::Project, Some(project)) => {
            ctx.require_in(project, Role::Operator).await?;
            Audience::Project(project)
        }
        (AudienceView::User, None) => Audience::User(caller.user),
        _ => {
            let rule = "`project_id` is given when the audience is a project, and only then";
            return Err(Error::Invalid(rule.into()));
        }
    };
    if caller.bounds.is_some() {
        return Err(Error::forbidden(Role::Operator, "as a person: agents install no tools"));
    }
    if !admin {
        stays_off(ctx, &transport).await?;
    }
    let prefix = match body.prefix {
        None => format!("ext.{}", body.name),
        Some(prefix) => {
            ctx.require(Role::Admin)?;
            prefix
        }
    };
    naming::check(&body.name, &prefix)?;
    let id = ServerId::from_uuid(ctx.uuid());
    let sealed = seal(ctx, parts, id, &body.secrets)?;
    let stored = Stored { transport, private, secrets: body.secrets.keys().cloned().collect() };
    let server = ToolServer {
        id,
        title: body.title.unwrap_or_else(|| body.name.clone()),
        name: body.name,
        transport: serde_json::to_value(stored).map_err(|error| Error::Internal(error.into()))?,
        sealed,
        prefix,
        audience,
        owner: caller.user,
        scope: body.scope,
        timeout_ms: bounded("timeout_ms", body.timeout_ms, 30_000, 100..=600_000)?,
        max_in_flight: bounded("max_in_flight", body.max_in_flight, 32, 1..=1000)?,
        enabled: true,
        listed_at: None,
        failure: None,
        created_at: ctx.now,
    };
    match servers::insert(ctx.conn(), &server).await {
        Err(error) if error.refused_by("tool_servers_name_key") => {
            return Err(Error::Taken { what: "a tool server with the name", name: server.name });
        }
        result => result?,
    }
    gate::changed(ctx.conn()).await?;
    tell(ctx, EventKind::ToolServerInstalled, &server).await?;
    Ok(server)
}

/// Refuses one more server at a place where somebody else switched off a server of the caller or a tool of it: under another name it
/// would be on again.
async fn stays_off(ctx: &mut Ctx, transport: &ServerTransport) -> Result<(), Error> {
    let caller = ctx.caller()?;
    for server in servers::list(ctx.conn()).await? {
        let same = server.owner == caller.user
            && import::same_host(&Stored::of(&server)?.transport, transport);
        if same && gate::switched_off_by_another(ctx.conn(), server.id, caller.user).await? {
            let place = "in the installation: somebody else switched off a server of yours at this host or a tool of it";
            return Err(Error::forbidden(Role::Admin, place));
        }
    }
    Ok(())
}

fn bounded(
    name: &str,
    given: Option<i32>,
    default: i32,
    allowed: std::ops::RangeInclusive<i32>,
) -> Result<i32, Error> {
    let value = given.unwrap_or(default);
    if allowed.contains(&value) {
        return Ok(value);
    }
    Err(Error::Invalid(format!("`{name}` is {} to {}", allowed.start(), allowed.end())))
}

fn seal(
    ctx: &Ctx,
    parts: &Parts,
    id: ServerId,
    secrets: &BTreeMap<String, SecretText>,
) -> Result<Option<Vec<u8>>, Error> {
    if secrets.is_empty() {
        return Ok(None);
    }
    let reserved = ["host", "content-length", "connection", "transfer-encoding", "mcp-session-id"];
    for (name, value) in secrets {
        let good = (1..=100).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !reserved.contains(&name.to_ascii_lowercase().as_str())
            && value.0.len() <= 8192
            && value.0.bytes().all(|b| (0x20..0x7f).contains(&b));
        if !good {
            return Err(Error::Invalid(format!(
                "the secret `{name}` is no header and no variable"
            )));
        }
    }
    let plain: BTreeMap<&str, &str> =
        secrets.iter().map(|(name, value)| (name.as_str(), value.0.as_str())).collect();
    let text = serde_json::to_vec(&plain).map_err(|error| Error::Internal(error.into()))?;
    parts.keys.seal(ctx.environment(), id.as_uuid().as_bytes(), &text).map(Some)
}

async fn tell(ctx: &mut Ctx, kind: EventKind, server: &ToolServer) -> Result<(), Error> {
    let data = json!({ "server_id": server.id, "name": server.name });
    let told = Told::new(kind, data).about(server.owner);
    let told = match server.audience {
        Audience::Project(project) => told.project(project),
        Audience::Everybody | Audience::User(_) => told,
    };
    ctx.record(told).await
}

/// A server that the caller may change: its owner, or an admin.
pub(crate) async fn owned(ctx: &mut Ctx, id: ServerId) -> Result<ToolServer, Error> {
    let server = seen(ctx, id).await?;
    let caller = ctx.caller()?;
    if caller.bounds.is_none() && caller.role >= Some(Role::Admin) {
        return Ok(server);
    }
    // Whoever installed it keeps it as long as they could install it.
    let stdio = matches!(Stored::of(&server)?.transport, ServerTransport::Stdio { .. });
    let standing = match server.audience {
        Audience::User(_) => !stdio,
        Audience::Project(project) => {
            !stdio && ctx.require_in(project, Role::Operator).await.is_ok()
        }
        Audience::Everybody => false,
    };
    if caller.bounds.is_none() && server.owner == caller.user && standing {
        return Ok(server);
    }
    Err(Error::forbidden(Role::Admin, "in the installation, or to be who installed it"))
}

async fn seen(ctx: &mut Ctx, id: ServerId) -> Result<ToolServer, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("tool server", id);
    let server = servers::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    if sees(ctx, server.audience, Some(server.owner)).await? { Ok(server) } else { Err(missing()) }
}

/// One server and what it offers.
#[tracing::instrument(name = "app.servers.get", skip_all)]
pub async fn get(ctx: &mut Ctx, id: ServerId) -> Result<ServerView, Error> {
    let server = seen(ctx, id).await?;
    view(ctx, server).await
}

/// The servers that the caller may know of.
#[tracing::instrument(name = "app.servers.list", skip_all)]
pub async fn list(ctx: &mut Ctx) -> Result<Vec<ServerView>, Error> {
    let mut views = Vec::new();
    for server in servers::list(ctx.conn()).await? {
        if sees(ctx, server.audience, Some(server.owner)).await? {
            views.push(view(ctx, server).await?);
        }
    }
    Ok(views)
}

async fn view(ctx: &mut Ctx, server: ToolServer) -> Result<ServerView, Error> {
    let tools = servers::tools(ctx.conn(), Some(server.id)).await?;
    let stored = Stored::of(&server)?;
    let (audience, project_id) = match server.audience {
        Audience::Everybody => (AudienceView::Everybody, None),
        Audience::Project(project) => (AudienceView::Project, Some(project)),
        Audience::User(_) => (AudienceView::User, None),
    };
    Ok(ServerView {
        server_id: server.id,
        name: server.name,
        title: server.title,
        transport: stored.transport,
        secrets: stored.secrets,
        prefix: server.prefix,
        audience,
        project_id,
        owner_id: server.owner,
        scope: server.scope,
        timeout_ms: server.timeout_ms,
        max_in_flight: server.max_in_flight,
        enabled: server.enabled,
        listed_at: server.listed_at,
        failure: server.failure,
        tools: tools.into_iter().map(tool_view).collect(),
    })
}

fn tool_view(tool: ServerTool) -> ServerToolView {
    let state = match &tool.accepted {
        _ if tool.gone => "gone",
        None => "new",
        Some(accepted) if *accepted == tool.definition => "accepted",
        Some(_) => "changed",
    };
    ServerToolView {
        state: state.into(),
        definition_digest: Digest::of_json(&tool.definition).to_string(),
        accepted: tool.accepted.filter(|accepted| *accepted != tool.definition),
        definition: tool.definition,
        annotations: tool.annotations,
        name: tool.name.to_string(),
        tool: tool.tool,
    }
}

/// Changes a server.
#[tracing::instrument(name = "app.servers.update", skip_all)]
pub async fn update(ctx: &mut Ctx, id: ServerId, body: UpdateServer) -> Result<ServerView, Error> {
    gate::lock(ctx.conn()).await?;
    let mut server = owned(ctx, id).await?;
    let caller = ctx.caller()?;
    let (was_off, admin) = (!server.enabled, caller.role >= Some(Role::Admin));
    if was_off && body.enabled == Some(true) && !admin {
        let place =
            "in the installation: a server that was switched off is switched on by an admin";
        return Err(Error::forbidden(Role::Admin, place));
    }
    server.title = body.title.unwrap_or(server.title);
    server.enabled = body.enabled.unwrap_or(server.enabled);
    server.scope = body.scope.unwrap_or(server.scope);
    server.timeout_ms = bounded("timeout_ms", body.timeout_ms, server.timeout_ms, 100..=600_000)?;
    server.max_in_flight =
        bounded("max_in_flight", body.max_in_flight, server.max_in_flight, 1..=1000)?;
    let off_by = (body.enabled == Some(false) && (admin || !was_off)).then_some(caller.user);
    let now = ctx.now;
    servers::update(ctx.conn(), &server, off_by, now).await?;
    gate::changed(ctx.conn()).await?;
    tell(ctx, EventKind::ToolServerUpdated, &server).await?;
    view(ctx, server).await
}

/// Removes a server and its tools.
#[tracing::instrument(name = "app.servers.remove", skip_all)]
pub async fn remove(ctx: &mut Ctx, parts: &Parts, id: ServerId) -> Result<(), Error> {
    let server = owned(ctx, id).await?;
    let caller = ctx.caller()?;
    gate::lock(ctx.conn()).await?;
    // Installed anew it would be on again.
    if caller.role < Some(Role::Admin)
        && gate::switched_off_by_another(ctx.conn(), id, caller.user).await?
    {
        let place = "in the installation: somebody else switched the server or a tool of it off";
        return Err(Error::forbidden(Role::Admin, place));
    }
    gate::forget_tools(ctx.conn(), id).await?;
    servers::delete(ctx.conn(), id).await?;
    still_fits(ctx, parts).await?;
    gate::changed(ctx.conn()).await?;
    tell(ctx, EventKind::ToolServerRemoved, &server).await
}

/// Refuses a caller who may not change the server.
pub async fn changeable(ctx: &mut Ctx, id: ServerId) -> Result<(), Error> {
    owned(ctx, id).await.map(|_| ())
}

/// Accepts what a server offers, exactly as the person saw it.
#[tracing::instrument(name = "app.servers.accept", skip_all)]
pub async fn accept(
    ctx: &mut Ctx,
    parts: &Parts,
    id: ServerId,
    body: &AcceptTools,
) -> Result<ServerView, Error> {
    let server = owned(ctx, id).await?;
    let (caller, now) = (ctx.caller()?, ctx.now);
    gate::lock(ctx.conn()).await?;
    let offered = servers::tools(ctx.conn(), Some(id)).await?;
    for (name, digest) in &body.tools {
        let tool = offered.iter().find(|tool| tool.tool == *name);
        let tool = tool.ok_or_else(|| Error::not_found("tool of this server", name))?;
        let seen = Digest::of_json(&tool.definition).to_string() == *digest;
        let accepted = seen
            && servers::accept(ctx.conn(), id, name, &tool.definition, caller.user, now).await?;
        if !accepted {
            return Err(Error::Conflict(
                "the server has changed the tool since it was looked at: look at it again",
            ));
        }
    }
    still_fits(ctx, parts).await?;
    gate::changed(ctx.conn()).await?;
    tell(ctx, EventKind::ToolServerAccepted, &server).await?;
    view(ctx, server).await
}

/// Says what a tool does to the world, in place of the server's own word.
#[tracing::instrument(name = "app.servers.judge", skip_all)]
pub async fn judge(
    ctx: &mut Ctx,
    id: ServerId,
    tool: &str,
    body: Annotations,
) -> Result<ServerView, Error> {
    let server = owned(ctx, id).await?;
    // Rules go by these words, so they are an admin's.
    ctx.require(Role::Admin)?;
    let judged = serde_json::to_value(body).map_err(|error| Error::Internal(error.into()))?;
    if !servers::judge(ctx.conn(), id, tool, &judged).await? {
        return Err(Error::not_found("tool of this server", tool));
    }
    gate::changed(ctx.conn()).await?;
    tell(ctx, EventKind::ToolServerUpdated, &server).await?;
    view(ctx, server).await
}

/// Asks a server what it offers and keeps the answer. Failing is kept too, and harms nobody else.
#[tracing::instrument(name = "app.servers.refresh", skip_all, fields(server.id = %id))]
pub async fn refresh(app: &App, id: ServerId) -> Result<(), Error> {
    let parts = app.gate()?;
    let server = {
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        servers::get(&mut conn, id).await?.ok_or_else(|| Error::not_found("tool server", id))?
    };
    let listing = parts.reach.list(&Reachable::open(&server, &parts.keys)?).await;
    let request = Request { caller: None, trace: app.environment().trace(), attempt: None };
    let mut ctx = app.open(&request).await?;
    let now = ctx.now;
    let failure = match listing {
        Ok(offered) => keep(&mut ctx, &server, offered).await,
        Err(failure) => Ok(Some(failure)),
    };
    let failure = match failure {
        Ok(failure) => failure,
        Err(error) => {
            // What it offers cannot be kept: that much is.
            drop(ctx);
            ctx = app.open(&request).await?;
            Some(format!("what it offers cannot be kept: {error}"))
        }
    };
    servers::listed(ctx.conn(), id, failure.as_deref(), now).await?;
    if failure.is_some() && server.failure.is_none() {
        tell(&mut ctx, EventKind::ToolServerChanged, &server).await?;
    }
    app.commit(ctx).await
}

/// Keeps what a server offers; gives what is wrong with it.
async fn keep(
    ctx: &mut Ctx,
    server: &ToolServer,
    offered: Vec<Offered>,
) -> Result<Option<String>, Error> {
    let (now, mut unfit, mut changed) = (ctx.now, Vec::new(), false);
    let names: Vec<_> = offered.iter().map(|offered| offered.tool.clone()).collect();
    // Those who read one server's offers at once do it one after the other.
    gate::lock(ctx.conn()).await?;
    let known = servers::tools(ctx.conn(), None).await?;
    let mut named = std::collections::BTreeSet::new();
    for Offered { tool, definition } in offered {
        let fits = (1..=128).contains(&tool.chars().count())
            && !tool.contains('\0')
            && !definition.to_string().contains("\\u0000");
        let name =
            naming::name(&server.prefix, &tool).filter(|name| fits && named.insert(name.clone()));
        let taken = |name| {
            known.iter().any(|other| {
                other.name == name && (other.server != server.id || other.tool != tool)
            })
        };
        let Some(name) = name.filter(|name| !name.is_native() && !taken(name.clone())) else {
            unfit.push(tool);
            continue;
        };
        let tool = ServerTool {
            server: server.id,
            tool,
            name,
            definition,
            accepted: None,
            annotations: json!({}),
            gone: false,
            accepted_by: None,
        };
        changed |= servers::offer(ctx.conn(), &tool, now).await?;
    }
    changed |= servers::only(ctx.conn(), server.id, &names).await? > 0;
    if changed {
        gate::changed(ctx.conn()).await?;
        tell(ctx, EventKind::ToolServerChanged, server).await?;
    }
    Ok((!unfit.is_empty()).then(|| {
        let names: Vec<_> = unfit.iter().take(5).map(String::as_str).collect();
        format!(
            "{} tools have names that are taken or cannot be used: {}",
            unfit.len(),
            names.join(", ")
        )
    }))
}

/// The servers whose offers are to be read now and then.
pub async fn in_use(app: &App) -> Result<Vec<ServerId>, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let servers = servers::list(&mut conn).await?;
    Ok(servers.into_iter().filter(|server| server.enabled).map(|server| server.id).collect())
}
