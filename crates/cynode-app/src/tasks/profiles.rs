//! Profiles that tasks, schedules and chats name.
//!
//! A profile is looked up when it is named and again when it is used. A name that does not exist is refused at both places: nothing falls
//! back to `default`.

use std::sync::Arc;

use cynode_core::{
    budget::Budget,
    ids::ProjectId,
    profiles::{ProfileName, ProfileVersion, shipped_profile},
};
use cynode_db::{Conn, tools::profiles};

use crate::Error;

/// Returns the current version of a profile: one of the product, of the project, or of the installation, in this order.
pub(crate) async fn find_profile(
    conn: &mut Conn,
    project: Option<ProjectId>,
    name: &ProfileName,
) -> Result<Option<ProfileVersion>, Error> {
    if let Some(spec) = shipped_profile(name) {
        return Ok(Some(ProfileVersion { name: name.clone(), version: 1, spec: Arc::new(spec) }));
    }
    Ok(profiles::find_current_profile(conn, project, name).await?)
}

/// Rejects a name under which there is no profile, so that a mistake is noticed where it is made.
pub(crate) async fn require_named_profile(
    conn: &mut Conn,
    project: ProjectId,
    name: Option<&ProfileName>,
) -> Result<Option<ProfileVersion>, Error> {
    let Some(name) = name else { return Ok(None) };
    match find_profile(conn, Some(project), name).await? {
        Some(profile) => Ok(Some(profile)),
        None => Err(Error::Invalid(format!(
            "the profile `{name}` does not exist: `cynork profile list` shows those of the project and of the installation"
        ))),
    }
}

/// Returns the budget of a task under a profile: its own, else the default of the profile.
pub(crate) fn budget_under_profile(own: Budget, profile: &ProfileVersion) -> Budget {
    match profile.spec.budget_micros {
        Some(micros) if !own.is_limited() => {
            Budget { max_cost_micros: micros.try_into().ok(), ..own }
        }
        _ => own,
    }
}
