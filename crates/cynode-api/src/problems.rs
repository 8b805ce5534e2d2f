//! The table of problems: the code of each, its HTTP status, its meaning and the next action. Every refusal of the HTTP
//! API
//! takes its code from here, and `cynode reference` generates `docs/reference/errors.md` from it.

use axum::http::StatusCode;

/// One problem that a response can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemSpec {
    /// Stable code for programs.
    pub code: &'static str,
    /// HTTP status of the response.
    pub status: StatusCode,
    /// Description of the problem, in one sentence.
    pub meaning: &'static str,
    /// Next action of the client.
    pub action: &'static str,
}

impl ProblemSpec {
    /// Returns the `type` of its problem document (RFC 9457).
    pub fn type_urn(&self) -> String {
        format!("urn:cynode:problem:{}", self.code)
    }
}

macro_rules! problem_specs {
    ($(#[doc = $meaning:literal] $name:ident = $code:literal, $status:ident, $action:literal;)+) => {
        $(
            #[doc = $meaning]
            pub(crate) const $name: ProblemSpec = ProblemSpec {
                code: $code,
                status: StatusCode::$status,
                meaning: $meaning.trim_ascii(),
                action: $action,
            };
        )+

        /// Every problem, ordered by code.
        pub static PROBLEMS: &[ProblemSpec] = &[$($name,)+];
    };
}

problem_specs! {
    /// Something of that name exists already.
    ALREADY_EXISTS = "already_exists", CONFLICT, "Choose another name, or update what exists.";
    /// A chain of the audit log has fewer records than a signed head of it covers.
    CHAIN_TRUNCATED = "chain_truncated", CONFLICT, "Keep the head that you have: it shows that records are missing. Ask an admin to run `cynode audit verify`, and to look who could write to the database.";
    /// A rule about the present state forbids the request; `detail` says which.
    RULE_CONFLICT = "conflict", CONFLICT, "Do what `detail` asks for first, then repeat the request.";
    /// A page of another site caused a request that a session cookie would authenticate.
    CROSS_SITE_REQUEST = "cross_site_request", FORBIDDEN, "Open CyNode at its own address and repeat it there. A program sends an API key as `Authorization: Bearer …` and no cookie.";
    /// The caller was superseded by a newer one, so its write comes too late and is not applied.
    FENCED = "fenced", CONFLICT, "Stop. A runner starts again from what `resume` says.";
    /// The caller's role is too weak for this operation; `detail` names the role and where it is needed.
    FORBIDDEN = "forbidden", FORBIDDEN, "Ask an admin of the installation or of the project for that role.";
    /// The same `Idempotency-Key` was sent before with another request.
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused", UNPROCESSABLE_ENTITY, "Use a new `Idempotency-Key` for each new request, and the same one only for a repeat.";
    /// A browser asks for a session over a connection that others can read.
    INSECURE_TRANSPORT = "insecure_transport", FORBIDDEN, "Put a proxy with TLS before the server and set `server.public_url` to its `https://` address, or open the server at `http://localhost:PORT` on its own machine.";
    /// The server failed to handle the request because of a fault of its own.
    INTERNAL = "internal", INTERNAL_SERVER_ERROR, "Search the log of the server for the `trace_id`: the line `request.failed` has the whole cause. Report it with the `trace_id`.";
    /// The request is well-formed and contradicts itself or a rule; `detail` says which value.
    INVALID = "invalid", UNPROCESSABLE_ENTITY, "Correct the value that `detail` names.";
    /// The state machine does not allow this transition from the present state.
    INVALID_STATE = "invalid_state", CONFLICT, "Read the object again and choose an operation that its state allows.";
    /// The API key is limited to other operations or projects; `detail` says what it lacks.
    KEY_DENIED = "key_denied", FORBIDDEN, "Log in, or create an API key with the scope or the project that `detail` names.";
    /// Another driver holds the lease of the task.
    LEASE_HELD = "lease_held", CONFLICT, "Stop. The lease ends when its holder releases it or stops renewing it.";
    /// A maximum number is reached; `detail` says of what.
    LIMIT_EXCEEDED = "limit_exceeded", CONFLICT, "Delete what is no longer needed, or ask an admin to raise the limit where `detail` names a setting.";
    /// The request cannot be parsed: its path, query or body has the wrong form.
    MALFORMED = "malformed", BAD_REQUEST, "Compare the request with `/v1/openapi.json`.";
    /// The commits, or the branch that they go to, cannot be merged.
    MERGE_CONFLICT = "merge_conflict", CONFLICT, "Resolve the conflict on the branch that `detail` names, or retry the task from the newest commit of the base branch.";
    /// The path exists and does not take this method.
    METHOD_NOT_ALLOWED = "method_not_allowed", METHOD_NOT_ALLOWED, "Look up the methods of the path in `/v1/openapi.json`.";
    /// The object does not exist, or the caller may not know that it does.
    NOT_FOUND = "not_found", NOT_FOUND, "Check the id or name; `detail` suggests a similar name where there is one. Ask for access if the object is in a project of others.";
    /// The task exists and cannot be driven now.
    NOT_RUNNABLE = "not_runnable", CONFLICT, "Stop. The task starts again when what it waits for has happened.";
    /// Too many requests wait for the same resource.
    OVERLOADED = "overloaded", TOO_MANY_REQUESTS, "Repeat the request after a moment.";
    /// The server has nothing at this path.
    PATH_NOT_FOUND = "path_not_found", NOT_FOUND, "Look up the path in `/v1/openapi.json`, and check that the request goes to the right port.";
    /// A mandatory policy forbids the request; `detail` names the policy and who set it.
    POLICY_DENIED = "policy_denied", FORBIDDEN, "Do it as the policy says, or ask the person who set it. `cynork policy explain` shows every policy that holds.";
    /// The caller has reached a rate limit.
    RATE_LIMITED = "rate_limited", TOO_MANY_REQUESTS, "Repeat the request after the seconds that the header `Retry-After` names.";
    /// The HTTP layer refused the request before any operation; the answer may have any status from 400 on.
    REFUSED = "refused", BAD_REQUEST, "Read the status of the answer, and compare the request with `/v1/openapi.json`.";
    /// The password is right, and the account has a second factor whose code is missing.
    SECOND_FACTOR_REQUIRED = "second_factor_required", UNAUTHORIZED, "Repeat the login with `code`: what the authenticator shows, or a recovery code.";
    /// The program is more than one release older or newer than the server; `detail` names both.
    RELEASE_SKEW = "release_skew", UPGRADE_REQUIRED, "Install the release of the server, or one next to it. Upgrade the server first, then nodes and command lines, one release at a time.";
    /// The disk of the server is almost full, so nothing more is stored.
    STORAGE_FULL = "storage_full", CONFLICT, "Free space on the disk that `storage.directory` is on.";
    /// The task has ended and is never driven again.
    TASK_ENDED = "task_ended", CONFLICT, "Stop for good. `cynork task retry` creates a task that continues it.";
    /// The request took longer than `server.request_timeout_seconds`, or the server is about to stop.
    TIMEOUT = "timeout", SERVICE_UNAVAILABLE, "Repeat the request with the same `Idempotency-Key`: it takes effect once.";
    /// The body, or what was asked for, is larger than this endpoint takes.
    TOO_LARGE = "too_large", PAYLOAD_TOO_LARGE, "Send or ask for less at once. `server.body_limit_bytes` is the limit of most bodies.";
    /// Credentials are missing, expired, revoked or wrong.
    UNAUTHENTICATED = "unauthenticated", UNAUTHORIZED, "Log in, or send a valid API key as `Authorization: Bearer …`.";
    /// The database cannot be reached.
    UNAVAILABLE = "unavailable", SERVICE_UNAVAILABLE, "Repeat the request after a moment. `/readyz` says what is missing.";
    /// The request has a body that is not JSON.
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "Send the body as `Content-Type: application/json`.";
    /// A system outside, such as a forge, refuses the request or is no longer connected.
    UPSTREAM_REJECTED = "upstream_rejected", CONFLICT, "Correct what `detail` names at that system or in its connection. A repeat alone does not help.";
    /// A system outside that is needed cannot be reached, or has asked for a pause.
    UPSTREAM_UNAVAILABLE = "upstream_unavailable", SERVICE_UNAVAILABLE, "Repeat the request after the seconds that the header `Retry-After` names.";
    /// Another writer changed the object after the caller read it.
    VERSION_CONFLICT = "version_conflict", CONFLICT, "Read the object again, look at what changed, and send the new version.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_ordered_by_code_and_each_is_there_once() {
        assert!(PROBLEMS.windows(2).all(|pair| pair[0].code < pair[1].code));
    }

    #[test]
    fn a_problem_is_an_error_and_says_what_to_do_in_sentences() {
        for spec in PROBLEMS {
            assert!(spec.status.is_client_error() || spec.status.is_server_error(), "{spec:?}");
            assert!(spec.meaning.ends_with('.') && spec.action.ends_with('.'), "{spec:?}");
        }
    }
}
