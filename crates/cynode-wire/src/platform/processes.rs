//! Programs of the installation with their releases.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Kind of a program.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// `cynode serve` or `cynode up`: each replica is one.
    Server,
    /// The engine that drives tasks.
    Engine,
    /// PostgreSQL.
    Database,
    /// `cynode-runner`.
    Runner,
    /// A program that works on jobs without a sandbox.
    Worker,
    /// `cynode-pma` as project manager.
    Manager,
    /// `cynode-pma` as analyst.
    Analyst,
    /// `cynode-node`.
    Node,
    /// `cynork`, by the account that it is logged in as.
    CommandLine,
}

impl ProcessKind {
    /// Returns its name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Engine => "engine",
            Self::Database => "database",
            Self::Runner => "runner",
            Self::Worker => "worker",
            Self::Manager => "manager",
            Self::Analyst => "analyst",
            Self::Node => "node",
            Self::CommandLine => "command_line",
        }
    }

    /// Returns the kind with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [
            Self::Server,
            Self::Engine,
            Self::Database,
            Self::Runner,
            Self::Worker,
            Self::Manager,
            Self::Analyst,
            Self::Node,
            Self::CommandLine,
        ];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// A program of the installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ProcessView)]
pub struct ProcessView {
    /// What it is.
    pub kind: ProcessKind,
    /// Name of the service, of the host, of the node, or of the account of a command line.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it was there a moment ago. A runner without work and a command line are not.
    pub present: bool,
    /// Time at which it was seen last.
    #[serde(with = "time::serde::rfc3339")]
    pub last_seen_at: OffsetDateTime,
    /// Whether it is more than one release away from this server, or of another release than a program that comes with the server must be.
    pub skewed: bool,
}
