//! Remotes of projects on the wire.

use cynode_core::{
    delivery::Destination,
    ids::{ProjectId, TaskId, UserId},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::identity::accounts::SecretText;

/// Connects a project with its repository on a forge.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetRemote {
    /// `github`, `gitlab` or `gitea` (Forgejo as well).
    #[schema(value_type = String, example = "github")]
    pub forge: Destination,
    /// Where it is cloned from.
    #[schema(example = "https://github.com/acme/web.git")]
    pub url: String,
    /// Where its API is; the usual place when it is left out.
    #[serde(default)]
    pub api: Option<String>,
    /// Its name there.
    #[schema(example = "acme/web")]
    pub repository: String,
    /// The branch that work starts from and that pull requests are for.
    #[schema(example = "main")]
    pub default_branch: String,
    /// The token. It is stored encrypted and never shown again. Left out, the one that is there stays.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub credential: Option<SecretText>,
    /// What the forge signs its deliveries with, at least 16 characters. Left out, the one that is there stays, or one is made.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub webhook_secret: Option<SecretText>,
    /// Which issues become tasks.
    #[serde(default)]
    pub intake: IssueIntake,
    /// How often it is polled, 10 to 86400 seconds; 120 when it is left out.
    #[serde(default)]
    pub poll_seconds: Option<u32>,
    /// Whether the forge is asked at once; yes when it is left out.
    #[serde(default)]
    pub check: Option<bool>,
}

/// Which issues become tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueIntake {
    /// Those with this label.
    #[serde(default)]
    pub label: Option<String>,
    /// Those that are assigned to the account of the token: the bot.
    #[serde(default)]
    pub assigned_to_bot: bool,
    /// Also those of people who may not write to the repository.
    #[serde(default)]
    pub allow_untrusted_authors: bool,
}

/// A project's repository on a forge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemoteView {
    /// The project.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// The kind of forge.
    #[schema(value_type = String)]
    pub forge: Destination,
    /// Where it is cloned from.
    pub url: String,
    /// Where its API is.
    pub api: String,
    /// Its name there.
    pub repository: String,
    /// The branch that work starts from.
    pub default_branch: String,
    /// Whose token it is, as the forge says.
    pub login: Option<String>,
    /// Which issues become tasks.
    pub intake: IssueIntake,
    /// How often it is polled.
    pub poll_seconds: i32,
    /// Where the forge sends its deliveries, below our own address.
    pub webhook_path: String,
    /// The secret that was made for them. It is shown this once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub webhook_secret: Option<SecretText>,
    /// What does not work yet, and what to do.
    pub missing: Vec<String>,
    /// Who connected it: tasks from issues are theirs.
    #[schema(value_type = String)]
    pub set_by: UserId,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub set_at: OffsetDateTime,
    /// When its newest commits were last brought.
    #[serde(with = "time::serde::rfc3339::option")]
    pub fetched_at: Option<OffsetDateTime>,
    /// When it was last polled.
    #[serde(with = "time::serde::rfc3339::option")]
    pub polled_at: Option<OffsetDateTime>,
    /// Why the last poll failed.
    pub failure: Option<String>,
    /// How many deliveries were refused because they were not from the forge.
    pub refused_deliveries: i64,
}

/// An issue that was wanted, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WantedIssueView {
    /// Its number.
    pub number: i64,
    /// Where people see it.
    pub url: String,
    /// Who wrote it.
    pub author: String,
    /// The task that it became.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// Why it became none.
    pub rejection_reason: Option<String>,
    /// What was taken out of its text.
    #[schema(value_type = Object)]
    pub removed_content: Value,
    /// When it was seen.
    #[serde(with = "time::serde::rfc3339")]
    pub seen_at: OffsetDateTime,
}
