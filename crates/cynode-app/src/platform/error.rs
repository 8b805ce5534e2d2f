use cynode_core::{InvalidTransition, roles::UserRole};
use cynode_db::DbError;

/// Reason why an operation failed, independent of the transport.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The credentials are missing or invalid.
    #[error("credentials are missing, expired, revoked or wrong")]
    Unauthenticated,
    /// The password is right, and the account has a second factor whose code is missing.
    #[error("this account has a second factor: send its code, too")]
    SecondFactorRequired,
    /// The API key is not meant for this operation. The message says what it lacks.
    #[error("{0}")]
    KeyDenied(String),
    /// The caller's role is too weak.
    #[error("this needs the role {needed} {place}")]
    Forbidden {
        /// Weakest role that is allowed.
        needed: &'static str,
        /// Scope in which the role is needed.
        place: &'static str,
    },
    /// The resource does not exist, or the caller may not know that it exists.
    #[error("{what} `{id}` does not exist{}", render_suggestion(near.as_deref()))]
    NotFound {
        /// Kind of resource.
        what: &'static str,
        /// Id or name in the request.
        id: String,
        /// Similar name that the caller may see.
        near: Option<String>,
    },
    /// The request contradicts itself or a rule.
    #[error("{0}")]
    Invalid(String),
    /// A resource of that name exists.
    #[error("{what} `{name}` exists already")]
    AlreadyExists {
        /// Kind of resource.
        what: &'static str,
        /// Name that is taken.
        name: String,
    },
    /// A mandatory policy forbids the operation. The message names the policy and who set it.
    #[error("{0}")]
    PolicyDenied(String),
    /// The state machine does not allow this transition.
    #[error(transparent)]
    InvalidState(#[from] InvalidTransition),
    /// Another writer changed it in between: the version that the caller read is not the present one.
    #[error("`{key}` is at version {actual}, not at {expected}")]
    VersionConflict {
        /// Key that was to be written.
        key: String,
        /// Version that the writer expected.
        expected: i64,
        /// Present version. 0 means that there is none.
        actual: i64,
    },
    /// Another rule of the present state forbids the operation.
    #[error("{0}")]
    Conflict(&'static str),
    /// A chain of audit records is shorter than a head of it that was signed.
    #[error(
        "a signed head of {needed} records is asked for, and the chain has {present}: it was cut off, or the head is of another installation"
    )]
    ChainTruncated {
        /// Number of records that the head covers.
        needed: u64,
        /// Number of records that there are.
        present: u64,
    },
    /// The idempotency key was used for another request.
    #[error("this Idempotency-Key was used for another request")]
    IdempotencyKeyReused,
    /// Too many requests wait for the same resource.
    #[error("too many are waiting for the same")]
    Overloaded,
    /// The caller has reached a rate limit.
    #[error("{what}")]
    RateLimited {
        /// Description of the limit.
        what: &'static str,
        /// Time that the caller must wait.
        after: std::time::Duration,
    },
    /// Another driver holds the lease of the task.
    #[error("the task is driven by {holder}")]
    LeaseHeld {
        /// Name of the other driver.
        holder: String,
    },
    /// The task may not be driven now.
    #[error("the task cannot be driven now: {0}")]
    NotRunnable(&'static str),
    /// The task has ended and will never be driven again.
    #[error("the task has ended")]
    TaskEnded,
    /// Fencing: the caller was superseded, and its write comes too late.
    #[error("too late: {0}")]
    Fenced(&'static str),
    /// The commits conflict with each other or with their target branch.
    #[error("{0}")]
    MergeConflict(String),
    /// An external system refuses the request or is no longer connected. A repeat does not help.
    #[error("{0}")]
    UpstreamRejected(String),
    /// The maximum number of resources is reached.
    #[error("{0}")]
    LimitExceeded(String),
    /// The disk is almost full.
    #[error("{0}")]
    StorageFull(&'static str),
    /// The content exceeds the maximum size.
    #[error("{0}")]
    TooLarge(String),
    /// A required external system cannot be reached, or its circuit breaker or rate limit asks for a pause.
    #[error("{why}")]
    UpstreamUnavailable {
        /// Time to wait before a retry.
        after: std::time::Duration,
        /// The external system and the cause.
        why: String,
    },
    /// The database cannot be reached.
    #[error("the database cannot be reached")]
    Unavailable(#[source] anyhow::Error),
    /// Internal error.
    #[error("something went wrong on our side")]
    Internal(#[source] anyhow::Error),
}

fn render_suggestion(near: Option<&str>) -> String {
    near.map(|near| format!("; is `{near}` meant?")).unwrap_or_default()
}

impl Error {
    /// Returns [`Self::Forbidden`] for a role.
    pub(crate) const fn forbidden(needed: UserRole, place: &'static str) -> Self {
        Self::Forbidden { needed: needed.as_str(), place }
    }

    /// Returns [`Self::NotFound`] without a suggestion.
    pub(crate) fn not_found(what: &'static str, id: impl std::fmt::Display) -> Self {
        Self::NotFound { what, id: id.to_string(), near: None }
    }

    /// Returns [`Self::NotFound`] with the most similar of these names.
    pub(crate) fn not_found_near<'a>(
        what: &'static str,
        id: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let near = cynode_core::names::nearest_name(id, known).map(str::to_owned);
        Self::NotFound { what, id: id.to_owned(), near }
    }

    /// Returns a hint about the next action, where there is one.
    pub const fn suggested_fix(&self) -> Option<&'static str> {
        match self {
            Self::Unauthenticated => {
                Some("log in, or send a valid API key as `Authorization: Bearer …`")
            }
            Self::SecondFactorRequired => {
                Some("repeat it with `code`: what the authenticator shows, or a recovery code")
            }
            Self::KeyDenied(_) => Some("log in, or create a key with that scope or project"),
            Self::Forbidden { .. } => Some("ask an admin of that place for the role"),
            Self::PolicyDenied(_) => Some("ask the person who set the policy"),
            Self::VersionConflict { .. } => {
                Some("read it again, look at what changed, and send the new version")
            }
            Self::ChainTruncated { .. } => {
                Some("keep the head that you have, and ask an admin to run `cynode audit verify`")
            }
            Self::IdempotencyKeyReused => Some("make a new Idempotency-Key for each new request"),
            Self::AlreadyExists { .. } => Some("choose another name"),
            Self::Overloaded => Some("try again in a moment"),
            Self::Unavailable(_) => Some("try again in a moment; `/readyz` says what is missing"),
            Self::UpstreamUnavailable { .. } | Self::RateLimited { .. } => {
                Some("try again after the seconds that `Retry-After` names")
            }
            Self::Internal(_) => Some("report it with the trace_id; the log has the whole cause"),
            Self::LeaseHeld { .. } => Some("stop; the lease ends when its holder is done or dead"),
            Self::NotRunnable(_) => Some("stop; whoever is waited for starts it again"),
            Self::TaskEnded => Some("stop for good"),
            Self::Fenced(_) => Some("stop, and start again from what `resume` says"),
            Self::NotFound { .. }
            | Self::Invalid(_)
            | Self::InvalidState(_)
            | Self::Conflict(_)
            | Self::MergeConflict(_)
            | Self::UpstreamRejected(_)
            | Self::LimitExceeded(_)
            | Self::StorageFull(_)
            | Self::TooLarge(_) => None,
        }
    }
}

impl From<DbError> for Error {
    fn from(error: DbError) -> Self {
        // A violated constraint that the operation did not expect is an internal error, like any other.
        if error.is_unavailable() {
            Self::Unavailable(error.into())
        } else if error.is_unusable_value() {
            Self::Invalid(
                "a value cannot be stored: it holds a zero character or is too large".into(),
            )
        } else {
            Self::Internal(error.into())
        }
    }
}

/// Logs an error of background work that nobody waits for and that is retried.
pub(crate) fn log_background_error(
    event: &'static str,
    error: &(dyn std::error::Error + 'static),
    message: &str,
) {
    tracing::warn!(event, error = cynode_core::error_chain::format_error_chain(error), "{message}");
}
