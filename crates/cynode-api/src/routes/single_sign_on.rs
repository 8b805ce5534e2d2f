//! Single sign-on: identity providers, the two visits of a browser that logs in, logout, sessions, and logins of devices.

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cynode_app::{
    Error,
    identity::{
        device_login, identity_providers, session_origin,
        single_sign_on::{self, FinishedLogin, LOGIN_ATTEMPT_TTL, LoginAnswer, LoginRefusal},
    },
};
use cynode_core::{
    ids::{ExternalIdentityId, SessionId, UserId},
    paging::Page,
};
use cynode_wire::identity::{
    accounts::SessionView,
    single_sign_on::{
        DecideDeviceLogin, DeviceLoginCodes, DeviceLoginRequest, DeviceLoginView,
        DeviceTokenAnswer, DeviceTokenRequest, DiscoveryView, IdentityList, IdentityProviderList,
        IdentityProviderView, LinkIdentity, LinkStarted, LoginOptions, OpenSessionView,
        ProviderLogout, SetIdentityProvider,
    },
};
use serde::Deserialize;
use url::form_urlencoded;

use crate::{
    browser::{ProviderNavigation, UsedCookie},
    error::ApiError,
    extract::{
        AnonymousCall, AnonymousRequest, AuthenticatedCall, Json, MutationCall, MutationResponse,
        PageQuery, Path, Query, RequestClient, RequestSource,
    },
};

/// Returns how people can log in: with a password, and by which identity providers.
#[utoipa::path(get, path = "/v1/login-options", tag = "single-sign-on",
    responses((status = OK, body = LoginOptions)))]
pub(crate) async fn login_options(call: AnonymousRequest) -> Result<Json<LoginOptions>, ApiError> {
    Ok(Json(identity_providers::login_options(&call.app).await?))
}

/// Where a login leads to.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LoginQuery {
    /// The path of the console that the login returns to.
    return_to: Option<String>,
}

/// Sends a browser to an identity provider, to log in there. Open it as a page: it sets a cookie that the way back needs.
#[utoipa::path(get, path = "/v1/sso/{provider}/login", tag = "single-sign-on",
    params(("provider" = String, Path), LoginQuery), responses((status = SEE_OTHER)))]
pub(crate) async fn start_provider_login(
    Path(provider): Path<String>,
    Query(query): Query<LoginQuery>,
    navigation: ProviderNavigation,
    call: AnonymousRequest,
) -> Response {
    let begun = single_sign_on::begin_login(
        &call.app,
        &provider,
        &navigation.origin,
        query.return_to.as_deref(),
    );
    match begun.await {
        Ok(login) => {
            let cookie = navigation.login_cookie(&login.state);
            let stored = cookie.store_token(&login.sealed, LOGIN_ATTEMPT_TTL);
            redirect_to(&login.authorization_url, stored)
        }
        Err(error) => {
            log_refusal(&error);
            redirect_to("/login?sso=unreachable", None)
        }
    }
}

/// The answer of an identity provider, as the browser brings it.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CallbackQuery {
    /// The state of the login.
    #[serde(default)]
    state: String,
    /// The code.
    code: Option<String>,
    /// The issuer (RFC 9207).
    iss: Option<String>,
    /// Why the provider refused.
    error: Option<String>,
}

/// Takes a browser back from an identity provider. It is logged in, or sent to the login page with a reason.
#[utoipa::path(get, path = "/v1/sso/{provider}/callback", tag = "single-sign-on",
    params(("provider" = String, Path), CallbackQuery), responses((status = SEE_OTHER)))]
