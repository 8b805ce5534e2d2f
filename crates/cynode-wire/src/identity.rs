//! Accounts: users, groups, sessions, API keys.

pub mod accounts;
