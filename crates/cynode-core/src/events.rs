//! Event kinds, as one closed list.

use serde::{Deserialize, Serialize};

macro_rules! event_kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)+) => {
        /// The kind of an event. Readers must accept kinds they do not know.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum EventKind {
            $($(#[$doc])* #[serde(rename = $text)] $name,)+
        }

        impl EventKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

event_kinds! {
    /// The first admin was made with the one-time token.
    InstallationBootstrapped = "installation.bootstrapped";
    /// A user logged in.
    SessionStarted = "session.started";
    /// A user logged out.
    SessionEnded = "session.ended";
    /// An API key was made.
    ApiKeyCreated = "api_key.created";
    /// An API key was revoked.
    ApiKeyRevoked = "api_key.revoked";
    /// A user was made.
    UserCreated = "user.created";
    /// A user was changed: role, state or password.
    UserUpdated = "user.updated";
    /// A group was made.
    GroupCreated = "group.created";
    /// A group's members or role changed.
    GroupUpdated = "group.updated";
    /// A project was made.
    ProjectCreated = "project.created";
    /// A project was changed.
    ProjectUpdated = "project.updated";
    /// A project was archived: it is no longer worked on.
    ProjectArchived = "project.archived";
    /// A project that was archived is worked on again.
    ProjectUnarchived = "project.unarchived";
    /// A project was deleted with all that was in it.
    ProjectDeleted = "project.deleted";
    /// A member was added to a project, or given another role.
    ProjectMemberSet = "project.member_set";
    /// A member was taken out of a project.
    ProjectMemberRemoved = "project.member_removed";
    /// A system setting was written.
    SettingSet = "setting.set";
    /// A system setting was deleted.
    SettingDeleted = "setting.deleted";
    /// A preference was written.
    PreferenceSet = "preference.set";
    /// A preference was deleted.
    PreferenceDeleted = "preference.deleted";
    /// A task was accepted.
    TaskCreated = "task.created";
    /// A task was stopped by a person, or because one it depends on was.
    TaskCancelled = "task.cancelled";
    /// A workflow began to drive a task.
    TaskStarted = "task.started";
    /// A task waits for a person.
    TaskWaiting = "task.waiting";
    /// A person told a task something: an instruction, a yes or no, an answer.
    TaskInstructed = "task.instructed";
    /// A task's criteria were shown to hold.
    TaskCompleted = "task.completed";
    /// A task was given up.
    TaskFailed = "task.failed";
    /// The reconciler stopped reaping: too many workers look dead at once.
    ReconcilerHalted = "reconciler.halted";
    /// The reconciler reaps again.
    ReconcilerResumed = "reconciler.resumed";
    /// A program that works for the installation got a token.
    ServiceTokenIssued = "service_token.issued";
    /// An agent got a token.
    AgentTokenIssued = "agent_token.issued";
    /// An agent's token was revoked.
    AgentTokenRevoked = "agent_token.revoked";
    /// A tool was switched on or off, or given another scope.
    ToolSet = "tool.set";
    /// A rule was written.
    RuleSet = "rule.set";
    /// A rule was removed.
    RuleDeleted = "rule.deleted";
    /// A tool server was installed.
    ToolServerInstalled = "tool_server.installed";
    /// A tool server was changed.
    ToolServerUpdated = "tool_server.updated";
    /// A tool server was removed.
    ToolServerRemoved = "tool_server.removed";
    /// What a tool server offers is new or changed, and waits for a person.
    ToolServerChanged = "tool_server.changed";
    /// A person accepted what a tool server offers.
    ToolServerAccepted = "tool_server.accepted";
    /// A call waits for a person's approval.
    ApprovalRequested = "approval.requested";
    /// A person answered a call that waited.
    ApprovalDecided = "approval.decided";
    /// An agent reported about its task.
    AgentReported = "agent.reported";
    /// A judgement of a task's work was recorded.
    VerificationRecorded = "verification.recorded";
    /// A skill was written or removed.
    SkillChanged = "skill.changed";
    /// A schedule was made, changed, switched off or removed.
    ScheduleSet = "schedule.set";
    /// A schedule asked for its work.
    ScheduleFired = "schedule.fired";
    /// A schedule was due, and its work could not be asked for.
    ScheduleRefused = "schedule.refused";
    /// An image that sandboxes may be made from was added or removed.
    ImagesChanged = "images.changed";
    /// A provider of models was added, changed or removed.
    ProviderSet = "provider.set";
    /// A provider was given a key, or a key was taken away.
    ProviderKeySet = "provider_key.set";
    /// A provider's key rests until its quota is renewed.
    ProviderKeyParked = "provider_key.parked";
    /// A model was added, changed or removed.
    ModelSet = "model.set";
    /// A ceiling on spending was set or removed.
    BudgetSet = "budget.set";
    /// A call was refused because a ceiling was reached.
    BudgetExhausted = "budget.exhausted";
    /// A task may not think for a while.
    TaskParked = "task.parked";
    /// A task may think again.
    TaskUnparked = "task.unparked";
    /// A machine may join as a node, once.
    JoinTokenIssued = "join_token.issued";
    /// A machine became a node.
    NodeJoined = "node.joined";
    /// A node gets no more jobs, or gets them again, or has other labels.
    NodeUpdated = "node.updated";
    /// A node was removed.
    NodeRemoved = "node.removed";
    /// A handoff to the project manager or an analyst was created.
    HandoffCreated = "handoff.created";
    /// What was given to the project manager or an analyst has ended.
    HandoffEnded = "handoff.ended";
    /// A project was given a repository, or newer commits of it.
    RepositoryImported = "repository.imported";
    /// A project was given a remote on a forge, or it was taken away.
    RemoteSet = "remote.set";
    /// Somebody sent what is not from the forge.
    WebhookRefused = "webhook.refused";
    /// An issue of a forge was imported as a task.
    IssueImported = "issue.imported";
    /// An issue of a forge was wanted and became no task.
    IssueIgnored = "issue.ignored";
    /// What a task brought was offered to people.
    PullRequestOpened = "pull_request.opened";
    /// Another commit was added to what is offered.
    PullRequestUpdated = "pull_request.updated";
    /// A pull request was taken over into the base branch.
    PullRequestMerged = "pull_request.merged";
    /// A pull request is not wanted any more.
    PullRequestClosed = "pull_request.closed";
    /// Somebody said something about a pull request, or judged it.
    PullRequestCommented = "pull_request.commented";
    /// A task was made that goes on with a pull request.
    PullRequestFollowUp = "pull_request.follow_up";
    /// A way to tell somebody was added, changed, switched off or removed.
    NotificationChannelSet = "notification_channel.set";
    /// Something could not be told, and is not tried any more.
    NotificationFailed = "notification.failed";
}

impl EventKind {
    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }
}
