//! SCIM 2.0 (RFC 7643, RFC 7644) at `/scim/v2`, for the directory of a company. It is not in the OpenAPI document: directories
//! know it.
//!
//! Only a token of a directory opens it, and that token opens nothing else. Errors have the form of the standard.

mod discovery;

use axum::{
    Router,
    body::Body,
    extract::{FromRequest, Request as HttpRequest},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use cynode_app::{
    App, Error, OperationRequest,
    identity::scim::{self, MAX_SCIM_PAGE, ScimClient, ScimList, ScimPage},
};
use cynode_core::{
    ids::{GroupId, UserId},
    scim::{
        ERROR_SCHEMA, LIST_SCHEMA, ScimSyntaxError, parse_group, parse_group_filter,
        parse_group_patch, parse_user, parse_user_filter, parse_user_patch,
    },
};
use serde_json::{Value, json};

use crate::{
    AppState,
    error::ApiError,
    etag::is_current,
    extract::{authenticate_directory, read_body, request_trace},
};

/// Media type of the standard.
pub(crate) const SCIM_MEDIA_TYPE: &str = "application/scim+json";

/// Number of resources of a list that names no number.
const DEFAULT_PAGE: i64 = 100;

/// Returns the routes of the directory.
pub(crate) fn scim_routes() -> Router<AppState> {
    Router::new()
        .route("/scim/v2/ServiceProviderConfig", get(discovery::get_provider_config))
        .route("/scim/v2/ResourceTypes", get(discovery::list_resource_types))
        .route("/scim/v2/ResourceTypes/{name}", get(discovery::get_resource_type))
        .route("/scim/v2/Schemas", get(discovery::list_schemas))
        .route("/scim/v2/Schemas/{id}", get(discovery::get_schema))
        .route("/scim/v2/Users", get(list_users).post(create_user))
        .route(
            "/scim/v2/Users/{id}",
            get(get_user).put(replace_user).patch(patch_user).delete(delete_user),
        )
        .route("/scim/v2/Groups", get(list_groups).post(create_group))
        .route(
            "/scim/v2/Groups/{id}",
            get(get_group).put(replace_group).patch(patch_group).delete(delete_group),
        )
}

/// A request of a directory, with its body.
pub(crate) struct ScimCall {
    app: App,
    request: OperationRequest,
    client: ScimClient,
    headers: HeaderMap,
    /// Value of the last segment of the path.
    id: String,
    query: Vec<(String, String)>,
    /// `null` without a body.
    body: Value,
}

impl FromRequest<AppState> for ScimCall {
    type Rejection = ScimError;

    async fn from_request(request: HttpRequest, state: &AppState) -> Result<Self, ScimError> {
        // Authenticate first: the body of an unauthenticated caller is not even read.
        let (parts, body) = request.into_parts();
        let client = authenticate_directory(&parts, state).await?;
        let (parts, body) = read_body(HttpRequest::from_parts(parts, body), state).await?;
        let body = if body.is_empty() { Value::Null } else { parse_body(&parts, &body)? };
        let request = OperationRequest {
            caller: None,
            trace: request_trace(&parts, &state.app),
            attempt: None,
        };
        let query = parts.uri.query().unwrap_or_default();
        Ok(Self {
            app: state.app.clone(),
            request,
            client,
            id: last_segment(parts.uri.path()),
            query: url::form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
            headers: parts.headers,
            body,
        })
    }
}

/// Returns the last segment of a path. Ids have no character that would be escaped.
fn last_segment(path: &str) -> String {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
}

fn parse_body(parts: &Parts, body: &[u8]) -> Result<Value, ScimError> {
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim).unwrap_or_default();
    let is_json =
        kind.eq_ignore_ascii_case(SCIM_MEDIA_TYPE) || kind.eq_ignore_ascii_case("application/json");
    if !is_json {
        return Err(ScimError::from(ApiError::MediaType));
    }
    serde_json::from_slice(body).map_err(|_| ScimError {
        status: StatusCode::BAD_REQUEST,
        kind: Some("invalidSyntax"),
        detail: "the body is no JSON".to_owned(),
        retry_after: None,
    })
}

