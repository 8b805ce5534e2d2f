//! Decision tables of the project manager: workflow by input class, worker by unit, end of a review.
//!
//! **Invariant**: every table is total, and no model is asked where a table decides.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{agents::AgentRole, models::Tier, names::TaskName, workflow::plan::UnitKey};

pub mod review;

/// What an input asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkClass {
    /// A brief for something that does not exist yet: the whole pipeline.
    NewProject,
    /// Something more of what exists: a pipeline as large as its scope.
    FeatureRequest,
    /// A bug or a typo: the shortest pipeline. `bug_fix` is taken for it.
    #[serde(alias = "bug_fix")]
    QuickFix,
}

/// How much an input touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IssueScope {
    /// A line.
    Trivial,
    /// A file.
    Small,
    /// Several files.
    Medium,
    /// The architecture.
    Large,
}

/// What kind of work a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitKind {
    /// Lays the ground of a new project.
    Init,
    /// Lays out how something is built.
    Spec,
    /// Lays out what people see.
    Design,
    /// Makes the change.
    Implementation,
    /// Puts together what several units made beside each other.
    Integration,
    /// Mends what review or tests found.
    Fix,
    /// Judges the change.
    Review,
    /// Tries the change.
    Test,
}

/// How able a worker must be. Preferences say which coding agent that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// Small changes, quickly.
    Fixer,
    /// Anything.
    Specialist,
    /// Thinks before others build.
    Planner,
    /// Judges.
    Reviewer,
    /// Tries.
    Tester,
}

impl WorkClass {
    /// Every class.
    pub const ALL: [Self; 3] = [Self::NewProject, Self::FeatureRequest, Self::QuickFix];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NewProject => "new_project",
            Self::FeatureRequest => "feature_request",
            Self::QuickFix => "quick_fix",
        }
    }
}

impl IssueScope {
    /// Every scope, the least first.
    pub const ALL: [Self; 4] = [Self::Trivial, Self::Small, Self::Medium, Self::Large];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trivial => "trivial",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

impl UnitKind {
    /// Every kind, in the order of the longest workflow.
    pub const ALL: [Self; 8] = [
        Self::Init,
        Self::Spec,
        Self::Design,
        Self::Implementation,
        Self::Integration,
        Self::Fix,
        Self::Review,
        Self::Test,
    ];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Spec => "spec",
            Self::Design => "design",
            Self::Implementation => "implementation",
            Self::Fix => "fix",
            Self::Review => "review",
            Self::Test => "test",
            Self::Integration => "integration",
        }
    }

    /// Whether its work may end in a commit that later units build on. Reviews and tests leave nothing behind.
    pub const fn leaves_files(self) -> bool {
        match self {
            Self::Init
            | Self::Spec
            | Self::Design
            | Self::Implementation
            | Self::Integration
            | Self::Fix => true,
            Self::Review | Self::Test => false,
        }
    }
}

impl WorkerKind {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Fixer, Self::Specialist, Self::Planner, Self::Reviewer, Self::Tester];

    /// The name on the wire and in preferences.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fixer => "fixer",
            Self::Specialist => "specialist",
            Self::Planner => "planner",
            Self::Reviewer => "reviewer",
            Self::Tester => "tester",
        }
    }
}

/// One stage of a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineStage {
    /// What is done in it.
    pub kind: UnitKind,
    /// The stages that must be done before.
    pub after: &'static [UnitKind],
    /// How many units it has.
    pub units: StageUnits,
}

/// How many units a stage has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageUnits {
    /// Exactly one.
    One,
    /// As many as the plan says, one at least.
    Several,
}

const fn single_unit_stage(kind: UnitKind, after: &'static [UnitKind]) -> PipelineStage {
    PipelineStage { kind, after, units: StageUnits::One }
}

const fn multi_unit_stage(kind: UnitKind, after: &'static [UnitKind]) -> PipelineStage {
    PipelineStage { kind, after, units: StageUnits::Several }
}

