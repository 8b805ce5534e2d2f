//! Merging here: a person moves the default branch, from a commit that was seen to one that was written down first.

use cynode_core::{
    delivery::{Author, Destination, PullRequestState, REQUIRE_APPROVAL, ReviewVerdict},
    events::EventKind,
    ids::{PullRequestId, UserId},
};
use cynode_db::{
    accounts,
    pull_requests::{self, PullRequest, Review},
    repositories,
};
use cynode_wire::delivery::PullRequestView;
use serde_json::json;

use super::{ROUNDS, decidable, view};
use crate::{
    App, Ctx, Error, Request,
    context::Told,
    repositories::{Joined, Moved, NewCommit},
};

/// A merge that was written down.
struct Meant {
    commit: String,
    parent: String,
}

/// Takes a pull request over into its base branch. Killed anywhere and asked again, it is taken over once.
#[tracing::instrument(name = "app.delivery.merge", skip_all, fields(pull_request.id = %id))]
pub async fn merge(
    app: &App,
    request: &Request,
    id: PullRequestId,
) -> Result<PullRequestView, Error> {
    let git = &app.gate()?.repositories;
    for _ in 0..ROUNDS {
        let found = app.read(request, |ctx| Box::pin(mergeable(ctx, id))).await?;
        if found.state == PullRequestState::Merged {
            return Ok(view(found));
        }
        let head = found.head_commit.clone().unwrap_or_default();
        let (project, base) = (found.project, &found.base_branch);
        let there = git.branch(project, base).await?;
        let there = there.ok_or(Error::Conflict("the base branch is gone"))?;
        // What was meant before may have been done by whoever was killed then.
        if let Some(meant) = &found.merge_commit
            && git.contains(project, &there, meant).await?
            && git.contains(project, meant, &head).await?
        {
            return taken_over(app, request, &found, meant).await;
        }
        let Some(meant) = mean(app, request, &found, &head, &there).await? else { continue };
        match git.move_branch(project, base, Some(&meant.parent), &meant.commit).await? {
            Moved::There => return taken_over(app, request, &found, &meant.commit).await,
            // Somebody brought something: it is looked at anew.
            Moved::Elsewhere(_) => {}
        }
    }
    Err(Error::Busy)
}

/// A pull request that the caller may merge now, or that was merged before.
async fn mergeable(ctx: &mut Ctx, id: PullRequestId) -> Result<PullRequest, Error> {
    let found = decidable(ctx, id).await?;
    if found.forge != Destination::Local {
        return Err(Error::Conflict("the pull request lives at a forge and is merged there"));
    }
    if found.state == PullRequestState::Open
        && cynode_db::remotes::get(ctx.conn(), found.project).await?.is_some()
    {
        let why = "the project lives at a forge now: what is merged here only would keep its newer commits out";
        return Err(Error::Conflict(why));
    }
    match found.state {
        PullRequestState::Merged => return Ok(found),
        PullRequestState::Open => {}
        other => return Err(other.cannot("be merged").into()),
    }
    let reviews = pull_requests::reviews(ctx.conn(), id).await?;
    let head = found.head_commit.as_deref().unwrap_or_default();
    let (approved, objected) = opinions(&reviews, head);
    if objected {
        return Err(Error::Conflict("somebody wants changes: they must approve it first"));
    }
    if !approved && approval_required(ctx, &found).await? {
        return Err(Error::Conflict("nobody has approved the commit that is offered"));
    }
    Ok(found)
}

/// Whether somebody approves of a commit, and whether somebody wants it different. Of each person the last word counts.
fn opinions(reviews: &[Review], head: &str) -> (bool, bool) {
    let mut last: Vec<(UserId, ReviewVerdict)> = Vec::new();
    for review in reviews.iter().filter(|review| review.commit == head) {
        if review.verdict != ReviewVerdict::Comment {
            last.retain(|(user, _)| *user != review.user);
            last.push((review.user, review.verdict));
        }
    }
    let any = |wanted| last.iter().any(|(_, verdict)| *verdict == wanted);
    (any(ReviewVerdict::Approve), any(ReviewVerdict::Changes))
}

async fn approval_required(ctx: &mut Ctx, found: &PullRequest) -> Result<bool, Error> {
    let task = super::task_of(ctx, found).await?;
    let preferences = crate::preferences::of_workflow(ctx, &task).await?;
    let said = preferences.iter().find(|(key, _)| key.as_str() == REQUIRE_APPROVAL);
    Ok(said.and_then(|(_, value)| value.as_bool()).unwrap_or(false))
}

