//! Agent tokens: issue, list, revoke.

use std::{collections::HashSet, sync::Arc};

use cynode_core::{
    accounts::CallerCredential,
    agents::{AgentKind, AgentRole},
    events::EventKind,
    ids::{AgentTokenId, JobId, NodeId, ProjectId, RunId, TaskId, UserId},
    paging::{Page, PageRequest},
    profiles::ProfileName,
    roles::UserRole,
    tasks::TaskStateName,
    workflow::handoffs::HandoffKind,
};
use cynode_db::{
    identity::service_tokens::{self, ServiceKind},
    tools::agent_tokens,
    workflow::{self, jobs},
};
use cynode_policy::{
    agents::{AgentIdentity, AgentProfile},
    tool_names::ToolName,
};
use cynode_wire::{
    identity::accounts::SecretText,
    tools::{AgentTokenView, IssueAgentToken, IssuedAgentToken},
};
use serde_json::json;
use time::Duration;

pub use cynode_db::tools::agent_tokens::{AgentToken, TokenState};

use crate::{
    AgentRestrictions, App, AuthenticatedCaller, Ctx, Error,
    identity::api_keys::require_agent_scope,
    platform::{
        certificates::CertifiedClient,
        context::EventDraft,
        operation,
        tokens::{PresentedToken, StoredHashes, TokenKind},
    },
    tools::profiles::{profile_of_agent, profile_of_name, require_profile},
};

/// Lifetime of a token when the request names none.
const DEFAULT_TOKEN_TTL_SECONDS: u32 = 3600;

/// Range of lifetimes that a request may name.
const TOKEN_TTL_SECONDS_RANGE: std::ops::RangeInclusive<u32> = 60..=7 * 24 * 3600;

/// Maximum number of tools that a token may name.
const MAX_TOKEN_TOOLS: usize = 200;

/// Maximum number of models that a token may name.
const MAX_TOKEN_MODELS: usize = 50;

/// Resolved token that was presented at the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAgentToken {
    /// Identity of the agent.
    pub agent: Arc<AgentIdentity>,
    /// Whether the token is valid.
    pub state: TokenState,
    /// Caller that the agent acts for. `None` for the runner, which acts for nobody.
    pub caller: Option<AuthenticatedCaller>,
    /// Name of the service, for a program of the installation.
    pub service: Option<String>,
    /// Models that the token grants.
    pub models: Arc<[String]>,
    /// Node that the job of the agent runs on.
    pub node: Option<NodeId>,
}

impl TokenKind {
    /// Returns the kind of token of an agent.
    pub const fn of_agent(kind: AgentKind) -> Self {
        match kind {
            AgentKind::Pm => Self::Pm,
            AgentKind::Pa => Self::Pa,
            AgentKind::Sandbox => Self::Sandbox,
            AgentKind::Runner => Self::Runner,
            AgentKind::Host => Self::Host,
        }
    }

    /// Returns whether tokens of this kind are accepted by the gateway.
    pub const fn opens_gateway(self) -> bool {
        matches!(self, Self::Pm | Self::Pa | Self::Sandbox | Self::Runner | Self::Host)
    }
}