/// The stages of a workflow, in order. A delivery follows each; it is no unit.
pub const fn workflow_stages(class: WorkClass, scope: IssueScope) -> &'static [PipelineStage] {
    use UnitKind::{Design, Fix, Implementation, Init, Review, Spec, Test};
    match (class, scope) {
        (
            WorkClass::QuickFix,
            IssueScope::Trivial | IssueScope::Small | IssueScope::Medium | IssueScope::Large,
        ) => const { &[single_unit_stage(Fix, &[])] },
        // A quick review: who does it, and how deeply, is a matter of the scope.
        (WorkClass::FeatureRequest, IssueScope::Trivial | IssueScope::Small) => {
            const {
                &[
                    single_unit_stage(Implementation, &[]),
                    single_unit_stage(Review, &[Implementation]),
                ]
            }
        }
        // The light plan is the one question for a plan; no architect is sent.
        (WorkClass::FeatureRequest, IssueScope::Medium) => {
            const {
                &[
                    multi_unit_stage(Implementation, &[]),
                    single_unit_stage(Review, &[Implementation]),
                ]
            }
        }
        (WorkClass::FeatureRequest, IssueScope::Large) => {
            const {
                &[
                    single_unit_stage(Spec, &[]),
                    multi_unit_stage(Implementation, &[Spec]),
                    single_unit_stage(Review, &[Spec, Implementation]),
                    single_unit_stage(Test, &[Spec, Implementation, Review]),
                ]
            }
        }
        (
            WorkClass::NewProject,
            IssueScope::Trivial | IssueScope::Small | IssueScope::Medium | IssueScope::Large,
        ) => {
            const {
                &[
                    single_unit_stage(Init, &[]),
                    single_unit_stage(Spec, &[Init]),
                    single_unit_stage(Design, &[Init, Spec]),
                    multi_unit_stage(Implementation, &[Init, Spec, Design]),
                    single_unit_stage(Review, &[Init, Spec, Design, Implementation]),
                    single_unit_stage(Test, &[Init, Spec, Design, Implementation, Review]),
                ]
            }
        }
    }
}

/// Who does a unit, and how much thought it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitAssignment {
    /// What the agent is told to be.
    pub role: AgentRole,
    /// How able it must be.
    pub worker: WorkerKind,
    /// The models it starts with.
    pub tier: Tier,
}

/// Who does a unit of that kind in work of that scope.
pub const fn assign_unit(scope: IssueScope, kind: UnitKind) -> UnitAssignment {
    use IssueScope::{Large, Medium, Small, Trivial};
    let (role, worker, tier) = match (kind, scope) {
        (UnitKind::Init, Trivial | Small | Medium | Large) => {
            (AgentRole::Developer, WorkerKind::Specialist, Tier::Standard)
        }
        (UnitKind::Spec, Trivial | Small | Medium) => {
            (AgentRole::Architect, WorkerKind::Planner, Tier::Standard)
        }
        (UnitKind::Spec, Large) => (AgentRole::Architect, WorkerKind::Planner, Tier::Deep),
        (UnitKind::Design, Trivial | Small | Medium | Large) => {
            (AgentRole::Designer, WorkerKind::Planner, Tier::Standard)
        }
        (UnitKind::Implementation, Trivial | Small) => {
            (AgentRole::Developer, WorkerKind::Fixer, Tier::Fast)
        }
        (UnitKind::Implementation, Medium | Large) => {
            (AgentRole::Developer, WorkerKind::Specialist, Tier::Standard)
        }
        (UnitKind::Fix | UnitKind::Integration, Trivial | Small | Medium | Large) => {
            (AgentRole::Fixer, WorkerKind::Fixer, Tier::Fast)
        }
        (UnitKind::Review, Trivial | Small) => {
            (AgentRole::Reviewer, WorkerKind::Reviewer, Tier::Fast)
        }
        (UnitKind::Review, Medium) => (AgentRole::Reviewer, WorkerKind::Reviewer, Tier::Standard),
        (UnitKind::Review, Large) => (AgentRole::Reviewer, WorkerKind::Reviewer, Tier::Deep),
        (UnitKind::Test, Trivial | Small) => (AgentRole::Tester, WorkerKind::Tester, Tier::Fast),
        (UnitKind::Test, Medium | Large) => (AgentRole::Tester, WorkerKind::Tester, Tier::Standard),
    };
    UnitAssignment { role, worker, tier }
}

/// The kind of unit that an agent of a role is sent for; `None` for those who are never sent.
pub const fn unit_kind_for_role(role: AgentRole) -> Option<UnitKind> {
    match role {
        AgentRole::Architect => Some(UnitKind::Spec),
        AgentRole::Designer => Some(UnitKind::Design),
        AgentRole::Developer => Some(UnitKind::Implementation),
        AgentRole::Reviewer => Some(UnitKind::Review),
        AgentRole::Tester => Some(UnitKind::Test),
        AgentRole::Fixer => Some(UnitKind::Fix),
        AgentRole::ProjectManager
        | AgentRole::ProjectAnalyst
        | AgentRole::WorkflowRunner
        | AgentRole::ManagerHost
        | AgentRole::AnalystHost => None,
    }
}

/// A key for a unit from its title: its first words with dashes between them, and a number where another unit is called so.
pub fn derive_unit_key(title: &str, taken: &BTreeSet<UnitKey>) -> UnitKey {
    first_free_key(&TaskName::derive_name(title), 1, taken)
}

/// The first key of that name which is free, counting from `from`: `review`, `review-2`, …
pub fn first_free_key(base: &UnitKey, from: u32, taken: &BTreeSet<UnitKey>) -> UnitKey {
    let mut number = from;
    loop {
        let key = base.with_number(number);
        if !taken.contains(&key) || number == u32::MAX {
            return key;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests;
