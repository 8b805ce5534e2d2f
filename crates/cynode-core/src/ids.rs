//! Typed ids: a UUIDv7 in the database, prefixed text on the wire (`tsk_0192…`).
//!
//! An id of another kind does not compile. Parsing refuses text of the wrong kind and names the expected form.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why a text is not an id of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an id of the form `{prefix}_<32 hex digits>`")]
pub struct IdError {
    prefix: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Uuid);

        impl $name {
            /// What the text form of this kind of id starts with.
            pub const PREFIX: &'static str = $prefix;

            /// Wraps a raw UUID, as it is stored.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The raw UUID, as it is stored.
            pub const fn as_uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}_{}", Self::PREFIX, self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_id(text, Self::PREFIX).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }
    )+};
}

ids! {
    /// A person with an account.
    UserId = "usr";
    /// One login of a user.
    SessionId = "ses";
    /// A key a program uses in a user's name.
    ApiKeyId = "key";
    /// A project: the place where tasks and members live.
    ProjectId = "prj";
    /// A named set of users.
    GroupId = "grp";
    /// An identity provider, by which people log in.
    IdentityProviderId = "idp";
    /// An account of a person at an identity provider.
    ExternalIdentityId = "xid";
    /// What an identity provider granted at a login.
    ProviderGrantId = "grt";
    /// One piece of work with one workflow.
    TaskId = "tsk";
    /// One execution of a task's workflow.
    RunId = "run";
    /// One step of a task's plan.
    UnitId = "unt";
    /// One attempt of a work unit.
    JobId = "job";
    /// One wait of a run.
    WaitId = "wai";
    /// Something a person told a running task.
    InstructionId = "ins";
    /// A token of a program that works for the installation.
    ServiceTokenId = "svc";
    /// A token of a directory that provisions users and groups.
    ScimTokenId = "sct";
    /// A token of an agent.
    AgentTokenId = "agt";
    /// A tool server that somebody installed.
    ServerId = "srv";
    /// One piece of work that is given to the project manager.
    HandoffId = "hof";
    /// A decision that a person had asked again.
    ReplayId = "rpl";
    /// What was shown of one attempt of a unit.
    EvidenceId = "evd";
    /// One conversation with the project manager.
    ThreadId = "thr";
    /// One call of a tool.
    CallId = "cal";
    /// A person's answer to a call that needs one.
    ApprovalId = "apr";
    /// A machine that runs sandboxes.
    NodeId = "nod";
    /// A chain of audit records.
    ChainId = "chn";
    /// A stored object.
    ArtifactId = "art";
    /// A skill: instructions that agents may be given.
    SkillId = "skl";
    /// One record of memory.
    MemoryId = "mem";
    /// One run that reads documents or code into memory.
    IngestId = "ing";
    /// A schedule: work that is asked for at its time.
    ScheduleId = "sch";
    /// A place where models are.
    ProviderId = "prv";
    /// A key of such a place.
    ProviderKeyId = "pky";
    /// A ceiling on what is spent.
    BudgetId = "bdg";
    /// What a task brought, offered to people.
    PullRequestId = "pul";
    /// One commit that is made for people from a task's work.
    DeliveryId = "dlv";
    /// Something that was said about a pull request.
    CommentId = "cmt";
    /// What a person thinks of a pull request.
    ReviewId = "rvw";
    /// A way to tell somebody.
    ChannelId = "cnl";
    /// Something that is told to somebody.
    NotificationId = "ntf";
}

/// Only the canonical spelling is an id: lower-case hex, no dashes, exactly one way to write it.
fn parse_id(text: &str, prefix: &'static str) -> Result<Uuid, IdError> {
    text.strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('_'))
        .filter(|hex| {
            hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        })
        .and_then(|hex| Uuid::try_parse(hex).ok())
        .ok_or(IdError { prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_what_it_wrote() {
        let id = TaskId::from_uuid(Uuid::from_u128(0x0192_d5c8_b6f0_7cc1_a1a3_c2b4_d5e6_f708));
        assert_eq!(id.to_string(), "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn an_id_of_another_kind_or_spelling_is_refused() {
        let refused = Err(IdError { prefix: "tsk" });
        for text in [
            "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            "tsk_0192D5C8B6F07CC1A1A3C2B4D5E6F708",
            "tsk_0192d5c8-b6f0-7cc1-a1a3-c2b4d5e6f708",
            "tsk0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            "tsk_",
            "",
        ] {
            assert_eq!(text.parse::<TaskId>(), refused, "{text}");
        }
    }
}
