//! Tool servers: the MCP servers that people install, the tools they offer and which of them were accepted.
//!
//! A server is untrusted. Each tool definition is quarantined until a person accepts exactly that definition, and each
//! later change is quarantined again.

mod import;
mod naming;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    time::Duration,
};

use cynode_core::{
    events::EventKind,
    ids::ServerId,
    policies::{ApprovalKind, PolicySet},
    roles::UserRole,
    settings::registry::{
        DEFAULT_SERVERS_PER_PROJECT, DEFAULT_SERVERS_PER_USER, SERVERS_PER_PROJECT_SETTING,
        SERVERS_PER_USER_SETTING,
    },
    tools::ToolAnnotations,
};
use cynode_db::{
    DbError,
    tools::{
        policy,
        tool_servers::{self, AcceptedTool, ServerTool, ToolListChange, ToolServer},
    },
};
use cynode_policy::{
    catalogue::{DefinitionPin, IdBinding, McpToolDefinition, ToolAudience, ToolOrigin},
    digest::Sha256Digest,
    schema::MAX_SCHEMA_BYTES,
    tool_names::ToolName,
};
use cynode_wire::{
    identity::accounts::SecretText,
    tools::{
        AcceptTools, AudienceView, InstallServer, ServerToolView, ServerTransport, ServerView,
        UpdateServer,
    },
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    App, Ctx, Error, GatewayParts, OperationRequest,
    platform::{context::EventDraft, keys::InstallationKeys, operation, settings},
    tasks::policies::require_second_person,
    tools::catalogue::{is_visible_to_caller, require_valid_rules},
};

/// Maximum number of tools of a server.
pub const MAX_SERVER_TOOLS: usize = 500;

/// Maximum size of one definition, the same as that of a schema that is compiled.
pub const MAX_DEFINITION_BYTES: usize = MAX_SCHEMA_BYTES;

/// Maximum size of all definitions of a server together.
pub const MAX_SERVER_DEFINITION_BYTES: usize = 512 * 1024;

/// Maximum size of all accepted definitions of a server, as the database writes them: with a space after each comma.
const MAX_ACCEPTED_BYTES: i64 = 1024 * 1024;

/// Maximum size of all accepted definitions of the servers of one user, or of one project: every replica holds them.
const MAX_AUDIENCE_BYTES: i64 = 4 * 1024 * 1024;

/// Maximum time of the listing of a server's tools, whatever the timeout of its calls is.
const MAX_LISTING_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of characters of a title.
const MAX_TITLE_CHARS: usize = 200;

/// Maximum number of credentials of a server.
const MAX_SERVER_SECRETS: usize = 32;

/// Maximum number of characters of a stored failure. Part of it may be text of the server.
const MAX_FAILURE_CHARS: usize = 500;

/// A callable server with unsealed credentials. It never leaves the process.
#[derive(Clone, Debug)]
pub struct CallableServer {
    /// Unique id of the server.
    pub id: ServerId,
    /// Transport: HTTP endpoint or program.
    pub transport: ServerTransport,
    /// Headers of each request, or environment variables of the program.
    pub secrets: Vec<(String, SecretString)>,
    /// SSRF guard: whether it may be on this machine or in a private network, as an admin has allowed who still is one.
    pub private: bool,
    /// Timeout of a call.
    pub timeout: Duration,
    /// Maximum number of concurrent calls.
    pub max_in_flight: usize,
}

/// A tool that a server offers.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedTool {
    /// Name of the tool on the server.
    pub tool: String,
    /// Complete definition as the server sent it.
    pub definition: Value,
}

/// Future of the tools of a server, or of the error.
pub type ServerToolListing<'a> =
    std::pin::Pin<Box<dyn Future<Output = Result<Vec<OfferedTool>, String>> + Send + 'a>>;

/// Client of tool servers.
pub trait ToolServerClient: Send + Sync {
    /// Lists the tools of a server.
    fn list_tools<'a>(&'a self, server: &'a CallableServer) -> ServerToolListing<'a>;

