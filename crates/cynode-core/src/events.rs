//! Events: their kinds, as one closed list, and their places in the stream.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::ids::{ProjectId, TaskId, UserId};

macro_rules! event_kinds {
    ($(#[doc = $summary:literal] $name:ident = $text:literal;)+) => {
        /// The kind of an event. Readers must accept kinds they do not know.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum EventKind {
            $(#[doc = $summary] #[serde(rename = $text)] $name,)+
        }

        impl EventKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What happened, in one sentence.
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$name => $summary.trim_ascii(),)+ }
            }
        }
    };
}

event_kinds! {
    /// The first admin was created with the one-time token.
    InstallationBootstrapped = "installation.bootstrapped";
    /// A user logged in.
    SessionStarted = "session.started";
    /// A user logged out.
    SessionEnded = "session.ended";
    /// A login with the handle of a user was refused.
    LoginRefused = "login.refused";
    /// A key of the installation was created, or an old one was retired.
    KeyChanged = "key.changed";
    /// A sink of audit records was set or deleted.
    AuditSinkSet = "audit_sink.set";
    /// An API key was created.
    ApiKeyCreated = "api_key.created";
    /// An API key was revoked.
    ApiKeyRevoked = "api_key.revoked";
    /// A user was created.
    UserCreated = "user.created";
    /// The role, state or password of a user changed.
    UserUpdated = "user.updated";
    /// A group was created.
    GroupCreated = "group.created";
    /// The members or the role of a group changed.
    GroupUpdated = "group.updated";
    /// A group was deleted.
    GroupDeleted = "group.deleted";
    /// A user enrolled a second factor.
    SecondFactorEnrolled = "second_factor.enrolled";
    /// A user showed the second factor in a session that began without it.
    SecondFactorVerified = "second_factor.verified";
    /// The second factor of a user was deleted.
    SecondFactorDeleted = "second_factor.deleted";
    /// A user got new recovery codes.
    RecoveryCodesIssued = "recovery_codes.issued";
    /// A user logged in with a recovery code.
    RecoveryCodeUsed = "recovery_code.used";
    /// Somebody with the master key made a break-glass link for an admin on the host.
    BreakGlassIssued = "break_glass.issued";
    /// A break-glass link was used: an admin logged in with it.
    BreakGlassUsed = "break_glass.used";
    /// A directory got a token to provision users and groups.
    ScimTokenIssued = "scim_token.issued";
    /// The token of a directory was revoked.
    ScimTokenRevoked = "scim_token.revoked";
    /// An identity provider was created, changed, switched off or deleted.
    IdentityProviderSet = "identity_provider.set";
    /// An identity provider cannot be reached: sessions that it confirmed go on for the grace period.
    IdentityProviderUnreachable = "identity_provider.unreachable";
    /// An account of an identity provider was linked to a user.
    IdentityLinked = "identity.linked";
    /// An account of an identity provider was unlinked from a user.
    IdentityUnlinked = "identity.unlinked";
    /// The groups that an identity provider names changed the groups of a user.
    IdentityGroupsChanged = "identity.groups_changed";
    /// A login at an identity provider was refused.
    ProviderLoginRefused = "provider_login.refused";
    /// A person approved or denied the login of a device.
    DeviceLoginDecided = "device_login.decided";
    /// A project was created.
    ProjectCreated = "project.created";
    /// A project was changed.
    ProjectUpdated = "project.updated";
    /// A project was archived: its tasks are no longer driven.
    ProjectArchived = "project.archived";
    /// A project was unarchived: its tasks are driven again.
    ProjectUnarchived = "project.unarchived";
    /// A project was deleted with all that was in it.
    ProjectDeleted = "project.deleted";
    /// A member was added to a project, or given another role.
    ProjectMemberSet = "project.member_set";
    /// A member was removed from a project.
    ProjectMemberRemoved = "project.member_removed";
    /// A system setting was written.
    SettingSet = "setting.set";
    /// A system setting was deleted.
    SettingDeleted = "setting.deleted";
    /// A preference was written.
    PreferenceSet = "preference.set";
    /// A preference was deleted.
    PreferenceDeleted = "preference.deleted";
    /// A mandatory policy was set.
    PolicySet = "policy.set";
    /// A mandatory policy was deleted.
    PolicyDeleted = "policy.deleted";
    /// A profile was created.
    ProfileCreated = "profile.created";
    /// A profile was changed. The agents under it have the new version at once.
    ProfileUpdated = "profile.updated";
    /// A profile was deleted. The agents under it are refused everything.
    ProfileDeleted = "profile.deleted";
    /// A task was accepted.
    TaskCreated = "task.created";
    /// A task was cancelled, by a person or because a task that it depends on was.
    TaskCancelled = "task.cancelled";
    /// A workflow began to drive a task.
    TaskStarted = "task.started";
    /// A task waits for a person.
    TaskWaiting = "task.waiting";
    /// A person sent a task an instruction, an approval or an answer.
    TaskInstructed = "task.instructed";
    /// A task ended: its acceptance criteria hold.
    TaskCompleted = "task.completed";
    /// A task ended without success.
    TaskFailed = "task.failed";
    /// A job was queued, claimed, ended, lost or cancelled.
    JobChanged = "job.changed";
    /// The reconciler stopped reaping: too many workers look dead at once.
    ReconcilerHalted = "reconciler.halted";
    /// The reconciler reaps again.
    ReconcilerResumed = "reconciler.resumed";
    /// A program that works for the installation got a token.
    ServiceTokenIssued = "service_token.issued";
    /// A node or a service of the installation got a client certificate.
    CertificateIssued = "certificate.issued";
    /// The client certificates of a node or a service were revoked.
    CertificateRevoked = "certificate.revoked";
    /// An agent got a token.
    AgentTokenIssued = "agent_token.issued";
    /// An agent's token was revoked.
    AgentTokenRevoked = "agent_token.revoked";
    /// A tool was enabled or disabled, or its scope changed.
    ToolSet = "tool.set";
    /// A rule was written.
    RuleSet = "rule.set";
    /// A rule was deleted.
    RuleDeleted = "rule.deleted";
    /// A tool server was installed.
    ToolServerInstalled = "tool_server.installed";
    /// A tool server was changed.
    ToolServerUpdated = "tool_server.updated";
    /// A tool server was removed.
    ToolServerRemoved = "tool_server.removed";
    /// The tools of a tool server are new or changed and wait for a person's acceptance.
    ToolServerChanged = "tool_server.changed";
    /// A person accepted the tools of a tool server.
    ToolServerAccepted = "tool_server.accepted";
    /// A call waits for a person's approval.
    ApprovalRequested = "approval.requested";
    /// A person approved or denied a call that waited.
    ApprovalDecided = "approval.decided";
    /// An agent reported about its task.
    AgentReported = "agent.reported";
    /// A verification of a task's work was recorded.
    VerificationRecorded = "verification.recorded";
    /// A person had the checks of an ended task run again.
    EvidenceRequested = "evidence.requested";
    /// Somebody recorded or proposed something in the memory of a project.
    MemoryRecorded = "memory.recorded";
    /// A person accepted a record of memory: searches find it.
    MemoryAccepted = "memory.accepted";
    /// A person rejected a record of memory: no search finds it.
    MemoryRejected = "memory.rejected";
    /// A person corrected, pinned or unpinned a record of memory.
    MemoryUpdated = "memory.updated";
    /// Records of memory were deleted.
    MemoryForgotten = "memory.forgotten";
    /// An ingest into memory ended.
    MemoryIngestFinished = "memory.ingest_finished";
    /// A skill was written or removed.
    SkillChanged = "skill.changed";
    /// A person reviewed what an agent wrote: a skill, a schedule or a task.
    ContentReviewed = "content.reviewed";
    /// A schedule was created, changed, disabled or deleted.
    ScheduleSet = "schedule.set";
    /// A schedule created its task.
    ScheduleFired = "schedule.fired";
    /// A schedule was due, and its task could not be created.
    ScheduleRefused = "schedule.refused";
    /// The images that sandboxes may use changed.
    ImagesChanged = "images.changed";
    /// A provider of models was added, changed or removed.
    ProviderSet = "provider.set";
    /// A key of a provider was added, removed or dropped.
    ProviderKeySet = "provider_key.set";
    /// A key of a provider is not used until its quota is renewed.
    ProviderKeyParked = "provider_key.parked";
    /// A model was added, changed or removed.
    ModelSet = "model.set";
    /// A budget was set or deleted.
    BudgetSet = "budget.set";
    /// A model call was refused because a budget is used up.
    BudgetExhausted = "budget.exhausted";
    /// A task may not call models for a while.
    TaskParked = "task.parked";
    /// A task may call models again.
    TaskUnparked = "task.unparked";
    /// A join token was issued: one machine may join as a node.
    JoinTokenIssued = "join_token.issued";
    /// A machine became a node.
    NodeJoined = "node.joined";
    /// A node was drained or resumed, or its labels changed.
    NodeUpdated = "node.updated";
    /// A node was removed.
    NodeRemoved = "node.removed";
    /// A handoff to the project manager or an analyst was created.
    HandoffCreated = "handoff.created";
    /// A handoff to the project manager or an analyst ended.
    HandoffEnded = "handoff.ended";
    /// A person had a decision of a handoff asked again; nothing of the task changed.
    HandoffReplayed = "handoff.replayed";
    /// A repository, or newer commits of it, was imported into a project.
    RepositoryImported = "repository.imported";
    /// An environment of a project was proposed and waits for a person's decision.
    EnvironmentProposed = "environment.proposed";
    /// A person accepted an environment: jobs of the project run in it.
    EnvironmentAccepted = "environment.accepted";
    /// A person rejected an environment.
    EnvironmentRejected = "environment.rejected";
    /// The environment file of a repository could not be read, and nothing was proposed.
    EnvironmentUnreadable = "environment.unreadable";
    /// A secret of a project was set or deleted.
    ProjectSecretSet = "project_secret.set";
    /// The remote of a project on a forge was set or deleted.
    RemoteSet = "remote.set";
    /// A webhook was refused because it is not from the forge.
    WebhookRefused = "webhook.refused";
    /// An issue of a forge was imported as a task.
    IssueImported = "issue.imported";
    /// An issue of a forge was selected and did not become a task.
    IssueIgnored = "issue.ignored";
    /// A pull request with the work of a task was opened.
    PullRequestOpened = "pull_request.opened";
    /// A commit was added to a pull request.
    PullRequestUpdated = "pull_request.updated";
    /// A pull request was merged into its base branch.
    PullRequestMerged = "pull_request.merged";
    /// A pull request was closed without a merge.
    PullRequestClosed = "pull_request.closed";
    /// A person commented on or reviewed a pull request.
    PullRequestCommented = "pull_request.commented";
    /// A task was created that continues a pull request.
    PullRequestFollowUp = "pull_request.follow_up";
    /// A person began to look at an item of the inbox.
    InboxViewed = "inbox.viewed";
    /// A notification channel was created, changed, disabled or deleted.
    NotificationChannelSet = "notification_channel.set";
    /// A notification could not be delivered and is not tried again.
    NotificationFailed = "notification.failed";
}