pub(crate) async fn finish_provider_login(
    Path(provider): Path<String>,
    Query(query): Query<CallbackQuery>,
    RequestClient(client): RequestClient,
    navigation: ProviderNavigation,
    call: AnonymousRequest,
) -> Response {
    let AnonymousRequest { app, mut request } = call;
    if let Some(shown) = navigation.session_token() {
        request.caller = app.authenticate_caller(&shown).await.ok();
    }
    let CallbackQuery { state, code, iss, error } = query;
    let sealed = navigation.read_login(&state);
    let cleared = navigation.login_cookie(&state).clear_token();
    let answer = LoginAnswer { state, code, issuer: iss, refused: error.is_some() };
    let finished =
        single_sign_on::finish_login(&app, &request, &provider, answer, sealed.as_deref(), &client);
    match finished.await {
        Ok(FinishedLogin::Session { session, return_to }) => {
            let SessionView { token, expires_at, user: _ } = session;
            let lifetime = expires_at - app.environment().now();
            let stored = navigation.session.store_token(&token, lifetime);
            redirect_to(&return_to, cleared.into_iter().chain(stored))
        }
        Ok(FinishedLogin::Linked { return_to }) => redirect_to(&return_to, cleared),
        Err(refusal) => {
            log_refusal(&refusal);
            redirect_to(refusal_page(&refusal), cleared)
        }
    }
}

/// Returns the page that explains why a login was refused.
fn refusal_page(refusal: &LoginRefusal) -> &'static str {
    match refusal.code() {
        "stale" => "/login?sso=stale",
        "denied" => "/login?sso=denied",
        "unreachable" => "/login?sso=unreachable",
        "provider" => "/login?sso=provider",
        "no_account" => "/login?sso=no_account",
        "disabled" => "/login?sso=disabled",
        "already_linked" => "/settings/sessions?sso=already_linked",
        _ => "/login?sso=failed",
    }
}

/// Logs why a login at an identity provider failed. The browser only gets a code.
fn log_refusal(error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(
        event = "provider_login.refused",
        error = cynode_core::error_chain::format_error_chain(error),
        "a login at an identity provider was refused"
    );
}

/// Sends a browser to an address, with these cookies.
fn redirect_to(address: &str, cookies: impl IntoIterator<Item = HeaderValue>) -> Response {
    let Ok(address) = HeaderValue::from_str(address) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::LOCATION, address);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    (StatusCode::SEE_OTHER, headers).into_response()
}

/// Ends the sessions that a logout token names. Identity providers call it (OpenID Connect Back-Channel Logout 1.0).
#[utoipa::path(post, path = "/v1/sso/{provider}/backchannel-logout", tag = "single-sign-on",
    params(("provider" = String, Path)),
    request_body(content = String, content_type = "application/x-www-form-urlencoded"),
    responses((status = OK)))]
pub(crate) async fn backchannel_logout(
    Path(provider): Path<String>,
    call: AnonymousRequest,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    let mut tokens = form_urlencoded::parse(&body).filter(|(name, _)| name == "logout_token");
    let (Some((_, token)), None) = (tokens.next(), tokens.next()) else {
        return Err(ApiError::Malformed("the body has no `logout_token`".into()));
    };
    let AnonymousRequest { app, request } = call;
    match single_sign_on::logout_by_provider(&app, &request, &provider, &token).await {
        Ok(()) => Ok(StatusCode::OK),
        // The protocol asks for status 400.
        Err(Error::Invalid(reason)) => Err(ApiError::Malformed(reason)),
        Err(error) => Err(error.into()),
    }
}

/// Lists all identity providers, without their secrets.
#[utoipa::path(get, path = "/v1/identity-providers", tag = "single-sign-on",
    responses((status = OK, body = IdentityProviderList)))]
pub(crate) async fn list_identity_providers(
    call: AuthenticatedCall,
) -> Result<Json<IdentityProviderList>, ApiError> {
    let found =
        call.app.read(&call.request, |ctx| identity_providers::list_identity_providers(ctx));
    Ok(Json(found.await?))
}

/// Creates an identity provider or changes it. Its secret is stored encrypted and never shown again.
#[utoipa::path(put, path = "/v1/identity-providers/{name}", tag = "single-sign-on",
    params(("name" = String, Path)), request_body = SetIdentityProvider,
    responses((status = OK, body = IdentityProviderView)))]
