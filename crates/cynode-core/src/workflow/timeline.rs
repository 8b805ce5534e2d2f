//! Entries of a task's timeline: steps, waits and jobs.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    ids::{JobId, WaitId},
    workflow::waits::WaitReason,
};

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepEntry {
    /// Its number.
    pub sequence: i64,
    /// The node that ran.
    pub node: String,
    /// What it found.
    pub verdict: String,
    /// The unit it was about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Which attempt of the node.
    pub attempt: u32,
    /// Who did it.
    pub actor: String,
    /// The process that did it, by the id that it took at its start. Absent for a step of a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
    /// What it cost.
    pub cost_micros: u64,
    /// Why it failed, waits, or is redone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// How the lease before a takeover ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// Its holder gave it back.
    Released,
    /// Nothing was heard of its holder until it expired.
    Expired,
    /// It was live, and the engine gave its work to another process.
    Replaced,
}

impl LeaseEnd {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Released, Self::Expired, Self::Replaced];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Replaced => "replaced",
        }
    }

    /// Parses the name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.as_str() == name)
    }
}

/// Another process than before got the lease of a run, or a process got it after a lease that nobody gave back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseTakeover {
    /// The number of the last step before it.
    pub sequence: i64,
    /// The runner that has the lease since then.
    pub holder: String,
    /// Its process, by the id that it took at its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The runner before.
    pub previous_holder: String,
    /// Its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_instance: Option<String>,
    /// When the process before was last heard of: a lease that it took or renewed, or a step that it stored.
    #[serde(with = "time::serde::rfc3339")]
    pub previous_seen_at: OffsetDateTime,
    /// How the lease before ended.
    pub ended_by: LeaseEnd,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339")]
    pub lease_ended_at: OffsetDateTime,
    /// When the lease was granted anew.
    #[serde(with = "time::serde::rfc3339")]
    pub taken_at: OffsetDateTime,
}

/// One wait of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitEntry {
    /// Which it is; an answer may name it, so that it answers nothing else.
    #[schema(value_type = String)]
    pub wait_id: WaitId,
    /// What was waited for.
    pub reason: WaitReason,
    /// Who can end it.
    pub owner: String,
    /// What the owner is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Since when.
    #[serde(with = "time::serde::rfc3339")]
    pub opened_at: OffsetDateTime,
    /// When nobody is waited for any more.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub expires_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub resolved_at: Option<OffsetDateTime>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolution: Option<String>,
    /// What the person said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// One job of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEntry {
    /// The job.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// The unit.
    pub unit: String,
    /// Which attempt.
    pub attempt: u32,
    /// Where it stands.
    pub state: String,
    /// Who works or worked on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Step of the set-up of its environment that runs now, such as `2 of 5: npm ci`; empty before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup_step: Option<String>,
    /// Since when it waits or waited.
    #[serde(with = "time::serde::rfc3339")]
    pub queued_at: OffsetDateTime,
    /// When it was claimed.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub ended_at: Option<OffsetDateTime>,
}
