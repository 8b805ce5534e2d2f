//! Skills, for people: the same operations as the tools of agents.

use axum::http::StatusCode;
use cynode_app::{projects, skills};
use cynode_core::ids::SkillId;
use cynode_wire::skills::{CreateSkill, SkillSummary, SkillView, UpdateSkill};
use serde::Deserialize;

use super::{gate::Whole, projects::ProjectName};
use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, Path, Query},
};

/// Whose skills are wanted.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SkillQuery {
    /// The project, by id or slug.
    #[param(value_type = String)]
    project: ProjectName,
}

/// Write instructions that agents of a project may be given. What looks malicious is refused.
#[utoipa::path(post, path = "/v1/skills", tag = "skills", request_body = CreateSkill,
    responses((status = CREATED, body = SkillView)))]
pub(crate) async fn create_skill(call: Mutation<CreateSkill>) -> Result<Answered, ApiError> {
    let Mutation { app, request, mut body } = call;
    skills::without_secrets(&app, &mut body.description, &mut body.body).await?;
    let made = app.mutate(&request, |ctx| Box::pin(skills::write(ctx, body)));
    Ok(Answered(StatusCode::CREATED, made.await?))
}

/// The skills of a project by name, without their instructions.
#[utoipa::path(get, path = "/v1/skills", tag = "skills", params(SkillQuery),
    responses((status = OK, body = Whole<SkillSummary>)))]
pub(crate) async fn list_skills(
    call: Call,
    Query(SkillQuery { project: ProjectName(project) }): Query<SkillQuery>,
) -> Result<Json<Whole<SkillSummary>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project).await?;
            skills::list(ctx, id).await
        })
    });
    Ok(Json(Whole::new(found.await?.iter().map(skills::summary).collect())))
}

/// One skill with its instructions.
#[utoipa::path(get, path = "/v1/skills/{skill}", tag = "skills", params(("skill" = String, Path)),
    responses((status = OK, body = SkillView)))]
pub(crate) async fn get_skill(
    call: Call,
    Path(skill): Path<SkillId>,
) -> Result<Json<SkillView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(skills::get(ctx, skill)));
    Ok(Json(skills::view(&found.await?)))
}

/// Write a skill anew, if nobody did in between.
#[utoipa::path(put, path = "/v1/skills/{skill}", tag = "skills", params(("skill" = String, Path)),
    request_body = UpdateSkill, responses((status = OK, body = SkillView)))]
pub(crate) async fn update_skill(
    Path(skill): Path<SkillId>,
    call: Mutation<UpdateSkill>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, mut body } = call;
    skills::without_secrets(&app, &mut body.description, &mut body.body).await?;
    let written = app.mutate(&request, |ctx| Box::pin(skills::rewrite(ctx, skill, body)));
    Ok(Answered(StatusCode::OK, written.await?))
}

/// Remove a skill.
#[utoipa::path(delete, path = "/v1/skills/{skill}", tag = "skills", params(("skill" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_skill(
    Path(skill): Path<SkillId>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| Box::pin(skills::delete(ctx, skill)));
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
}
