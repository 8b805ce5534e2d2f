//! System settings on the wire, and the shapes they share with preferences.

use cynode_core::{
    ids::UserId,
    names::DottedKey,
    settings::{Change, Expected, Versioned},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Writes a value.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetValue {
    /// What to write.
    #[serde(deserialize_with = "given")]
    pub value: Value,
    /// The version that you saw; 0 when there was none. Another writer in between is a conflict.
    pub expected_version: u32,
}

/// Tells a `null` that was written from a field that was left out, which is refused.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Value::deserialize(deserializer)
}

impl SetValue {
    /// What the writer believes is there.
    pub const fn expected(&self) -> Expected {
        expected(self.expected_version)
    }
}

/// What a version number on the wire says.
pub const fn expected(version: u32) -> Expected {
    match version {
        0 => Expected::Absent,
        version => Expected::Version(version as i64),
    }
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ValueView {
    /// What it is about.
    #[schema(value_type = String)]
    pub key: DottedKey,
    /// What it says.
    pub value: Value,
    /// How often it was written.
    pub version: i64,
    /// Who wrote it last.
    #[schema(value_type = String)]
    pub updated_by: UserId,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

impl From<Versioned> for ValueView {
    fn from(value: Versioned) -> Self {
        let Versioned { key, value, version, updated_by, updated_at } = value;
        Self { key, value, version, updated_by, updated_at }
    }
}

/// One write of the past.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangeView {
    /// The version it made.
    pub version: i64,
    /// Whether it deleted the value.
    pub deleted: bool,
    /// What it said.
    pub value: Option<Value>,
    /// Who wrote.
    #[schema(value_type = String)]
    pub changed_by: UserId,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
}

impl From<Change> for ChangeView {
    fn from(change: Change) -> Self {
        let Change { version, value, changed_by, changed_at } = change;
        Self { version, deleted: value.is_none(), value, changed_by, changed_at }
    }
}

/// All values of one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Values {
    /// The values, by key.
    pub items: Vec<ValueView>,
}

/// All writes of one key, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The writes.
    pub items: Vec<ChangeView>,
}