impl ScimCall {
    fn query_value(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the page of a list. Numbers out of range become the nearest that are in it, as the standard says.
    fn page(&self) -> Result<ScimPage, ScimError> {
        let number = |name: &str, default: i64| match self.query_value(name) {
            None => Ok(default),
            Some(text) => text.parse::<i64>().map_err(|_| ScimError {
                status: StatusCode::BAD_REQUEST,
                kind: Some("invalidValue"),
                detail: format!("`{name}` is a number"),
                retry_after: None,
            }),
        };
        let start_index = number("startIndex", 1)?.clamp(1, 1_000_000);
        let count = number("count", DEFAULT_PAGE)?.clamp(0, MAX_SCIM_PAGE);
        Ok(ScimPage { start_index, count })
    }

    /// Returns the version that the directory expects.
    fn expected_version(&self) -> Option<String> {
        let value = self.headers.get(header::IF_MATCH)?;
        Some(value.to_str().unwrap_or_default().to_owned())
    }

    /// Parses the id in the path. What is no id names nothing.
    fn parse_id<T: std::str::FromStr>(&self, what: &'static str) -> Result<T, ScimError> {
        let missing = || Error::NotFound { what, id: self.id.clone(), near: None };
        self.id.parse::<T>().map_err(|_| ScimError::from(missing()))
    }
}

/// A failed request of a directory.
#[derive(Debug)]
pub(crate) struct ScimError {
    status: StatusCode,
    /// The word of RFC 7644 for it.
    kind: Option<&'static str>,
    detail: String,
    /// Seconds to wait before a repeat.
    retry_after: Option<u64>,
}

impl From<ScimSyntaxError> for ScimError {
    fn from(error: ScimSyntaxError) -> Self {
        let (kind, detail) = (Some(error.kind()), error.detail().to_owned());
        Self { status: StatusCode::BAD_REQUEST, kind, detail, retry_after: None }
    }
}

impl From<Error> for ScimError {
    fn from(error: Error) -> Self {
        Self::from(ApiError::from(error))
    }
}

impl From<ApiError> for ScimError {
    fn from(error: ApiError) -> Self {
        let problem = error.to_problem();
        let status = StatusCode::from_u16(problem.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let (status, kind) = match &error {
            ApiError::Operation(Error::AlreadyExists { .. }) => (status, Some("uniqueness")),
            ApiError::Operation(Error::Invalid(_)) => {
                (StatusCode::BAD_REQUEST, Some("invalidValue"))
            }
            ApiError::Operation(Error::VersionConflict { .. }) => {
                (StatusCode::PRECONDITION_FAILED, None)
            }
            _ => (status, None),
        };
        let detail = match status {
            StatusCode::PRECONDITION_FAILED => "the resource has changed: read it again".to_owned(),
            _ => problem.detail,
        };
        let retry_after = match &error {
            ApiError::Operation(Error::RateLimited { after, .. }) => Some(after.as_secs() + 1),
            _ => None,
        };
        Self { status, kind, detail, retry_after }
    }
}

impl IntoResponse for ScimError {
    fn into_response(self) -> Response {
        let mut body = json!({
            "schemas": [ERROR_SCHEMA],
            "status": self.status.as_u16().to_string(),
            "detail": self.detail,
        });
        if let Some(kind) = self.kind {
            body["scimType"] = json!(kind);
        }
        let mut response = scim_response(self.status, &body);
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// Returns a response with a JSON body.
fn scim_response(status: StatusCode, body: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, SCIM_MEDIA_TYPE)];
    (status, kind, Body::from(body.to_string())).into_response()
}

/// Returns a resource with its entity tag and its place. A directory that has this version already gets no body.
fn resource_response(status: StatusCode, headers: &HeaderMap, resource: &Value) -> Response {
    let version = resource["meta"]["version"].as_str().unwrap_or_default();
    let known = status == StatusCode::OK && is_current(headers, version.trim_start_matches("W/"));
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        scim_response(status, resource)
    };
    let place = resource["meta"]["location"].as_str().unwrap_or_default();
    for (name, text) in [(header::ETAG, version), (header::LOCATION, place)] {
        if let Ok(value) = HeaderValue::from_str(text) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn list_response(list: &ScimList, page: ScimPage) -> Response {
    let body = json!({
        "schemas": [LIST_SCHEMA],
        "totalResults": list.total,
        "startIndex": page.start_index,
        "itemsPerPage": list.resources.len(),
        "Resources": list.resources,
    });
    scim_response(StatusCode::OK, &body)
}

/// Returns the response to a change: the resource as it is now.
fn changed_response(
    status: StatusCode,
    answer: &cynode_app::OperationAnswer,
) -> Result<Response, ScimError> {
    let resource: Value = serde_json::from_slice(&answer.body)
        .map_err(|error| ScimError::from(Error::Internal(error.into())))?;
    Ok(resource_response(status, &HeaderMap::new(), &resource))
}

async fn list_users(call: ScimCall) -> Result<Response, ScimError> {
    let page = call.page()?;
    let filter = call.query_value("filter").map(parse_user_filter).transpose()?;
    let client = call.client;
    let list = call.app.read(&call.request, |ctx| {
        Box::pin(async move { scim::list_users(ctx, client, filter.as_ref(), page).await })
    });
    Ok(list_response(&list.await?, page))
}

async fn get_user(call: ScimCall) -> Result<Response, ScimError> {
    let (id, client) = (call.parse_id::<UserId>("user")?, call.client);
    let found = call.app.read(&call.request, |ctx| scim::get_user(ctx, client, id)).await?;
    Ok(resource_response(StatusCode::OK, &call.headers, &found))
}

async fn create_user(call: ScimCall) -> Result<Response, ScimError> {
    let (described, client) = (parse_user(&call.body)?, call.client);
    let answer =
        call.app.mutate(&call.request, |ctx| scim::create_user(ctx, client, described)).await?;
    changed_response(StatusCode::CREATED, &answer)
}

async fn replace_user(call: ScimCall) -> Result<Response, ScimError> {
    let changes = parse_user(&call.body)?.into_changes();
    change_user(call, changes).await
}

async fn patch_user(call: ScimCall) -> Result<Response, ScimError> {
    let changes = parse_user_patch(&call.body)?;
    change_user(call, changes).await
}

async fn change_user(
    call: ScimCall,
    changes: Vec<cynode_core::scim::UserChange>,
) -> Result<Response, ScimError> {
    let (id, client) = (call.parse_id::<UserId>("user")?, call.client);
    let expected = call.expected_version();
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(
            async move { scim::update_user(ctx, client, id, changes, expected.as_deref()).await },
        )
    });
    changed_response(StatusCode::OK, &answer.await?)
}

async fn delete_user(call: ScimCall) -> Result<Response, ScimError> {
    let (id, client) = (call.parse_id::<UserId>("user")?, call.client);
    let expected = call.expected_version();
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { scim::delete_user(ctx, client, id, expected.as_deref()).await })
    });
    done.await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn list_groups(call: ScimCall) -> Result<Response, ScimError> {
    let page = call.page()?;
    let filter = call.query_value("filter").map(parse_group_filter).transpose()?;
    let client = call.client;
    let list = call.app.read(&call.request, |ctx| {
        Box::pin(async move { scim::list_groups(ctx, client, filter.as_ref(), page).await })
    });
    let mut list = list.await?;
    // Directories ask so for the names of large groups.
    if call.query_value("excludedAttributes").is_some_and(|names| names.contains("members")) {
        for resource in &mut list.resources {
            if let Some(fields) = resource.as_object_mut() {
                fields.remove("members");
            }
        }
    }
    Ok(list_response(&list, page))
}

