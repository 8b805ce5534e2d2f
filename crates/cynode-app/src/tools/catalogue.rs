//! Policy of the gateway: the snapshot that calls are decided by, and the operations that change tools, rules and
//! quotas.

mod backtest;
mod draft;
mod explain;
mod rule_check;

use cynode_core::settings::registry::{
    DEFAULT_CALLS_PER_SECOND, DEFAULT_CALLS_PER_TASK_HOUR, DEFAULT_IDENTICAL_CALLS,
    GATEWAY_CALLS_PER_SECOND_SETTING, GATEWAY_CALLS_PER_TASK_HOUR_SETTING,
    GATEWAY_MAX_IDENTICAL_CALLS_SETTING, GATEWAY_PM_ALLOWED_IMAGES_SETTING,
};
use std::{collections::HashMap, sync::Arc};

use cynode_core::{
    agents::AgentRole,
    events::EventKind,
    ids::{ServerId, UserId},
    roles::UserRole,
};
use cynode_db::{
    Conn, DbError,
    identity::authentication,
    platform::settings,
    tools::{
        policy,
        tool_servers::{self, AcceptedTool, ToolServer},
    },
};
use cynode_policy::{
    allowlists::{self, AllowlistCondition, AllowlistVerdict, EnabledSwitches},
    catalogue::{
        CatalogueEntry, CatalogueError, CatalogueTool, DefinitionPin, McpToolDefinition,
        ToolAudience, ToolCatalogue, ToolOrigin, ToolOverride,
    },
    decision::PolicySnapshot,
    rules::{PolicyRule, RuleMode, RuleSet},
    tool_names::ToolName,
};
use cynode_wire::tools::{AllowlistLine, AllowlistView, RuleView, SetRule, SetTool, ToolView};
use serde_json::json;

pub use backtest::backtest_rule;
pub use cynode_db::tools::policy::QuotaOwner;
pub use draft::draft_rule_from_approval;
pub use explain::{explain_call, explain_recorded_call};
pub use rule_check::{check_rule, describe_rule_vocabulary, list_rule_versions};

use crate::{
    App, Ctx, Error, GatewayParts,
    platform::{context::EventDraft, operation},
    tools::tool_servers::CallableServer,
};

/// Rate limits of agents' calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Maximum calls per second of one agent to one tool.
    pub per_second: u32,
    /// Maximum number of identical calls in a row.
    pub identical: u32,
    /// Maximum calls per hour of one task, or of one token without a task.
    pub per_task_hour: u32,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            per_second: DEFAULT_CALLS_PER_SECOND,
            identical: DEFAULT_IDENTICAL_CALLS,
            per_task_hour: DEFAULT_CALLS_PER_TASK_HOUR,
        }
    }
}

/// Snapshot of the gateway's configuration in the database.
#[derive(Clone, Debug)]
pub struct GatewaySnapshot {
    /// Epoch of the last change that it contains.
    pub epoch: i64,
    /// Policy that decides calls.
    pub gate: Arc<PolicySnapshot>,
    /// Enabled tool servers.
    pub servers: Arc<HashMap<ServerId, Arc<CallableServer>>>,
    /// Rate limits of agents.
    pub limits: CallLimits,
}

/// Returns the policy epoch. Every change of the policy increments it.
#[operation]
pub async fn load_policy_epoch(app: &App) -> Result<i64, Error> {
    let mut conn = app.conn().await?;
    Ok(policy::get_policy_epoch(&mut conn).await?)
}

/// Loads the snapshot of the gateway. It carries the epoch from before the load: a concurrent change increments the
/// epoch, and the snapshot is loaded again. What `compiled` has compiled of the same tools is taken over.
#[tracing::instrument(name = "app.gate.load_gateway_snapshot", skip_all)]
#[operation]
pub async fn load_gateway_snapshot(
    app: &App,
    compiled: &ToolCatalogue,
) -> Result<GatewaySnapshot, Error> {
    let parts = app.gateway_parts()?;
    let mut conn = app.conn().await?;
    // The epoch is read first: a change during the load belongs to the next epoch. There is no retry here, so that
    // frequent changes cannot block the load.
    let before = policy::get_policy_epoch(&mut conn).await?;
    let described = StoredPolicy::load_from_database(&mut conn).await?;
    drop(conn);
    Ok(described.build_snapshot(before, parts, compiled))
}

/// Policy data from the database.
struct StoredPolicy {
    set: HashMap<String, ToolOverride>,
    rules: Vec<PolicyRule>,
    servers: Vec<ToolServer>,
    tools: Vec<AcceptedTool>,
    switches: EnabledSwitches,
    limits: CallLimits,
}

