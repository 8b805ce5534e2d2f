//! Profiles: create, update, delete, list, history, and the profile that an agent works under.
//!
//! A profile is looked up in the product, in the project and in the installation, in this order. A name that does not exist is refused where
//! it is given. An agent whose profile is gone is refused everything: nothing falls back to `default`.

use cynode_core::{
    agents::AgentRole,
    events::EventKind,
    ids::{ProjectId, TaskId, UserId},
    profiles::{ProfileName, ProfileSpec, ProfileVersion, SHIPPED_PROFILES, shipped_profile},
    roles::UserRole,
};
use cynode_db::tools::profiles::{self, NewProfile, StoredProfile, WrittenProfile};
use cynode_wire::tools::profiles::{CreateProfile, ProfileVersionView, ProfileView, UpdateProfile};
use serde_json::json;

use crate::{
    AuthenticatedCaller, Ctx, Error,
    platform::{context::EventDraft, operation},
    tasks::{preferences, profiles::find_profile},
};

/// Maximum number of profiles of a project, and of the installation.
const MAX_PROFILES: i64 = 200;

/// Maximum number of versions that the history shows.
const MAX_SHOWN_VERSIONS: i64 = 200;

/// Preference that names the profile of agents that were given none.
const PROFILE_PREFERENCE: &str = "memory.profile";

/// Preference that names the profile of the project manager.
const MANAGER_PROFILE_PREFERENCE: &str = "agents.project_manager.profile";

/// Name that stands for a preference whose value is not the name of a profile.
const NO_PROFILE_NAME: &str = "invalid-preference";

/// Refusal of a change of a profile that comes with the product.
const SHIPPED_REFUSAL: &str = "this profile comes with the product and cannot be changed: create one of another name with its content";

/// Returns the current version of a profile. A name that does not exist is an error.
#[tracing::instrument(name = "app.profiles.resolve_profile", skip_all, fields(profile.name = %name))]
#[operation]
pub async fn resolve_profile(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &ProfileName,
) -> Result<ProfileVersion, Error> {
    let found = find_profile(ctx.conn(), project, name).await?;
    found.ok_or_else(|| missing_profile(name.as_str()))
}

/// Returns the current version of a profile that a request names.
pub(crate) async fn require_profile(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &str,
) -> Result<ProfileVersion, Error> {
    let name = parse_name(name)?;
    resolve_profile(ctx, project, &name).await
}

/// Returns the profile that an agent works under: that of its task, else the one that the preferences name, else `default`. If there is no
/// profile of that name, the returned one permits nothing.
#[tracing::instrument(name = "app.profiles.profile_of_agent", skip_all)]
#[operation]
pub async fn profile_of_agent(
    ctx: &mut Ctx,
    role: AgentRole,
    user: UserId,
    project: ProjectId,
    task: Option<TaskId>,
) -> Result<ProfileVersion, Error> {
    let of_task = match task {
        Some(task) => cynode_db::tasks::profile_of_task(ctx.conn(), task).await?,
        None => None,
    };
    let name = match of_task {
        Some(name) => name,
        None => preferred_name(ctx, role, user, project, task).await?,
    };
    profile_of_name(ctx, project, name).await
}

/// Returns the profile of that name for an agent of a project. If there is none, the returned one permits nothing.
pub(crate) async fn profile_of_name(
    ctx: &mut Ctx,
    project: ProjectId,
    name: ProfileName,
) -> Result<ProfileVersion, Error> {
    let found = find_profile(ctx.conn(), Some(project), &name).await?;
    Ok(found.unwrap_or_else(|| {
        tracing::warn!(event = "profile.unknown", project.id = %project, profile.name = %name, "an agent is to work under a profile that does not exist");
        ProfileVersion::unknown(name)
    }))
}

/// Returns the name that the preferences give. A value that is no name, which an earlier release may have stored, gives one under which there
/// is no profile: it permits nothing.
async fn preferred_name(
    ctx: &mut Ctx,
    role: AgentRole,
    user: UserId,
    project: ProjectId,
    task: Option<TaskId>,
) -> Result<ProfileName, Error> {
    let held =
        preferences::resolve_effective(ctx.conn(), Some(role), user, Some(project), task).await?;
    let own = (role == AgentRole::ProjectManager).then_some(MANAGER_PROFILE_PREFERENCE);
    for key in own.into_iter().chain([PROFILE_PREFERENCE]) {
        match held.text_of_key(key).map(str::parse::<ProfileName>) {
            Some(Ok(name)) => return Ok(name),
            Some(Err(_)) => {
                tracing::warn!(event = "profile.invalid", project.id = %project, preference.key = key, "the preference is not the name of a profile");
                return parse_name(NO_PROFILE_NAME);
            }
            None => {}
        }
    }
    Ok(ProfileName::default())
}

