use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use cynode_app::{
    App,
    identity::{
        api_keys, bootstrap as first_admin, break_glass, own_password, scim, second_factor,
        sessions, users,
    },
};
use cynode_core::{
    ids::{ApiKeyId, ScimTokenId, UserId},
    paging::Page,
};
use cynode_wire::identity::accounts::{
    ApiKeyView, BeginSecondFactor, BootstrapRequest, BrowserSessionView, ChangePassword,
    CreateApiKey, CreateScimToken, CreateUser, CreatedApiKey, CreatedScimToken, DeleteSecondFactor,
    LoginRequest, MeView, RecoveryCodes, RedeemBreakGlass, ScimTokenView, SecondFactorCode,
    SecondFactorEnrolment, SecondFactorView, SessionView, UpdateUser, UserView,
};
use serde::Deserialize;

use super::tools::UnpagedList;
use crate::{
    browser::{LoginClient, UsedCookie},
    error::ApiError,
    extract::{
        AnonymousCall, AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path,
        Query, RequestClient, RequestSource,
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
    RequestClient(client): RequestClient,
    kind: LoginClient,
    call: AnonymousCall<LoginRequest>,
) -> Result<Response, ApiError> {
    let AnonymousCall { app, request, body } = call;
    let session = sessions::login_user(&app, &request, &body, &client).await?;
    Ok(session_response(&app, kind, session))
}

/// Returns a new session: to a program with its token, to a browser with a cookie.
fn session_response(app: &App, kind: LoginClient, session: SessionView) -> Response {
    let LoginClient::Browser(cookie) = kind else {
        return (StatusCode::CREATED, Json(session)).into_response();
    };
    let SessionView { token, expires_at, user } = session;
    let stored = cookie.store_token(&token, expires_at - app.environment().now());
    let mut response = Json(BrowserSessionView { expires_at, user }).into_response();
    response.headers_mut().extend(stored.map(|value| (header::SET_COOKIE, value)));
    response
}

/// Logs an admin in with a one-time link that was made on the host.
#[utoipa::path(post, path = "/v1/break-glass", tag = "accounts", request_body = RedeemBreakGlass,
    responses((status = CREATED, body = SessionView), (status = OK, body = BrowserSessionView)))]
pub(crate) async fn redeem_break_glass(
    RequestClient(client): RequestClient,
    kind: LoginClient,
    call: AnonymousCall<RedeemBreakGlass>,
) -> Result<Response, ApiError> {
    let AnonymousCall { app, request, body } = call;
    let session = break_glass::redeem_break_glass_token(&app, &request, &body, &client).await?;
    Ok(session_response(&app, kind, session))
}

/// Changes your own password. Your other sessions end.
#[utoipa::path(put, path = "/v1/me/password", tag = "accounts", request_body = ChangePassword,
    responses((status = NO_CONTENT)))]
pub(crate) async fn change_password(
    RequestSource(source): RequestSource,
    call: MutationCall<ChangePassword>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let old = Some(&body.old_password);
    let proof = own_password::prove_password(&app, &request, old, source).await?;
    let password = app.hash_password(&body.new_password).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move { own_password::change_password(ctx, &body, &proof, &password).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Returns the state of your second factor.
#[utoipa::path(get, path = "/v1/me/second-factor", tag = "accounts",
    responses((status = OK, body = SecondFactorView)))]
pub(crate) async fn get_second_factor(
    call: AuthenticatedCall,
) -> Result<Json<SecondFactorView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| second_factor::get_second_factor(ctx)).await?;
    Ok(Json(found))
}

/// Begins the enrolment of a second factor: one-time passwords of an authenticator. Nothing changes until a code confirms it.
#[utoipa::path(post, path = "/v1/me/second-factor", tag = "accounts", request_body = BeginSecondFactor,
    responses((status = OK, body = SecondFactorEnrolment)))]
