//! Accounts, groups, authentication and service tokens.

pub mod accounts;
pub mod authentication;
pub mod groups;
pub mod service_tokens;
