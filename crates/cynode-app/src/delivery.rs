//! Repositories, environments, evidence, pull requests and forges.

pub mod environments;
pub mod evidence;
pub mod forges;
pub mod pull_requests;
pub mod repositories;
pub(crate) mod task_environments;

use cynode_core::{
    ids::{ProjectId, UserId},
    roles::UserRole,
};

use crate::{Ctx, Error};

/// Requires a role in the project, of a person. An agent decides neither where work goes nor what its own sandbox is made of.
async fn require_person_with_role(
    ctx: &mut Ctx,
    project: ProjectId,
    role: UserRole,
) -> Result<UserId, Error> {
    let caller = ctx.require_project_role(project, role).await?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(role, "as a person"));
    }
    Ok(caller.user)
}
