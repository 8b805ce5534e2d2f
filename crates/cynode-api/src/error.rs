use std::sync::Arc;

use axum::{
    extract::rejection::{BytesRejection, PathRejection, QueryRejection},
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use cynode_app::Error;
use cynode_wire::platform::problem::ProblemDetails;

use crate::problems::{self, ProblemSpec};

/// A failed request: either it was rejected before an operation began, or the operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    Malformed(String),
    #[error("the body is larger than this endpoint takes")]
    TooLarge,
    #[error("a body must be sent as `Content-Type: application/json`")]
    MediaType,
    #[error("another site caused this request, or it does not say which site did")]
    CrossSite,
    #[error("a browser can log in over HTTPS, or over plain HTTP on this machine alone")]
    InsecureTransport,
    #[error(transparent)]
    Operation(#[from] Error),
}

impl ApiError {
    const fn problem_spec(&self) -> ProblemSpec {
        match self {
            Self::Malformed(_) => problems::MALFORMED,
            Self::TooLarge => problems::TOO_LARGE,
            Self::MediaType => problems::UNSUPPORTED_MEDIA_TYPE,
            Self::CrossSite => problems::CROSS_SITE_REQUEST,
            Self::InsecureTransport => problems::INSECURE_TRANSPORT,
            Self::Operation(error) => match error {
                Error::Unauthenticated => problems::UNAUTHENTICATED,
                Error::SecondFactorRequired => problems::SECOND_FACTOR_REQUIRED,
                Error::KeyDenied(_) => problems::KEY_DENIED,
                Error::Forbidden { .. } => problems::FORBIDDEN,
                Error::NotFound { .. } => problems::NOT_FOUND,
                Error::Invalid(_) => problems::INVALID,
                Error::PolicyDenied(_) => problems::POLICY_DENIED,
                Error::AlreadyExists { .. } => problems::ALREADY_EXISTS,
                Error::InvalidState(_) => problems::INVALID_STATE,
                Error::VersionConflict { .. } => problems::VERSION_CONFLICT,
                Error::LeaseHeld { .. } => problems::LEASE_HELD,
                Error::NotRunnable(_) => problems::NOT_RUNNABLE,
                Error::TaskEnded => problems::TASK_ENDED,
                Error::Fenced(_) => problems::FENCED,
                Error::Conflict(_) => problems::RULE_CONFLICT,
                Error::ChainTruncated { .. } => problems::CHAIN_TRUNCATED,
                Error::MergeConflict(_) => problems::MERGE_CONFLICT,
                Error::UpstreamRejected(_) => problems::UPSTREAM_REJECTED,
                Error::LimitExceeded(_) => problems::LIMIT_EXCEEDED,
                Error::StorageFull(_) => problems::STORAGE_FULL,
                Error::TooLarge(_) => problems::TOO_LARGE,
                Error::IdempotencyKeyReused => problems::IDEMPOTENCY_KEY_REUSED,
                Error::Overloaded => problems::OVERLOADED,
                Error::RateLimited { .. } => problems::RATE_LIMITED,
                Error::UpstreamUnavailable { .. } => problems::UPSTREAM_UNAVAILABLE,
                Error::Unavailable(_) => problems::UNAVAILABLE,
                Error::Internal(_) => problems::INTERNAL,
            },
        }
    }
}

impl ApiError {
    /// Returns the problem details for the client. This is the only place that logs such an error, with its whole
    /// chain.
    pub(crate) fn to_problem(&self) -> ProblemDetails {
        if let Self::Operation(Error::Internal(cause) | Error::Unavailable(cause)) = self {
            tracing::error!(
                event = "request.failed",
                error = format!("{cause:#}"),
                "request failed"
            );
        }
        let fix = match self {
            Self::Operation(error) => error.suggested_fix().map(str::to_owned),
            Self::CrossSite | Self::InsecureTransport => {
                Some(self.problem_spec().action.to_owned())
            }
            Self::Malformed(_) | Self::TooLarge | Self::MediaType => None,
        };
        problem_details(self.problem_spec(), self.to_string(), fix)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = respond_with_problem(self.problem_spec().status, self.to_problem());
        if let Self::Operation(
            Error::UpstreamUnavailable { after, .. } | Error::RateLimited { after, .. },
        ) = &self
        {
            // Round up: the client must not retry too early, and never at once.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, seconds.max(1).into());
        }
        response
    }
}

/// Builds the details of a problem, before its trace id is known.
pub(crate) fn problem_details(
    spec: ProblemSpec,
    detail: String,
    fix: Option<String>,
) -> ProblemDetails {
    ProblemDetails {
        kind: spec.type_urn(),
        title: spec.status.canonical_reason().unwrap_or_default().to_owned(),
        status: spec.status.as_u16(),
        code: spec.code.to_owned(),
        detail,
        fix,
        trace_id: None,
    }
}

/// Builds a response that the outermost layer turns into problem+json, once it knows the trace id.
pub(crate) fn problem_response(spec: ProblemSpec, detail: String, fix: Option<String>) -> Response {
    respond_with_problem(spec.status, problem_details(spec, detail, fix))
}

fn respond_with_problem(status: StatusCode, problem: ProblemDetails) -> Response {
    let mut response = status.into_response();
    response.extensions_mut().insert(Arc::new(problem));
    response
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        // The client may have named the object in another place than the path, so the message does not mention the
        // path.
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