    /// Closes the open connections to a server.
    fn close_server(&self, server: ServerId);
}

/// Transport of a server as stored.
#[derive(Serialize, Deserialize)]
struct StoredTransport {
    transport: ServerTransport,
    secrets: Vec<String>,
}

impl StoredTransport {
    fn from_server(server: &ToolServer) -> Result<Self, Error> {
        serde_json::from_value(server.transport.clone())
            .map_err(|_| DbError::Corrupt { table: "tool_servers", column: "transport" }.into())
    }
}

impl CallableServer {
    /// Unseals the credentials of a server.
    pub(crate) fn unseal_server(
        server: &ToolServer,
        keys: &InstallationKeys,
    ) -> Result<Self, Error> {
        let stored = StoredTransport::from_server(server)?;
        let secrets = match &server.sealed {
            None => Vec::new(),
            Some(sealed) => {
                let text = keys.unseal_secret(server.id.as_uuid().as_bytes(), sealed)?;
                let pairs: BTreeMap<String, String> =
                    serde_json::from_slice(&text).map_err(|_| DbError::Corrupt {
                        table: "tool_servers",
                        column: "sealed_credentials",
                    })?;
                pairs.into_iter().map(|(name, value)| (name, SecretString::from(value))).collect()
            }
        };
        Ok(Self {
            id: server.id,
            transport: stored.transport,
            secrets,
            private: server.private,
            timeout: Duration::from_millis(server.timeout_ms.unsigned_abs().into()),
            max_in_flight: usize::try_from(server.max_in_flight).unwrap_or(1),
        })
    }
}

/// Returns the catalogue definition of an accepted tool. It is quarantined when the server offers it no more, or another.
pub(crate) fn to_definition(
    server: &ToolServer,
    tool: &AcceptedTool,
) -> (McpToolDefinition, DefinitionPin) {
    let said = &tool.definition;
    let text = |key: &str| said.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let reaches = StoredTransport::from_server(server).is_ok_and(|stored| match stored.transport {
        ServerTransport::Http { .. } => true,
        ServerTransport::Stdio { network, .. } => network,
    });
    let annotations = serde_json::from_value(tool.annotations.clone());
    let definition = McpToolDefinition {
        name: tool.name.clone(),
        aliases: Vec::new(),
        title: text("title").unwrap_or(&tool.tool).to_owned(),
        description: text("description").unwrap_or(&tool.tool).to_owned(),
        input: said.get("inputSchema").cloned().unwrap_or(Value::Null),
        output: said.get("outputSchema").cloned(),
        scope: server.scope,
        binding: IdBinding::NONE,
        annotations: annotations.unwrap_or(ToolAnnotations::UNKNOWN),
        origin: ToolOrigin::Server {
            id: server.id,
            tool: tool.tool.clone(),
            audience: server.audience,
        },
        network: reaches,
    };
    let pin = if tool.unchanged { DefinitionPin::Accepted } else { DefinitionPin::Quarantined };
    (definition, pin)
}

