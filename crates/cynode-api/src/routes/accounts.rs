use axum::{http::StatusCode, response::IntoResponse};
use cynode_app::{api_keys, bootstrap as first_admin, sessions, users};
use cynode_core::ids::{ApiKeyId, UserId};
use cynode_wire::{
    accounts::{
        ApiKeyView, Bootstrap, CreateApiKey, CreateUser, CreatedApiKey, Login, MeView, SessionView,
        UpdateUser, UserView,
    },
    page::Page,
};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{Anonymous, Answered, Call, Json, Mutation, PageQuery, Path, Query},
};

/// Make the first admin with the one-time token.
#[utoipa::path(post, path = "/v1/bootstrap", tag = "accounts", request_body = Bootstrap,
    responses((status = CREATED, body = UserView)))]
pub(crate) async fn bootstrap(call: Anonymous<Bootstrap>) -> Result<Answered, ApiError> {
    let Anonymous { app, request, body } = call;
    let password = first_admin::hash(&app, &body).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async { Ok(UserView::from(first_admin::redeem(ctx, body, password).await?)) })
    });
    Ok(Answered(StatusCode::CREATED, answer.await?))
}

/// Log in. The token in the answer is shown only once.
#[utoipa::path(post, path = "/v1/sessions", tag = "accounts", request_body = Login,
    responses((status = CREATED, body = SessionView)))]
pub(crate) async fn login(call: Anonymous<Login>) -> Result<impl IntoResponse, ApiError> {
    let Anonymous { app, request, body } = call;
    Ok((StatusCode::CREATED, Json(sessions::login(&app, &request, &body).await?)))
}

/// Log out: the token of this request stops working.
#[utoipa::path(delete, path = "/v1/sessions/current", tag = "accounts",
    responses((status = NO_CONTENT)))]
pub(crate) async fn logout(call: Mutation<()>) -> Result<Answered, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| Box::pin(sessions::logout(ctx))).await?;
    Ok(Answered(StatusCode::NO_CONTENT, answer))
}

/// Who am I.
#[utoipa::path(get, path = "/v1/me", tag = "accounts", responses((status = OK, body = MeView)))]
pub(crate) async fn me(call: Call) -> Result<Json<MeView>, ApiError> {
    Ok(Json(call.app.read(&call.request, |ctx| Box::pin(sessions::me(ctx))).await?))
}

/// Make an API key for yourself. The token in the answer is shown only once.
#[utoipa::path(post, path = "/v1/api-keys", tag = "accounts", request_body = CreateApiKey,
    responses((status = CREATED, body = CreatedApiKey)))]
pub(crate) async fn create_api_key(call: Mutation<CreateApiKey>) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let answer = app.mutate_secret(&request, |ctx| Box::pin(api_keys::create(ctx, body))).await?;
    Ok(Answered(StatusCode::CREATED, answer))
}

/// Whose keys are wanted.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Whose {
    /// Those of this user, for an admin of the installation; your own when it is left out.
    #[param(value_type = Option<String>)]
    user_id: Option<UserId>,
}

/// Your API keys, without their secrets.
#[utoipa::path(get, path = "/v1/api-keys", tag = "accounts", params(Whose, PageQuery),
    responses((status = OK, body = Page<ApiKeyView>)))]
pub(crate) async fn list_api_keys(
    call: Call,
    Query(Whose { user_id }): Query<Whose>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ApiKeyView>>, ApiError> {
    let page = page.page()?;
    let keys = call.app.read(&call.request, |ctx| Box::pin(api_keys::list(ctx, user_id, page)));
    let keys = keys.await?;
    Ok(Json(keys.map(ApiKeyView::from)))
}

/// Revoke an API key: it stops working at once.
#[utoipa::path(delete, path = "/v1/api-keys/{api_key}", tag = "accounts",
    params(("api_key" = String, Path)), responses((status = OK, body = ApiKeyView)))]
pub(crate) async fn revoke_api_key(
    Path(id): Path<ApiKeyId>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { Ok(ApiKeyView::from(api_keys::revoke(ctx, id).await?)) })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}

/// Make a user.
#[utoipa::path(post, path = "/v1/users", tag = "accounts", request_body = CreateUser,
    responses((status = CREATED, body = UserView)))]
pub(crate) async fn create_user(call: Mutation<CreateUser>) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let password = app.hash_for_admin(&request, &body.password).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async { Ok(UserView::from(users::create(ctx, body, password).await?)) })
    });
    Ok(Answered(StatusCode::CREATED, answer.await?))
}

/// All users.
#[utoipa::path(get, path = "/v1/users", tag = "accounts", params(PageQuery),
    responses((status = OK, body = Page<UserView>)))]
pub(crate) async fn list_users(
    call: Call,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<UserView>>, ApiError> {
    let page = page.page()?;
    let found = call.app.read(&call.request, |ctx| Box::pin(users::list(ctx, page))).await?;
    Ok(Json(found.map(UserView::from)))
}

/// One user.
#[utoipa::path(get, path = "/v1/users/{user}", tag = "accounts", params(("user" = String, Path)),
    responses((status = OK, body = UserView)))]
pub(crate) async fn get_user(
    call: Call,
    Path(id): Path<UserId>,
) -> Result<Json<UserView>, ApiError> {
    let user = call.app.read(&call.request, |ctx| Box::pin(users::get(ctx, id))).await?;
    Ok(Json(user.into()))
}

/// Change a user: switch on or off, give a role, set a password.
#[utoipa::path(patch, path = "/v1/users/{user}", tag = "accounts", params(("user" = String, Path)),
    request_body = UpdateUser, responses((status = OK, body = UserView)))]
pub(crate) async fn update_user(
    Path(id): Path<UserId>,
    call: Mutation<UpdateUser>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let password = match &body.password {
        Some(password) => Some(app.hash_for_admin(&request, password).await?),
        None => None,
    };
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move { Ok(UserView::from(users::update(ctx, id, body, password).await?)) })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}
