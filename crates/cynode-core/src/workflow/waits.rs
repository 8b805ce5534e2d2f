//! Waits of a run: each has a reason and somebody who can end it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// A job that is out.
    Job,
    /// A person's yes to the plan.
    Approval,
    /// A person's answer to a question.
    HumanInput,
    /// A person paused the task.
    Paused,
    /// The time of the next attempt.
    Retry,
    /// A provider's quota.
    Quota,
    /// An agent that is not connected.
    Agent,
}

/// What a person answers who wants the task to be given up.
pub const ANSWER_STOP: &str = "stop";

/// Whether an answer says that the task is to be given up, and nothing else: in a sentence the word is about something else.
pub fn is_stop_answer(answer: &str) -> bool {
    answer.trim_matches(|c: char| !c.is_alphanumeric()).eq_ignore_ascii_case(ANSWER_STOP)
}

/// Who can end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitOwner {
    /// Whoever works on the jobs.
    Worker,
    /// A person who may steer the task.
    Person,
    /// The clock.
    Clock,
    /// Whoever runs the installation.
    Operator,
}

impl WaitReason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::Job,
        Self::Approval,
        Self::HumanInput,
        Self::Paused,
        Self::Retry,
        Self::Quota,
        Self::Agent,
    ];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Approval => "approval",
            Self::HumanInput => "human_input",
            Self::Paused => "paused",
            Self::Retry => "retry",
            Self::Quota => "quota",
            Self::Agent => "agent",
        }
    }

    /// The reason of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }

    /// Who can end it.
    pub const fn wait_owner(self) -> WaitOwner {
        match self {
            Self::Job => WaitOwner::Worker,
            Self::Approval | Self::HumanInput | Self::Paused => WaitOwner::Person,
            Self::Retry | Self::Quota => WaitOwner::Clock,
            Self::Agent => WaitOwner::Operator,
        }
    }

    /// Whether a start is refused until a person has ended the wait.
    pub const fn blocks_start(self) -> bool {
        match self {
            Self::Approval | Self::HumanInput | Self::Paused => true,
            Self::Job | Self::Retry | Self::Quota | Self::Agent => false,
        }
    }
}

impl WaitOwner {
    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Person => "person",
            Self::Clock => "clock",
            Self::Operator => "operator",
        }
    }
}

/// How a wait was ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedWait {
    /// What was waited for.
    pub reason: WaitReason,
    /// `woken`, `approved`, `rejected`, `answered`, `resumed`, `expired` or `cancelled`.
    pub resolution: WaitResolution,
    /// What a person was asked, when they were asked something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// What the person said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitResolution {
    /// What was waited for has come.
    Woken,
    /// A person said yes.
    Approved,
    /// A person said no.
    Rejected,
    /// A person answered.
    Answered,
    /// A person ended the pause.
    Resumed,
    /// Nobody came in time.
    Expired,
    /// The task was stopped.
    Cancelled,
}

impl WaitResolution {
    const ALL: [Self; 7] = [
        Self::Woken,
        Self::Approved,
        Self::Rejected,
        Self::Answered,
        Self::Resumed,
        Self::Expired,
        Self::Cancelled,
    ];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Woken => "woken",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Answered => "answered",
            Self::Resumed => "resumed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// The resolution of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resolution| resolution.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_has_a_name_and_an_owner_and_only_people_block() {
        for reason in WaitReason::ALL {
            assert_eq!(WaitReason::from_name(reason.as_str()), Some(reason));
            assert_eq!(
                reason.blocks_start(),
                reason.wait_owner() == WaitOwner::Person,
                "{reason:?}"
            );
        }
    }

    #[test]
    fn only_the_bare_word_gives_a_task_up() {
        assert!(["stop", "Stop!", " `stop`.\n"].into_iter().all(is_stop_answer));
        assert!(
            !["", "no", "stop using tabs", "don't stop", "stopped"].into_iter().any(is_stop_answer)
        );
    }
}