/// Writes down how it is to be merged, unless that was done and still holds. `None` when it is to be looked at anew.
async fn mean(
    app: &App,
    request: &Request,
    found: &PullRequest,
    head: &str,
    there: &str,
) -> Result<Option<Meant>, Error> {
    if let (Some(commit), Some(parent)) = (&found.merge_commit, &found.merge_parent)
        && parent == there
        && app.gate()?.repositories.contains(found.project, commit, head).await?
    {
        return Ok(Some(Meant { commit: commit.clone(), parent: parent.clone() }));
    }
    let commit = joined(app, request, found, head, there).await?;
    let mut ctx = app.open(request).await?;
    let (caller, now) = (ctx.caller()?, ctx.now);
    let still = pull_requests::lock(ctx.conn(), found.id).await?;
    // Somebody else was quicker, or something was added.
    if still.as_ref() != Some(found) {
        return Ok(None);
    }
    pull_requests::mean_to_merge(ctx.conn(), found.id, &commit, there, caller.user, now).await?;
    app.commit(ctx).await?;
    Ok(Some(Meant { commit, parent: there.to_owned() }))
}

/// The commit that has both the base branch and what is offered in it.
async fn joined(
    app: &App,
    request: &Request,
    found: &PullRequest,
    head: &str,
    there: &str,
) -> Result<String, Error> {
    let (git, project) = (&app.gate()?.repositories, found.project);
    if git.contains(project, head, there).await? {
        return Ok(head.to_owned());
    }
    let tree = match git.join(project, there, head).await? {
        Joined::Clean(tree) => tree,
        Joined::Conflict(files) => {
            let some: Vec<&str> = files.iter().take(10).map(String::as_str).collect();
            return Err(Error::Clash(format!(
                "`{}` and the pull request changed the same places: {}",
                found.base_branch,
                some.join(", ")
            )));
        }
    };
    let author = app.read(request, |ctx| Box::pin(person(ctx))).await?;
    let message = format!(
        "Merge pull request #{}: {}\n\nCyNode-Task: {}\n",
        found.number, found.title, found.task
    );
    let new = NewCommit {
        tree: &tree,
        parents: &[there, head],
        message: &message,
        author: &author,
        at: app.environment().now(),
    };
    Ok(git.make_commit(project, &new).await?)
}

/// The person who merges, as a commit names them.
async fn person(ctx: &mut Ctx) -> Result<Author, Error> {
    let user = ctx.caller()?.user;
    let found = accounts::user(ctx.conn(), user).await?;
    let named = found
        .and_then(|user| format!("{} <{}@localhost>", user.display_name, user.handle).parse().ok());
    Ok(named.unwrap_or_default())
}

/// Notes that it was taken over, and what the base branch has now.
async fn taken_over(
    app: &App,
    request: &Request,
    found: &PullRequest,
    commit: &str,
) -> Result<PullRequestView, Error> {
    let mut ctx = app.open(request).await?;
    let now = ctx.now;
    let repository = repositories::lock(ctx.conn(), found.project).await?;
    pull_requests::lock(ctx.conn(), found.id).await?;
    if pull_requests::merge(ctx.conn(), found.id, Some(commit), now).await? {
        let data = json!({
            "pull_request_id": found.id, "number": found.number, "title": found.title, "commit": commit,
            "base_branch": found.base_branch,
        });
        let told = Told::new(EventKind::PullRequestMerged, data);
        ctx.record(told.project(found.project).task(found.task)).await?;
    }
    // The branch itself says what it has: others may have moved it since.
    if repository.is_some_and(|it| it.default_branch == found.base_branch) {
        let git = &app.gate()?.repositories;
        if let Some(head) = git.branch(found.project, &found.base_branch).await? {
            repositories::set_head(ctx.conn(), found.project, &head).await?;
        }
    }
    let merged = pull_requests::get(ctx.conn(), found.id).await?;
    app.commit(ctx).await?;
    merged.map(view).ok_or_else(|| Error::not_found("pull request", found.id))
}

#[cfg(test)]
mod tests {
    use cynode_core::ids::ReviewId;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn review(user: u128, verdict: ReviewVerdict, commit: &str) -> Review {
        Review {
            id: ReviewId::from_uuid(Uuid::nil()),
            user: UserId::from_uuid(Uuid::from_u128(user)),
            verdict,
            note: None,
            commit: commit.to_owned(),
            created_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn of_each_person_the_last_word_about_the_commit_counts() {
        use ReviewVerdict::{Approve, Changes, Comment};
        let said = |reviews: &[Review]| opinions(reviews, "new");
        assert_eq!(said(&[]), (false, false));
        assert_eq!(said(&[review(1, Approve, "old")]), (false, false), "another commit");
        assert_eq!(said(&[review(1, Changes, "new"), review(1, Approve, "new")]), (true, false));
        assert_eq!(said(&[review(1, Approve, "new"), review(2, Changes, "new")]), (true, true));
        assert_eq!(said(&[review(1, Changes, "new"), review(1, Comment, "new")]), (false, true));
    }
}
