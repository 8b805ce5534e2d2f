//! Chooses where a pull request lives: in CyNode or on a forge.

use std::time::Duration;

use cynode_core::{
    delivery::{DeliveryMode, Destination, is_message_of_task},
    ids::{ProjectId, TaskId},
};
use cynode_db::{delivery::pull_requests::PullRequestRecord, platform::backup};
use cynode_forge::{ForgeKind, NewPullRequest, PullState, git};

use crate::{App, Error, delivery::forges};

/// Delay before a retry, when a forge rejected a push without a reason.
const FORGE_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Pull request on the forge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ForgePullRequest {
    pub(super) number: Option<i64>,
    pub(super) url: Option<String>,
}

const fn destination_of_kind(kind: ForgeKind) -> Destination {
    match kind {
        ForgeKind::Github => Destination::Github,
        ForgeKind::Gitlab => Destination::Gitlab,
        ForgeKind::Gitea => Destination::Gitea,
    }
}

/// Returns where the pull requests of a project live.
pub(super) async fn project_destination(
    app: &App,
    project: ProjectId,
) -> Result<Destination, Error> {
    let opened = forges::forge_of(app, project).await?;
    Ok(opened.map_or(Destination::Local, |(_, info)| destination_of_kind(info.kind)))
}

fn to_forge_error(error: git::GitRemoteError) -> Error {
    match error {
        git::GitRemoteError::Refused(why) => Error::UpstreamRejected(why),
        git::GitRemoteError::Failed(_) | git::GitRemoteError::Slow => Error::UpstreamUnavailable {
            after: FORGE_RETRY_DELAY,
            why: format!("the forge took no push: {error}"),
        },
        git::GitRemoteError::Io(error) => Error::Internal(error.into()),
    }
}

/// Returns the commit that the lost installation pushed for this task after the backup, if this installation was restored from one. What it
/// did is built upon, so that there is one branch and one pull request. Another person's commit is not taken for it.
pub(super) async fn find_lost_head(
    app: &App,
    found: &PullRequestRecord,
    task: TaskId,
) -> Result<Option<String>, Error> {
    if found.forge == Destination::Local {
        return Ok(None);
    }
    let mut conn = app.conn().await?;
    let is_restored = backup::get_epoch(&mut conn).await?.epoch > 1;
    drop(conn);
    if !is_restored {
        return Ok(None);
    }
    let Some((_, info)) = forges::forge_of(app, found.project).await? else { return Ok(None) };
    let there = git::fetch_lost_branch(&info.git_dir, &info.git, &found.branch).await;
    let there = there.map_err(to_forge_error)?;
    let Some(there) = there.filter(|there| found.head_commit.as_ref() != Some(there)) else {
        return Ok(None);
    };
    let repositories = &app.gateway_parts()?.repositories;
    if let Some(head) = &found.head_commit
        && repositories.contains_commit(found.project, head, &there).await?
    {
        return Ok(None);
    }
    let message = repositories.message_of_commit(found.project, &there).await?;
    Ok(is_message_of_task(&message, task).then_some(there))
}

/// Pushes a commit to its forge and opens the pull request there. It is idempotent: a branch that has the commit is
/// left unchanged, and an existing pull request of the branch is looked up first.
pub(super) async fn publish_pull_request(
    app: &App,
    found: &PullRequestRecord,
    commit: &str,
    mode: DeliveryMode,
) -> Result<ForgePullRequest, Error> {
    if found.forge == Destination::Local {
        return Ok(ForgePullRequest::default());
    }
    let opened = forges::forge_of(app, found.project).await?;
    let opened = opened.filter(|(_, info)| destination_of_kind(info.kind) == found.forge);
    let Some((forge, info)) = opened else {
        let why = format!("the project has no remote at {} any more", found.forge.as_str());
        return Err(Error::UpstreamRejected(why));
    };
    let pushing =
        git::push_branch(&info.git_dir, &info.git, &found.branch, commit, &info.default_branch)
            .await;
    pushing.map_err(to_forge_error)?;
    if mode == DeliveryMode::Branch && found.remote_number.is_none() {
        return Ok(ForgePullRequest::default());
    }
    let new = NewPullRequest {
        branch: found.branch.clone(),
        base: info.default_branch.clone(),
        title: found.title.clone(),
        body: found.body.clone(),
    };
    let opened = forge.open_pull_request(&new).await?;
    if opened.state != PullState::Open {
        let why = "the pull request of the branch was merged or closed at the forge";
        return Err(Error::UpstreamRejected(why.into()));
    }
    Ok(ForgePullRequest { number: i64::try_from(opened.number).ok(), url: Some(opened.url) })
}
