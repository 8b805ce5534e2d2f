//! Mandatory policies: set, list, explain. Every interface that is bounded by one loads it here.

use cynode_core::{
    events::EventKind,
    ids::UserId,
    policies::{
        ApprovalKind, PolicyEntry, PolicyKey, PolicyScope, PolicySet, PolicyValue, parse_policy_key,
    },
    preferences::PreferenceScope,
    roles::UserRole,
    settings::registry::FOUR_EYES_SETTING,
    tasks::Task,
};
use cynode_db::{identity::groups, tasks::policies};
use serde_json::{Value, json};

use crate::{
    Ctx, Error,
    platform::{context::EventDraft, operation, settings},
    tasks::preferences::{PreferenceSubject, authorize_subject},
};

/// Returns the policies that hold for the caller, in its project if the caller is an agent.
#[tracing::instrument(name = "app.policies.own_policies", skip_all)]
#[operation]
pub async fn own_policies(ctx: &mut Ctx) -> Result<PolicySet, Error> {
    let caller = ctx.caller()?;
    let project = caller.bounds.map(|bounds| bounds.project);
    Ok(policies::load_policies(ctx.conn(), caller.user, project).await?)
}

/// Returns the policies that hold for the work of a task: those of its author in its project.
pub(crate) async fn policies_of_task(ctx: &mut Ctx, task: &Task) -> Result<PolicySet, Error> {
    Ok(policies::load_policies(ctx.conn(), task.created_by, Some(task.project)).await?)
}

/// Rejects what a policy forbids, with the policy and who set it.
pub(crate) fn deny_by_policy(what: &str, entry: &PolicyEntry) -> Error {
    Error::PolicyDenied(format!("{what}: {}", entry.describe_policy()))
}

/// Rejects an approval by a person who asked for the work, where the policy or the setting demands four eyes.
pub(crate) async fn require_second_person(
    ctx: &mut Ctx,
    policies: &PolicySet,
    authors: &[UserId],
    user: UserId,
    kind: ApprovalKind,
) -> Result<(), Error> {
    if !authors.contains(&user) {
        return Ok(());
    }
    let what = format!("you asked for this work, so another person must {}", kind.describe_act());
    match policies.find_demand(PolicyKey::FourEyes).filter(|_| kind.is_of_policy()) {
        Some(entry) => Err(deny_by_policy(&what, entry)),
        None if names_four_eyes(ctx, &[kind]).await? => Err(Error::PolicyDenied(format!(
            "{what}: the setting `{FOUR_EYES_SETTING}` names `{}`",
            kind.as_str()
        ))),
        None => Ok(()),
    }
}

/// Returns whether the policy, or the setting with one of these kinds, demands four eyes.
pub(crate) async fn is_second_person_demanded(
    ctx: &mut Ctx,
    policies: &PolicySet,
    kinds: &[ApprovalKind],
) -> Result<bool, Error> {
    let is_policy = policies.find_demand(PolicyKey::FourEyes).is_some();
    Ok(is_policy || names_four_eyes(ctx, kinds).await?)
}

/// Returns whether the setting names one of these kinds.
async fn names_four_eyes(ctx: &mut Ctx, kinds: &[ApprovalKind]) -> Result<bool, Error> {
    let named = settings::setting_names(ctx.conn(), FOUR_EYES_SETTING).await?;
    Ok(kinds.iter().any(|kind| named.iter().any(|name| name == kind.as_str())))
}

/// Authorizes access to the policies of a scope, by viewers for reading and by admins for writing.
async fn authorize_policy_scope(
    ctx: &mut Ctx,
    scope: PolicyScope,
    needed: UserRole,
) -> Result<(), Error> {
    match scope {
        PolicyScope::System | PolicyScope::Group(_) => ctx.require_role(needed).map(drop),
        PolicyScope::Project(project) => ctx.require_project_role(project, needed).await.map(drop),
    }
}

/// Returns the scope of policies. Neither a user nor a task has policies: what they could set, they could unset.
fn require_policy_scope(scope: PreferenceScope) -> Result<PolicyScope, Error> {
    PolicyScope::from_preference_scope(scope).ok_or_else(|| {
        Error::Invalid("a policy is set for the system, a group or a project".into())
    })
}

/// Lists the policies of one scope.
#[tracing::instrument(name = "app.policies.list_policies", skip_all)]
#[operation]
pub async fn list_policies(ctx: &mut Ctx, scope: PreferenceScope) -> Result<PolicySet, Error> {
    let scope = require_policy_scope(scope)?;
    authorize_policy_scope(ctx, scope, UserRole::Viewer).await?;
    Ok(policies::list_policies(ctx.conn(), scope).await?)
}

