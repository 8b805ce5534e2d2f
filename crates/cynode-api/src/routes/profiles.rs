//! Profiles: what agents may use.

use axum::http::StatusCode;
use cynode_app::tools::{profile_checks, profiles};
use cynode_core::ids::ProjectId;
use cynode_wire::tools::{
    profile_checks::{CheckProfile, ProfileDecisions},
    profiles::{CreateProfile, ProfileVersionView, ProfileView, UpdateProfile},
};
use serde::Deserialize;

use super::tools::UnpagedList;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path, Query},
};

/// Place of a profile.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ProfileQuery {
    /// The project; the installation when it is left out.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
}

/// Lists the profiles that agents of a project, or of the installation, may work under: those that come with the product first.
#[utoipa::path(get, path = "/v1/profiles", tag = "gate", params(ProfileQuery),
    responses((status = OK, body = UnpagedList<ProfileView>)))]
pub(crate) async fn list_profiles(
    call: AuthenticatedCall,
    Query(of): Query<ProfileQuery>,
) -> Result<Json<UnpagedList<ProfileView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| profiles::list_profiles(ctx, of.project_id));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Creates a profile. What it does not name is not there for the agents under it.
#[utoipa::path(post, path = "/v1/profiles", tag = "gate", request_body = CreateProfile,
    responses((status = CREATED, body = ProfileView)))]
pub(crate) async fn create_profile(
    call: MutationCall<CreateProfile>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let made = app.mutate(&request, |ctx| profiles::create_profile(ctx, body));
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Returns the profile of that name that holds in a project: one of the product, of the project or of the installation.
#[utoipa::path(get, path = "/v1/profiles/{name}", tag = "gate",
    params(("name" = String, Path), ProfileQuery), responses((status = OK, body = ProfileView)))]
pub(crate) async fn get_profile(
    call: AuthenticatedCall,
    Path(name): Path<String>,
    Query(of): Query<ProfileQuery>,
) -> Result<Json<ProfileView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { profiles::get_profile(ctx, of.project_id, &name).await })
    });
    Ok(Json(found.await?))
}

/// Replaces a profile, unless another writer changed it in between. Agents under it have the new version at once.
#[utoipa::path(put, path = "/v1/profiles/{name}", tag = "gate",
    params(("name" = String, Path), ProfileQuery), request_body = UpdateProfile,
    responses((status = OK, body = ProfileView)))]
pub(crate) async fn update_profile(
    Path(name): Path<String>,
    Query(of): Query<ProfileQuery>,
    call: MutationCall<UpdateProfile>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let written = app.mutate(&request, |ctx| {
        Box::pin(async move { profiles::update_profile(ctx, of.project_id, &name, body).await })
    });
    Ok(MutationResponse(StatusCode::OK, written.await?))
}

/// Deletes a profile. Agents under it are refused everything from then on.
#[utoipa::path(delete, path = "/v1/profiles/{name}", tag = "gate",
    params(("name" = String, Path), ProfileQuery), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_profile(
    Path(name): Path<String>,
    Query(of): Query<ProfileQuery>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { profiles::delete_profile(ctx, of.project_id, &name).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Lists the versions of a profile of exactly that project, or of the installation, newest first.
#[utoipa::path(get, path = "/v1/profiles/{name}/versions", tag = "gate",
    params(("name" = String, Path), ProfileQuery),
    responses((status = OK, body = UnpagedList<ProfileVersionView>)))]
pub(crate) async fn list_profile_versions(
    call: AuthenticatedCall,
    Path(name): Path<String>,
    Query(of): Query<ProfileQuery>,
) -> Result<Json<UnpagedList<ProfileVersionView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { profiles::list_profile_versions(ctx, of.project_id, &name).await })
    });
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Returns what a profile permits, by the functions that the gateway, the egress and nodes ask. Nothing is called and nothing is recorded.
#[utoipa::path(post, path = "/v1/profiles/{name}/check", tag = "gate",
    params(("name" = String, Path), ProfileQuery), request_body = CheckProfile,
    responses((status = OK, body = ProfileDecisions)))]
pub(crate) async fn check_profile(
    Path(name): Path<String>,
    Query(of): Query<ProfileQuery>,
    call: MutationCall<CheckProfile>,
) -> Result<Json<ProfileDecisions>, ApiError> {
    let MutationCall { app, request, body } = call;
    let found = app.read(&request, |ctx| {
        Box::pin(
            async move { profile_checks::check_profile(ctx, of.project_id, &name, body).await },
        )
    });
    Ok(Json(found.await?))
}