pub(crate) async fn begin_second_factor(
    RequestSource(source): RequestSource,
    call: MutationCall<BeginSecondFactor>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let password = body.password.as_ref();
    let proof = own_password::prove_password(&app, &request, password, source).await?;
    let keys = app.gateway_parts()?.keys.clone();
    let answer = app.run_secret_mutation(&request, |ctx| {
        Box::pin(async move { second_factor::begin_enrolment(ctx, &keys, &proof).await })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Confirms the enrolment of a second factor with a code. Every later login needs one. The recovery codes are shown only once.
#[utoipa::path(post, path = "/v1/me/second-factor/confirm", tag = "accounts", request_body = SecondFactorCode,
    responses((status = OK, body = RecoveryCodes)))]
pub(crate) async fn confirm_second_factor(
    call: MutationCall<SecondFactorCode>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let keys = app.gateway_parts()?.keys.clone();
    let answer = app.run_secret_mutation(&request, |ctx| {
        Box::pin(async move { second_factor::confirm_enrolment(ctx, &keys, &body).await })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Shows a code of your second factor in a session that began without it, such as one of an identity provider.
#[utoipa::path(post, path = "/v1/me/second-factor/verify", tag = "accounts", request_body = SecondFactorCode,
    responses((status = OK, body = SecondFactorView)))]
pub(crate) async fn verify_second_factor(
    RequestSource(source): RequestSource,
    call: MutationCall<SecondFactorCode>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let proof = second_factor::verify_own_code(&app, &request, &body.code, source).await?;
    let answer = app.mutate(&request, |ctx| second_factor::verify_own_session(ctx, proof)).await?;
    Ok(MutationResponse(StatusCode::OK, answer))
}

/// Issues new recovery codes, which are shown only once. Earlier ones stop working.
#[utoipa::path(post, path = "/v1/me/second-factor/recovery-codes", tag = "accounts", request_body = SecondFactorCode,
    responses((status = OK, body = RecoveryCodes)))]
pub(crate) async fn issue_recovery_codes(
    RequestSource(source): RequestSource,
    call: MutationCall<SecondFactorCode>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let proof = second_factor::verify_own_code(&app, &request, &body.code, source).await?;
    let answer = app
        .run_secret_mutation(&request, |ctx| second_factor::issue_recovery_codes(ctx, proof))
        .await?;
    Ok(MutationResponse(StatusCode::OK, answer))
}

/// Deletes your second factor. Your other sessions end.
#[utoipa::path(post, path = "/v1/me/second-factor/delete", tag = "accounts", request_body = DeleteSecondFactor,
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_second_factor(
    RequestSource(source): RequestSource,
    call: MutationCall<DeleteSecondFactor>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let password = body.password.as_ref();
    let password = own_password::prove_password(&app, &request, password, source).await?;
    let proof = second_factor::verify_own_code(&app, &request, &body.code, source).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(
            async move { second_factor::delete_own_second_factor(ctx, &password, proof).await },
        )
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Issues a token for a directory, which provisions users and groups by SCIM 2.0 at `/scim/v2`. It is shown only once.
#[utoipa::path(post, path = "/v1/scim-tokens", tag = "accounts", request_body = CreateScimToken,
    responses((status = CREATED, body = CreatedScimToken)))]
pub(crate) async fn create_scim_token(
    call: MutationCall<CreateScimToken>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer =
        app.run_secret_mutation(&request, |ctx| scim::create_scim_token(ctx, body)).await?;
    Ok(MutationResponse(StatusCode::CREATED, answer))
}

/// Lists the tokens of directories, newest first, without their secrets.
#[utoipa::path(get, path = "/v1/scim-tokens", tag = "accounts",
    responses((status = OK, body = UnpagedList<ScimTokenView>)))]
pub(crate) async fn list_scim_tokens(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ScimTokenView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| scim::list_scim_tokens(ctx)).await?;
    Ok(Json(UnpagedList::new(found.into_iter().map(ScimTokenView::from).collect())))
}

/// Revokes the token of a directory: it stops working at once.
#[utoipa::path(delete, path = "/v1/scim-tokens/{scim_token}", tag = "accounts",
    params(("scim_token" = String, Path)), responses((status = OK, body = ScimTokenView)))]
pub(crate) async fn revoke_scim_token(
    Path(id): Path<ScimTokenId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { Ok(ScimTokenView::from(scim::revoke_scim_token(ctx, id).await?)) })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
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
