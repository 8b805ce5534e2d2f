//! Wake-ups between processes: PostgreSQL's LISTEN and NOTIFY.
//!
//! A wake-up only saves time. A notification may be lost, and a connection pooler may not pass any on: each listener
//! also polls.

use sqlx::postgres::PgListener;

use crate::{Conn, DbError, Pool};

/// The channel of all wake-ups.
const WAKEUP_CHANNEL: &str = "cynode_wakeups";

/// A connection that hears what other processes say.
pub struct WakeupListener(PgListener);

impl WakeupListener {
    /// Takes a connection of the pool and listens on it.
    #[tracing::instrument(name = "db.wakeups.open_listener", skip_all)]
    pub async fn open_listener(pool: &Pool) -> Result<Self, DbError> {
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(WAKEUP_CHANNEL).await?;
        Ok(Self(listener))
    }

    /// What is said next. `None` when the connection was lost and made anew: something may not have been heard.
    pub async fn next(&mut self) -> Result<Option<String>, DbError> {
        let heard = self.0.try_recv().await?;
        Ok(heard.map(|notification| notification.payload().to_owned()))
    }
}

/// Says something to every process that listens. Nothing is lost with it, so nobody waits for the disk.
#[tracing::instrument(name = "db.wakeups.notify_listeners", skip_all)]
pub async fn notify_listeners(conn: &mut Conn, payload: &str) -> Result<(), DbError> {
    sqlx::query!(
        "SELECT pg_notify($1, $2) FROM set_config('synchronous_commit', 'off', true)",
        WAKEUP_CHANNEL,
        payload,
    )
    .execute(conn)
    .await?;
    Ok(())
}
