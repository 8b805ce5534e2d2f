//! Reviews of what agents wrote. A skill, schedule or task of an agent is marked as unreviewed until a person has looked
//! at it or has written it anew.

use cynode_core::{events::EventKind, ids::ProjectId, roles::UserRole, skills::SkillOwner};
use cynode_db::{tasks, workflow::schedules};
use cynode_wire::workflow::reviews::ReviewContent;
use serde_json::{Value, json};

use crate::{
    Ctx, Error,
    platform::{context::EventDraft, operation},
};

/// Records that a person has reviewed a skill, a schedule or a task. Agents review nothing.
#[tracing::instrument(name = "app.reviews.review_content", skip_all)]
#[operation]
pub async fn review_content(ctx: &mut Ctx, body: ReviewContent) -> Result<(), Error> {
    if ctx.is_agent() {
        return Err(Error::forbidden(UserRole::Operator, "as a person: agents review nothing"));
    }
    match (body.skill_id, body.schedule_id, body.task_id) {
        (Some(id), None, None) => {
            let head = crate::manager::skills::review_skill(ctx, id, body.version).await?;
            let version = body.version.unwrap_or(head.version);
            let data = json!({ "skill_id": id, "version": version });
            let draft = EventDraft::new(EventKind::ContentReviewed, data);
            ctx.record_event(match head.owner {
                SkillOwner::Installation => draft,
                SkillOwner::Project(project) => draft.with_project(project),
                SkillOwner::Person(user) => draft.with_subject(user),
            })
            .await
        }
        (None, Some(id), None) => {
            let project = super::schedules::get_schedule(ctx, id).await?.project_id;
            ctx.require_project_role(project, UserRole::Operator).await?;
            schedules::mark_schedule_reviewed(ctx.conn(), id).await?;
            record_review(ctx, project, json!({ "schedule_id": id })).await
        }
        (None, None, Some(id)) => {
            let project = crate::tasks::get_task(ctx, id).await?.project;
            ctx.require_project_role(project, UserRole::Operator).await?;
            tasks::mark_task_reviewed(ctx.conn(), id).await?;
            record_review(ctx, project, json!({ "task_id": id })).await
        }
        _ => Err(Error::Invalid("name one thing: `skill_id`, `schedule_id` or `task_id`".into())),
    }
}

async fn record_review(ctx: &mut Ctx, project: ProjectId, data: Value) -> Result<(), Error> {
    ctx.record_event(EventDraft::new(EventKind::ContentReviewed, data).with_project(project)).await
}