impl StoredPolicy {
    async fn load_from_database(conn: &mut Conn) -> Result<Self, DbError> {
        let set = policy::list_tool_overrides(conn).await?.into_iter().collect();
        let rules = policy::list_rules(conn).await?.into_iter().map(|stored| stored.rule).collect();
        let (servers, tools) = (
            tool_servers::list_tool_servers(conn).await?,
            // A tool that nobody ever accepted is not read: untrusted text reaches neither this process nor the schema of
            // the rules.
            tool_servers::list_accepted_tools(conn).await?,
        );
        let (mut switches, mut limits) = (EnabledSwitches::default(), CallLimits::default());
        for setting in settings::list_settings(conn).await? {
            let number = || setting.value.as_u64().and_then(|value| u32::try_from(value).ok());
            match setting.key.as_str() {
                GATEWAY_PM_ALLOWED_IMAGES_SETTING => {
                    switches.pm_allowed_images = setting.value == true;
                }
                GATEWAY_CALLS_PER_SECOND_SETTING => {
                    limits.per_second = number().unwrap_or(limits.per_second);
                }
                GATEWAY_MAX_IDENTICAL_CALLS_SETTING => {
                    limits.identical = number().unwrap_or(limits.identical);
                }
                GATEWAY_CALLS_PER_TASK_HOUR_SETTING => {
                    limits.per_task_hour = number().unwrap_or(limits.per_task_hour);
                }
                _ => {}
            }
        }
        Ok(Self { set, rules, servers, tools, switches, limits })
    }

    /// Builds the catalogue.
    fn build_catalogue(
        &self,
        native: &[McpToolDefinition],
    ) -> (ToolCatalogue, Vec<CatalogueError>) {
        self.rebuild_catalogue(native, &ToolCatalogue::empty())
    }

    /// Builds the catalogue and takes over what `compiled` has of the same tools. Built-in tools come first, so that no
    /// server can take their names.
    fn rebuild_catalogue(
        &self,
        native: &[McpToolDefinition],
        compiled: &ToolCatalogue,
    ) -> (ToolCatalogue, Vec<CatalogueError>) {
        let set = |name: &ToolName| self.set.get(name.as_str()).cloned().unwrap_or_default();
        let own = native.iter().map(|definition| CatalogueEntry {
            set: set(&definition.name),
            pin: DefinitionPin::Accepted,
            definition: definition.clone(),
        });
        let servers: HashMap<_, _> =
            self.servers.iter().map(|server| (server.id, server)).collect();
        let installed = self.tools.iter().filter_map(|tool| {
            let server = servers.get(&tool.server)?;
            let mut set = set(&tool.name);
            if !server.enabled {
                set.enabled = Some(false);
            }
            let (definition, pin) = crate::tools::tool_servers::to_definition(server, tool);
            Some(CatalogueEntry { definition, set, pin })
        });
        compiled.rebuild_from(own.chain(installed))
    }

    fn build_snapshot(
        &self,
        epoch: i64,
        parts: &GatewayParts,
        compiled: &ToolCatalogue,
    ) -> GatewaySnapshot {
        let (catalogue, refused) = self.rebuild_catalogue(&parts.native, compiled);
        for error in refused {
            tracing::warn!(event = "gateway.tool_skipped", "{error}");
        }
        let rules = RuleSet::load_rules(&self.rules, &catalogue).unwrap_or_else(|(name, error)| {
            // The author of the change should have fixed the rules. Until then every call is denied.
            tracing::error!(
                event = "policy.rule_invalid",
                rule = name,
                "a rule cannot be used: {error}"
            );
            RuleSet::refuse_all(name)
        });
        let mut reachable = HashMap::new();
        for server in self.servers.iter().filter(|server| server.enabled) {
            // An unusable server does not affect others: its tools are reported as disabled.
            match CallableServer::unseal_server(server, &parts.keys) {
                Ok(open) => drop(reachable.insert(server.id, Arc::new(open))),
                Err(error) => {
                    tracing::error!(event = "tool_server.unseal_failed", %error, server.id = %server.id, "a tool server cannot be used");
                }
            }
        }
        GatewaySnapshot {
            epoch,
            gate: Arc::new(PolicySnapshot::new(catalogue, rules, self.switches)),
            servers: Arc::new(reachable),
            limits: self.limits,
        }
    }
}

/// Rejects a change after which a rule would no longer fit the tools. Call it inside the transaction of the change.
pub(crate) async fn require_valid_rules(
    ctx: &mut Ctx,
    parts: &GatewayParts,
) -> Result<ToolCatalogue, Error> {
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    match RuleSet::load_rules(&described.rules, &catalogue) {
        Ok(_) => Ok(catalogue),
        Err((name, error)) => Err(Error::Invalid(format!("rule `{name}`: {error}"))),
    }
}

