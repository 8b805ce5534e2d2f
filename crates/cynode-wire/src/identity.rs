//! Accounts: users, groups, sessions, API keys, single sign-on.

pub mod accounts;
pub mod single_sign_on;