/// Resolves tokens from the database. Unknown tokens are left out.
#[tracing::instrument(name = "app.agents.resolve_agent_tokens", skip_all)]
#[operation]
pub async fn resolve_agent_tokens(
    app: &App,
    shown: &[PresentedToken],
) -> Result<Vec<(PresentedToken, ResolvedAgentToken)>, Error> {
    let stored = |programs: bool| -> StoredHashes {
        let is_program = |kind| matches!(kind, TokenKind::Runner | TokenKind::Host);
        let wanted = shown.iter().filter(|shown| is_program(shown.kind) == programs);
        let digests: Vec<_> = wanted.map(|shown| shown.hash).collect();
        app.token_keys().expand_digests(&digests)
    };
    let (agents, programs) = (stored(false), stored(true));
    let mut conn = app.conn().await?;
    let mut known = Vec::new();
    let hashes = agents.lookup_hashes();
    if !hashes.is_empty() {
        let now = app.environment().now();
        for (hash, found) in agent_tokens::find_agent_tokens(&mut conn, &hashes, now).await? {
            let Some(hash) = agents.digest_of(&hash) else { continue };
            let kind = TokenKind::of_agent(found.agent.agent_kind());
            let caller = found.agent.user.zip(found.agent.project).map(|(user, project)| {
                AuthenticatedCaller {
                    user,
                    credential: CallerCredential::Agent(found.agent.token),
                    role: None,
                    bounds: Some(AgentRestrictions { project, person: found.person }),
                    key: None,
                }
            });
            let agent = Arc::new(found.agent);
            known.push((
                PresentedToken { kind, hash },
                ResolvedAgentToken {
                    agent,
                    state: found.state,
                    caller,
                    service: None,
                    models: found.models.into(),
                    node: found.node,
                },
            ));
        }
    }
    let hashes = programs.lookup_hashes();
    if !hashes.is_empty() {
        for (hash, service) in service_tokens::find_services(&mut conn, &hashes).await? {
            let Some(hash) = programs.digest_of(&hash) else { continue };
            let role = match service.kind {
                ServiceKind::Runner => AgentRole::WorkflowRunner,
                ServiceKind::Manager => AgentRole::ManagerHost,
                ServiceKind::Analyst => AgentRole::AnalystHost,
                ServiceKind::Worker => continue,
            };
            let agent =
                Arc::new(service_agent(AgentTokenId::from_uuid(service.id.as_uuid()), role));
            let shown = PresentedToken { kind: TokenKind::of_service(service.kind), hash };
            let (state, service) = (TokenState::Good, Some(service.name));
            known.push((
                shown,
                ResolvedAgentToken {
                    agent,
                    state,
                    caller: None,
                    service,
                    models: Arc::default(),
                    node: None,
                },
            ));
        }
    }
    // A token whose prefix does not match its stored kind is invalid.
    let asked: HashSet<_> = shown.iter().collect();
    known.retain(|(found, _)| asked.contains(found));
    Ok(known)
}

/// Returns the agent identity of a service. It acts for nobody, and works on any task whose lease it holds.
fn service_agent(token: AgentTokenId, role: AgentRole) -> AgentIdentity {
    AgentIdentity {
        token,
        role,
        user: None,
        project: None,
        task: None,
        run: None,
        job: None,
        handoff: None,
        profile: AgentProfile::default(),
        tools: None,
        operates: true,
        expires_at: None,
    }
}

/// Issues a token in the caller's name. The ids that bind it are checked against each other.
#[tracing::instrument(name = "app.agents.issue_agent_token", skip_all, fields(project.id = %body.project_id))]
#[operation]
pub async fn issue_agent_token(
    ctx: &mut Ctx,
    body: IssueAgentToken,
) -> Result<IssuedAgentToken, Error> {
    let caller = ctx.require_project_role(body.project_id, UserRole::Operator).await?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person: agents issue no tokens"));
    }
    require_agent_scope(&caller)?;
    let kind = body.role.agent_kind();
    if kind.is_service_program() {
        let how =
            "tokens of the installation's programs are made at the machine: `cynode admin token`";
        return Err(Error::Invalid(how.into()));
    }
    if kind != AgentKind::Pm && body.task_id.is_none() {
        return Err(Error::Invalid(format!(
            "an agent with the role {} works on one task: give `task_id`",
            body.role.as_str()
        )));
    }
    let seconds = body.expires_in_seconds.unwrap_or(DEFAULT_TOKEN_TTL_SECONDS);
    if !TOKEN_TTL_SECONDS_RANGE.contains(&seconds) {
        let (min, max) = (TOKEN_TTL_SECONDS_RANGE.start(), TOKEN_TTL_SECONDS_RANGE.end());
        return Err(Error::Invalid(format!("`expires_in_seconds` is {min} to {max}")));
    }
    let run = match body.task_id {
        Some(task) => Some(active_run_of_task(ctx, body.project_id, task).await?),
        None => None,
    };
    if let Some(job) = body.job_id {
        let of = jobs::task_of_job(ctx.conn(), job).await?;
        if of.is_none() || of != body.task_id {
            return Err(Error::not_found("job of this task", job));
        }
    }
    let profile = profile_of_request(ctx, &body, caller.user).await?;
    let network = body.network.unwrap_or(true);
    let agent = AgentIdentity {
        token: AgentTokenId::from_uuid(ctx.new_uuid()),
        role: body.role,
        user: Some(caller.user),
        project: Some(body.project_id),
        task: body.task_id,
        run,
        job: body.job_id,
        handoff: None,
        profile: if network { profile } else { profile.without_network() },
        tools: body.tools.as_deref().map(parse_tool_names).transpose()?,
        operates: true,
        expires_at: Some(ctx.now + Duration::seconds(seconds.into())),
    };
    let (token, hash) = ctx.issue_token(TokenKind::of_agent(kind));
    let issued = AgentToken {
        agent,
        network,
        models: validate_model_ids(body.models)?,
        issued_by: Some(caller.user),
        created_at: ctx.now,
        revoked_at: None,
    };
    agent_tokens::insert_agent_token(ctx.conn(), &issued, &hash).await?;
    let data = json!({ "agent_token_id": issued.agent.token, "role": issued.agent.role });
    let mut told = EventDraft::new(EventKind::AgentTokenIssued, data).with_project(body.project_id);
    if let Some(task) = body.task_id {
        told = told.with_task(task);
    }
    ctx.record_event(told).await?;
    Ok(IssuedAgentToken { token, about: to_agent_token_view(&issued) })
}

