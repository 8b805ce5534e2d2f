//! Events on the wire: what a stream carries.

use std::{fmt, str::FromStr};

use cynode_core::ids::{ProjectId, TaskId, UserId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

/// The place of an event in the stream, as `id:` carries it and `Last-Event-ID` gives it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Position {
    /// The transaction that wrote it.
    pub xact: i64,
    /// Its place in the transaction.
    pub seq: i64,
}

/// The text is not a position that we gave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionError;

impl fmt::Display for PositionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an event id: send the last `id:` that you received, unchanged")
    }
}

impl std::error::Error for PositionError {}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.xact, self.seq)
    }
}

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let number = |part: &str| part.parse().ok().filter(|n| *n >= 0).ok_or(PositionError);
        let (xact, seq) = text.split_once('.').ok_or(PositionError)?;
        Ok(Self { xact: number(xact)?, seq: number(seq)? })
    }
}

impl TryFrom<String> for Position {
    type Error = PositionError;

    fn try_from(text: String) -> Result<Self, PositionError> {
        text.parse()
    }
}

impl From<Position> for String {
    fn from(position: Position) -> Self {
        position.to_string()
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Its place in the stream.
    #[schema(value_type = String, example = "742.17")]
    pub id: Position,
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
