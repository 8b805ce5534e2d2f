//! Notifications: which event kinds are sent, by which channels, and the retry schedule.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Kind of an item of the inbox.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum InboxKind {
    /// The plan of a task waits for approval.
    Plan,
    /// A task asks a question.
    Question,
    /// A tool call of an agent waits for approval.
    Call,
    /// An environment is proposed for a project.
    Environment,
    /// A tool server offers definitions that nobody has accepted.
    ToolDefinition,
    /// The work of a task could not be delivered.
    Delivery,
    /// The model calls of a task are suspended.
    Parked,
}

impl InboxKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Plan,
        Self::Question,
        Self::Call,
        Self::Environment,
        Self::ToolDefinition,
        Self::Delivery,
        Self::Parked,
    ];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Question => "question",
            Self::Call => "call",
            Self::Environment => "environment",
            Self::ToolDefinition => "tool_definition",
            Self::Delivery => "delivery",
            Self::Parked => "parked",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// How somebody is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelKind {
    /// A program, by a signed request.
    Webhook,
    /// A mailbox.
    Mail,
    /// A topic of an ntfy server.
    Ntfy,
    /// A browser, through its push service.
    WebPush,
}

impl ChannelKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Webhook, Self::Mail, Self::Ntfy, Self::WebPush];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Mail => "mail",
            Self::Ntfy => "ntfy",
            Self::WebPush => "web_push",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What a channel is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelScope {
    /// What its user may see.
    User,
    /// What happens in a project.
    Project,
    /// Everything.
    Installation,
}

impl ChannelScope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::User, Self::Project, Self::Installation];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
            Self::Installation => "installation",
        }
    }

    /// The scope of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }
}

/// Where a notice stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotificationState {
    /// It is to be told.
    Pending,
    /// It was told.
    Sent,
    /// It could not be told, and is not tried any more.
    Failed,
    /// It was not told because nobody needs it any more.
    Dropped,
}

impl NotificationState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Sent, Self::Failed, Self::Dropped];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// The kinds of events that are told, by name: some belong to parts that an installation may not have.
pub const NOTIFIABLE_EVENT_KINDS: [&str; 13] = [
    "task.waiting",
    "approval.requested",
    "task.completed",
    "task.failed",
    "task.cancelled",
    "task.parked",
    "budget.exhausted",
    "provider_key.parked",
    "reconciler.halted",
    "schedule.refused",
    "pull_request.opened",
    "environment.proposed",
    "environment.unreadable",
];

/// What a channel is told with when somebody tries it.
pub const TEST_NOTIFICATION_KIND: &str = "notification.test";

/// Whether events of that kind are told.
pub fn is_notifiable(kind: &str) -> bool {
    NOTIFIABLE_EVENT_KINDS.contains(&kind)
}

/// Most attempts.
pub const MAX_DELIVERY_ATTEMPTS: u32 = 12;

/// After how long nothing is told any more.
pub const NOTIFICATION_TTL: Duration = Duration::from_hours(24);

/// How long to wait after that many attempts have failed: 5 s, three times longer each time, at most an hour. Nothing when it is
/// not tried any more.
pub fn next_attempt_delay(
    attempts: u32,
    age: Duration,
    wanted: Option<Duration>,
) -> Option<Duration> {
    if attempts >= MAX_DELIVERY_ATTEMPTS {
        return None;
    }
    let longest = Duration::from_hours(1);
    let usual =
        Duration::from_secs(5).saturating_mul(3_u32.saturating_pow(attempts.saturating_sub(1)));
    let pause = usual.max(wanted.unwrap_or_default()).min(longest);
    (age.saturating_add(pause) < NOTIFICATION_TTL).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_less_and_less_often_and_not_for_ever() {
        let pauses: Vec<_> = (1..=MAX_DELIVERY_ATTEMPTS)
            .map(|attempts| {
                next_attempt_delay(attempts, Duration::ZERO, None).map(|pause| pause.as_secs())
            })
            .collect();
        let hour = Some(3600);
        assert_eq!(
            pauses,
            [
                Some(5),
                Some(15),
                Some(45),
                Some(135),
                Some(405),
                Some(1215),
                hour,
                hour,
                hour,
                hour,
                hour,
                None
            ]
        );
        assert_eq!(next_attempt_delay(1, NOTIFICATION_TTL, None), None);
        assert_eq!(
            next_attempt_delay(1, NOTIFICATION_TTL.saturating_sub(Duration::from_secs(5)), None),
            None
        );
        let wanted =
            |seconds| next_attempt_delay(2, Duration::ZERO, Some(Duration::from_secs(seconds)));
        assert_eq!(wanted(1), Some(Duration::from_secs(15)));
        assert_eq!(wanted(60), Some(Duration::from_mins(1)));
        assert_eq!(wanted(86_400), Some(Duration::from_hours(1)));
    }
}
