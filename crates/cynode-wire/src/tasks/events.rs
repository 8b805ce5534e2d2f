//! Events on the wire: what a stream carries.

use std::{fmt, str::FromStr};

use cynode_core::ids::{ProjectId, TaskId, UserId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

/// The kind of the last event of a stream that a failure ended. Its data is a problem.
pub const STREAM_FAILED_KIND: &str = "stream.failed";

/// The place of an event in the stream, as `id:` carries it and `Last-Event-ID` gives it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventPosition {
    /// The transaction that wrote it.
    pub xact: i64,
    /// Its place in the transaction.
    pub seq: i64,
}

/// The text is not a position that we gave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPositionError;

impl fmt::Display for EventPositionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an event id: send the last `id:` that you received, unchanged")
    }
}

impl std::error::Error for EventPositionError {}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.xact, self.seq)
    }
}

impl FromStr for EventPosition {
    type Err = EventPositionError;

    fn from_str(text: &str) -> Result<Self, EventPositionError> {
        let number = |part: &str| part.parse().ok().filter(|n| *n >= 0).ok_or(EventPositionError);
        let (xact, seq) = text.split_once('.').ok_or(EventPositionError)?;
        Ok(Self { xact: number(xact)?, seq: number(seq)? })
    }
}

impl TryFrom<String> for EventPosition {
    type Error = EventPositionError;

    fn try_from(text: String) -> Result<Self, EventPositionError> {
        text.parse()
    }
}

impl From<EventPosition> for String {
    fn from(position: EventPosition) -> Self {
        position.to_string()
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Its place in the stream.
    #[schema(value_type = String, example = "742.17")]
    pub id: EventPosition,
    /// What kind of thing; expect kinds that you do not know.
    #[schema(example = "task.created")]
    pub kind: String,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub occurred_at: OffsetDateTime,
    /// Who did it.
    #[schema(value_type = Option<String>)]
    pub actor_id: Option<UserId>,
    /// In which project.
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// To which task.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// The W3C trace it belongs to.
    pub trace_id: String,
    /// More about it, by kind.
    pub data: Value,
}
