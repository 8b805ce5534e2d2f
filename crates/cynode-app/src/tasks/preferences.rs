//! Preferences: read, write and resolve by scope.

use std::collections::BTreeMap;

use cynode_core::{
    agents::AgentRole,
    events::EventKind,
    ids::{ProjectId, TaskId, UserId},
    names::DottedKey,
    policies::PolicyScope,
    preferences::{self as rules, PreferenceResolution, PreferenceScope},
    roles::UserRole,
    settings::{ExpectedVersion, ValueChange, VersionedValue, validate_stored_value},
    tasks::Task,
    workflow::limits::APPROVE_PLAN_PREFERENCE,
};
use cynode_db::{
    Conn, DbError,
    tasks::{policies, preferences},
};
use serde_json::{Value, json};

use crate::{
    Ctx, Error,
    platform::{context::EventDraft, operation, settings::version_error},
};

/// Intended access to a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PreferenceAccess {
    Read,
    Write,
}

/// Authorizes access to a scope and returns its project.
///
/// The preferences of the system and of a group are read by viewers and written by admins of the installation; those
/// of a user by the user and by admins; those of a project and of a task by the roles there.
async fn authorize_scope(
    ctx: &mut Ctx,
    scope: PreferenceScope,
    access: PreferenceAccess,
) -> Result<Option<ProjectId>, Error> {
    let caller = ctx.caller()?;
    let installation = match access {
        PreferenceAccess::Read => UserRole::Viewer,
        PreferenceAccess::Write => UserRole::Admin,
    };
    match scope {
        PreferenceScope::System | PreferenceScope::Group(_) => {
            ctx.require_role(installation).map(|_| None)
        }
        PreferenceScope::User(user) if user == caller.user => Ok(None),
        PreferenceScope::User(_) => ctx.require_role(UserRole::Admin).map(|_| None),
        PreferenceScope::Project(project) => {
            ctx.require_project_role(project, installation).await?;
            Ok(Some(project))
        }
        PreferenceScope::Task(task) => {
            let role = match access {
                PreferenceAccess::Read => UserRole::Viewer,
                PreferenceAccess::Write => UserRole::Operator,
            };
            let found = crate::tasks::get_task(ctx, task).await?;
            ctx.require_project_role(found.project, role).await?;
            Ok(Some(found.project))
        }
    }
}

/// Lists all preferences of a scope.
#[tracing::instrument(name = "app.preferences.list_preferences", skip_all)]
#[operation]
pub async fn list_preferences(
    ctx: &mut Ctx,
    scope: PreferenceScope,
) -> Result<Vec<VersionedValue>, Error> {
    authorize_scope(ctx, scope, PreferenceAccess::Read).await?;
    Ok(preferences::list_preferences(ctx.conn(), scope).await?)
}

/// Returns one preference.
#[tracing::instrument(name = "app.preferences.get_preference", skip_all, fields(preference.key = %key))]
#[operation]
pub async fn get_preference(
    ctx: &mut Ctx,
    scope: PreferenceScope,
    key: &DottedKey,
) -> Result<VersionedValue, Error> {
    authorize_scope(ctx, scope, PreferenceAccess::Read).await?;
    let found = preferences::get_preference(ctx.conn(), scope, key).await?;
    found.ok_or_else(|| Error::not_found("preference", key))
}

/// Lists all writes of a preference.
#[tracing::instrument(name = "app.preferences.list_preference_changes", skip_all, fields(preference.key = %key))]
#[operation]
pub async fn list_preference_changes(
    ctx: &mut Ctx,
    scope: PreferenceScope,
    key: &DottedKey,
) -> Result<Vec<ValueChange>, Error> {
    authorize_scope(ctx, scope, PreferenceAccess::Read).await?;
    Ok(preferences::preference_history(ctx.conn(), scope, key).await?)
}