/// Lists the profiles that agents of a project may work under, or those of the installation: first those that come with the product.
#[tracing::instrument(name = "app.profiles.list_profiles", skip_all)]
#[operation]
pub async fn list_profiles(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
) -> Result<Vec<ProfileView>, Error> {
    authorize_scope(ctx, project, UserRole::Viewer).await?;
    let stored = profiles::list_profiles(ctx.conn(), project).await?;
    let shipped = SHIPPED_PROFILES.into_iter().filter_map(|name| shipped_view(&name.parse().ok()?));
    Ok(shipped.chain(stored.iter().map(to_profile_view)).collect())
}

/// Returns the profile of that name that holds in a project, or in the installation.
#[tracing::instrument(name = "app.profiles.get_profile", skip_all, fields(profile.name = name))]
#[operation]
pub async fn get_profile(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &str,
) -> Result<ProfileView, Error> {
    authorize_scope(ctx, project, UserRole::Viewer).await?;
    let name = parse_name(name)?;
    if let Some(shipped) = shipped_view(&name) {
        return Ok(shipped);
    }
    let stored = profiles::get_profile(ctx.conn(), project, &name).await?;
    stored.as_ref().map(to_profile_view).ok_or_else(|| missing_profile(name.as_str()))
}

/// Returns the versions of the profile of exactly that project, or of the installation, newest first. A profile that was deleted has them,
/// too.
#[tracing::instrument(name = "app.profiles.list_profile_versions", skip_all, fields(profile.name = name))]
#[operation]
pub async fn list_profile_versions(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &str,
) -> Result<Vec<ProfileVersionView>, Error> {
    authorize_scope(ctx, project, UserRole::Viewer).await?;
    let name = parse_name(name)?;
    let written = profiles::list_versions(ctx.conn(), project, &name, MAX_SHOWN_VERSIONS).await?;
    if written.is_empty() {
        return Err(missing_profile(name.as_str()));
    }
    Ok(written.into_iter().map(to_version_view).collect())
}

/// Creates a profile. Those of the installation are for its admins, those of a project for the admins of the project.
#[tracing::instrument(name = "app.profiles.create_profile", skip_all, fields(profile.name = %body.name))]
#[operation]
pub async fn create_profile(ctx: &mut Ctx, body: CreateProfile) -> Result<ProfileView, Error> {
    let CreateProfile { name, project_id: project, spec } = body;
    let caller = authorize_scope(ctx, project, UserRole::Admin).await?;
    let name = parse_name(&name)?;
    require_own_profile(&name)?;
    spec.validate().map_err(Error::Invalid)?;
    if profiles::count_profiles(ctx.conn(), project).await? >= MAX_PROFILES {
        let limit =
            format!("there are {MAX_PROFILES} profiles already, with those that were deleted");
        return Err(Error::LimitExceeded(limit));
    }
    let (id, now) = (ctx.new_uuid(), ctx.now);
    let new = NewProfile { id, project, name: &name, spec: &spec, by: caller.user };
    let Some(version) = profiles::insert_profile(ctx.conn(), &new, now).await? else {
        return Err(Error::AlreadyExists { what: "a profile with the name", name: name.into() });
    };
    record_change(ctx, EventKind::ProfileCreated, project, &name, version).await?;
    written_profile(ctx, project, &name).await
}

