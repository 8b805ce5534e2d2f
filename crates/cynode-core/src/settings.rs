//! Values that people set, with a version that counts the writes.

use serde_json::Value;
use time::OffsetDateTime;

use crate::{ids::UserId, names::DottedKey};

/// A value with its version: the present state of a setting or preference.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// What it is about.
    pub key: DottedKey,
    /// What it says.
    pub value: Value,
    /// How often it was written; the first is 1.
    pub version: i64,
    /// Who wrote it last.
    pub updated_by: UserId,
    /// When.
    pub updated_at: OffsetDateTime,
}

/// One write of the past.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The version it made.
    pub version: i64,
    /// What it said; `None` when it deleted the value.
    pub value: Option<Value>,
    /// Who wrote.
    pub changed_by: UserId,
    /// When.
    pub changed_at: OffsetDateTime,
}

/// What a writer believes is there, so that two writers cannot overwrite each other unseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing is there yet.
    Absent,
    /// This version is there.
    Version(i64),
}

impl Expected {
    /// The version number that stands for the belief; 0 is "absent".
    pub const fn number(self) -> i64 {
        match self {
            Self::Absent => 0,
            Self::Version(version) => version,
        }
    }
}