/// Writes a preference if the value fits the key. Optimistic locking: a concurrent write is a version conflict.
#[tracing::instrument(name = "app.preferences.set_preference", skip_all, fields(preference.key = %key))]
#[operation]
pub async fn set_preference(
    ctx: &mut Ctx,
    scope: PreferenceScope,
    key: &DottedKey,
    value: &Value,
    expected: ExpectedVersion,
) -> Result<VersionedValue, Error> {
    let project = authorize_scope(ctx, scope, PreferenceAccess::Write).await?;
    validate_stored_value(value).map_err(|error| Error::Invalid(error.to_string()))?;
    rules::validate_new_preference(key, value)
        .map_err(|error| Error::Invalid(error.to_string()))?;
    require_policy_conform(ctx, scope, key, value).await?;
    let (by, now) = (ctx.caller()?.user, ctx.now);
    match preferences::set_preference(ctx.conn(), scope, key, value, expected, by, now).await {
        Ok(Some(written)) => {
            record_preference_event(
                ctx,
                EventKind::PreferenceSet,
                scope,
                project,
                key,
                written.version,
            )
            .await?;
            Ok(written)
        }
        Ok(None) => {
            let there = preferences::get_preference(ctx.conn(), scope, key).await?;
            Err(version_error(key, expected, there))
        }
        // A deletion happened between our read and our write.
        Err(error) if error.is_refused_by("preferences_history_unique") => {
            Err(version_error(key, expected, None))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sets whether a person must approve the plan of a new task. It is a preference of the task, written in the
/// transaction of the task.
pub(crate) async fn set_plan_approval(ctx: &mut Ctx, task: &Task, asks: bool) -> Result<(), Error> {
    let key = APPROVE_PLAN_PREFERENCE
        .parse()
        .map_err(|_| Error::Conflict("a preference's name is wrong"))?;
    let (scope, by, now, value) =
        (PreferenceScope::Task(task.id), task.created_by, ctx.now, json!(asks));
    require_policy_conform(ctx, scope, &key, &value).await?;
    let set = preferences::set_preference(
        ctx.conn(),
        scope,
        &key,
        &value,
        ExpectedVersion::Absent,
        by,
        now,
    )
    .await?;
    let Some(written) = set else { return Err(version_error(&key, ExpectedVersion::Absent, None)) };
    let project = Some(task.project);
    record_preference_event(ctx, EventKind::PreferenceSet, scope, project, &key, written.version)
        .await
}

/// Deletes a preference. Optimistic locking: a concurrent write is a version conflict.
#[tracing::instrument(name = "app.preferences.delete_preference", skip_all, fields(preference.key = %key))]
#[operation]
pub async fn delete_preference(
    ctx: &mut Ctx,
    scope: PreferenceScope,
    key: &DottedKey,
    version: i64,
) -> Result<(), Error> {
    let project = authorize_scope(ctx, scope, PreferenceAccess::Write).await?;
    let (by, now) = (ctx.caller()?.user, ctx.now);
    if !preferences::delete_preference(ctx.conn(), scope, key, version, by, now).await? {
        let there = preferences::get_preference(ctx.conn(), scope, key).await?;
        return Err(match there {
            None => Error::not_found("preference", key),
            there => version_error(key, ExpectedVersion::Version(version), there),
        });
    }
    record_preference_event(ctx, EventKind::PreferenceDeleted, scope, project, key, version + 1)
        .await
}

async fn record_preference_event(
    ctx: &mut Ctx,
    kind: EventKind,
    scope: PreferenceScope,
    project: Option<ProjectId>,
    key: &DottedKey,
    version: i64,
) -> Result<(), Error> {
    if key.as_str().contains("model_routing.")
        && !preferences::bump_preference_epoch(ctx.conn(), scope).await?
    {
        ctx.invalidate_models().await?;
    }
    let data = json!({ "scope_type": scope.scope_type(), "key": key, "version": version });
    let mut told = EventDraft::new(kind, data);
    if let Some(project) = project {
        told = told.with_project(project);
    }
    match scope {
        PreferenceScope::User(user) => told = told.with_subject(user),
        PreferenceScope::Task(task) => told = told.with_task(task),
        PreferenceScope::System | PreferenceScope::Group(_) | PreferenceScope::Project(_) => {}
    }
    ctx.record_event(told).await
}

/// Loads all preferences that may apply to a user in a project and for a task.
async fn load_preference_entries(
    conn: &mut Conn,
    user: UserId,
    project: Option<ProjectId>,
    task: Option<TaskId>,
) -> Result<Vec<rules::PreferenceEntry>, DbError> {
    let mut scopes = vec![PreferenceScope::System, PreferenceScope::User(user)];
    scopes.extend(project.map(PreferenceScope::Project));
    scopes.extend(task.map(PreferenceScope::Task));
    preferences::list_preference_entries(conn, &scopes, user).await
}

/// Returns what holds for a user in a project and for a task: the preferences, bounded by the mandatory policies. For an
/// agent, keys of the other agent roles are left out.
pub(crate) async fn resolve_effective(
    conn: &mut Conn,
    role: Option<AgentRole>,
    user: UserId,
    project: Option<ProjectId>,
    task: Option<TaskId>,
) -> Result<PreferenceResolution, DbError> {
    let entries = load_preference_entries(conn, user, project, task).await?;
    let policies = policies::load_policies(conn, user, project).await?;
    let mut resolution = match role {
        Some(role) => rules::resolve_for_role(role, entries),
        None => rules::resolve_preferences(entries),
    };
    policies.clamp_preferences(&mut resolution);
    Ok(resolution)
}

/// Rejects a preference that a policy would overrule, so that nobody believes that it holds.
async fn require_policy_conform(
    ctx: &mut Ctx,
    scope: PreferenceScope,
    key: &DottedKey,
    value: &Value,
) -> Result<(), Error> {
    let conn = ctx.conn();
    let held = match scope {
        PreferenceScope::System => policies::list_policies(conn, PolicyScope::System).await?,
        PreferenceScope::Group(group) => {
            let mut held = policies::list_policies(conn, PolicyScope::System).await?;
            held.add_policies(policies::list_policies(conn, PolicyScope::Group(group)).await?);
            held
        }
        PreferenceScope::User(user) => policies::load_policies(conn, user, None).await?,
        PreferenceScope::Project(project) => {
            let mut held = policies::list_policies(conn, PolicyScope::System).await?;
            held.add_policies(policies::list_policies(conn, PolicyScope::Project(project)).await?);
            held
        }
        PreferenceScope::Task(task) => match cynode_db::tasks::get_task(conn, task).await? {
            Some(task) => {
                policies::load_policies(conn, task.created_by, Some(task.project)).await?
            }
            None => return Err(Error::not_found("task", task)),
        },
    };
    match held.find_contradiction(key, value) {
        Some(entry) => {
            let what = format!("the preference `{key}` cannot be {value}");
            Err(crate::tasks::policies::deny_by_policy(&what, entry))
        }
        None => Ok(()),
    }
}

/// Returns the effective preferences of a task's workflow: those of its author in its project.
pub(crate) async fn workflow_preferences(
    ctx: &mut Ctx,
    task: &Task,
) -> Result<BTreeMap<DottedKey, Value>, Error> {
    let (role, project) = (Some(AgentRole::ProjectManager), Some(task.project));
    let held = resolve_effective(ctx.conn(), role, task.created_by, project, Some(task.id)).await?;
    Ok(held.effective.into_iter().map(|(key, held)| (key, held.value)).collect())
}

/// Bounds the preferences that a run has read at its start by the policies of now.
pub(crate) async fn bound_stored_preferences(
    ctx: &mut Ctx,
    task: &Task,
    stored: &mut BTreeMap<DottedKey, Value>,
) -> Result<(), Error> {
    let policies = crate::tasks::policies::policies_of_task(ctx, task).await?;
    policies.clamp_values(stored);
    Ok(())
}

/// Subject of effective preferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreferenceSubject {
    /// The caller alone.
    Caller,
    /// The caller in a project.
    Project(ProjectId),
    /// A task: its author in its project.
    Task(TaskId),
}

/// Returns the effective preferences and their scopes. The precedence is task, project, user, group, system. For an
/// agent, keys of the other agent role are left out.
#[tracing::instrument(name = "app.preferences.effective_preferences", skip_all)]
#[operation]
pub async fn effective_preferences(
    ctx: &mut Ctx,
    about: PreferenceSubject,
    agent: Option<AgentRole>,
) -> Result<PreferenceResolution, Error> {
    let (user, project, task) = authorize_subject(ctx, about).await?;
    Ok(resolve_effective(ctx.conn(), agent, user, project, task).await?)
}

/// Authorizes reading what holds for a subject. Returns the user, project and task that count.
pub(crate) async fn authorize_subject(
    ctx: &mut Ctx,
    about: PreferenceSubject,
) -> Result<(UserId, Option<ProjectId>, Option<TaskId>), Error> {
    let caller = ctx.caller()?;
    Ok(match about {
        PreferenceSubject::Caller => (caller.user, None, None),
        PreferenceSubject::Project(project) => {
            ctx.require_project_role(project, UserRole::Viewer).await?;
            (caller.user, Some(project), None)
        }
        PreferenceSubject::Task(id) => {
            let task = crate::tasks::get_task(ctx, id).await?;
            // Personal preferences of the author are visible only to the author and to those who may steer the task.
            let needed =
                if task.created_by == caller.user { UserRole::Viewer } else { UserRole::Operator };
            ctx.require_project_role(task.project, needed).await?;
            (task.created_by, Some(task.project), Some(id))
        }
    })
}
