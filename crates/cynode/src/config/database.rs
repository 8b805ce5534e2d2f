use std::time::Duration;

use cynode_core::tuning::Bounded;
use cynode_db::Options;
use secrecy::{ExposeSecret, SecretString};

use super::reader::Reader;

/// How the database is reached.
#[derive(Debug)]
pub(crate) struct Database {
    /// `postgres://…`; it may hold a password.
    pub(crate) url: Option<SecretString>,
    max_connections: u32,
    statement_timeout: Duration,
}

const CONNECTIONS: Bounded<i64> =
    Bounded { name: "CYNODE_DATABASE_MAX_CONNECTIONS", min: 4, max: 500, default: 16 };
const STATEMENT: Bounded<i64> =
    Bounded { name: "CYNODE_DATABASE_STATEMENT_TIMEOUT_SECONDS", min: 1, max: 600, default: 20 };

impl Database {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let url = reader.secret("database.url", "database.url_file", "DATABASE_URL");
        let connections = reader.integer("database.max_connections", CONNECTIONS);
        let statement = reader.integer("database.statement_timeout_seconds", STATEMENT);
        Self {
            url,
            max_connections: u32::try_from(connections).unwrap_or(u32::MAX),
            statement_timeout: Duration::from_secs(statement.unsigned_abs()),
        }
    }

    /// The options of the pool, or what to do when no database is configured.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let url = self.url.as_ref().ok_or_else(|| {
            anyhow::anyhow!(
                "no database is configured: set DATABASE_URL or database.url_file, \
                 or run `cynode up`, which brings its own"
            )
        })?;
        Ok(self.options_for(url))
    }

    /// The options of the pool for another URL.
    pub(crate) fn options_for(&self, url: &SecretString) -> Options {
        Options {
            url: url.expose_secret().to_owned(),
            max_connections: self.max_connections,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: self.statement_timeout,
        }
    }
}