pub(crate) async fn set_identity_provider(
    Path(name): Path<String>,
    call: MutationCall<SetIdentityProvider>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.sign_on_parts()?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            identity_providers::set_identity_provider(ctx, &parts, &name, body).await
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Deletes an identity provider: its sessions end, and the accounts of its people stay without it.
#[utoipa::path(delete, path = "/v1/identity-providers/{name}", tag = "single-sign-on",
    params(("name" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_identity_provider(
    Path(name): Path<String>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { identity_providers::delete_identity_provider(ctx, &name).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Reads the discovery document of an identity provider anew, to see whether it can be used.
#[utoipa::path(post, path = "/v1/identity-providers/{name}/test", tag = "single-sign-on",
    params(("name" = String, Path)), responses((status = OK, body = DiscoveryView)))]
pub(crate) async fn test_identity_provider(
    Path(name): Path<String>,
    call: MutationCall<()>,
) -> Result<Json<DiscoveryView>, ApiError> {
    let MutationCall { app, request, body: () } = call;
    Ok(Json(identity_providers::test_identity_provider(&app, &request, &name).await?))
}

/// Lists your accounts at identity providers.
#[utoipa::path(get, path = "/v1/me/identities", tag = "single-sign-on",
    responses((status = OK, body = IdentityList)))]
pub(crate) async fn list_identities(
    call: AuthenticatedCall,
) -> Result<Json<IdentityList>, ApiError> {
    let found = call.app.read(&call.request, |ctx| single_sign_on::list_identities(ctx, None));
    Ok(Json(found.await?))
}

/// Begins to link an account of an identity provider to yours. Open the address of the response in the same browser.
#[utoipa::path(post, path = "/v1/me/identities", tag = "single-sign-on", request_body = LinkIdentity,
    responses((status = OK, body = LinkStarted)))]
pub(crate) async fn link_identity(
    navigation: Result<ProviderNavigation, ApiError>,
    call: MutationCall<LinkIdentity>,
) -> Result<Response, ApiError> {
    let MutationCall { app, request, body } = call;
    let navigation = navigation?;
    let begun = single_sign_on::begin_link(&app, &request, &body.provider, &navigation.origin);
    let begun = begun.await?;
    let cookie = navigation.login_cookie(&begun.state);
    let stored = cookie.store_token(&begun.sealed, LOGIN_ATTEMPT_TTL);
    let view = LinkStarted { authorization_url: begun.authorization_url };
    let mut response = Json(view).into_response();
    response.headers_mut().extend(stored.map(|value| (header::SET_COOKIE, value)));
    Ok(response)
}

/// Unlinks an account of yours at an identity provider: its sessions end.
#[utoipa::path(delete, path = "/v1/me/identities/{identity}", tag = "single-sign-on",
    params(("identity" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn unlink_identity(
    Path(id): Path<ExternalIdentityId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| single_sign_on::unlink_identity(ctx, id));
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Lists the accounts of a user at identity providers, for an admin of the installation.
#[utoipa::path(get, path = "/v1/users/{user}/identities", tag = "single-sign-on",
    params(("user" = String, Path)), responses((status = OK, body = IdentityList)))]
pub(crate) async fn list_user_identities(
    Path(user): Path<UserId>,
    call: AuthenticatedCall,
) -> Result<Json<IdentityList>, ApiError> {
    let found =
        call.app.read(&call.request, |ctx| single_sign_on::list_identities(ctx, Some(user)));
    Ok(Json(found.await?))
}

