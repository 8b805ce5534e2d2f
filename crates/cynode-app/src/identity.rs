//! Users, groups, sessions, second factors, tokens, the SCIM directory, identity providers and login throttling.

pub mod api_keys;
pub mod bootstrap;
pub mod break_glass;
pub(crate) mod credential_use;
pub mod device_login;
pub mod groups;
pub mod identity_providers;
pub(crate) mod login_throttle;
pub mod own_password;
pub mod provider_grants;
pub mod scim;
pub mod second_factor;
pub mod service_tokens;
pub mod session_origin;
pub mod sessions;
pub mod single_sign_on;
pub mod users;
