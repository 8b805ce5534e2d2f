//! Settings: typed values with a version that counts the writes.

pub mod registry;

use serde_json::Value;
use time::OffsetDateTime;

use crate::{ids::UserId, names::DottedKey};

/// A value with its version: the present state of a setting or preference.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionedValue {
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

/// A value that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitValue {
    /// It is larger than a setting should be.
    #[error("a value is at most {} bytes of JSON", MAX_VALUE_BYTES)]
    TooLarge,
    /// PostgreSQL's JSON cannot hold the character NUL.
    #[error("a value cannot contain the character NUL")]
    Nul,
}

/// Most bytes of a value as JSON.
pub const MAX_VALUE_BYTES: usize = 16 * 1024;

/// Refuses a value that cannot be kept.
pub fn validate_stored_value(value: &Value) -> Result<(), UnfitValue> {
    let text = value.to_string();
    if text.len() > MAX_VALUE_BYTES {
        Err(UnfitValue::TooLarge)
    } else if text.contains("\\u0000") {
        Err(UnfitValue::Nul)
    } else {
        Ok(())
    }
}

/// One write of the past.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueChange {
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
pub enum ExpectedVersion {
    /// Nothing is there yet.
    Absent,
    /// This version is there.
    Version(i64),
}

impl ExpectedVersion {
    /// The version number that stands for the belief; 0 is "absent".
    pub const fn version_number(self) -> i64 {
        match self {
            Self::Absent => 0,
            Self::Version(version) => version,
        }
    }
}
