use cynode_core::{InvalidTransition, roles::UserRole};
use cynode_db::DbError;

/// Why an operation was not done, in words that fit any transport.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody showed who they are, or what they showed does not work.
    #[error("credentials are missing, expired, revoked or wrong")]
    Unauthenticated,
    /// The caller's role does not reach.
    #[error("this needs the role {needed} {place}")]
    Forbidden {
        /// The weakest role that may.
        needed: &'static str,
        /// Where it is needed.
        place: &'static str,
    },
    /// It is not there, or the caller may not know that it is.
    #[error("{what} `{id}` does not exist{}", render_suggestion(near.as_deref()))]
    NotFound {
        /// The kind of thing.
        what: &'static str,
        /// How it was named.
        id: String,
        /// A name nearly like it that the caller may see.
        near: Option<String>,
    },
    /// The request contradicts itself or a rule.
    #[error("{0}")]
    Invalid(String),
    /// Something of that name exists.
    #[error("{what} `{name}` exists already")]
    AlreadyExists {
        /// The kind of thing.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The state machine does not allow this transition.
    #[error(transparent)]
    InvalidState(#[from] InvalidTransition),
    /// Another writer changed it in between: the version that the caller read is not the present one.
    #[error("`{key}` is at version {actual}, not at {expected}")]
    VersionConflict {
        /// What was to be written.
        key: String,
        /// What the writer believed.
        expected: i64,
        /// What is there; 0 is "nothing".
        actual: i64,
    },
    /// Another rule of the present state forbids it.
    #[error("{0}")]
    Conflict(&'static str),
    /// The key of a repeat was used for another request.
    #[error("this Idempotency-Key was used for another request")]
    IdempotencyKeyReused,
    /// Too many requests wait for the same resource.
    #[error("too many are waiting for the same")]
    Overloaded,
    /// The caller has reached a rate limit.
    #[error("{what}")]
    RateLimited {
        /// The limit, in words.
        what: &'static str,
        /// How long the caller must wait.
        after: std::time::Duration,
    },
    /// Another driver holds the lease of the task.
    #[error("the task is driven by {holder}")]
    LeaseHeld {
        /// The other driver.
        holder: String,
    },
    /// The task may not be driven now.
    #[error("the task cannot be driven now: {0}")]
    NotRunnable(&'static str),
    /// The task has ended: it will never be driven again.
    #[error("the task has ended")]
    TaskEnded,
    /// The caller was superseded: what it says is too late.
    #[error("too late: {0}")]
    Fenced(&'static str),
    /// The commits, or the branch that they go to, do not fit together.
    #[error("{0}")]
    MergeConflict(String),
    /// A system outside refuses it, or is no longer connected. A repeat does not help.
    #[error("{0}")]
    UpstreamRejected(String),
    /// There are as many as there may be.
    #[error("{0}")]
    LimitExceeded(String),
    /// The disk is almost full.
    #[error("{0}")]
    StorageFull(&'static str),
    /// It is more than may be had in one piece.
    #[error("{0}")]
    TooLarge(String),
    /// A system outside that is needed cannot be reached, or has asked to be left alone for a while.
    #[error("{why}")]
    UpstreamUnavailable {
        /// How long it is best left alone.
        after: std::time::Duration,
        /// Who, and why.
        why: String,
    },
    /// The database cannot be reached.
    #[error("the database cannot be reached")]
    Unavailable(#[source] anyhow::Error),
    /// Our fault.
    #[error("something went wrong on our side")]
    Internal(#[source] anyhow::Error),
}

fn render_suggestion(near: Option<&str>) -> String {
    near.map(|near| format!("; is `{near}` meant?")).unwrap_or_default()
}

impl Error {
    /// The caller's role does not reach.
    pub(crate) const fn forbidden(needed: UserRole, place: &'static str) -> Self {
        Self::Forbidden { needed: needed.as_str(), place }
    }

    /// It is not there.
    pub(crate) fn not_found(what: &'static str, id: impl std::fmt::Display) -> Self {
        Self::NotFound { what, id: id.to_string(), near: None }
    }

    /// It is not there, but perhaps the caller meant one of these.
    pub(crate) fn not_found_near<'a>(
        what: &'static str,
        id: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let near = cynode_core::names::nearest_name(id, known).map(str::to_owned);
        Self::NotFound { what, id: id.to_owned(), near }
    }

    /// What to do next, when there is something.
    pub const fn suggested_fix(&self) -> Option<&'static str> {
        match self {
            Self::Unauthenticated => {
                Some("log in, or send a valid API key as `Authorization: Bearer …`")
            }
            Self::Forbidden { .. } => Some("ask an admin of that place for the role"),
            Self::VersionConflict { .. } => {
                Some("read it again, look at what changed, and send the new version")
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
        // A constraint that the operation did not expect is our fault, like anything else.
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

/// Says in the log what went wrong with work that nobody waits for and that is done again.
pub(crate) fn log_background_error(
    event: &'static str,
    error: &(dyn std::error::Error + 'static),
    message: &str,
) {
    tracing::warn!(event, error = cynode_core::error_chain::format_error_chain(error), "{message}");
}