impl EventKind {
    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }

    /// Whether an event of this kind is chained and signed like tool calls. Every kind is, unless it only tells how work goes on, or
    /// does so when no person is its actor: a new kind is privileged until somebody says otherwise. Verification expects a record of
    /// every privileged event: a kind that becomes privileged later needs a moment from which on it is.
    pub const fn is_privileged(self, by_person: bool) -> bool {
        if matches!(
            self,
            Self::TaskCancelled
                | Self::AgentTokenIssued
                | Self::AgentTokenRevoked
                | Self::PreferenceSet
                | Self::PreferenceDeleted
                | Self::MemoryRecorded
                | Self::MemoryForgotten
        ) {
            return by_person;
        }
        !matches!(
            self,
            Self::TaskCreated
                | Self::TaskStarted
                | Self::TaskWaiting
                | Self::TaskInstructed
                | Self::TaskCompleted
                | Self::TaskFailed
                | Self::JobChanged
                | Self::ReconcilerHalted
                | Self::ReconcilerResumed
                | Self::ToolServerChanged
                | Self::ApprovalRequested
                | Self::AgentReported
                | Self::VerificationRecorded
                | Self::EvidenceRequested
                | Self::MemoryIngestFinished
                | Self::ScheduleFired
                | Self::ScheduleRefused
                | Self::ProviderKeyParked
                | Self::BudgetExhausted
                | Self::TaskParked
                | Self::TaskUnparked
                | Self::HandoffCreated
                | Self::HandoffEnded
                | Self::RepositoryImported
                | Self::EnvironmentProposed
                | Self::EnvironmentUnreadable
                | Self::IssueImported
                | Self::IssueIgnored
                | Self::PullRequestOpened
                | Self::PullRequestUpdated
                | Self::PullRequestClosed
                | Self::PullRequestCommented
                | Self::PullRequestFollowUp
                | Self::InboxViewed
                | Self::NotificationFailed
        )
    }
}

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
