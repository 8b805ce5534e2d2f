//! Last use of sessions, API keys and tokens of directories. Each is written once a minute at most: a write for every
//! request would cost more than the request.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use cynode_core::{accounts::CallerCredential, ids::ScimTokenId};
use cynode_db::{
    DbError,
    identity::{accounts, scim},
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{App, platform::error::log_background_error};

/// How long a use that was written stands for the next ones.
const WRITE_INTERVAL: Duration = Duration::MINUTE;

/// Maximum number of credentials whose last write is remembered.
const MAX_TRACKED_CREDENTIALS: usize = 100_000;

/// When this process last wrote the use of a credential.
#[derive(Default)]
pub(crate) struct CredentialUseLog(Mutex<HashMap<Uuid, OffsetDateTime>>);

impl CredentialUseLog {
    /// Returns whether the use of a credential is to be written now.
    fn begin_write(&self, id: Uuid, now: OffsetDateTime) -> bool {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back must not stop the writes.
        let is_recent = |at: &OffsetDateTime| (now - *at).abs() < WRITE_INTERVAL;
        if written.get(&id).is_some_and(is_recent) {
            return false;
        }
        if written.len() >= MAX_TRACKED_CREDENTIALS {
            written.retain(|_, at| (now - *at).abs() < WRITE_INTERVAL);
        }
        if written.len() >= MAX_TRACKED_CREDENTIALS {
            written.clear();
        }
        written.insert(id, now);
        true
    }
}

impl App {
    /// Writes that a session or an API key was used. Other credentials have no last use.
    pub(crate) async fn note_use(&self, credential: CallerCredential) {
        let id = match credential {
            CallerCredential::Session(id) => id.as_uuid(),
            CallerCredential::ApiKey(id) => id.as_uuid(),
            CallerCredential::Link(_)
            | CallerCredential::Agent(_)
            | CallerCredential::Schedule(_) => return,
        };
        let now = self.environment().now();
        if self.shared_state().credential_use.begin_write(id, now) {
            log_failed_write(self.write_use(credential, now).await);
        }
    }

    /// Writes that the token of a directory was used.
    pub(crate) async fn note_scim_use(&self, id: ScimTokenId) {
        let now = self.environment().now();
        if self.shared_state().credential_use.begin_write(id.as_uuid(), now) {
            log_failed_write(self.write_scim_use(id, now).await);
        }
    }

    async fn write_use(
        &self,
        credential: CallerCredential,
        now: OffsetDateTime,
    ) -> Result<(), DbError> {
        let mut conn = self.conn().await?;
        match credential {
            CallerCredential::Session(id) => accounts::touch_session(&mut conn, id, now).await,
            CallerCredential::ApiKey(id) => accounts::touch_api_key(&mut conn, id, now).await,
            CallerCredential::Link(_)
            | CallerCredential::Agent(_)
            | CallerCredential::Schedule(_) => Ok(()),
        }
    }

    async fn write_scim_use(&self, id: ScimTokenId, now: OffsetDateTime) -> Result<(), DbError> {
        let mut conn = self.conn().await?;
        scim::touch_scim_token(&mut conn, id, now).await
    }
}

/// A use that could not be written is no reason to refuse the request.
fn log_failed_write(written: Result<(), DbError>) {
    if let Err(error) = written {
        log_background_error(
            "credential_use.write_failed",
            &error,
            "the last use of a credential could not be written",
        );
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn the_use_of_a_credential_is_written_once_a_minute() {
        let (log, noon) = (CredentialUseLog::default(), datetime!(2026-11-16 12:00 UTC));
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert!(log.begin_write(one, noon));
        assert!(!log.begin_write(one, noon + Duration::seconds(59)));
        assert!(log.begin_write(other, noon + Duration::seconds(59)));
        assert!(log.begin_write(one, noon + Duration::MINUTE));
        assert!(log.begin_write(one, noon - Duration::HOUR), "the clock was set back");
    }
}
