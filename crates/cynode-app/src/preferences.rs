//! Preferences: read, written and resolved.

use std::collections::BTreeMap;

use cynode_core::{
    agents::AgentRole,
    events::EventKind,
    ids::{ProjectId, TaskId, UserId},
    names::DottedKey,
    preferences::{self as rules, Resolution, Scope},
    roles::Role,
    settings::{Change, Expected, Versioned, fits},
    tasks::Task,
};
use cynode_db::{Conn, DbError, groups, preferences};
use serde_json::{Value, json};

use crate::{Ctx, Error, context::Told, settings::version_error};

/// What a caller wants to do with a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Refuses a caller who may not touch the scope, and returns the project it belongs to.
///
/// The system's and a group's preferences are read by viewers and written by admins of the
/// installation; a user's by the user and by admins; a project's and a task's by the roles there.
async fn permit(ctx: &mut Ctx, scope: Scope, access: Access) -> Result<Option<ProjectId>, Error> {
    let caller = ctx.caller()?;
    let installation = match access {
        Access::Read => Role::Viewer,
        Access::Write => Role::Admin,
    };
    match scope {
        Scope::System | Scope::Group(_) => ctx.require(installation).map(|_| None),
        Scope::User(user) if user == caller.user => Ok(None),
        Scope::User(_) => ctx.require(Role::Admin).map(|_| None),
        Scope::Project(project) => {
            ctx.require_in(project, installation).await?;
            Ok(Some(project))
        }
        Scope::Task(task) => {
            let role = match access {
                Access::Read => Role::Viewer,
                Access::Write => Role::Operator,
            };
            let found = crate::tasks::get(ctx, task).await?;
            ctx.require_in(found.project, role).await?;
            Ok(Some(found.project))
        }
    }
}

/// All preferences of a scope.
#[tracing::instrument(name = "app.preferences.list", skip_all)]
pub async fn list(ctx: &mut Ctx, scope: Scope) -> Result<Vec<Versioned>, Error> {
    permit(ctx, scope, Access::Read).await?;
    Ok(preferences::list(ctx.conn(), scope).await?)
}

/// One preference.
#[tracing::instrument(name = "app.preferences.get", skip_all, fields(preference.key = %key))]
pub async fn get(ctx: &mut Ctx, scope: Scope, key: &DottedKey) -> Result<Versioned, Error> {
    permit(ctx, scope, Access::Read).await?;
    let found = preferences::get(ctx.conn(), scope, key).await?;
    found.ok_or_else(|| Error::not_found("preference", key))
}

/// All writes of a preference.
#[tracing::instrument(name = "app.preferences.history", skip_all, fields(preference.key = %key))]
pub async fn history(ctx: &mut Ctx, scope: Scope, key: &DottedKey) -> Result<Vec<Change>, Error> {
    permit(ctx, scope, Access::Read).await?;
    Ok(preferences::history(ctx.conn(), scope, key).await?)
}

/// Writes a preference, if nobody wrote it in between and the value fits the key.
#[tracing::instrument(name = "app.preferences.set", skip_all, fields(preference.key = %key))]
pub async fn set(
    ctx: &mut Ctx,
    scope: Scope,
    key: &DottedKey,
    value: &Value,
    expected: Expected,
) -> Result<Versioned, Error> {
    let project = permit(ctx, scope, Access::Write).await?;
    fits(value).map_err(|error| Error::Invalid(error.to_string()))?;
    rules::check(key, value).map_err(|error| Error::Invalid(error.to_string()))?;
    let (by, now) = (ctx.caller()?.user, ctx.now);
    match preferences::set(ctx.conn(), scope, key, value, expected, by, now).await {
        Ok(Some(written)) => {
            tell(ctx, EventKind::PreferenceSet, scope, project, key, written.version).await?;
            Ok(written)
        }
        Ok(None) => {
            let there = preferences::get(ctx.conn(), scope, key).await?;
            Err(version_error(key, expected, there))
        }
        // A deletion slipped in between our look and our write.
        Err(error) if error.refused_by("preferences_history_once") => {
            Err(version_error(key, expected, None))
        }
        Err(error) => Err(error.into()),
    }
}