/// Job of an agent token and its permissions.
pub(crate) struct JobTokenRequest<'a> {
    pub(crate) role: AgentRole,
    pub(crate) user: UserId,
    pub(crate) project: ProjectId,
    pub(crate) task: TaskId,
    pub(crate) run: RunId,
    pub(crate) job: JobId,
    pub(crate) tools: Option<&'a [String]>,
    pub(crate) models: &'a [String],
    pub(crate) seconds: u32,
}

/// Issues a token of a job to its node. A repeat issues another and keeps the first valid: the node may have received
/// the seemingly lost answer. All of them end with the job.
pub(crate) async fn issue_for_job(
    ctx: &mut Ctx,
    job: JobTokenRequest<'_>,
) -> Result<(AgentTokenId, SecretText), Error> {
    if job.role.agent_kind() != AgentKind::Sandbox {
        return Err(Error::Invalid(format!("{} does not work in a sandbox", job.role.as_str())));
    }
    let seconds =
        job.seconds.clamp(*TOKEN_TTL_SECONDS_RANGE.start(), *TOKEN_TTL_SECONDS_RANGE.end());
    let profile =
        profile_of_agent(ctx, job.role, job.user, job.project, Some(job.task)).await?.into();
    let agent = AgentIdentity {
        token: AgentTokenId::from_uuid(ctx.new_uuid()),
        role: job.role,
        user: Some(job.user),
        project: Some(job.project),
        task: Some(job.task),
        run: Some(job.run),
        job: Some(job.job),
        handoff: None,
        profile,
        tools: job.tools.map(parse_tool_names).transpose()?,
        operates: true,
        expires_at: Some(ctx.now + Duration::seconds(seconds.into())),
    };
    let (token, hash) = ctx.issue_token(TokenKind::Sandbox);
    let (id, now) = (agent.token, ctx.now);
    let models = validate_model_ids(job.models.to_vec())?;
    let issued = AgentToken {
        agent,
        network: true,
        models,
        issued_by: None,
        created_at: now,
        revoked_at: None,
    };
    agent_tokens::insert_agent_token(ctx.conn(), &issued, &hash).await?;
    Ok((id, token))
}

/// Handoff of an agent token and its permissions.
pub(crate) struct HandoffTokenRequest<'a> {
    pub(crate) kind: HandoffKind,
    pub(crate) role: AgentRole,
    pub(crate) user: UserId,
    pub(crate) project: ProjectId,
    pub(crate) task: Option<TaskId>,
    pub(crate) run: Option<RunId>,
    /// Profile that the task, the chat or the schedule of the handoff names.
    pub(crate) profile: Option<ProfileName>,
    pub(crate) models: &'a [String],
}

/// Issues a token for a handoff, in the name of its user.
pub(crate) async fn issue_for_handoff(
    ctx: &mut Ctx,
    handoff: HandoffTokenRequest<'_>,
) -> Result<(AgentTokenId, SecretText), Error> {
    let kind = handoff.role.agent_kind();
    let HandoffTokenRequest { role, user, project, task, .. } = handoff;
    let profile = match handoff.profile {
        Some(name) => profile_of_name(ctx, project, name).await?,
        None => profile_of_agent(ctx, role, user, project, task).await?,
    };
    let profile = profile.into();
    let agent = AgentIdentity {
        token: AgentTokenId::from_uuid(ctx.new_uuid()),
        role: handoff.role,
        user: Some(handoff.user),
        project: Some(handoff.project),
        task: handoff.task,
        run: handoff.run,
        job: None,
        handoff: Some(handoff.kind),
        profile,
        tools: None,
        operates: true,
        expires_at: Some(ctx.now + Duration::seconds(DEFAULT_TOKEN_TTL_SECONDS.into())),
    };
    let (token, hash) = ctx.issue_token(TokenKind::of_agent(kind));
    let (id, now) = (agent.token, ctx.now);
    let models = validate_model_ids(handoff.models.to_vec())?;
    let issued = AgentToken {
        agent,
        network: true,
        models,
        issued_by: None,
        created_at: now,
        revoked_at: None,
    };
    agent_tokens::insert_agent_token(ctx.conn(), &issued, &hash).await?;
    Ok((id, token))
}