/// Installs a server. Its tools are read on request or within a minute, and are quarantined until a person accepts
/// them.
///
/// For everybody an admin installs it, for a project an operator of the project, for themselves an operator of the
/// installation or of any project: nobody else has agents that could use it.
#[tracing::instrument(name = "app.servers.install_server", skip_all)]
#[operation]
pub async fn install_server(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    body: InstallServer,
) -> Result<ToolServer, Error> {
    let caller = ctx.caller()?;
    let admin = caller.role >= Some(UserRole::Admin);
    let transport = match (body.transport, &body.server_json) {
        (Some(transport), None) => transport,
        (None, Some(document)) => import::transport_from_document(document)?,
        _ => return Err(Error::Invalid("give `transport` or `server_json`".into())),
    };
    import::validate_transport(&transport, admin, body.allow_private)?;
    let audience = match (body.audience.unwrap_or(AudienceView::User), body.project_id) {
        (AudienceView::Everybody, None) => {
            ctx.require_role(UserRole::Admin)?;
            ToolAudience::Everybody
        }
        (AudienceView::Project, Some(project)) => {
            ctx.require_project_role(project, UserRole::Operator).await?;
            ToolAudience::Project(project)
        }
        (AudienceView::User, None) => {
            ctx.require_role_anywhere(UserRole::Operator).await?;
            ToolAudience::User(caller.user)
        }
        _ => {
            let rule = "`project_id` is given when the audience is a project, and only then";
            return Err(Error::Invalid(rule.into()));
        }
    };
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person: agents install no tools"));
    }
    if !admin {
        require_not_switched_off(ctx, &transport).await?;
    }
    // The lock serializes concurrent installations, so that they cannot pass the quota together.
    policy::lock_policy(ctx.conn()).await?;
    require_server_quota(ctx, audience).await?;
    let prefix = match body.prefix {
        None => format!("ext.{}", body.name),
        Some(prefix) => {
            ctx.require_role(UserRole::Admin)?;
            prefix
        }
    };
    naming::validate_server_name(&body.name, &prefix)?;
    let id = ServerId::from_uuid(ctx.new_uuid());
    let sealed = seal_server_secrets(ctx, parts, id, &body.secrets)?;
    let stored = StoredTransport { transport, secrets: body.secrets.keys().cloned().collect() };
    let server = ToolServer {
        id,
        title: validate_title(body.title.unwrap_or_else(|| body.name.clone()))?,
        name: body.name,
        transport: serde_json::to_value(stored).map_err(|error| Error::Internal(error.into()))?,
        private_allowed_by: body.allow_private.then_some(caller.user),
        private: body.allow_private,
        sealed,
        prefix,
        audience,
        owner: caller.user,
        scope: body.scope,
        timeout_ms: validate_range("timeout_ms", body.timeout_ms, 30_000, 100..=600_000)?,
        max_in_flight: validate_range("max_in_flight", body.max_in_flight, 32, 1..=1000)?,
        enabled: true,
        listed_at: None,
        failure: None,
        created_at: ctx.now,
    };
    match tool_servers::insert_tool_server(ctx.conn(), &server).await {
        Err(error) if error.is_refused_by("tool_servers_name_key") => {
            return Err(Error::AlreadyExists {
                what: "a tool server with the name",
                name: server.name,
            });
        }
        result => result?,
    }
    ctx.invalidate_policy().await?;
    record_server_event(ctx, EventKind::ToolServerInstalled, &server).await?;
    Ok(server)
}

/// Rejects a server beyond the quota of its user or its project. Those for everybody are the business of admins.
async fn require_server_quota(ctx: &mut Ctx, audience: ToolAudience) -> Result<(), Error> {
    let (key, default, whose) = match audience {
        ToolAudience::Everybody => return Ok(()),
        ToolAudience::User(_) => (SERVERS_PER_USER_SETTING, DEFAULT_SERVERS_PER_USER, "one person"),
        ToolAudience::Project(_) => {
            (SERVERS_PER_PROJECT_SETTING, DEFAULT_SERVERS_PER_PROJECT, "one project")
        }
    };
    let limit = settings::setting_number(ctx.conn(), key, default).await?;
    if tool_servers::count_tool_servers(ctx.conn(), audience).await? < limit {
        return Ok(());
    }
    Err(Error::LimitExceeded(format!(
        "{whose} has at most {limit} tool servers: uninstall one, or ask an admin to raise `{key}`"
    )))
}

