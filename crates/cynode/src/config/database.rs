use std::{path::PathBuf, time::Duration};

use cynode_core::tuning::BoundedNumber;
use cynode_db::DbOptions;
use secrecy::{ExposeSecret, SecretString};

use super::reader::ConfigReader;

/// Connection to the database.
#[derive(Debug)]
pub(crate) struct DatabaseConfig {
    /// `postgres://…`; it may contain a password.
    pub(crate) url: Option<SecretString>,
    /// URL of the owner of the schema, who migrates; the role of `url` then changes no table.
    pub(crate) owner_url: Option<SecretString>,
    /// Directory to which the database of `up` archives its write-ahead log.
    pub(crate) wal_archive: Option<PathBuf>,
    max_connections: u32,
    statement_timeout: Duration,
}

const MAX_CONNECTIONS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_DATABASE_MAX_CONNECTIONS", min: 4, max: 500, default: 16 };
const STATEMENT_TIMEOUT_SECONDS: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_DATABASE_STATEMENT_TIMEOUT_SECONDS",
    min: 1,
    max: 600,
    default: 20,
};

impl DatabaseConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let url = reader.read_secret("database.url", "database.url_file", "DATABASE_URL");
        let owner_url = reader.read_secret(
            "database.owner_url",
            "database.owner_url_file",
            "CYNODE_DATABASE_OWNER_URL",
        );
        let wal_archive = reader.optional_text("database.wal_archive").map(PathBuf::from);
        let connections = reader.bounded_integer("database.max_connections", MAX_CONNECTIONS);
        let statement =
            reader.bounded_integer("database.statement_timeout_seconds", STATEMENT_TIMEOUT_SECONDS);
        Self {
            url,
            owner_url,
            wal_archive,
            max_connections: u32::try_from(connections).unwrap_or(u32::MAX),
            statement_timeout: Duration::from_secs(statement.unsigned_abs()),
        }
    }

    /// Returns the keys whose connection leaves this machine without being encrypted to a verified server. A URL that is not usable is
    /// reported when the pool is made.
    pub(super) fn unprotected_keys(&self) -> Vec<&'static str> {
        let urls = [("database.url", &self.url), ("database.owner_url", &self.owner_url)];
        let unprotected = urls.into_iter().filter(|(_, url)| {
            url.as_ref().is_some_and(|url| {
                cynode_db::is_protected_connection(url.expose_secret()).is_ok_and(|safe| !safe)
            })
        });
        unprotected.map(|(key, _)| key).collect()
    }

    /// Returns the options of the pool, or an error with the fix if no database is configured.
    pub(crate) fn pool_options(&self) -> anyhow::Result<DbOptions> {
        let url = self.url.as_ref().ok_or_else(|| {
            anyhow::anyhow!(
                "no database is configured: set DATABASE_URL or database.url_file, \
                 or run `cynode up`, which brings its own"
            )
        })?;
        Ok(self.pool_options_for(url))
    }

    /// Returns the options of the pool for another URL.
    pub(crate) fn pool_options_for(&self, url: &SecretString) -> DbOptions {
        DbOptions {
            url: url.expose_secret().to_owned(),
            max_connections: self.max_connections,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: self.statement_timeout,
        }
    }
}
