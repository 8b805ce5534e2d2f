//! The commands, one file for each noun.

pub(crate) mod account;
pub(crate) mod agent_token;
pub(crate) mod api;
pub(crate) mod api_key;
pub(crate) mod approval;
pub(crate) mod artifact;
pub(crate) mod audit;
mod audit_sink;
pub(crate) mod backup;
pub(crate) mod budget;
pub(crate) mod certificate;
pub(crate) mod channel;
pub(crate) mod chat;
pub(crate) mod device;
pub(crate) mod events;
pub(crate) mod group;
pub(crate) mod handoff;
pub(crate) mod identity;
pub(crate) mod identity_provider;
pub(crate) mod image;
pub(crate) mod inbox;
mod keyring;
pub(crate) mod link;
pub(crate) mod memory;
pub(crate) mod meta;
pub(crate) mod metrics;
pub(crate) mod model;
pub(crate) mod node;
pub(crate) mod notification;
pub(crate) mod policy;
pub(crate) mod pr;
pub(crate) mod prefs;
pub(crate) mod process;
pub(crate) mod profile;
pub(crate) mod project;
pub(crate) mod provider;
mod readiness;
pub(crate) mod remote;
pub(crate) mod rule;
pub(crate) mod run;
pub(crate) mod sample;
pub(crate) mod schedule;
pub(crate) mod scim_token;
pub(crate) mod screen;
pub(crate) mod second_factor;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod skill;
pub(crate) mod task;
pub(crate) mod tool;
pub(crate) mod usage;
pub(crate) mod user;
pub(crate) mod values;

/// The roles of users.
const ROLES: [&str; 3] = ["viewer", "operator", "admin"];

/// The same, or none.
const ROLES_OR_NONE: [&str; 4] = ["none", "viewer", "operator", "admin"];
