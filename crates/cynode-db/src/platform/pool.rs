use std::{net::IpAddr, str::FromStr, time::Duration};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};

use crate::{DbError, Pool, PooledConn, Tx};

/// Name with which our programs connect.
pub(crate) const APPLICATION_NAME: &str = "cynode";

/// How to reach the database.
pub struct DbOptions {
    /// `postgres://…`, or with `?host=/directory` for a socket. It may hold a password.
    pub url: String,
    /// Most connections of this process.
    pub max_connections: u32,
    /// How long a request waits for a connection.
    pub acquire_timeout: Duration,
    /// How long one statement may run; zero is without end.
    pub statement_timeout: Duration,
}

/// Why the pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL cannot be read. It is not repeated, since it may hold a password.
    #[error("the database URL is malformed; it has the form postgres://USER@HOST/DATABASE")]
    Url,
    /// The database did not let us in.
    #[error(transparent)]
    Db(#[from] DbError),
}

/// Returns whether nobody on the way can read or change what the database and we say to each other: the connection stays on this machine,
/// or it is encrypted and the certificate and the name of the server are verified.
pub fn is_protected_connection(url: &str) -> Result<bool, ConnectError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| ConnectError::Url)?;
    let host = options.get_host();
    let local = options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback());
    Ok(local || matches!(options.get_ssl_mode(), PgSslMode::VerifyFull))
}

/// Makes the pool. No connection is opened before the first use, so that a server can start and say
/// on `/readyz` that the database is missing.
pub fn connect_pool(options: &DbOptions) -> Result<Pool, ConnectError> {
    let milliseconds = options.statement_timeout.as_millis().to_string();
    let connect = PgConnectOptions::from_str(&options.url)
        .map_err(|_| ConnectError::Url)?
        .application_name(APPLICATION_NAME)
        // A process that stops inside a transaction must not hold its locks, nor the stream of events, for ever.
        .options([
            ("statement_timeout", milliseconds.as_str()),
            ("idle_in_transaction_session_timeout", "60000"),
        ]);
    let pool = PgPoolOptions::new()
        .max_connections(options.max_connections)
        .acquire_timeout(options.acquire_timeout)
        // A dead connection shows itself at its first statement; a ping before each use would cost a
        // round trip on every request.
        .test_before_acquire(false)
        .after_connect(|_, _| {
            Box::pin(async {
                tracing::info!(event = "backend.connected", backend = "postgresql", "connected");
                Ok(())
            })
        })
        .connect_lazy_with(connect);
    Ok(pool)
}

/// Takes a connection of a pool.
#[expect(clippy::disallowed_methods, reason = "every other place takes its connections here")]
pub async fn acquire_connection(pool: &Pool) -> Result<PooledConn, DbError> {
    Ok(pool.acquire().await?)
}

/// Begins a transaction on a connection of a pool.
#[expect(clippy::disallowed_methods, reason = "every other place begins its transactions here")]
pub async fn begin_transaction(pool: &Pool) -> Result<Tx, DbError> {
    Ok(pool.begin().await?)
}
