//! Merge of a local pull request. The operation records the merge commit first and then moves the default branch by
//! compare and swap.

use cynode_core::{
    delivery::{
        CommitAuthor, Destination, PullRequestState, REQUIRE_APPROVAL_PREFERENCE, ReviewVerdict,
    },
    events::EventKind,
    ids::{PullRequestId, UserId},
    policies::ApprovalKind,
};
use cynode_db::{
    delivery::{
        pull_requests::{self, PullRequestRecord, PullRequestReview},
        repositories,
    },
    identity::accounts,
};
use cynode_wire::delivery::PullRequestView;
use serde_json::json;

use super::{MAX_DELIVERY_ROUNDS, barred_authors, require_decidable, to_pull_request_view};
use crate::{
    App, Ctx, Error, OperationRequest,
    delivery::repositories::{BranchMerge, BranchMove, NewCommit},
    platform::{context::EventDraft, operation},
    tasks::policies::require_second_person,
};

/// A recorded merge.
struct MergePlan {
    commit: String,
    parent: String,
}

/// Merges a pull request into its base branch. After a kill at any point a repeat still merges it exactly once.
#[tracing::instrument(name = "app.delivery.merge_pull_request", skip_all, fields(pull_request.id = %id))]
#[operation]
pub async fn merge_pull_request(
    app: &App,
    request: &OperationRequest,
    id: PullRequestId,
) -> Result<PullRequestView, Error> {
    let git = &app.gateway_parts()?.repositories;
    for _ in 0..MAX_DELIVERY_ROUNDS {
        let found = app.read(request, |ctx| Box::pin(require_mergeable(ctx, id))).await?;
        if found.state == PullRequestState::Merged {
            return Ok(to_pull_request_view(found));
        }
        let head = found.head_commit.clone().unwrap_or_default();
        let (project, base) = (found.project, &found.base_branch);
        let there = git.branch_head(project, base).await?;
        let there = there.ok_or(Error::Conflict("the base branch is gone"))?;
        // A killed process may already have executed the recorded merge.
        if let Some(meant) = &found.merge_commit
            && git.has_commit(project, meant).await?
            && git.contains_commit(project, &there, meant).await?
            && git.contains_commit(project, meant, &head).await?
        {
            return record_merge(app, request, &found, meant).await;
        }
        let Some(meant) = plan_merge(app, request, &found, &head, &there).await? else { continue };
        match git.move_branch(project, base, Some(&meant.parent), &meant.commit).await? {
            BranchMove::There => return record_merge(app, request, &found, &meant.commit).await,
            // The branch has moved: the merge is planned anew.
            BranchMove::Elsewhere(_) => {}
        }
    }
    Err(Error::Overloaded)
}

/// Returns a pull request that the caller may merge now, or that is already merged.
async fn require_mergeable(ctx: &mut Ctx, id: PullRequestId) -> Result<PullRequestRecord, Error> {
    let found = require_decidable(ctx, id).await?;
    if found.forge != Destination::Local {
        return Err(Error::Conflict("the pull request lives at a forge and is merged there"));
    }
    if found.state == PullRequestState::Open
        && cynode_db::delivery::forges::get_remote(ctx.conn(), found.project).await?.is_some()
    {
        let why = "the project lives at a forge now: what is merged here only would keep its newer commits out";
        return Err(Error::Conflict(why));
    }
    match found.state {
        PullRequestState::Merged => return Ok(found),
        PullRequestState::Open => {}
        other => return Err(other.invalid_transition("be merged").into()),
    }
    let (held, authors) = barred_authors(ctx, &found).await?;
    let user = ctx.caller()?.user;
    require_second_person(ctx, &held, &authors, user, ApprovalKind::Merge).await?;
    let mut reviews = pull_requests::list_reviews(ctx.conn(), id).await?;
    // An approval of an author from before the policy does not count.
    let counts = |review: &PullRequestReview| {
        review.verdict != ReviewVerdict::Approve || !authors.contains(&review.user)
    };
    reviews.retain(counts);
    let head = found.head_commit.as_deref().unwrap_or_default();
    let (approved, objected) = tally_verdicts(&reviews, head);
    if objected {
        return Err(Error::Conflict("somebody wants changes: they must approve it first"));
    }
    if !approved && is_approval_required(ctx, &found).await? {
        return Err(Error::Conflict("nobody has approved the commit that is offered"));
    }
    Ok(found)
}

