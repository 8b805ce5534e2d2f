use std::sync::Arc;

use axum::{
    extract::rejection::{BytesRejection, PathRejection, QueryRejection},
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use cynode_app::Error;
use cynode_wire::platform::problem::ProblemDetails;

/// A failed request: it never became an operation, or the operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    Malformed(String),
    #[error("the body is larger than this endpoint takes")]
    TooLarge,
    #[error("a body must be sent as `Content-Type: application/json`")]
    MediaType,
    #[error(transparent)]
    Operation(#[from] Error),
}

impl ApiError {
    const fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Malformed(_) => (StatusCode::BAD_REQUEST, "malformed"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::MediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Self::Operation(error) => match error {
                Error::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated"),
                Error::Forbidden { .. } => (StatusCode::FORBIDDEN, "forbidden"),
                Error::NotFound { .. } => (StatusCode::NOT_FOUND, "not_found"),
                Error::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
                Error::AlreadyExists { .. } => (StatusCode::CONFLICT, "already_exists"),
                Error::InvalidState(_) => (StatusCode::CONFLICT, "invalid_state"),
                Error::VersionConflict { .. } => (StatusCode::CONFLICT, "version_conflict"),
                Error::LeaseHeld { .. } => (StatusCode::CONFLICT, "lease_held"),
                Error::NotRunnable(_) => (StatusCode::CONFLICT, "not_runnable"),
                Error::TaskEnded => (StatusCode::CONFLICT, "task_ended"),
                Error::Fenced(_) => (StatusCode::CONFLICT, "fenced"),
                Error::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
                Error::MergeConflict(_) => (StatusCode::CONFLICT, "merge_conflict"),
                Error::UpstreamRejected(_) => (StatusCode::CONFLICT, "upstream_rejected"),
                Error::LimitExceeded(_) => (StatusCode::CONFLICT, "limit_exceeded"),
                Error::StorageFull(_) => (StatusCode::CONFLICT, "storage_full"),
                Error::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
                Error::IdempotencyKeyReused => {
                    (StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused")
                }
                Error::Overloaded => (StatusCode::TOO_MANY_REQUESTS, "overloaded"),
                Error::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
                Error::UpstreamUnavailable { .. } => {
                    (StatusCode::SERVICE_UNAVAILABLE, "upstream_unavailable")
                }
                Error::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
                Error::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            },
        }
    }
}

impl ApiError {
    /// What the client is told, and the one place where such an error is logged, with its whole chain.
    pub(crate) fn to_problem(&self) -> ProblemDetails {
        if let Self::Operation(Error::Internal(cause) | Error::Unavailable(cause)) = self {
            tracing::error!(
                event = "request.failed",
                error = format!("{cause:#}"),
                "request failed"
            );
        }
        let (status, code) = self.status_and_code();
        let fix = match self {
            Self::Operation(error) => error.suggested_fix().map(str::to_owned),
            Self::Malformed(_) | Self::TooLarge | Self::MediaType => None,
        };
        problem_details(status, code, self.to_string(), fix)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = respond_with_problem(self.status_and_code().0, self.to_problem());
        if let Self::Operation(
            Error::UpstreamUnavailable { after, .. } | Error::RateLimited { after, .. },
        ) = &self
        {
            // Never too early, and never at once.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, seconds.max(1).into());
        }
        response
    }
}

/// The details of a refusal, before its trace is known.
pub(crate) fn problem_details(
    status: StatusCode,
    code: &str,
    detail: String,
    fix: Option<String>,
) -> ProblemDetails {
    ProblemDetails {
        kind: format!("urn:cynode:problem:{code}"),
        title: status.canonical_reason().unwrap_or_default().to_owned(),
        status: status.as_u16(),
        code: code.to_owned(),
        detail,
        fix,
        trace_id: None,
    }
}

/// A response that the outermost layer turns into problem+json, once it knows the trace.
pub(crate) fn problem_response(
    status: StatusCode,
    code: &str,
    detail: String,
    fix: Option<String>,
) -> Response {
    respond_with_problem(status, problem_details(status, code, detail, fix))
}

fn respond_with_problem(status: StatusCode, problem: ProblemDetails) -> Response {
    let mut response = status.into_response();
    response.extensions_mut().insert(Arc::new(problem));
    response
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        // Whoever named a thing may never have seen the path that it was put into.
        Self::Malformed(if let PathRejection::FailedToDeserializePathParams(wrong) = rejection {
            wrong.into_kind().to_string()
        } else {
            rejection.body_text()
        })
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::Malformed(rejection.body_text())
    }
}

impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            _ => Self::Malformed("the body could not be read to its end".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cynode_app::Error;
    use cynode_wire::platform::problem::ProblemDetails;

    use super::*;

    #[test]
    fn an_unavailable_forge_is_answered_with_when_to_retry() {
        for (after, told) in [(0, "1"), (1500, "2"), (60_000, "60")] {
            let why = "rate limit".to_owned();
            let after = Duration::from_millis(after);
            let error = ApiError::from(Error::UpstreamUnavailable { after, why });
            let response = error.into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(response.headers()[RETRY_AFTER], told);
            let problem = response.extensions().get::<Arc<ProblemDetails>>().unwrap();
            assert_eq!(
                (problem.code.as_str(), problem.detail.as_str()),
                ("upstream_unavailable", "rate limit")
            );
            assert!(problem.fix.as_deref().unwrap().contains("Retry-After"));
        }
    }
}
