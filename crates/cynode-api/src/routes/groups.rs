use axum::http::StatusCode;
use cynode_app::groups;
use cynode_core::ids::GroupId;
use cynode_wire::{
    accounts::{CreateGroup, GroupView, UpdateGroup},
    page::Page,
};

use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, PageQuery, Path, Query},
};

/// Make a group of users.
#[utoipa::path(post, path = "/v1/groups", tag = "accounts", request_body = CreateGroup,
    responses((status = CREATED, body = GroupView)))]
pub(crate) async fn create_group(call: Mutation<CreateGroup>) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async { Ok(GroupView::from(groups::create(ctx, body).await?)) })
    });
    Ok(Answered(StatusCode::CREATED, answer.await?))
}

/// All groups.
#[utoipa::path(get, path = "/v1/groups", tag = "accounts", params(PageQuery),
    responses((status = OK, body = Page<GroupView>)))]
pub(crate) async fn list_groups(
    call: Call,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<GroupView>>, ApiError> {
    let page = page.page()?;
    let found = call.app.read(&call.request, |ctx| Box::pin(groups::list(ctx, page))).await?;
    Ok(Json(found.map(GroupView::from)))
}

/// Change who is in a group and what its members may do.
#[utoipa::path(patch, path = "/v1/groups/{group}", tag = "accounts", params(("group" = String, Path)),
    request_body = UpdateGroup, responses((status = OK, body = GroupView)))]
pub(crate) async fn update_group(
    Path(id): Path<GroupId>,
    call: Mutation<UpdateGroup>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move { Ok(GroupView::from(groups::update(ctx, id, body).await?)) })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}
