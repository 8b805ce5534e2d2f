//! What people say to the agent of a job: preferences as constraints, additional context, and skills that fit the work.

use cynode_core::workflow::jobs::JobSpec;
use cynode_db::{Conn, nodes::ClaimedNodeJob};

use crate::{
    Error,
    manager::{given_context::job_text, skills},
    tasks::preferences::resolve_effective,
};

/// Adds what people say to the work of a job. What a plan says of it is dropped: it could make it up.
pub(super) async fn guide_job(
    conn: &mut Conn,
    job: &ClaimedNodeJob,
    work: &mut JobSpec,
) -> Result<(), Error> {
    work.context.additional_context = None;
    work.context.skills = Vec::new();
    // Work that no agent does needs no guidance.
    let Some(text) = job_text(&job.payload.title, work) else { return Ok(()) };
    let (project, task) = (Some(job.project), Some(job.task));
    let held = resolve_effective(conn, Some(work.role), job.user, project, task).await?;
    for constraint in held.agent_constraints() {
        if !work.context.constraints.contains(&constraint) {
            work.context.constraints.push(constraint);
        }
    }
    work.context.additional_context = held.agent_additional_context();
    work.context.skills = skills::skills_for(conn, job.user, job.project, &text).await?;
    Ok(())
}
