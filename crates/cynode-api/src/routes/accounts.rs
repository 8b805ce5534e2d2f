use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use cynode_app::identity::{api_keys, bootstrap as first_admin, sessions, users};
use cynode_core::{
    ids::{ApiKeyId, UserId},
    paging::Page,
};
use cynode_wire::identity::accounts::{
    ApiKeyView, BootstrapRequest, BrowserSessionView, CreateApiKey, CreateUser, CreatedApiKey,
    LoginRequest, MeView, SessionView, UpdateUser, UserView,
};
use serde::Deserialize;

use crate::{
    browser::{LoginClient, UsedCookie},
    error::ApiError,
    extract::{
        AnonymousCall, AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path,
        Query, RequestSource,
    },
};

/// Creates the first admin with the one-time token.
#[utoipa::path(post, path = "/v1/bootstrap", tag = "accounts", request_body = BootstrapRequest,
    responses((status = CREATED, body = UserView)))]
pub(crate) async fn bootstrap(
    call: AnonymousCall<BootstrapRequest>,
) -> Result<MutationResponse, ApiError> {
    let AnonymousCall { app, request, body } = call;
    let password = first_admin::hash_admin_password(&app, &body).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async {
            Ok(UserView::from(first_admin::redeem_bootstrap_token(ctx, body, password).await?))
        })
    });
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Logs in. A program gets the token, which is shown only once. A browser gets it as a cookie that scripts cannot
/// read.
#[utoipa::path(post, path = "/v1/sessions", tag = "accounts", request_body = LoginRequest,
    responses((status = CREATED, body = SessionView), (status = OK, body = BrowserSessionView)))]
pub(crate) async fn login(
    RequestSource(source): RequestSource,
    client: LoginClient,
    call: AnonymousCall<LoginRequest>,
) -> Result<Response, ApiError> {
    let AnonymousCall { app, request, body } = call;
    let session = sessions::login_user(&app, &request, &body, source).await?;
    let LoginClient::Browser(cookie) = client else {
        return Ok((StatusCode::CREATED, Json(session)).into_response());
    };
    let SessionView { token, expires_at, user } = session;
    let stored = cookie.store_token(&token, expires_at - app.environment().now());
    let mut response = Json(BrowserSessionView { expires_at, user }).into_response();
    response.headers_mut().extend(stored.map(|value| (header::SET_COOKIE, value)));
    Ok(response)
}

/// Logs out: the token of this request stops working, and a browser forgets its cookie.
#[utoipa::path(delete, path = "/v1/sessions/current", tag = "accounts",
    responses((status = NO_CONTENT)))]
pub(crate) async fn logout(
    UsedCookie(cookie): UsedCookie,
    call: MutationCall<()>,
) -> Result<Response, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| sessions::logout_user(ctx)).await?;
    let mut response = MutationResponse(StatusCode::NO_CONTENT, answer).into_response();
    let cleared = cookie.and_then(|cookie| cookie.clear_token());
    response.headers_mut().extend(cleared.map(|value| (header::SET_COOKIE, value)));
    Ok(response)
}

/// Returns the authenticated user and their roles.
#[utoipa::path(get, path = "/v1/me", tag = "accounts", responses((status = OK, body = MeView)))]
pub(crate) async fn me(call: AuthenticatedCall) -> Result<Json<MeView>, ApiError> {
    Ok(Json(call.app.read(&call.request, |ctx| sessions::current_user(ctx)).await?))
}

/// Creates an API key for yourself. The token in the response is shown only once.
#[utoipa::path(post, path = "/v1/api-keys", tag = "accounts", request_body = CreateApiKey,
    responses((status = CREATED, body = CreatedApiKey)))]
pub(crate) async fn create_api_key(
    call: MutationCall<CreateApiKey>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer =
        app.run_secret_mutation(&request, |ctx| api_keys::create_api_key(ctx, body)).await?;
    Ok(MutationResponse(StatusCode::CREATED, answer))
}

/// Filter of API keys.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ApiKeyQuery {
    /// Only the keys of this user, for an admin of the installation; your own by default.
    #[param(value_type = Option<String>)]
    user_id: Option<UserId>,
}

/// Lists your API keys, without their secrets.
#[utoipa::path(get, path = "/v1/api-keys", tag = "accounts", params(ApiKeyQuery, PageQuery),
    responses((status = OK, body = Page<ApiKeyView>)))]
pub(crate) async fn list_api_keys(
    call: AuthenticatedCall,
    Query(ApiKeyQuery { user_id }): Query<ApiKeyQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ApiKeyView>>, ApiError> {
    let page = page.to_page_request()?;
    let keys = call.app.read(&call.request, |ctx| api_keys::list_api_keys(ctx, user_id, page));
    let keys = keys.await?;
    Ok(Json(keys.map(ApiKeyView::from)))
}

/// Revokes an API key: it stops working at once.
#[utoipa::path(delete, path = "/v1/api-keys/{api_key}", tag = "accounts",
    params(("api_key" = String, Path)), responses((status = OK, body = ApiKeyView)))]
pub(crate) async fn revoke_api_key(
    Path(id): Path<ApiKeyId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { Ok(ApiKeyView::from(api_keys::revoke_api_key(ctx, id).await?)) })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Creates a user.
#[utoipa::path(post, path = "/v1/users", tag = "accounts", request_body = CreateUser,
    responses((status = CREATED, body = UserView)))]
pub(crate) async fn create_user(
    call: MutationCall<CreateUser>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let password = app.hash_for_admin(&request, &body.password).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async { Ok(UserView::from(users::create_user(ctx, body, password).await?)) })
    });
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Lists all users.
#[utoipa::path(get, path = "/v1/users", tag = "accounts", params(PageQuery),
    responses((status = OK, body = Page<UserView>)))]
pub(crate) async fn list_users(
    call: AuthenticatedCall,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<UserView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| users::list_users(ctx, page)).await?;
    Ok(Json(found.map(UserView::from)))
}

/// Returns one user.
#[utoipa::path(get, path = "/v1/users/{user}", tag = "accounts", params(("user" = String, Path)),
    responses((status = OK, body = UserView)))]
pub(crate) async fn get_user(
    call: AuthenticatedCall,
    Path(id): Path<UserId>,
) -> Result<Json<UserView>, ApiError> {
    let user = call.app.read(&call.request, |ctx| users::get_user(ctx, id)).await?;
    Ok(Json(user.into()))
}

/// Updates a user: enables or disables the account, sets its role or its password.
#[utoipa::path(patch, path = "/v1/users/{user}", tag = "accounts", params(("user" = String, Path)),
    request_body = UpdateUser, responses((status = OK, body = UserView)))]
pub(crate) async fn update_user(
    Path(id): Path<UserId>,
    call: MutationCall<UpdateUser>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let password = match &body.password {
        Some(password) => Some(app.hash_for_admin(&request, password).await?),
        None => None,
    };
    let answer = app.mutate(&request, |ctx| {
        Box::pin(
            async move { Ok(UserView::from(users::update_user(ctx, id, body, password).await?)) },
        )
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}
