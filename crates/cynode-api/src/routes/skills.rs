//! Skills, for people: the same operations as the tools of agents.

use axum::http::StatusCode;
use cynode_app::{manager::skills, tasks::projects};
use cynode_core::ids::SkillId;
use cynode_wire::manager::skills::{
    CreateSkill, ImportSkill, SkillExport, SkillSummary, SkillVersionSummary, SkillVersionView,
    SkillView, UpdateSkill,
};
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
    /// The project, by id or slug. When it is left out: the skills of the installation and your own.
    #[param(value_type = Option<String>)]
    project: Option<ProjectName>,
}

/// Creates a skill: instructions for agents. A skill of the installation needs an admin, one of a project an operator, and everybody has
/// their own. A skill that looks malicious is refused.
#[utoipa::path(post, path = "/v1/skills", tag = "skills", request_body = CreateSkill,
    responses((status = CREATED, body = SkillView)))]
pub(crate) async fn create_skill(
    call: MutationCall<CreateSkill>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    let mut content = skills::content_of_request(&mut body);
    skills::redact_content(&app, &mut content).await?;
    let made = app.mutate(&request, |ctx| skills::create_skill_from_body(ctx, body, content));
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Creates a skill from a folder in the open format, or replaces the one of that name. It is checked as one that is written.
#[utoipa::path(post, path = "/v1/skills/import", tag = "skills", request_body = ImportSkill,
    responses((status = CREATED, body = SkillView)))]
pub(crate) async fn import_skill(
    call: MutationCall<ImportSkill>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    let mut folder = skills::read_folder(&mut body)?;
    skills::redact_content(&app, &mut folder.content).await?;
    let made = app.mutate(&request, |ctx| skills::import_skill(ctx, body, folder));
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Lists the skills of a project by name, or those of the installation and then your own, without their instructions.
#[utoipa::path(get, path = "/v1/skills", tag = "skills", params(SkillQuery),
    responses((status = OK, body = UnpagedList<SkillSummary>)))]
pub(crate) async fn list_skills(
    call: AuthenticatedCall,
    Query(SkillQuery { project }): Query<SkillQuery>,
) -> Result<Json<UnpagedList<SkillSummary>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let Some(ProjectName(project)) = project else {
                return skills::list_common_skills(ctx).await;
            };
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

/// Returns a skill as a folder in the open format: its `SKILL.md` and its files.
#[utoipa::path(get, path = "/v1/skills/{skill}/export", tag = "skills", params(("skill" = String, Path)),
    responses((status = OK, body = SkillExport)))]
pub(crate) async fn export_skill(
    call: AuthenticatedCall,
    Path(skill): Path<SkillId>,
) -> Result<Json<SkillExport>, ApiError> {
    Ok(Json(call.app.read(&call.request, |ctx| skills::export_skill(ctx, skill)).await?))
}

/// Lists the versions of a skill that are kept, the newest first.
#[utoipa::path(get, path = "/v1/skills/{skill}/versions", tag = "skills", params(("skill" = String, Path)),
    responses((status = OK, body = UnpagedList<SkillVersionSummary>)))]
pub(crate) async fn list_skill_versions(
    call: AuthenticatedCall,
    Path(skill): Path<SkillId>,
) -> Result<Json<UnpagedList<SkillVersionSummary>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| skills::list_versions(ctx, skill));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Returns what a version of a skill says.
#[utoipa::path(get, path = "/v1/skills/{skill}/versions/{version}", tag = "skills",
    params(("skill" = String, Path), ("version" = i64, Path)), responses((status = OK, body = SkillVersionView)))]
pub(crate) async fn get_skill_version(
    call: AuthenticatedCall,
    Path((skill, version)): Path<(SkillId, i64)>,
) -> Result<Json<SkillVersionView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| skills::get_version(ctx, skill, version));
    Ok(Json(found.await?))
}

/// Replaces a skill, unless another writer changed it in between.
#[utoipa::path(put, path = "/v1/skills/{skill}", tag = "skills", params(("skill" = String, Path)),
    request_body = UpdateSkill, responses((status = OK, body = SkillView)))]
pub(crate) async fn update_skill(
    Path(skill): Path<SkillId>,
    call: MutationCall<UpdateSkill>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let (version, mut change) = skills::change_of_request(body);
    skills::redact_change(&app, &mut change).await?;
    let written = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let written = skills::update_skill(ctx, skill, version, change).await?;
            Ok(skills::to_skill_view(&written))
        })
    });
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
