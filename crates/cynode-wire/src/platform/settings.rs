//! System settings on the wire, and the shapes they share with preferences.

use cynode_core::{
    ids::UserId,
    names::DottedKey,
    settings::{ExpectedVersion, ValueChange, VersionedValue},
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
    #[serde(deserialize_with = "deserialize_present")]
    pub value: Value,
    /// The version that you saw; 0 when there was none. Another writer in between is a conflict.
    pub expected_version: u32,
}

/// Tells a `null` that was written from a field that was left out, which is refused.
fn deserialize_present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Value, D::Error> {
    Value::deserialize(deserializer)
}

impl SetValue {
    /// What the writer believes is there.
    pub const fn expected_state(&self) -> ExpectedVersion {
        parse_expected_version(self.expected_version)
    }
}

/// What a version number on the wire says.
pub const fn parse_expected_version(version: u32) -> ExpectedVersion {
    match version {
        0 => ExpectedVersion::Absent,
        version => ExpectedVersion::Version(version as i64),
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

impl From<VersionedValue> for ValueView {
    fn from(value: VersionedValue) -> Self {
        let VersionedValue { key, value, version, updated_by, updated_at } = value;
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

impl From<ValueChange> for ChangeView {
    fn from(change: ValueChange) -> Self {
        let ValueChange { version, value, changed_by, changed_at } = change;
        Self { version, deleted: value.is_none(), value, changed_by, changed_at }
    }
}

/// All values of one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ValueList {
    /// The values, by key.
    pub items: Vec<ValueView>,
}

/// All writes of one key, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ValueHistory {
    /// The writes.
    pub items: Vec<ChangeView>,
}