/// Returns the profile of a token that a person asks for. Without a name it is that of any agent on the same work.
async fn profile_of_request(
    ctx: &mut Ctx,
    body: &IssueAgentToken,
    user: UserId,
) -> Result<AgentProfile, Error> {
    let profile = match &body.profile {
        Some(name) => require_profile(ctx, Some(body.project_id), name).await?,
        None => profile_of_agent(ctx, body.role, user, body.project_id, body.task_id).await?,
    };
    if !profile.is_known() {
        return Err(Error::Invalid(format!(
            "the profile `{}` that the task or a preference names does not exist: name another one",
            profile.name
        )));
    }
    if body.network == Some(true) && !profile.spec.has_network() {
        return Err(Error::Invalid(format!(
            "the profile `{}` has no network: name one that has, such as `research`, or leave `network` out",
            profile.name
        )));
    }
    Ok(profile.into())
}

/// Validates the models that a token grants. Their existence is checked at use, because models come and go.
fn validate_model_ids(mut ids: Vec<String>) -> Result<Vec<String>, Error> {
    ids.sort_unstable();
    ids.dedup();
    if ids.len() > MAX_TOKEN_MODELS || ids.iter().any(|id| id.is_empty() || id.len() > 128) {
        return Err(Error::Invalid(format!(
            "a token names at most {MAX_TOKEN_MODELS} models, each by its id"
        )));
    }
    Ok(ids)
}

fn parse_tool_names(names: &[String]) -> Result<Arc<[ToolName]>, Error> {
    if names.len() > MAX_TOKEN_TOOLS {
        return Err(Error::Invalid(format!("a token names at most {MAX_TOKEN_TOOLS} tools")));
    }
    let names: Result<Vec<ToolName>, _> =
        names.iter().map(|name| ToolName::from_wire_name(name)).collect();
    names.map(Arc::from).map_err(|error| Error::Invalid(format!("`tools`: {error}")))
}

async fn active_run_of_task(ctx: &mut Ctx, project: ProjectId, id: TaskId) -> Result<RunId, Error> {
    crate::tasks::get_task(ctx, id).await?;
    // The lock keeps the task from ending before our commit: the transaction that ends it then revokes this token
    // too.
    let task = cynode_db::tasks::lock_task(ctx.conn(), id).await?;
    let task = task.filter(|task| task.project == project);
    let task = task.ok_or_else(|| Error::not_found("task of this project", id))?;
    if !matches!(task.state.state_name(), TaskStateName::Queued | TaskStateName::Running) {
        return Err(Error::TaskEnded);
    }
    let standing = workflow::get_run_status(ctx.conn(), id).await?;
    Ok(standing.ok_or_else(|| Error::not_found("workflow of task", id))?.run)
}

/// Lists the tokens of a project, newest first.
#[tracing::instrument(name = "app.agents.list_agent_tokens", skip_all)]
#[operation]
pub async fn list_agent_tokens(
    ctx: &mut Ctx,
    project: ProjectId,
    page: PageRequest,
) -> Result<Page<AgentToken>, Error> {
    ctx.require_project_role(project, UserRole::Operator).await?;
    let found = agent_tokens::list_agent_tokens(ctx.conn(), project, page).await?;
    Ok(page.into_page(found, |token| token.agent.token.as_uuid()))
}

