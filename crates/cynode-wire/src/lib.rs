//! The JSON that others see: requests, views, problems, pages.
//!
//! **Invariant**: pure types. A request type refuses unknown fields; a view is made from a domain
//! value by `From`, so that a new domain field does not leak by accident.

pub mod accounts;
pub mod delivery;
pub mod events;
pub mod evidence;
pub mod gate;
pub mod handoffs;
pub mod health;
pub mod jobs;
pub mod models;
pub mod nodes;
pub mod notices;
pub mod page;
pub mod preferences;
pub mod problem;
pub mod projects;
pub mod remotes;
pub mod reports;
pub mod schedules;
pub mod settings;
pub mod skills;
pub mod tasks;
pub mod timeline;
pub mod work;
pub mod workflow;
