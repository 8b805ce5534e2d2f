use std::path::PathBuf;

use cynode_app::LifetimePolicy;
use cynode_core::tuning::BoundedNumber;
use time::Duration;

use super::reader::ConfigReader;

/// Lifetimes of credentials, and identity providers.
#[derive(Debug)]
pub(crate) struct AuthConfig {
    /// The lifetimes that operations use.
    pub(crate) policy: LifetimePolicy,
    /// Private hosts, as `host:port`, that identity providers may be at.
    pub(crate) private_issuers: Vec<String>,
    /// File of identity providers.
    pub(crate) identity_providers_file: Option<PathBuf>,
}

const SESSION_HOURS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_AUTH_SESSION_HOURS", min: 1, max: 720, default: 12 };
const IDEMPOTENCY_HOURS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_AUTH_IDEMPOTENCY_HOURS", min: 1, max: 720, default: 24 };

impl AuthConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let session = reader.bounded_integer("auth.session_hours", SESSION_HOURS);
        let kept = reader.bounded_integer("auth.idempotency_hours", IDEMPOTENCY_HOURS);
        let policy = LifetimePolicy {
            session_lifetime: Duration::hours(session),
            idempotency_lifetime: Duration::hours(kept),
            ..LifetimePolicy::default()
        };
        let private_issuers = reader.lowercase_list("auth.private_issuers");
        let file = reader.optional_text("auth.identity_providers_file");
        Self { policy, private_issuers, identity_providers_file: file.map(PathBuf::from) }
    }
}