/// Revokes a token. Every replica rejects it within a tenth of a second and cancels its calls in progress.
#[tracing::instrument(name = "app.agents.revoke_agent_token", skip_all)]
#[operation]
pub async fn revoke_agent_token(ctx: &mut Ctx, id: AgentTokenId) -> Result<(), Error> {
    ctx.caller()?;
    let token = agent_tokens::get_agent_token(ctx.conn(), id).await?;
    let missing = || Error::not_found("agent token", id);
    let token = token.ok_or_else(missing)?;
    let project = token.agent.project.ok_or_else(missing)?;
    match ctx.require_project_role(project, UserRole::Operator).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    };
    let now = ctx.now;
    if agent_tokens::revoke_agent_token(ctx.conn(), id, now).await? {
        let told = EventDraft::new(EventKind::AgentTokenRevoked, json!({ "agent_token_id": id }));
        ctx.record_event(told.with_project(project)).await?;
    }
    Ok(())
}

/// Converts a token to its API view.
pub fn to_agent_token_view(token: &AgentToken) -> AgentTokenView {
    let agent = &token.agent;
    AgentTokenView {
        agent_token_id: agent.token,
        kind: agent.agent_kind(),
        role: agent.role,
        user_id: agent.user,
        project_id: agent.project,
        task_id: agent.task,
        run_id: agent.run,
        job_id: agent.job,
        profile: agent.profile.name.to_string(),
        network: agent.profile.network(),
        tools: agent.tools.as_ref().map(|tools| tools.iter().map(ToString::to_string).collect()),
        models: token.models.clone(),
        created_at: token.created_at,
        expires_at: agent.expires_at,
        revoked_at: token.revoked_at,
    }
}

impl CertifiedClient {
    /// Returns whether an agent token may be shown on a connection with this certificate. Those of programs belong to the certificates of
    /// programs, and that of a job to the node that runs it.
    pub fn may_show_agent_token(&self, token: &ResolvedAgentToken) -> bool {
        match token.agent.role {
            AgentRole::WorkflowRunner => !self.is_other_service_than(ServiceKind::Runner),
            AgentRole::ManagerHost => !self.is_other_service_than(ServiceKind::Manager),
            AgentRole::AnalystHost => !self.is_other_service_than(ServiceKind::Analyst),
            AgentRole::ProjectManager
            | AgentRole::ProjectAnalyst
            | AgentRole::Architect
            | AgentRole::Designer
            | AgentRole::Developer
            | AgentRole::Reviewer
            | AgentRole::Tester
            | AgentRole::Fixer => token.node.is_none_or(|node| !self.is_other_than(node)),
        }
    }
}

#[cfg(test)]
mod tests {
    use cynode_db::identity::certificates::CertificateHolder;
    use uuid::Uuid;

    use super::*;

    fn token(role: AgentRole, node: Option<NodeId>) -> ResolvedAgentToken {
        let agent = AgentIdentity {
            token: AgentTokenId::from_uuid(Uuid::nil()),
            role,
            user: None,
            project: None,
            task: None,
            run: None,
            job: None,
            handoff: None,
            profile: AgentProfile::default(),
            tools: None,
            operates: true,
            expires_at: None,
        };
        ResolvedAgentToken {
            agent: Arc::new(agent),
            state: TokenState::Good,
            caller: None,
            service: None,
            models: Arc::default(),
            node,
        }
    }

    #[test]
    fn a_token_is_shown_with_the_certificate_of_its_own_program_or_node_only() {
        let [one, other] = [1, 2].map(|number| NodeId::from_uuid(Uuid::from_u128(number)));
        let node = CertifiedClient::of_holder(CertificateHolder::Node(one));
        let service = |kind| CertifiedClient::of_holder(CertificateHolder::Service(kind));
        let (runner, manager, analyst) = (
            service(ServiceKind::Runner),
            service(ServiceKind::Manager),
            service(ServiceKind::Analyst),
        );
        for (role, own) in [
            (AgentRole::WorkflowRunner, &runner),
            (AgentRole::ManagerHost, &manager),
            (AgentRole::AnalystHost, &analyst),
        ] {
            for client in [&node, &runner, &manager, &analyst] {
                let fits = client.may_show_agent_token(&token(role, None));
                assert_eq!(fits, client == own, "{role:?} {client:?}");
            }
        }
        let of_job = token(AgentRole::Developer, Some(one));
        assert!(node.may_show_agent_token(&of_job));
        assert!(
            !CertifiedClient::of_holder(CertificateHolder::Node(other))
                .may_show_agent_token(&of_job)
        );
        assert!(!runner.may_show_agent_token(&of_job));
        // An agent without a job on a node is bound to none.
        assert!(manager.may_show_agent_token(&token(AgentRole::ProjectManager, None)));
    }
}