/// Sets a policy. An admin of a project can only make the policies of the project stricter; an admin of the
/// installation can relax them.
#[tracing::instrument(name = "app.policies.set_policy", skip_all, fields(policy.key = key))]
#[operation]
pub async fn set_policy(
    ctx: &mut Ctx,
    scope: PreferenceScope,
    key: &str,
    value: &Value,
) -> Result<PolicySet, Error> {
    let scope = require_policy_scope(scope)?;
    authorize_policy_scope(ctx, scope, UserRole::Admin).await?;
    let invalid =
        |error: cynode_core::policies::PolicyValueError| Error::Invalid(error.to_string());
    let key = parse_policy_key(key).map_err(invalid)?;
    let value = PolicyValue::parse_value(key, value).map_err(invalid)?;
    require_scope_exists(ctx, scope).await?;
    policies::lock_policies(ctx.conn()).await?;
    let before = policies::list_policies(ctx.conn(), scope).await?;
    let there = before.list_entries().iter().find(|entry| entry.key == key);
    if let Some(there) = there.filter(|there| !value.is_within(key, &there.value)) {
        require_relaxing(ctx, there)?;
    }
    if there.is_some_and(|there| there.value == value) {
        return Ok(before);
    }
    let (by, now) = (ctx.caller()?.user, ctx.now);
    policies::set_policy(ctx.conn(), scope, key, &value, by, now).await?;
    record_policy_event(ctx, EventKind::PolicySet, scope, key).await?;
    Ok(policies::list_policies(ctx.conn(), scope).await?)
}

/// Deletes a policy, which only an admin of the installation may: it allows more than before.
#[tracing::instrument(name = "app.policies.delete_policy", skip_all, fields(policy.key = key))]
#[operation]
pub async fn delete_policy(ctx: &mut Ctx, scope: PreferenceScope, key: &str) -> Result<(), Error> {
    let scope = require_policy_scope(scope)?;
    authorize_policy_scope(ctx, scope, UserRole::Admin).await?;
    let key = parse_policy_key(key).map_err(|error| Error::Invalid(error.to_string()))?;
    policies::lock_policies(ctx.conn()).await?;
    let before = policies::list_policies(ctx.conn(), scope).await?;
    let there = before.list_entries().iter().find(|entry| entry.key == key);
    let there = there.ok_or_else(|| Error::not_found("policy", key.as_str()))?;
    require_relaxing(ctx, there)?;
    policies::delete_policy(ctx.conn(), scope, key).await?;
    record_policy_event(ctx, EventKind::PolicyDeleted, scope, key).await
}

/// Rejects a caller who may make a policy stricter and not relax it.
fn require_relaxing(ctx: &mut Ctx, there: &PolicyEntry) -> Result<(), Error> {
    ctx.require_role(UserRole::Admin).map(drop).map_err(|_| {
        deny_by_policy("only an admin of the installation relaxes or deletes a policy", there)
    })
}

/// Rejects a group that does not exist. A project exists for everybody who has a role in it.
async fn require_scope_exists(ctx: &mut Ctx, scope: PolicyScope) -> Result<(), Error> {
    match scope {
        PolicyScope::System => Ok(()),
        PolicyScope::Group(id) => {
            let found = groups::lock_group(ctx.conn(), id).await?;
            found.map(drop).ok_or_else(|| Error::not_found("group", id))
        }
        PolicyScope::Project(id) => {
            let found = cynode_db::tasks::projects::get_project(ctx.conn(), id).await?;
            found.map(drop).ok_or_else(|| Error::not_found("project", id))
        }
    }
}

/// Records a change and invalidates what was decided by the policies before it.
async fn record_policy_event(
    ctx: &mut Ctx,
    kind: EventKind,
    scope: PolicyScope,
    key: PolicyKey,
) -> Result<(), Error> {
    if key == PolicyKey::AllowedProviders {
        ctx.invalidate_models().await?;
    }
    if key.affects_placement() {
        // Jobs that wait at a node are placed anew.
        ctx.count_change()?;
        let project = match scope {
            PolicyScope::Project(project) => Some(project),
            PolicyScope::System | PolicyScope::Group(_) => None,
        };
        cynode_db::nodes::lock_placement(ctx.conn()).await?;
        cynode_db::nodes::unplace_queued_jobs(ctx.conn(), project).await?;
        ctx.mark_job_queued();
    }
    let scope = scope.to_preference_scope();
    let data = json!({ "scope_type": scope.scope_type(), "key": key.as_str() });
    let mut draft = EventDraft::new(kind, data);
    if let PreferenceScope::Project(project) = scope {
        draft = draft.with_project(project);
    }
    ctx.record_event(draft).await
}

/// Returns the policies that hold for the caller, in a project, or for a task, with where each comes from.
#[tracing::instrument(name = "app.policies.effective_policies", skip_all)]
#[operation]
pub async fn effective_policies(
    ctx: &mut Ctx,
    about: PreferenceSubject,
) -> Result<PolicySet, Error> {
    let (user, project, _) = authorize_subject(ctx, about).await?;
    Ok(policies::load_policies(ctx.conn(), user, project).await?)
}
