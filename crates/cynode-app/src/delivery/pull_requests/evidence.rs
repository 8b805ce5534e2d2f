//! Evidence gate of delivery: the one place that checks evidence before anything is delivered.

use cynode_core::{evidence::CheckTally, tasks::Task, workflow::evidence::EvidenceView};
use cynode_db::delivery::{evidence, pull_requests::PullRequestRecord};
use cynode_wire::delivery::PullRequestCheck;

use crate::{App, Ctx, Error};

/// Rejects the delivery of a commit without fresh evidence. A commit with failing evidence, or one that was never
/// checked, is not delivered.
pub(super) async fn require_fresh_evidence(
    app: &App,
    task: &Task,
    commit: &str,
) -> Result<(), Error> {
    let mut conn = app.conn().await?;
    crate::delivery::evidence::require_evidence(&mut conn, task.id, &task.acceptance_criteria)
        .await?;
    let shown = evidence::list_task_evidence(&mut conn, task.id, true).await?;
    let wanted = task.acceptance_criteria.iter().any(|criterion| criterion.check.is_some());
    // Evidence of an earlier commit does not cover this one.
    let fresh = |it: &EvidenceView| it.commit.as_deref() == Some(commit);
    if wanted && !shown.iter().any(fresh) {
        return Err(Error::Invalid("the commit that is to be delivered was not checked".into()));
    }
    Ok(())
}

/// Lists the checks of the work in a pull request.
pub(super) async fn list_pull_request_checks(
    ctx: &mut Ctx,
    found: &PullRequestRecord,
) -> Result<Vec<PullRequestCheck>, Error> {
    let shown = evidence::list_task_evidence(ctx.conn(), found.task, true).await?;
    let fresh = shown.into_iter().filter(|it| !it.stale);
    let each = fresh.flat_map(|it| {
        let waived = it.waived.clone();
        it.checks.into_iter().map(move |result| PullRequestCheck {
            name: result.check.command_line(),
            state: match result.tally {
                CheckTally::Passed | CheckTally::Flaky => "passed",
                CheckTally::Failed | CheckTally::Before => "failed",
                CheckTally::Again => "pending",
            }
            .to_owned(),
            url: None,
            summary: match (result.tally, &waived) {
                (CheckTally::Flaky, _) => Some("holds only sometimes".to_owned()),
                (CheckTally::Before, _) => Some("did not hold before the change either".to_owned()),
                (CheckTally::Failed, Some(why)) => Some(format!("taken all the same: {why}")),
                (CheckTally::Passed | CheckTally::Failed | CheckTally::Again, _) => None,
            },
        })
    });
    Ok(each.collect())
}
