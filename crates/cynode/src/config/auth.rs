use cynode_app::Policy;
use cynode_core::tuning::Bounded;
use time::Duration;

use super::reader::Reader;

/// How long what was given out keeps working.
#[derive(Debug)]
pub(crate) struct Auth {
    /// What operations go by.
    pub(crate) policy: Policy,
}

const SESSION: Bounded<i64> =
    Bounded { name: "CYNODE_AUTH_SESSION_HOURS", min: 1, max: 720, default: 12 };
const KEPT: Bounded<i64> =
    Bounded { name: "CYNODE_AUTH_IDEMPOTENCY_HOURS", min: 1, max: 720, default: 24 };

impl Auth {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let session = reader.integer("auth.session_hours", SESSION);
        let kept = reader.integer("auth.idempotency_hours", KEPT);
        let policy = Policy {
            session_lifetime: Duration::hours(session),
            idempotency_lifetime: Duration::hours(kept),
            ..Policy::default()
        };
        Self { policy }
    }
}