/// Removes an account of a user at an identity provider, for an admin of the installation: its sessions end. Nobody logs in by it as that
/// user any more.
#[utoipa::path(delete, path = "/v1/users/{user}/identities/{identity}", tag = "single-sign-on",
    params(("user" = String, Path), ("identity" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn remove_user_identity(
    Path((user, id)): Path<(UserId, ExternalIdentityId)>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer =
        call.app.mutate(&call.request, |ctx| single_sign_on::remove_user_identity(ctx, user, id));
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Filter of sessions.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SessionQuery {
    /// Only the sessions of this user, for an admin of the installation; your own by default.
    #[param(value_type = Option<String>)]
    user_id: Option<UserId>,
}

/// Lists your open sessions, with the device and the identity provider of each.
#[utoipa::path(get, path = "/v1/sessions", tag = "single-sign-on", params(SessionQuery, PageQuery),
    responses((status = OK, body = Page<OpenSessionView>)))]
pub(crate) async fn list_sessions(
    call: AuthenticatedCall,
    Query(SessionQuery { user_id }): Query<SessionQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<OpenSessionView>>, ApiError> {
    let page = page.to_page_request()?;
    let found =
        call.app.read(&call.request, |ctx| session_origin::list_sessions(ctx, user_id, page));
    Ok(Json(found.await?))
}

/// Ends a session of yours, or of any user for an admin: it stops working at once.
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "single-sign-on",
    params(("session" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn end_session(
    Path(id): Path<SessionId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| session_origin::end_session(ctx, id));
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Logs out here, and returns the address at which the browser logs out at its identity provider.
#[utoipa::path(post, path = "/v1/sessions/current/provider-logout", tag = "single-sign-on",
    responses((status = OK, body = ProviderLogout)))]
pub(crate) async fn provider_logout(
    UsedCookie(cookie): UsedCookie,
    navigation: Result<ProviderNavigation, ApiError>,
    call: MutationCall<()>,
) -> Result<Response, ApiError> {
    let MutationCall { app, request, body: () } = call;
    let navigation = navigation?;
    let url = single_sign_on::provider_logout_url(&app, &request, &navigation.origin).await?;
    let answer = app
        .run_secret_mutation(&request, |ctx| single_sign_on::logout_at_provider(ctx, url))
        .await?;
    let mut response = MutationResponse(StatusCode::OK, answer).into_response();
    let cleared = cookie.and_then(|cookie| cookie.clear_token());
    response.headers_mut().extend(cleared.map(|value| (header::SET_COOKIE, value)));
    Ok(response)
}

/// Asks for the login of a device without a browser (RFC 8628). A person confirms it in the console.
#[utoipa::path(post, path = "/v1/device-logins", tag = "single-sign-on", request_body = DeviceLoginRequest,
    responses((status = OK, body = DeviceLoginCodes)))]
pub(crate) async fn begin_device_login(
    RequestSource(source): RequestSource,
    navigation: ProviderNavigation,
    call: AnonymousCall<DeviceLoginRequest>,
) -> Result<Json<DeviceLoginCodes>, ApiError> {
    let AnonymousCall { app, request, body } = call;
    let begun =
        device_login::begin_device_login(&app, &request, body, source, &navigation.origin).await?;
    Ok(Json(begun))
}

/// Answers a device that asks whether its login was confirmed.
#[utoipa::path(post, path = "/v1/device-logins/token", tag = "single-sign-on", request_body = DeviceTokenRequest,
    responses((status = OK, body = DeviceTokenAnswer)))]
pub(crate) async fn redeem_device_code(
    call: AnonymousCall<DeviceTokenRequest>,
) -> Result<Json<DeviceTokenAnswer>, ApiError> {
    let AnonymousCall { app, request, body } = call;
    let code = &body.device_code.0;
    Ok(Json(device_login::redeem_device_code(&app, &request, code).await?))
}

/// Returns the login of a device that waits for your decision.
#[utoipa::path(get, path = "/v1/device-logins/{code}", tag = "single-sign-on",
    params(("code" = String, Path)), responses((status = OK, body = DeviceLoginView)))]
pub(crate) async fn get_device_login(
    Path(code): Path<String>,
    call: AuthenticatedCall,
) -> Result<Json<DeviceLoginView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { device_login::get_device_login(ctx, &code).await })
    });
    Ok(Json(found.await?))
}

/// Approves or denies the login of a device. An approved device acts in your name until its session ends.
#[utoipa::path(post, path = "/v1/device-logins/{code}", tag = "single-sign-on",
    params(("code" = String, Path)), request_body = DecideDeviceLogin,
    responses((status = OK, body = DeviceLoginView)))]
pub(crate) async fn decide_device_login(
    Path(code): Path<String>,
    call: MutationCall<DecideDeviceLogin>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move { device_login::decide_device_login(ctx, &code, body).await })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}
