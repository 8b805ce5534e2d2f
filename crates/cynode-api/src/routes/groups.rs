use axum::http::StatusCode;
use cynode_app::identity::groups;
use cynode_core::{ids::GroupId, paging::Page};
use cynode_wire::identity::accounts::{CreateGroup, GroupView, UpdateGroup};

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// Creates a group of users.
#[utoipa::path(post, path = "/v1/groups", tag = "accounts", request_body = CreateGroup,
    responses((status = CREATED, body = GroupView)))]
pub(crate) async fn create_group(
    call: MutationCall<CreateGroup>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async { Ok(GroupView::from(groups::create_group(ctx, body).await?)) })
    });
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Lists all groups.
#[utoipa::path(get, path = "/v1/groups", tag = "accounts", params(PageQuery),
    responses((status = OK, body = Page<GroupView>)))]
pub(crate) async fn list_groups(
    call: AuthenticatedCall,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<GroupView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| groups::list_groups(ctx, page)).await?;
    Ok(Json(found.map(GroupView::from)))
}

/// Updates the members of a group and their role in the installation.
#[utoipa::path(patch, path = "/v1/groups/{group}", tag = "accounts", params(("group" = String, Path)),
    request_body = UpdateGroup, responses((status = OK, body = GroupView)))]
pub(crate) async fn update_group(
    Path(id): Path<GroupId>,
    call: MutationCall<UpdateGroup>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move { Ok(GroupView::from(groups::update_group(ctx, id, body).await?)) })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}