/// Deletes a preference, if nobody wrote it in between.
#[tracing::instrument(name = "app.preferences.delete", skip_all, fields(preference.key = %key))]
pub async fn delete(
    ctx: &mut Ctx,
    scope: Scope,
    key: &DottedKey,
    version: i64,
) -> Result<(), Error> {
    let project = permit(ctx, scope, Access::Write).await?;
    let (by, now) = (ctx.caller()?.user, ctx.now);
    if !preferences::delete(ctx.conn(), scope, key, version, by, now).await? {
        let there = preferences::get(ctx.conn(), scope, key).await?;
        return Err(match there {
            None => Error::not_found("preference", key),
            there => version_error(key, Expected::Version(version), there),
        });
    }
    tell(ctx, EventKind::PreferenceDeleted, scope, project, key, version + 1).await
}

async fn tell(
    ctx: &mut Ctx,
    kind: EventKind,
    scope: Scope,
    project: Option<ProjectId>,
    key: &DottedKey,
    version: i64,
) -> Result<(), Error> {
    if key.as_str().contains("model_routing.") {
        cynode_db::models::changed(ctx.conn()).await?;
    }
    let data = json!({ "scope_type": scope.kind(), "key": key, "version": version });
    let mut told = Told::new(kind, data);
    if let Some(project) = project {
        told = told.project(project);
    }
    match scope {
        Scope::User(user) => told = told.about(user),
        Scope::Task(task) => told = told.task(task),
        Scope::System | Scope::Group(_) | Scope::Project(_) => {}
    }
    ctx.record(told).await
}

/// Everything that may speak to what a user does, in a project, for a task.
pub(crate) async fn entries(
    conn: &mut Conn,
    user: UserId,
    project: Option<ProjectId>,
    task: Option<TaskId>,
) -> Result<Vec<rules::Entry>, DbError> {
    let mut scopes = vec![Scope::System, Scope::User(user)];
    scopes.extend(project.map(Scope::Project));
    scopes.extend(task.map(Scope::Task));
    scopes.extend(groups::of_user(conn, user).await?.into_iter().map(Scope::Group));
    preferences::entries(conn, &scopes).await
}

/// The preferences that hold for the workflow of a task: whoever asked for it, in its project.
pub(crate) async fn of_workflow(
    ctx: &mut Ctx,
    task: &Task,
) -> Result<BTreeMap<DottedKey, Value>, Error> {
    let entries = entries(ctx.conn(), task.created_by, Some(task.project), Some(task.id)).await?;
    let held = rules::resolve_for(AgentRole::ProjectManager, entries);
    Ok(held.effective.into_iter().map(|(key, held)| (key, held.value)).collect())
}

/// What preferences are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The caller alone.
    Caller,
    /// The caller in a project.
    Project(ProjectId),
    /// A task: whoever asked for it, in its project.
    Task(TaskId),
}

/// What holds, and who said it: task > project > user > group > system. For an agent, nothing of what
/// is meant for the other.
#[tracing::instrument(name = "app.preferences.effective", skip_all)]
pub async fn effective(
    ctx: &mut Ctx,
    about: About,
    agent: Option<AgentRole>,
) -> Result<Resolution, Error> {
    let caller = ctx.caller()?;
    let (user, project, task) = match about {
        About::Caller => (caller.user, None, None),
        About::Project(project) => {
            ctx.require_in(project, Role::Viewer).await?;
            (caller.user, Some(project), None)
        }
        About::Task(id) => {
            let task = crate::tasks::get(ctx, id).await?;
            // What its author prefers is the author's, and of those who steer the task.
            let needed = if task.created_by == caller.user { Role::Viewer } else { Role::Operator };
            ctx.require_in(task.project, needed).await?;
            (task.created_by, Some(task.project), Some(id))
        }
    };
    let entries = entries(ctx.conn(), user, project, task).await?;
    Ok(match agent {
        Some(role) => rules::resolve_for(role, entries),
        None => rules::resolve(entries),
    })
}
