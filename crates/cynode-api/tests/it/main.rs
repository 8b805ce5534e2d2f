//! The HTTP front door over a real database.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod accounts;
mod browsers;
mod contract;
mod delivery;
mod doctor;
mod dropped;
mod environments;
mod estimates;
mod events;
mod idempotency;
mod inbox;
mod jobs;
mod liveness;
mod model_budgets;
mod model_content;
mod models;
mod nodes;
mod notices;
mod permissions;
mod policies;
mod preferences;
mod projects;
mod rate_limits;
mod remotes;
mod replays;
mod rules;
mod schedules;
mod settings;
mod signals;
mod skills;
mod sweep;
mod tasks;
mod wakeups;
mod web_push;
mod workflow;
