//! The node against a small orchestrator, its workers with agents that behave and agents that do not, and its sandboxes with the
//! real programs. A machine without bubblewrap or podman fails here: `scripts/install` brings them.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod acp;
mod checks;
mod command;
mod doors;
mod environments;
mod fake;
mod faults;
mod joining;
mod kept_files;
mod killed;
mod merging;
mod overlays;
mod profiles;
mod program;
mod sandbox;
mod scripted;
mod sessions;
mod support;
mod work;
mod world;
