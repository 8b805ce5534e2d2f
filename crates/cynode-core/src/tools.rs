//! Tools: what a tool does to the world.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a tool does to the world, as hints for whoever shows or approves a call. Set by us or by an admin, never taken from a
/// server's own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "the protocol names these four")]
pub struct ToolAnnotations {
    /// It changes nothing.
    #[serde(rename = "readOnlyHint")]
    pub read_only: bool,
    /// What it changes may be lost.
    #[serde(rename = "destructiveHint")]
    pub destructive: bool,
    /// Twice is the same as once.
    #[serde(rename = "idempotentHint")]
    pub idempotent: bool,
    /// It reaches what we do not control.
    #[serde(rename = "openWorldHint")]
    pub open_world: bool,
}

impl ToolAnnotations {
    /// Looks and changes nothing.
    pub const READ_ONLY: Self =
        Self { read_only: true, destructive: false, idempotent: true, open_world: false };
    /// Adds or changes, and a repeat does nothing more.
    pub const IDEMPOTENT_WRITE: Self =
        Self { read_only: false, destructive: false, idempotent: true, open_world: false };
    /// Adds something new each time.
    pub const ADDITIVE_WRITE: Self =
        Self { read_only: false, destructive: false, idempotent: false, open_world: false };
    /// Ends or removes something.
    pub const DESTRUCTIVE_WRITE: Self =
        Self { read_only: false, destructive: true, idempotent: true, open_world: false };
    /// The worst: what is assumed of a tool that nobody has judged.
    pub const UNKNOWN: Self =
        Self { read_only: false, destructive: true, idempotent: false, open_world: true };
}