/// Writes a profile anew. Optimistic locking: a concurrent update is a version conflict. Agents under it have the new version at once.
#[tracing::instrument(name = "app.profiles.update_profile", skip_all, fields(profile.name = name))]
#[operation]
pub async fn update_profile(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &str,
    body: UpdateProfile,
) -> Result<ProfileView, Error> {
    let caller = authorize_scope(ctx, project, UserRole::Admin).await?;
    let (name, stored) = lock_own_profile(ctx, project, name).await?;
    body.spec.validate().map_err(Error::Invalid)?;
    let actual = stored.current.version;
    if actual != body.expected_version {
        return Err(Error::VersionConflict {
            key: name.into(),
            expected: body.expected_version.into(),
            actual: actual.into(),
        });
    }
    if *stored.current.spec != body.spec {
        let now = ctx.now;
        profiles::update_profile(ctx.conn(), stored.id, &body.spec, caller.user, now).await?;
        let version = actual.saturating_add(1);
        record_change(ctx, EventKind::ProfileUpdated, project, &name, version).await?;
    }
    written_profile(ctx, project, &name).await
}

/// Deletes a profile. Agents under it are refused everything from then on, and nothing new can name it; its history stays.
#[tracing::instrument(name = "app.profiles.delete_profile", skip_all, fields(profile.name = name))]
#[operation]
pub async fn delete_profile(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &str,
) -> Result<(), Error> {
    let caller = authorize_scope(ctx, project, UserRole::Admin).await?;
    let (name, stored) = lock_own_profile(ctx, project, name).await?;
    let now = ctx.now;
    profiles::delete_profile(ctx.conn(), stored.id, caller.user, now).await?;
    let version = stored.current.version;
    record_change(ctx, EventKind::ProfileDeleted, project, &name, version).await
}

/// Requires a role in the project, or in the installation. Agents are never admins.
async fn authorize_scope(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    needed: UserRole,
) -> Result<AuthenticatedCaller, Error> {
    match project {
        Some(project) => ctx.require_project_role(project, needed).await,
        None => ctx.require_role(needed),
    }
}

fn parse_name(name: &str) -> Result<ProfileName, Error> {
    name.parse::<ProfileName>().map_err(|error| Error::Invalid(error.to_string()))
}

fn missing_profile(name: &str) -> Error {
    Error::not_found_near("profile", name, SHIPPED_PROFILES)
}

/// Rejects the name of a profile that comes with the product.
fn require_own_profile(name: &ProfileName) -> Result<(), Error> {
    match shipped_profile(name) {
        Some(_) => Err(Error::Conflict(SHIPPED_REFUSAL)),
        None => Ok(()),
    }
}

/// Returns the profile of exactly that scope, locked until the transaction ends.
async fn lock_own_profile(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &str,
) -> Result<(ProfileName, StoredProfile), Error> {
    let name = parse_name(name)?;
    require_own_profile(&name)?;
    let stored = profiles::lock_profile(ctx.conn(), project, &name).await?;
    let stored = stored.filter(|stored| stored.deleted_at.is_none());
    let stored = stored.ok_or_else(|| missing_profile(name.as_str()))?;
    Ok((name, stored))
}

/// Returns a profile as it was just written.
async fn written_profile(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &ProfileName,
) -> Result<ProfileView, Error> {
    let stored = profiles::get_profile(ctx.conn(), project, name).await?;
    stored.as_ref().map(to_profile_view).ok_or_else(|| missing_profile(name.as_str()))
}

/// Records a change and makes every replica ask again for what its tokens permit.
async fn record_change(
    ctx: &mut Ctx,
    kind: EventKind,
    project: Option<ProjectId>,
    name: &ProfileName,
    version: u32,
) -> Result<(), Error> {
    ctx.invalidate_policy().await?;
    let mut draft = EventDraft::new(kind, json!({ "name": name, "version": version }));
    if let Some(project) = project {
        draft = draft.with_project(project);
    }
    ctx.record_event(draft).await
}

fn shipped_view(name: &ProfileName) -> Option<ProfileView> {
    let spec: ProfileSpec = shipped_profile(name)?;
    Some(ProfileView {
        name: name.to_string(),
        project_id: None,
        shipped: true,
        version: 1,
        spec,
        updated_by: None,
        updated_at: None,
    })
}

fn to_profile_view(stored: &StoredProfile) -> ProfileView {
    ProfileView {
        name: stored.current.name.to_string(),
        project_id: stored.project,
        shipped: false,
        version: stored.current.version,
        spec: ProfileSpec::clone(&stored.current.spec),
        updated_by: Some(stored.updated_by),
        updated_at: Some(stored.updated_at),
    }
}

fn to_version_view(written: WrittenProfile) -> ProfileVersionView {
    let WrittenProfile { version, spec, written_by, written_at } = written;
    ProfileVersionView { version, spec, written_by, written_at }
}
