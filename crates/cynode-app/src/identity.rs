//! Users, groups, sessions, tokens and login throttling.

pub mod api_keys;
pub mod bootstrap;
pub mod groups;
pub(crate) mod login_throttle;
pub mod service_tokens;
pub mod sessions;
pub mod users;
