//! The inbox: everything that waits for a decision of one person.

use cynode_core::{
    ids::{ProjectId, TaskId},
    notifications::InboxKind,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// What waits for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InboxView {
    /// At most 200 items. Those come first because of which most stands still, then those that have waited longest.
    pub items: Vec<InboxItem>,
    /// How many items there are of each kind.
    pub counts: InboxCounts,
}

/// One thing that waits for a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InboxItem {
    /// The wait (`plan`, `question`), the approval (`call`), the tool server (`tool_definition`), the pull request
    /// (`delivery`) or the task (`parked`). For `environment` it is `PROJECT/VERSION`.
    pub id: String,
    /// Kind of the item.
    pub kind: InboxKind,
    /// Project that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// Slug of that project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_slug: Option<String>,
    /// Task that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// Name of that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_name: Option<String>,
    /// Version of the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// The question in one line.
    pub title: String,
    /// The exact words that are decided about. Hidden characters are written out.
    pub text: String,
    /// When it began to wait.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// When it ends by itself.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub expires_at: Option<OffsetDateTime>,
    /// Units of work that stand still because of it.
    pub blocked_units: u32,
    /// Tasks that stand still because of it, its own included.
    pub blocked_tasks: u32,
    /// What the caller may do about it.
    pub actions: Vec<InboxAction>,
    /// Display names of other people who look at it now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub viewers: Vec<String>,
}

/// Says that the caller looks at an item. It has no fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ViewInboxItem {}

/// What a person may do about an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InboxAction {
    /// Approve the plan or the call.
    Approve,
    /// Send the plan back with a note.
    SendBack,
    /// Deny the call.
    Deny,
    /// Answer the question.
    Answer,
    /// Accept the environment or the tool definitions.
    Accept,
    /// Reject the environment.
    Reject,
    /// Try the task again.
    Retry,
    /// Close the pull request.
    Close,
    /// Let the task call models again.
    Unpark,
    /// Cancel the task.
    Cancel,
}

/// Number of items by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InboxCounts {
    /// All items.
    pub total: u32,
    /// Plans that wait for approval.
    pub plan: u32,
    /// Questions of tasks.
    pub question: u32,
    /// Tool calls that wait for approval.
    pub call: u32,
    /// Proposed environments.
    pub environment: u32,
    /// Tool servers with definitions that nobody has accepted.
    pub tool_definition: u32,
    /// Failed deliveries.
    pub delivery: u32,
    /// Parked tasks.
    pub parked: u32,
}
