//! Cursor pagination: a page of items and an opaque cursor for the next one.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// Give this as `cursor` to read on; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub next_cursor: Option<Cursor>,
}

impl<T> Page<T> {
    /// Turns the items of a page into others.
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(convert).collect(), next_cursor: self.next_cursor }
    }
}

/// The place after which a list goes on. Its text means nothing to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor(pub Uuid);

/// The text is not a cursor that we gave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorError;

impl fmt::Display for CursorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a cursor: use the `next_cursor` of the page before, unchanged")
    }
}

impl std::error::Error for CursorError {}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c1{}", self.0.simple())
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let hex = text.strip_prefix("c1").filter(|hex| hex.len() == 32).ok_or(CursorError)?;
        Uuid::try_parse(hex).map(Self).map_err(|_| CursorError)
    }
}

impl TryFrom<String> for Cursor {
    type Error = CursorError;

    fn try_from(text: String) -> Result<Self, CursorError> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

/// The record of a tool call after which a search goes on: when it was written, its place in its chain, and the chain.
/// Its text means nothing to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecordCursor {
    /// Microseconds since 1970.
    micros: i64,
    /// The place in its chain.
    pub seq: i64,
    /// The chain.
    pub chain: Uuid,
}

impl RecordCursor {
    /// Behind a record.
    pub fn new(at: OffsetDateTime, seq: i64, chain: Uuid) -> Self {
        let micros = i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
        Self { micros, seq, chain }
    }

    /// When the record was written.
    pub fn recorded_at(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.micros) * 1000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl fmt::Display for RecordCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r1{:016x}{:016x}{}", self.micros, self.seq, self.chain.simple())
    }
}

impl TryFrom<String> for RecordCursor {
    type Error = CursorError;

    fn try_from(text: String) -> Result<Self, CursorError> {
        let rest = text.strip_prefix("r1").filter(|rest| rest.len() == 64 && rest.is_ascii());
        let (micros, rest) = rest.ok_or(CursorError)?.split_at(16);
        let (seq, chain) = rest.split_at(16);
        let number = |hex| i64::from_str_radix(hex, 16).map_err(|_| CursorError);
        let chain = Uuid::try_parse(chain).map_err(|_| CursorError)?;
        Ok(Self { micros: number(micros)?, seq: number(seq)?, chain })
    }
}

impl From<RecordCursor> for String {
    fn from(cursor: RecordCursor) -> Self {
        cursor.to_string()
    }
}

/// Which part of a list is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Read on after this place.
    pub after: Option<Cursor>,
    /// Most items to give.
    pub limit: u16,
}

impl PageRequest {
    /// Items on a page when the client does not say.
    pub const DEFAULT_LIMIT: u16 = 50;
    /// Most items on a page.
    pub const MAX_LIMIT: u16 = 200;

    /// Cuts a list that was read with one item too many into a page.
    pub fn into_page<T>(self, mut items: Vec<T>, id: impl Fn(&T) -> Uuid) -> Page<T> {
        let more = items.len() > usize::from(self.limit);
        items.truncate(usize::from(self.limit));
        let next_cursor = if more { items.last().map(|item| Cursor(id(item))) } else { None };
        Page { items, next_cursor }
    }

    /// How many rows to read: one more than fits, to know whether there is a next page.
    pub fn row_limit(self) -> i64 {
        i64::from(self.limit) + 1
    }
}