/// Returns whether somebody approves a commit and whether somebody requests changes. The last verdict of each person
/// counts.
fn tally_verdicts(reviews: &[PullRequestReview], head: &str) -> (bool, bool) {
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

async fn is_approval_required(ctx: &mut Ctx, found: &PullRequestRecord) -> Result<bool, Error> {
    let task = super::task_of_pull_request(ctx, found).await?;
    let preferences = crate::tasks::preferences::workflow_preferences(ctx, &task).await?;
    let said = preferences.iter().find(|(key, _)| key.as_str() == REQUIRE_APPROVAL_PREFERENCE);
    Ok(said.and_then(|(_, value)| value.as_bool()).unwrap_or(false))
}

/// Records the planned merge, unless a recorded one is still valid. Returns `None` when it must be planned anew.
async fn plan_merge(
    app: &App,
    request: &OperationRequest,
    found: &PullRequestRecord,
    head: &str,
    there: &str,
) -> Result<Option<MergePlan>, Error> {
    // A recorded commit that no branch got may be gone: then the merge is planned anew.
    if let (Some(commit), Some(parent)) = (&found.merge_commit, &found.merge_parent)
        && parent == there
        && app.gateway_parts()?.repositories.has_commit(found.project, commit).await?
        && app.gateway_parts()?.repositories.contains_commit(found.project, commit, head).await?
    {
        return Ok(Some(MergePlan { commit: commit.clone(), parent: parent.clone() }));
    }
    let commit = build_merge_commit(app, request, found, head, there).await?;
    let mut ctx = app.begin_transaction(request).await?;
    let (caller, now) = (ctx.caller()?, ctx.now);
    let still = pull_requests::lock_pull_request(ctx.conn(), found.id).await?;
    // Another request was faster, or a commit was added.
    if still.as_ref() != Some(found) {
        return Ok(None);
    }
    pull_requests::record_merge_intent(ctx.conn(), found.id, &commit, there, caller.user, now)
        .await?;
    app.commit_operation(ctx).await?;
    Ok(Some(MergePlan { commit, parent: there.to_owned() }))
}

/// Creates the commit that merges the base branch and the head of the pull request.
async fn build_merge_commit(
    app: &App,
    request: &OperationRequest,
    found: &PullRequestRecord,
    head: &str,
    there: &str,
) -> Result<String, Error> {
    let (git, project) = (&app.gateway_parts()?.repositories, found.project);
    if git.contains_commit(project, head, there).await? {
        return Ok(head.to_owned());
    }
    let tree = match git.merge_trees(project, there, head).await? {
        BranchMerge::Clean(tree) => tree,
        BranchMerge::Conflict(files) => {
            let some: Vec<&str> = files.iter().take(10).map(String::as_str).collect();
            return Err(Error::MergeConflict(format!(
                "`{}` and the pull request changed the same places: {}",
                found.base_branch,
                some.join(", ")
            )));
        }
    };
    let author = app.read(request, |ctx| Box::pin(merge_author(ctx))).await?;
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
    Ok(git.create_commit(project, &new).await?)
}

/// Returns the person who merges as a commit author.
async fn merge_author(ctx: &mut Ctx) -> Result<CommitAuthor, Error> {
    let user = ctx.caller()?.user;
    let found = accounts::get_user(ctx.conn(), user).await?;
    let named = found
        .and_then(|user| format!("{} <{}@localhost>", user.display_name, user.handle).parse().ok());
    Ok(named.unwrap_or_default())
}

/// Records the merge and the new head of the base branch.
async fn record_merge(
    app: &App,
    request: &OperationRequest,
    found: &PullRequestRecord,
    commit: &str,
) -> Result<PullRequestView, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let now = ctx.now;
    let repository = repositories::lock_repository(ctx.conn(), found.project).await?;
    pull_requests::lock_pull_request(ctx.conn(), found.id).await?;
    if pull_requests::mark_pull_request_merged(ctx.conn(), found.id, Some(commit), now).await? {
        let data = json!({
            "pull_request_id": found.id, "number": found.number, "title": found.title, "commit": commit,
            "base_branch": found.base_branch,
        });
        let told = EventDraft::new(EventKind::PullRequestMerged, data);
        ctx.record_event(told.with_project(found.project).with_task(found.task)).await?;
    }
    // The branch itself is authoritative: others may have moved it since.
    if repository.is_some_and(|it| it.default_branch == found.base_branch) {
        let git = &app.gateway_parts()?.repositories;
        if let Some(head) = git.branch_head(found.project, &found.base_branch).await? {
            repositories::set_repository_head(ctx.conn(), found.project, &head).await?;
        }
    }
    let merged = pull_requests::get_pull_request(ctx.conn(), found.id).await?;
    app.commit_operation(ctx).await?;
    merged.map(to_pull_request_view).ok_or_else(|| Error::not_found("pull request", found.id))
}

#[cfg(test)]
mod tests {
    use cynode_core::ids::ReviewId;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn review(user: u128, verdict: ReviewVerdict, commit: &str) -> PullRequestReview {
        PullRequestReview {
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
        let said = |reviews: &[PullRequestReview]| tally_verdicts(reviews, "new");
        assert_eq!(said(&[]), (false, false));
        assert_eq!(said(&[review(1, Approve, "old")]), (false, false), "another commit");
        assert_eq!(said(&[review(1, Changes, "new"), review(1, Approve, "new")]), (true, false));
        assert_eq!(said(&[review(1, Approve, "new"), review(2, Changes, "new")]), (true, true));
        assert_eq!(said(&[review(1, Changes, "new"), review(1, Comment, "new")]), (false, true));
    }
}