/// Lists the tools that are visible to the caller.
#[tracing::instrument(name = "app.gate.list_tools", skip_all)]
#[operation]
pub async fn list_tools(ctx: &mut Ctx, parts: &GatewayParts) -> Result<Vec<ToolView>, Error> {
    ctx.caller()?;
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    let mut views = Vec::new();
    for tool in catalogue.iter_tools() {
        if let ToolOrigin::Server { id, audience, .. } = &tool.definition.origin {
            let owner = described.servers.iter().find(|server| server.id == *id);
            let owner = owner.map(|server| server.owner);
            if !is_visible_to_caller(ctx, *audience, owner).await? {
                continue;
            }
        }
        views.push(to_tool_view(tool, described.switches));
    }
    Ok(views)
}

/// Returns whether a server of that audience and owner is visible to the caller.
pub(crate) async fn is_visible_to_caller(
    ctx: &mut Ctx,
    audience: ToolAudience,
    owner: Option<UserId>,
) -> Result<bool, Error> {
    let caller = ctx.caller()?;
    if caller.role >= Some(UserRole::Viewer) || owner == Some(caller.user) {
        return Ok(true);
    }
    match audience {
        ToolAudience::Everybody => Ok(true),
        ToolAudience::User(user) => Ok(user == caller.user),
        ToolAudience::Project(project) => {
            let role = authentication::project_role(ctx.conn(), caller.user, project).await?;
            Ok(role.is_some())
        }
    }
}

fn to_tool_view(tool: &CatalogueTool, switches: EnabledSwitches) -> ToolView {
    let definition = &tool.definition;
    let roles = AgentRole::ALL.into_iter().filter(|role| {
        tool.scope.allows_kind(role.agent_kind())
            && match definition.origin {
                ToolOrigin::Native => {
                    allowlists::check_allowlist(*role, &definition.name, switches)
                        == AllowlistVerdict::Yes
                }
                ToolOrigin::Server { .. } => !role.agent_kind().is_service_program(),
            }
    });
    ToolView {
        name: definition.name.to_string(),
        wire_name: definition.name.to_wire_name(),
        aliases: definition.aliases.iter().map(ToString::to_string).collect(),
        title: definition.title.clone(),
        description: definition.description.clone(),
        enabled: tool.enabled,
        scope: tool.scope,
        origin: match &definition.origin {
            ToolOrigin::Native => "native".into(),
            ToolOrigin::Server { id, .. } => id.to_string(),
        },
        accepted: tool.pin == DefinitionPin::Accepted,
        bound_to: definition.binding.id_arguments().map(str::to_owned).collect(),
        network: definition.network,
        annotations: json!(definition.annotations),
        definition_digest: tool.digest.to_string(),
        roles: roles.map(|role| role.as_str().to_owned()).collect(),
        input_schema: definition.input.clone(),
    }
}

/// Enables or disables a tool, or changes its scope. Every replica applies it within a tenth of a second.
#[tracing::instrument(name = "app.gate.set_tool", skip_all, fields(tool.name = name))]
#[operation]
pub async fn set_tool(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    name: &str,
    body: SetTool,
) -> Result<ToolView, Error> {
    let caller = ctx.caller()?;
    let missing = || Error::not_found("tool", name);
    // The lock serializes concurrent changes.
    policy::lock_policy(ctx.conn()).await?;
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    let tool = catalogue.find_by_wire_name(name).ok_or_else(missing)?;
    match &tool.definition.origin {
        ToolOrigin::Native => ctx.require_role(UserRole::Admin).map(|_| ())?,
        ToolOrigin::Server { id, .. } => {
            crate::tools::tool_servers::require_owned_server(ctx, *id).await.map(|_| ())?;
        }
    }
    let name = tool.definition.name.clone();
    let before = described.set.get(name.as_str()).cloned().unwrap_or_default();
    let mut set = before.clone();
    let (was_off, admin) = (set.enabled == Some(false), caller.role >= Some(UserRole::Admin));
    if was_off
        && body.enabled == Some(true)
        && !admin
        && !policy::is_disabled_by(ctx.conn(), name.as_str(), caller.user).await?
    {
        return Err(Error::forbidden(
            UserRole::Admin,
            "in the installation: an admin switched the tool off",
        ));
    }
    set.enabled = body.enabled.or(set.enabled);
    set.scope = body.scope.or(set.scope);
    // Disabling a disabled tool again does not change who disabled it, unless an admin does it.
    let off_by = (body.enabled == Some(false) && (admin || !was_off)).then_some(caller.user);
    let now = ctx.now;
    policy::set_tool_override(ctx.conn(), name.as_str(), &set, off_by, caller.user, now).await?;
    if set != before {
        ctx.invalidate_policy().await?;
    }
    let data = json!({ "tool": name, "enabled": set.enabled, "scope": set.scope });
    ctx.record_event(EventDraft::new(EventKind::ToolSet, data)).await?;
    let (catalogue, _) =
        StoredPolicy::load_from_database(ctx.conn()).await?.build_catalogue(&parts.native);
    let tool = catalogue.find_by_name(&name).ok_or_else(missing)?;
    Ok(to_tool_view(tool, described.switches))
}