async fn get_group(call: ScimCall) -> Result<Response, ScimError> {
    let (id, client) = (call.parse_id::<GroupId>("group")?, call.client);
    let found = call.app.read(&call.request, |ctx| scim::get_group(ctx, client, id)).await?;
    Ok(resource_response(StatusCode::OK, &call.headers, &found))
}

async fn create_group(call: ScimCall) -> Result<Response, ScimError> {
    let (described, client) = (parse_group(&call.body)?, call.client);
    let answer =
        call.app.mutate(&call.request, |ctx| scim::create_group(ctx, client, described)).await?;
    changed_response(StatusCode::CREATED, &answer)
}

async fn replace_group(call: ScimCall) -> Result<Response, ScimError> {
    let changes = parse_group(&call.body)?.into_changes();
    change_group(call, changes).await
}

async fn patch_group(call: ScimCall) -> Result<Response, ScimError> {
    let changes = parse_group_patch(&call.body)?;
    change_group(call, changes).await
}

async fn change_group(
    call: ScimCall,
    changes: Vec<cynode_core::scim::GroupChange>,
) -> Result<Response, ScimError> {
    let (id, client) = (call.parse_id::<GroupId>("group")?, call.client);
    let expected = call.expected_version();
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(
            async move { scim::update_group(ctx, client, id, changes, expected.as_deref()).await },
        )
    });
    changed_response(StatusCode::OK, &answer.await?)
}

async fn delete_group(call: ScimCall) -> Result<Response, ScimError> {
    let (id, client) = (call.parse_id::<GroupId>("group")?, call.client);
    let expected = call.expected_version();
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { scim::delete_group(ctx, client, id, expected.as_deref()).await })
    });
    done.await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
