//! Work units and their last jobs, with the state tables of both.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    names::Prose,
    workflow::{findings::VerificationFinding, plan::UnitKey},
};

macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$state_doc:meta])* $state:ident = $text:literal => [$($to:ident),*];)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[schema(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$state_doc])* #[serde(rename = $text)] $state,)+
        }

        impl $name {
            /// Every state, in the order of a life.
            pub const ALL: &'static [Self] = &[$(Self::$state,)+];

            /// The name on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$state => $text,)+ }
            }

            /// The state of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|state| state.as_str() == name)
            }

            /// What may follow.
            pub const fn successors(self) -> &'static [Self] {
                match self { $(Self::$state => &[$(Self::$to,)*],)+ }
            }

            /// Whether `to` may follow.
            pub fn may_become(self, to: Self) -> bool {
                self.successors().contains(&to)
            }

            /// Whether nothing follows.
            pub const fn is_final(self) -> bool {
                self.successors().is_empty()
            }

            /// The states that `to` may follow.
            pub fn before(to: Self) -> Vec<&'static str> {
                let from = Self::ALL.iter().filter(|state| state.may_become(to));
                from.map(|state| state.as_str()).collect()
            }
        }
    };
}

states! {
    /// Where a work unit stands.
    UnitState {
        /// Planned, and waiting for what it depends on or for a place.
        Pending = "pending" => [Dispatched, Cancelled];
        /// A job is out for it.
        Dispatched = "dispatched" => [Collected, Pending, Failed, Cancelled];
        /// Its result is in and waits to be judged.
        Collected = "collected" => [Done, Pending, Failed, Cancelled];
        /// Its result was judged good.
        Done = "done" => [];
        /// It was given up.
        Failed = "failed" => [];
        /// It is not wanted any more.
        Cancelled = "cancelled" => [];
    }
}

states! {
    /// Where a job stands: one attempt of one work unit.
    JobState {
        /// Waits for somebody to take it.
        Queued = "queued" => [Running, Cancelled];
        /// Somebody works on it.
        Running = "running" => [Succeeded, Failed, Lost, Cancelled];
        /// Its worker reported a result.
        Succeeded = "succeeded" => [];
        /// Its worker reported that it failed.
        Failed = "failed" => [];
        /// Its worker was not heard of any more.
        Lost = "lost" => [];
        /// It is not wanted any more; a late result is refused.
        Cancelled = "cancelled" => [];
    }
}

/// A unit of the plan and its last job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UnitView {
    /// Its name, unique in the task.
    #[schema(value_type = String)]
    pub key: UnitKey,
    /// What is to be done.
    #[schema(value_type = String)]
    pub title: Prose,
    /// What must be done before.
    #[schema(value_type = Vec<String>)]
    pub depends_on: Vec<UnitKey>,
    /// Where it stands.
    pub state: UnitState,
    /// How often it was tried.
    pub attempts: u32,
    /// What was found about its last attempt.
    pub findings: Vec<VerificationFinding>,
    /// Its last job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<UnitJob>,
}

/// The last job of a unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UnitJob {
    /// Which attempt it is.
    pub attempt: u32,
    /// Where it stands.
    pub state: JobState,
    /// Whether its result was taken.
    pub collected: bool,
    /// What its worker reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_goes_from_pending_to_done_and_back_to_pending_until_it_has_ended() {
        use UnitState::{Cancelled, Collected, Dispatched, Done, Failed, Pending};
        let allowed: Vec<_> = UnitState::ALL
            .iter()
            .flat_map(|from| from.successors().iter().map(move |to| (*from, *to)))
            .collect();
        assert_eq!(
            allowed,
            [
                (Pending, Dispatched),
                (Pending, Cancelled),
                (Dispatched, Collected),
                (Dispatched, Pending),
                (Dispatched, Failed),
                (Dispatched, Cancelled),
                (Collected, Done),
                (Collected, Pending),
                (Collected, Failed),
                (Collected, Cancelled),
            ],
            "B004-05, B004-06: every other transition is refused"
        );
    }

    #[test]
    fn a_report_cannot_bring_a_job_back_that_has_ended() {
        for state in [JobState::Succeeded, JobState::Failed, JobState::Lost, JobState::Cancelled] {
            assert!(state.is_final(), "B004-54: {state:?}");
        }
        assert_eq!(JobState::before(JobState::Succeeded), ["running"], "B004-54");
        assert_eq!(JobState::before(JobState::Cancelled), ["queued", "running"]);
    }
}