/// Lists the allowlists by role.
pub fn list_allowlists() -> Vec<AllowlistView> {
    let line = |line: &allowlists::AllowlistEntry| AllowlistLine {
        tools: line.tools.0.to_owned(),
        setting: match line.only_if {
            AllowlistCondition::Always => None,
            AllowlistCondition::Setting(switch) => Some(switch.setting_key().to_owned()),
        },
    };
    let view = |role: AgentRole| AllowlistView {
        role,
        kind: role.agent_kind(),
        lines: allowlists::allowlist_of(role).iter().map(line).collect(),
    };
    AgentRole::ALL.into_iter().map(view).collect()
}

/// Lists the rules by name.
#[tracing::instrument(name = "app.gate.list_rules", skip_all)]
#[operation]
pub async fn list_rules(ctx: &mut Ctx) -> Result<Vec<RuleView>, Error> {
    ctx.require_role(UserRole::Viewer)?;
    Ok(policy::list_rules(ctx.conn()).await?.into_iter().map(to_rule_view).collect())
}

fn to_rule_view(stored: policy::StoredRule) -> RuleView {
    RuleView {
        name: stored.rule.name,
        mode: stored.rule.mode.as_str().to_owned(),
        text: stored.rule.text,
        version: stored.version,
        updated_by: stored.updated_by,
        updated_at: stored.updated_at,
    }
}

/// Parses a rule from a request.
pub(crate) fn parse_rule(name: &str, body: &SetRule) -> Result<PolicyRule, Error> {
    let mode = RuleMode::from_name(&body.mode)
        .ok_or_else(|| Error::Invalid("`mode` is `refuse`, `approve` or `shadow`".into()))?;
    Ok(PolicyRule { name: name.to_owned(), mode, text: body.text.clone() })
}

/// Creates or replaces a rule. Rejects one that does not fit the tools.
#[tracing::instrument(name = "app.gate.set_rule", skip_all)]
#[operation]
pub async fn set_rule(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    name: &str,
    body: &SetRule,
) -> Result<RuleView, Error> {
    let caller = ctx.require_role(UserRole::Admin)?;
    let rule = parse_rule(name, body)?;
    // An invalid name is rejected together with the rule, before the database would reject it.
    RuleSet::load_rules(std::slice::from_ref(&rule), &ToolCatalogue::from_entries([]).0).or_else(
        |(_, error)| match error {
            cynode_policy::rules::RuleError::Name | cynode_policy::rules::RuleError::TooLong => {
                Err(Error::Invalid(error.to_string()))
            }
            _ => Ok(RuleSet::empty()),
        },
    )?;
    let now = ctx.now;
    policy::lock_policy(ctx.conn()).await?;
    let stored = policy::set_rule(ctx.conn(), &rule, caller.user, now).await?;
    require_valid_rules(ctx, parts).await?;
    ctx.invalidate_policy().await?;
    let data = json!({ "rule": name, "mode": body.mode, "version": stored.version });
    ctx.record_event(EventDraft::new(EventKind::RuleSet, data)).await?;
    Ok(to_rule_view(stored))
}

/// Deletes a rule.
#[tracing::instrument(name = "app.gate.delete_rule", skip_all)]
#[operation]
pub async fn delete_rule(ctx: &mut Ctx, name: &str) -> Result<(), Error> {
    let caller = ctx.require_role(UserRole::Admin)?;
    let now = ctx.now;
    policy::lock_policy(ctx.conn()).await?;
    if !policy::delete_rule(ctx.conn(), name, caller.user, now).await? {
        return Err(Error::not_found("rule", name));
    }
    ctx.invalidate_policy().await?;
    ctx.record_event(EventDraft::new(EventKind::RuleDeleted, json!({ "rule": name }))).await
}

/// Takes up to `wanted` calls from the hourly quota of a task, or of a token without a task. Returns the number taken
/// and the end of the hour.
#[tracing::instrument(name = "app.gate.take_call_quota", skip_all)]
#[operation]
pub async fn take_call_quota(
    app: &App,
    whose: QuotaOwner,
    wanted: i64,
    limit: i64,
) -> Result<(i64, time::OffsetDateTime), Error> {
    let now = app.environment().now();
    let hour =
        now.replace_time(time::Time::from_hms(now.hour(), 0, 0).unwrap_or(time::Time::MIDNIGHT));
    let mut tx = app.begin().await?;
    let taken = policy::take_quota(&mut tx, whose, hour, wanted, limit).await?;
    tx.commit().await.map_err(DbError::from)?;
    Ok((taken, hour + time::Duration::hours(1)))
}
