//! Skills, for people: the same operations as the tools of agents.

use axum::http::StatusCode;
use cynode_app::{manager::skills, tasks::projects};
use cynode_core::ids::SkillId;
use cynode_wire::manager::skills::{CreateSkill, SkillSummary, SkillView, UpdateSkill};
use serde::Deserialize;

use super::{projects::ProjectName, tools::UnpagedList};
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path, Query},
};

/// Filter of skills.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SkillQuery {
    /// The project, by id or slug.
    #[param(value_type = String)]
    project: ProjectName,
}

/// Creates a skill: instructions for the agents of a project. A skill that looks malicious is refused.
#[utoipa::path(post, path = "/v1/skills", tag = "skills", request_body = CreateSkill,
    responses((status = CREATED, body = SkillView)))]
pub(crate) async fn create_skill(
    call: MutationCall<CreateSkill>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    skills::redact_skill(&app, &mut body.description, &mut body.body).await?;
    let made = app.mutate(&request, |ctx| skills::create_skill_from_body(ctx, body));
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Lists the skills of a project by name, without their instructions.
#[utoipa::path(get, path = "/v1/skills", tag = "skills", params(SkillQuery),
    responses((status = OK, body = UnpagedList<SkillSummary>)))]
pub(crate) async fn list_skills(
    call: AuthenticatedCall,
    Query(SkillQuery { project: ProjectName(project) }): Query<SkillQuery>,
) -> Result<Json<UnpagedList<SkillSummary>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            skills::list_skills(ctx, id).await
        })
    });
    Ok(Json(UnpagedList::new(found.await?.iter().map(skills::to_skill_summary).collect())))
}

/// Returns one skill with its instructions.
#[utoipa::path(get, path = "/v1/skills/{skill}", tag = "skills", params(("skill" = String, Path)),
    responses((status = OK, body = SkillView)))]
pub(crate) async fn get_skill(
    call: AuthenticatedCall,
    Path(skill): Path<SkillId>,
) -> Result<Json<SkillView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| skills::get_skill(ctx, skill));
    Ok(Json(skills::to_skill_view(&found.await?)))
}

/// Replaces a skill, unless another writer changed it in between.
#[utoipa::path(put, path = "/v1/skills/{skill}", tag = "skills", params(("skill" = String, Path)),
    request_body = UpdateSkill, responses((status = OK, body = SkillView)))]
pub(crate) async fn update_skill(
    Path(skill): Path<SkillId>,
    call: MutationCall<UpdateSkill>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    skills::redact_skill(&app, &mut body.description, &mut body.body).await?;
    let written = app.mutate(&request, |ctx| skills::update_skill_from_body(ctx, skill, body));
    Ok(MutationResponse(StatusCode::OK, written.await?))
}

/// Deletes a skill.
#[utoipa::path(delete, path = "/v1/skills/{skill}", tag = "skills", params(("skill" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_skill(
    Path(skill): Path<SkillId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| skills::delete_skill(ctx, skill));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}
