//! Task states and their transitions.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::{
    InvalidTransition,
    budget::Budget,
    evidence::EvidenceCheck,
    ids::{ProjectId, TaskId, UserId},
    names::{ProfileName, Prose, TaskName},
};

/// One piece of work with one workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Where it lives.
    pub project: ProjectId,
    /// Its name, unique in the project.
    pub name: TaskName,
    /// What is to be done.
    pub description: Prose,
    /// What must be shown for it to be done.
    pub acceptance_criteria: Vec<Criterion>,
    /// What it may spend.
    pub budget: Budget,
    /// The profile that its agents work under; that of the preferences when it names none.
    pub profile: Option<ProfileName>,
    /// Where it stands.
    pub state: TaskState,
    /// Whether an agent wrote it last and no person has looked at it.
    pub unreviewed: bool,
    /// What must be completed before it may start, by id.
    pub depends_on: Vec<TaskId>,
    /// Who asked for it.
    pub created_by: UserId,
    /// When it was asked for.
    pub created_at: OffsetDateTime,
    /// When it last changed.
    pub updated_at: OffsetDateTime,
}

/// One thing that must be shown before a task counts as done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Criterion {
    /// The statement that must hold.
    pub text: Prose,
    /// What shows that it holds; without it, a reader's judgement does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<EvidenceCheck>,
}

/// Where a task stands. The data of a state exists only in that state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Accepted and not yet started.
    Queued,
    /// A workflow drives it.
    Running {
        /// When the workflow took it.
        since: OffsetDateTime,
    },
    /// Its acceptance criteria were shown to hold.
    Completed {
        /// When.
        at: OffsetDateTime,
    },
    /// It was given up.
    Failed {
        /// When.
        at: OffsetDateTime,
        /// Why, for the person who asked.
        reason: String,
    },
    /// A person stopped it.
    Cancelled {
        /// When.
        at: OffsetDateTime,
    },
}

/// The name of a state, for filters and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStateName {
    /// [`TaskState::Queued`]
    Queued,
    /// [`TaskState::Running`]
    Running,
    /// [`TaskState::Completed`]
    Completed,
    /// [`TaskState::Failed`]
    Failed,
    /// [`TaskState::Cancelled`]
    Cancelled,
}

impl TaskStateName {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

impl TaskState {
    /// The name of this state.
    pub const fn state_name(&self) -> TaskStateName {
        match self {
            Self::Queued => TaskStateName::Queued,
            Self::Running { .. } => TaskStateName::Running,
            Self::Completed { .. } => TaskStateName::Completed,
            Self::Failed { .. } => TaskStateName::Failed,
            Self::Cancelled { .. } => TaskStateName::Cancelled,
        }
    }

    /// Begins a task that was accepted; one that runs goes on running.
    pub fn into_running(self, now: OffsetDateTime) -> Result<Self, InvalidTransition> {
        match self {
            Self::Queued => Ok(Self::Running { since: now }),
            Self::Running { since } => Ok(Self::Running { since }),
            Self::Completed { .. } | Self::Failed { .. } | Self::Cancelled { .. } => {
                Err(self.invalid_transition("start"))
            }
        }
    }

    /// Ends a running task well.
    pub fn into_completed(self, now: OffsetDateTime) -> Result<Self, InvalidTransition> {
        match self {
            Self::Running { .. } => Ok(Self::Completed { at: now }),
            Self::Queued
            | Self::Completed { .. }
            | Self::Failed { .. }
            | Self::Cancelled { .. } => Err(self.invalid_transition("be completed")),
        }
    }

    /// Gives a running task up.
    pub fn into_failed(
        self,
        now: OffsetDateTime,
        reason: String,
    ) -> Result<Self, InvalidTransition> {
        match self {
            Self::Running { .. } => Ok(Self::Failed { at: now, reason }),
            Self::Queued
            | Self::Completed { .. }
            | Self::Failed { .. }
            | Self::Cancelled { .. } => Err(self.invalid_transition("fail")),
        }
    }

    const fn invalid_transition(&self, verb: &'static str) -> InvalidTransition {
        InvalidTransition { what: "task", state: self.state_name().as_str(), verb }
    }

    /// Stops a task that has not ended.
    pub fn into_cancelled(self, now: OffsetDateTime) -> Result<Self, InvalidTransition> {
        match self {
            Self::Queued | Self::Running { .. } => Ok(Self::Cancelled { at: now }),
            Self::Completed { .. } | Self::Failed { .. } | Self::Cancelled { .. } => {
                Err(self.invalid_transition("be cancelled"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-01 12:00 UTC);

    #[test]
    fn a_task_that_has_not_ended_can_be_cancelled() {
        for state in [TaskState::Queued, TaskState::Running { since: NOW }] {
            assert_eq!(state.into_cancelled(NOW), Ok(TaskState::Cancelled { at: NOW }));
        }
    }

    #[test]
    fn a_task_that_has_ended_cannot_be_cancelled_again() {
        let ended = [
            TaskState::Completed { at: NOW },
            TaskState::Failed { at: NOW, reason: "tests failed".into() },
            TaskState::Cancelled { at: NOW },
        ];
        for state in ended {
            let name = state.state_name().as_str();
            let refusal = state.into_cancelled(NOW).unwrap_err();
            assert_eq!(refusal.to_string(), format!("a task that is {name} cannot be cancelled"));
        }
    }
}