/// Rejects another server at an address where somebody else has disabled a server of the caller, or one of its tools:
/// under a new name it would be enabled again.
async fn require_not_switched_off(ctx: &mut Ctx, transport: &ServerTransport) -> Result<(), Error> {
    let caller = ctx.caller()?;
    for server in tool_servers::list_tool_servers(ctx.conn()).await? {
        let same = server.owner == caller.user
            && import::same_host(&StoredTransport::from_server(&server)?.transport, transport);
        if same && policy::is_disabled_by_another(ctx.conn(), server.id, caller.user).await? {
            let place = "in the installation: somebody else switched off a server of yours at this host or a tool of it";
            return Err(Error::forbidden(UserRole::Admin, place));
        }
    }
    Ok(())
}

fn validate_title(title: String) -> Result<String, Error> {
    if (1..=MAX_TITLE_CHARS).contains(&title.chars().count()) {
        return Ok(title);
    }
    Err(Error::Invalid(format!("`title` has 1 to {MAX_TITLE_CHARS} characters")))
}

fn validate_range(
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

fn seal_server_secrets(
    ctx: &Ctx,
    parts: &GatewayParts,
    id: ServerId,
    secrets: &BTreeMap<String, SecretText>,
) -> Result<Option<Vec<u8>>, Error> {
    if secrets.is_empty() {
        return Ok(None);
    }
    if secrets.len() > MAX_SERVER_SECRETS {
        return Err(Error::Invalid(format!("`secrets` has at most {MAX_SERVER_SECRETS} values")));
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
    parts.keys.seal_secret(ctx.environment(), id.as_uuid().as_bytes(), &text).map(Some)
}

async fn record_server_event(
    ctx: &mut Ctx,
    kind: EventKind,
    server: &ToolServer,
) -> Result<(), Error> {
    let data = json!({ "server_id": server.id, "name": server.name });
    let told = EventDraft::new(kind, data).with_subject(server.owner);
    let told = match server.audience {
        ToolAudience::Project(project) => told.with_project(project),
        ToolAudience::Everybody | ToolAudience::User(_) => told,
    };
    ctx.record_event(told).await
}

/// Returns a server that the caller may change: the owner or an admin.
pub(crate) async fn require_owned_server(ctx: &mut Ctx, id: ServerId) -> Result<ToolServer, Error> {
    let server = require_visible_server(ctx, id).await?;
    let caller = ctx.caller()?;
    if caller.bounds.is_none() && caller.role >= Some(UserRole::Admin) {
        return Ok(server);
    }
    // Owners keep the right to change it only while they could install it.
    let stdio =
        matches!(StoredTransport::from_server(&server)?.transport, ServerTransport::Stdio { .. });
    let standing = match server.audience {
        ToolAudience::User(_) => {
            !stdio && ctx.require_role_anywhere(UserRole::Operator).await.is_ok()
        }
        ToolAudience::Project(project) => {
            !stdio && ctx.require_project_role(project, UserRole::Operator).await.is_ok()
        }
        ToolAudience::Everybody => false,
    };
    if caller.bounds.is_none() && server.owner == caller.user && standing {
        return Ok(server);
    }
    Err(Error::forbidden(UserRole::Admin, "in the installation, or to be who installed it"))
}

async fn require_visible_server(ctx: &mut Ctx, id: ServerId) -> Result<ToolServer, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("tool server", id);
    let server = tool_servers::get_tool_server(ctx.conn(), id).await?.ok_or_else(missing)?;
    if is_visible_to_caller(ctx, server.audience, Some(server.owner)).await? {
        Ok(server)
    } else {
        Err(missing())
    }
}

/// Returns one server with its tools.
#[tracing::instrument(name = "app.servers.get_server", skip_all)]
#[operation]
pub async fn get_server(ctx: &mut Ctx, id: ServerId) -> Result<ServerView, Error> {
    let server = require_visible_server(ctx, id).await?;
    to_server_view(ctx, server).await
}

/// Lists the servers that are visible to the caller.
#[tracing::instrument(name = "app.servers.list_servers", skip_all)]
#[operation]
pub async fn list_servers(ctx: &mut Ctx) -> Result<Vec<ServerView>, Error> {
    let mut views = Vec::new();
    for server in tool_servers::list_tool_servers(ctx.conn()).await? {
        if is_visible_to_caller(ctx, server.audience, Some(server.owner)).await? {
            views.push(to_server_view(ctx, server).await?);
        }
    }
    Ok(views)
}

async fn to_server_view(ctx: &mut Ctx, server: ToolServer) -> Result<ServerView, Error> {
    let tools = tool_servers::list_server_tools(ctx.conn(), server.id).await?;
    let stored = StoredTransport::from_server(&server)?;
    let (audience, project_id) = match server.audience {
        ToolAudience::Everybody => (AudienceView::Everybody, None),
        ToolAudience::Project(project) => (AudienceView::Project, Some(project)),
        ToolAudience::User(_) => (AudienceView::User, None),
    };
    Ok(ServerView {
        server_id: server.id,
        name: server.name,
        title: server.title,
        transport: stored.transport,
        allow_private: server.private,
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
        tools: tools.into_iter().map(to_server_tool_view).collect(),
    })
}

fn to_server_tool_view(tool: ServerTool) -> ServerToolView {
    let state = match &tool.accepted {
        _ if tool.gone => "gone",
        None => "new",
        Some(accepted) if *accepted == tool.definition => "accepted",
        Some(_) => "changed",
    };
    ServerToolView {
        state: state.into(),
        definition_digest: Sha256Digest::of_json(&tool.definition).to_string(),
        accepted: tool.accepted.filter(|accepted| *accepted != tool.definition),
        accepted_by: tool.accepted_by,
        accepted_at: tool.accepted_at,
        definition: tool.definition,
        annotations: tool.annotations,
        name: tool.name.to_string(),
        tool: tool.tool,
    }
}

/// Updates a server.
#[tracing::instrument(name = "app.servers.update_server", skip_all)]
#[operation]
pub async fn update_server(
    ctx: &mut Ctx,
    id: ServerId,
    body: UpdateServer,
) -> Result<ServerView, Error> {
    policy::lock_policy(ctx.conn()).await?;
    let mut server = require_owned_server(ctx, id).await?;
    let caller = ctx.caller()?;
    let (was_off, admin) = (!server.enabled, caller.role >= Some(UserRole::Admin));
    if was_off && body.enabled == Some(true) && !admin {
        let place =
            "in the installation: a server that was switched off is switched on by an admin";
        return Err(Error::forbidden(UserRole::Admin, place));
    }
    let before = server.clone();
    if let Some(title) = body.title {
        server.title = validate_title(title)?;
    }
    if let Some(allowed) = body.allow_private {
        if allowed {
            let stored = StoredTransport::from_server(&server)?;
            import::validate_transport(&stored.transport, admin, allowed)?;
        }
        server.private_allowed_by = allowed.then_some(caller.user);
        server.private = allowed;
    }
    server.enabled = body.enabled.unwrap_or(server.enabled);
    server.scope = body.scope.unwrap_or(server.scope);
    server.timeout_ms =
        validate_range("timeout_ms", body.timeout_ms, server.timeout_ms, 100..=600_000)?;
    server.max_in_flight =
        validate_range("max_in_flight", body.max_in_flight, server.max_in_flight, 1..=1000)?;
    let off_by = (body.enabled == Some(false) && (admin || !was_off)).then_some(caller.user);
    let now = ctx.now;
    tool_servers::update_tool_server(ctx.conn(), &server, off_by, now).await?;
    // A title is only shown, so that no replica has to load anything.
    if server != (ToolServer { title: server.title.clone(), ..before }) {
        ctx.invalidate_policy().await?;
    }
    record_server_event(ctx, EventKind::ToolServerUpdated, &server).await?;
    to_server_view(ctx, server).await
}

/// Deletes a server with its tools.
#[tracing::instrument(name = "app.servers.delete_server", skip_all)]
#[operation]
pub async fn delete_server(ctx: &mut Ctx, parts: &GatewayParts, id: ServerId) -> Result<(), Error> {
    let server = require_owned_server(ctx, id).await?;
    let caller = ctx.caller()?;
    policy::lock_policy(ctx.conn()).await?;
    // After a new installation it would be enabled again.
    if caller.role < Some(UserRole::Admin)
        && policy::is_disabled_by_another(ctx.conn(), id, caller.user).await?
    {
        let place = "in the installation: somebody else switched the server or a tool of it off";
        return Err(Error::forbidden(UserRole::Admin, place));
    }
    policy::delete_tool_overrides(ctx.conn(), id).await?;
    tool_servers::delete_tool_server(ctx.conn(), id).await?;
    require_valid_rules(ctx, parts).await?;
    ctx.invalidate_policy().await?;
    record_server_event(ctx, EventKind::ToolServerRemoved, &server).await
}

/// Rejects a caller who may not change the server, or who asks too often for what may change the policy.
#[operation]
pub async fn require_changeable_server(ctx: &mut Ctx, id: ServerId) -> Result<(), Error> {
    require_owned_server(ctx, id).await?;
    ctx.count_change()
}

/// Accepts tool definitions of a server, exactly as the person saw them.
#[tracing::instrument(name = "app.servers.accept_tools", skip_all)]
#[operation]
pub async fn accept_tools(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    id: ServerId,
    body: &AcceptTools,
) -> Result<ServerView, Error> {
    let server = require_owned_server(ctx, id).await?;
    let (caller, now) = (ctx.caller()?, ctx.now);
    // Tools for one's own agents alone concern nobody else.
    if !matches!(server.audience, ToolAudience::User(_)) {
        let (owner, kind) = ([server.owner], ApprovalKind::Tools);
        let held = PolicySet::default();
        require_second_person(ctx, &held, &owner, caller.user, kind).await?;
    }
    policy::lock_policy(ctx.conn()).await?;
    let offered = tool_servers::list_server_tools(ctx.conn(), id).await?;
    let mut changed = false;
    for (name, digest) in &body.tools {
        let tool = offered.iter().find(|tool| tool.tool == *name);
        let tool = tool.ok_or_else(|| Error::not_found("tool of this server", name))?;
        let seen = Sha256Digest::of_json(&tool.definition).to_string() == *digest;
        if seen {
            let accepted = AcceptedTool {
                server: tool.server,
                tool: tool.tool.clone(),
                name: tool.name.clone(),
                definition: tool.definition.clone(),
                annotations: tool.annotations.clone(),
                unchanged: true,
            };
            let (definition, _) = to_definition(&server, &accepted);
            definition.check_usable().map_err(|error| {
                Error::Invalid(format!("{error}; accept the others with `--tool NAME`"))
            })?;
        }
        let accepted = seen
            && tool_servers::accept_tool_definition(
                ctx.conn(),
                id,
                name,
                &tool.definition,
                caller.user,
                now,
            )
            .await?;
        if !accepted {
            return Err(Error::Conflict(
                "the server has changed the tool since it was looked at: look at it again",
            ));
        }
        changed |= tool.accepted.as_ref() != Some(&tool.definition);
    }
    require_acceptance_quota(ctx, &server).await?;
    if changed {
        require_valid_rules(ctx, parts).await?;
        ctx.invalidate_policy().await?;
    }
    record_server_event(ctx, EventKind::ToolServerAccepted, &server).await?;
    to_server_view(ctx, server).await
}

/// Rejects more accepted tools than every replica can hold, those counted that the servers withdrew. What admins accept
/// for everybody has no limit but that of one server.
async fn require_acceptance_quota(ctx: &mut Ctx, server: &ToolServer) -> Result<(), Error> {
    let totals = tool_servers::sum_accepted_tools(ctx.conn(), server).await?;
    if usize::try_from(totals.tools).is_ok_and(|count| count > MAX_SERVER_TOOLS)
        || totals.bytes > MAX_ACCEPTED_BYTES
    {
        return Err(Error::LimitExceeded(format!(
            "a tool server has at most {MAX_SERVER_TOOLS} accepted tools of {MAX_ACCEPTED_BYTES} bytes, those counted that it withdrew: \
             accept fewer, or install it anew"
        )));
    }
    let limited = match server.audience {
        ToolAudience::Everybody => false,
        ToolAudience::User(_) | ToolAudience::Project(_) => true,
    };
    if limited && totals.audience_bytes > MAX_AUDIENCE_BYTES {
        return Err(Error::LimitExceeded(format!(
            "the accepted tools of one person or one project have at most {MAX_AUDIENCE_BYTES} bytes: accept fewer, or uninstall a server"
        )));
    }
    Ok(())
}

/// Annotates the effects of a tool, which replaces the server's own annotations.
#[tracing::instrument(name = "app.servers.annotate_tool", skip_all)]
#[operation]
pub async fn annotate_tool(
    ctx: &mut Ctx,
    id: ServerId,
    tool: &str,
    body: ToolAnnotations,
) -> Result<ServerView, Error> {
    let server = require_owned_server(ctx, id).await?;
    // Rules depend on annotations, so only an admin may write them.
    ctx.require_role(UserRole::Admin)?;
    let judged = serde_json::to_value(body).map_err(|error| Error::Internal(error.into()))?;
    let before = tool_servers::set_tool_annotations(ctx.conn(), id, tool, &judged).await?;
    let before = before.ok_or_else(|| Error::not_found("tool of this server", tool))?;
    if before != judged {
        ctx.invalidate_policy().await?;
    }
    record_server_event(ctx, EventKind::ToolServerUpdated, &server).await?;
    to_server_view(ctx, server).await
}

/// Lists the tools of a server and stores them. A failure is stored too and does not affect other servers. The listing
/// has a time limit of its own, so that a server whose calls may take long does not delay the look at the others.
#[tracing::instrument(name = "app.servers.refresh_tools", skip_all, fields(server.id = %id))]
#[operation]
pub async fn refresh_tools(app: &App, id: ServerId) -> Result<(), Error> {
    let parts = app.gateway_parts()?;
    let server = {
        let mut conn = app.conn().await?;
        tool_servers::get_tool_server(&mut conn, id)
            .await?
            .ok_or_else(|| Error::not_found("tool server", id))?
    };
    let mut callable = CallableServer::unseal_server(&server, &parts.keys)?;
    callable.timeout = callable.timeout.min(MAX_LISTING_TIMEOUT);
    let listing = parts.reach.list_tools(&callable).await;
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let _turn = app.shared_state().listing.lock().await;
    let mut ctx = app.begin_transaction(&request).await?;
    let now = ctx.now;
    let failure = match listing {
        Ok(offered) => store_offered_tools(&mut ctx, &server, offered).await,
        Err(failure) => Ok(Some(failure)),
    };
    let failure = match failure {
        Ok(failure) => failure,
        Err(error) => {
            // The offered tools cannot be stored, but the failure is.
            drop(ctx);
            ctx = app.begin_transaction(&request).await?;
            Some(format!("what it offers cannot be kept: {error}"))
        }
    };
    let failure =
        failure.map(|failure| failure.chars().take(MAX_FAILURE_CHARS).collect::<String>());
    tool_servers::record_tool_listing(ctx.conn(), id, failure.as_deref(), now).await?;
    if failure.is_some() && server.failure.is_none() {
        record_server_event(&mut ctx, EventKind::ToolServerChanged, &server).await?;
    }
    app.commit_operation(ctx).await
}

/// Stores the offered tools. Returns the problems with them.
async fn store_offered_tools(
    ctx: &mut Ctx,
    server: &ToolServer,
    offered: Vec<OfferedTool>,
) -> Result<Option<String>, Error> {
    let (now, mut unfit, mut changed) = (ctx.now, Vec::new(), ToolListChange::default());
    require_listing_quota(&offered)?;
    let tools: Vec<_> = offered.iter().map(|offered| offered.tool.clone()).collect();
    // The lock serializes concurrent reads of one server.
    policy::lock_policy(ctx.conn()).await?;
    let offered = name_offered_tools(&server.prefix, offered);
    let names: Vec<_> =
        offered.iter().filter_map(|(_, name)| name.as_ref()).map(ToString::to_string).collect();
    let known = tool_servers::find_tool_names(ctx.conn(), &names).await?;
    for (OfferedTool { tool, definition }, name) in offered {
        let taken = |name: &ToolName| {
            known.iter().any(|(owner, other, taken)| {
                taken == name.as_str() && (*owner != server.id || *other != tool)
            })
        };
        let Some(name) = name.filter(|name| !taken(name)) else {
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
            accepted_at: None,
        };
        changed |= match tool_servers::upsert_server_tool(ctx.conn(), &tool, now).await {
            Err(error) if error.is_refused_by("server_tools_definition_size") => {
                return Err(definition_size_error());
            }
            result => result?,
        };
    }
    changed |= tool_servers::mark_missing_tools(ctx.conn(), server.id, &tools).await?;
    if changed.accepted {
        // A tool that nobody accepted is part of no policy decision.
        ctx.invalidate_policy().await?;
    }
    if changed.any {
        record_server_event(ctx, EventKind::ToolServerChanged, server).await?;
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

/// Rejects a list with more tools or larger definitions than a server may have.
fn require_listing_quota(offered: &[OfferedTool]) -> Result<(), Error> {
    if offered.len() > MAX_SERVER_TOOLS {
        return Err(Error::LimitExceeded(format!(
            "a tool server has at most {MAX_SERVER_TOOLS} tools"
        )));
    }
    let mut total = 0_usize;
    for tool in offered {
        let bytes = tool.definition.to_string().len();
        total = total.saturating_add(bytes);
        if bytes > MAX_DEFINITION_BYTES || total > MAX_SERVER_DEFINITION_BYTES {
            return Err(definition_size_error());
        }
    }
    Ok(())
}

fn definition_size_error() -> Error {
    Error::LimitExceeded(format!(
        "the definition of a tool has at most {MAX_DEFINITION_BYTES} bytes, and those of a server have {MAX_SERVER_DEFINITION_BYTES} together"
    ))
}

/// Gives each offered tool its name of ours, or none where it cannot have one.
fn name_offered_tools(
    prefix: &str,
    offered: Vec<OfferedTool>,
) -> Vec<(OfferedTool, Option<ToolName>)> {
    let mut named = BTreeSet::new();
    let name = |offered: OfferedTool| {
        let fits = (1..=128).contains(&offered.tool.chars().count())
            && !offered.tool.contains('\0')
            && !offered.definition.to_string().contains("\\u0000");
        let name = naming::tool_name_for(prefix, &offered.tool)
            .filter(|name| fits && !name.is_native() && named.insert(name.clone()));
        (offered, name)
    };
    offered.into_iter().map(name).collect()
}

/// Result of the last listing of a server's tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingHealth {
    /// It worked, or there was none yet.
    Healthy,
    /// It failed.
    Failing,
}

/// Lists the servers whose tools are refreshed at an interval, by the result of their last listing.
#[operation]
pub async fn list_enabled_servers(
    app: &App,
    health: ListingHealth,
) -> Result<Vec<ServerId>, Error> {
    let mut conn = app.conn().await?;
    let servers = tool_servers::list_tool_servers(&mut conn).await?;
    let wanted = servers
        .into_iter()
        .filter(|server| server.enabled)
        .filter(|server| server.failure.is_some() == (health == ListingHealth::Failing));
    Ok(wanted.map(|server| server.id).collect())
}
