//! RFC 9457 problem details, the one shape of every refusal.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The media type of a [`ProblemDetails`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request was not done, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemDetails {
    /// `urn:cynode:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// A stable word for programs.
    pub code: String,
    /// What was wrong with this request, for people.
    pub detail: String,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The trace to name when asking for help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}
