/// Why a query did not give what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// A constraint of the schema refused a write; the operation knows what that means.
    #[error("the database refused the write: {constraint}")]
    Refused {
        /// The constraint's name.
        constraint: String,
    },
    /// A row that no version of this program would have written.
    #[error("{table}.{column} holds a value that cannot be read")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
    /// The database did not answer, or answered with an error.
    #[error("the database failed")]
    Failed(#[source] sqlx::Error),
}

impl DbError {
    /// Whether the database could not be reached or asks to be tried again, as opposed to having refused
    /// something: connections that broke, a server that starts, stops or is full, a deadlock that was resolved.
    pub fn is_unavailable(&self) -> bool {
        use sqlx::Error::{Database, Io, PoolClosed, PoolTimedOut, Protocol, Tls};
        match self {
            Self::Failed(Io(_) | PoolTimedOut | PoolClosed | Tls(_) | Protocol(_)) => true,
            Self::Failed(Database(error)) => {
                let code = error.code().unwrap_or_default();
                ["08", "53", "57P", "40001", "40P01"].iter().any(|class| code.starts_with(class))
            }
            Self::Failed(_) | Self::Refused { .. } | Self::Corrupt { .. } => false,
        }
    }

    /// Whether a value was given that no column can hold: a zero character, a number that is too large.
    pub fn is_unusable_value(&self) -> bool {
        match self {
            Self::Failed(sqlx::Error::Database(error)) => {
                error.code().is_some_and(|code| code.starts_with("22"))
            }
            Self::Failed(_) | Self::Refused { .. } | Self::Corrupt { .. } => false,
        }
    }

    /// Whether the constraint of that name refused a write.
    pub fn is_refused_by(&self, name: &str) -> bool {
        matches!(self, Self::Refused { constraint } if constraint == name)
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        let constraint = error.as_database_error().and_then(|e| e.constraint()).map(str::to_owned);
        match constraint {
            Some(constraint) => Self::Refused { constraint },
            None => Self::Failed(error),
        }
    }
}

/// Marks a value of `table.column` as unreadable.
pub(crate) fn corrupt_column<E>(
    table: &'static str,
    column: &'static str,
) -> impl Fn(E) -> DbError {
    move |_| DbError::Corrupt { table, column }
}

/// Reads a role; the CHECK of every role column admits only known names.
pub(crate) fn parse_role(
    table: &'static str,
    name: &str,
) -> Result<cynode_core::roles::UserRole, DbError> {
    cynode_core::roles::UserRole::from_name(name).ok_or(DbError::Corrupt { table, column: "role" })
}
