//! Accounts, groups, authentication, second factors, break-glass links, the SCIM directory, identity providers and service tokens.

pub mod accounts;
pub mod authentication;
pub mod break_glass;
pub mod certificates;
pub mod device_authorizations;
pub mod groups;
pub mod identity_providers;
pub mod provider_grants;
pub mod scim;
pub mod second_factors;
pub mod service_tokens;
