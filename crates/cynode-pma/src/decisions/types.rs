//! Types of decisions that a model makes: one small type per kind of question.
//!
//! The field comments become part of the schema, so models read them too. The reason comes before the label, because an
//! answer is written from front to back.

use cynode_core::{
    agents::AgentRole,
    models::Tier,
    workflow::{
        decisions::{IssueScope, WorkClass},
        findings::{FindingSeverity, VerificationFinding},
        handoffs::{AnalysisStatus, FailureDecision},
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision_context::{DecisionKind, DecisionOutput};

/// Maximum length of a short text in an answer.
const MAX_SHORT_CHARS: usize = 1_000;
/// Maximum length of a text in an answer.
const MAX_LONG_CHARS: usize = 4_000;
/// Maximum number of items of a list in an answer.
const MAX_LIST_ITEMS: usize = 30;
/// Maximum number of units in one proposal.
const MAX_PROPOSED_UNITS: usize = 50;
/// Maximum number of files that a proposal asks for.
const MAX_FILES_TO_LOOK_AT: usize = 5;

/// Roles that work can be routed to.
pub const ROUTES: [AgentRole; 6] = [
    AgentRole::Architect,
    AgentRole::Designer,
    AgentRole::Developer,
    AgentRole::Reviewer,
    AgentRole::Tester,
    AgentRole::Fixer,
];

const SEVERITIES: [FindingSeverity; 4] = [
    FindingSeverity::Critical,
    FindingSeverity::Major,
    FindingSeverity::Minor,
    FindingSeverity::Note,
];
const STATUSES: [AnalysisStatus; 3] =
    [AnalysisStatus::Pass, AnalysisStatus::Fail, AnalysisStatus::NeedsClarification];
const DECISIONS: [FailureDecision; 3] =
    [FailureDecision::Retry, FailureDecision::ReduceScope, FailureDecision::Escalate];

/// What an input asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Classified {
    /// A few words copied from the text that show whether the thing exists already, and whether it is wrong or more is wanted.
    pub reason: String,
    /// The kind of work.
    #[schemars(with = "String", extend("enum" = WorkClass::ALL))]
    pub class: WorkClass,
}

/// How much an input touches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scoped {
    /// A few words copied from the data that show what has to be touched.
    pub reason: String,
    /// The parts of the project that have to be touched.
    #[schemars(length(max = 30))]
    pub components: Vec<String>,
    /// How many files have to be changed, about.
    #[schemars(with = "u32", range(max = 100_000))]
    pub estimated_files: u32,
    /// How much that is.
    #[schemars(with = "String", extend("enum" = IssueScope::ALL))]
    pub scope: IssueScope,
}

/// How a project is laid out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectAnalysis {
    /// One to three sentences: what the project is and how its parts depend on each other.
    pub architecture: String,
    /// The places that somebody who changes the project must know. Only paths from the listing.
    #[schemars(length(max = 30))]
    pub key_paths: Vec<KeyPath>,
    /// How things are done in the project, as far as the listing and the files show it.
    #[schemars(length(max = 30))]
    pub patterns: Vec<ProjectPattern>,
    /// The commands that build and test the project.
    #[schemars(length(max = 30))]
    pub build_commands: Vec<String>,
}

/// A place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct KeyPath {
    /// The path, as in the listing.
    pub path: String,
    /// What is there, in a few words.
    pub what: String,
}

/// A way of doing things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct ProjectPattern {
    /// Its name, a word or two.
    pub name: String,
    /// How it is done, in a sentence.
    pub how: String,
}

/// Which units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanProposal {
    /// One or two sentences: how the work is divided, and why so.
    pub reason: String,
    /// The units of work, in the order in which they are done.
    #[schemars(length(max = 50))]
    pub units: Vec<UnitProposal>,
    /// Keys of units of the plan before that are not wanted any more. Empty when there was no plan before.
    #[schemars(length(max = 50))]
    pub leave_out: Vec<String>,
    /// What the plan takes for granted.
    #[schemars(length(max = 30))]
    pub assumptions: Vec<String>,
    /// A question to the person, only when nothing useful can be planned without the answer. Empty otherwise.
    pub question: String,
    /// Files of the repository to read before the plan is made, only when no units can be given without them. Empty otherwise.
    #[serde(default)]
    #[schemars(length(max = 5))]
    pub look_at: Vec<String>,
}

/// One unit, as it was proposed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct UnitProposal {
    /// What is to be done, in one line.
    pub title: String,
    /// `implementation` when code is changed, `design` when it is decided and written down what people see, `unsure` when it could be either.
    #[schemars(with = "String", extend("enum" = ["implementation", "design", "unsure"]))]
    pub kind: ProposalKind,
    /// The files to change, exactly, as paths of the repository.
    #[schemars(length(max = 30))]
    pub files_to_modify: Vec<String>,
    /// The files to read before anything else: interfaces, examples.
    #[schemars(length(max = 30))]
    pub files_to_read_first: Vec<String>,
    /// An existing example to follow, such as a file that does something alike. Empty when there is none.
    pub pattern_reference: String,
    /// What must not be done otherwise.
    #[schemars(length(max = 30))]
    pub constraints: Vec<String>,
    /// What must hold when the unit is done.
    #[schemars(length(max = 30))]
    pub requirements: Vec<String>,
    /// Titles of units of this plan that must be done before.
    #[schemars(length(max = 50))]
    pub depends_on: Vec<String>,
    /// Commands that succeed when the unit is done well. Empty when there are none.
    #[schemars(length(max = 10))]
    pub checks: Vec<CheckProposal>,
}

/// Proposed kind of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposalKind {
    /// The unit changes code.
    Implementation,
    /// The unit writes a design document.
    Design,
    /// It could be either: the role is decided by a separate question.
    Unsure,
}

/// A command that shows something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct CheckProposal {
    /// The program and its arguments, one by one; no shell reads them.
    #[schemars(length(max = 30))]
    pub argv: Vec<String>,
}

/// What an agent that asks is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRefinement {
    /// One sentence: what the agent needs, and whether the task already says it.
    pub reason: String,
    /// What the agent is to do now, in a few sentences. Empty when only a person can say.
    pub instruction: String,
    /// Whether the task and the project answer the question, so that no person is needed.
    pub can_answer: bool,
}

/// Whether a result is good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reviewed {
    /// A few words copied from the result that show whether the requirements hold.
    pub reason: String,
    /// `pass` when every requirement is shown to hold, `fail` when one is not, `needs_clarification` when nobody could tell.
    #[schemars(with = "String", extend("enum" = STATUSES))]
    pub status: AnalysisStatus,
    /// What is wrong or unclear, one by one. Empty when the result is good.
    #[schemars(length(max = 30))]
    pub findings: Vec<ReviewFinding>,
    /// What to do about it, one by one.
    #[schemars(length(max = 30))]
    pub recommended_actions: Vec<String>,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct ReviewFinding {
    /// What is wrong, and where.
    pub text: String,
    /// `critical` when it must not be so, `major` when it should not, `minor` when it could be better, `note` when it is only worth knowing.
    #[schemars(with = "String", extend("enum" = SEVERITIES))]
    pub severity: FindingSeverity,
}

/// What to do about a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailureHandled {
    /// A few words copied from what happened that show the cause.
    pub reason: String,
    /// What is to be done otherwise, in one or two sentences; for `escalate` the question to the person.
    pub note: String,
    /// What follows.
    #[schemars(with = "String", extend("enum" = DECISIONS))]
    pub decision: FailureDecision,
}

/// Who is to do something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Routed {
    /// A few words copied from the work that show what has to come out of it.
    pub reason: String,
    /// Who does it.
    #[schemars(with = "String", extend("enum" = ROUTES))]
    pub role: AgentRole,
}

/// Whether tests are needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestSelection {
    /// One sentence: what could be broken, and whether a look is enough.
    pub why: String,
    /// The commands that run the tests, as the project has them. Empty when none are needed.
    #[schemars(length(max = 30))]
    pub commands: Vec<String>,
    /// Whether somebody must run tests before the change is delivered.
    pub needed: bool,
}

/// What came of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskSummary {
    /// For whoever asked for the task: what was done, what was found, what is left. A few sentences, no praise.
    pub summary: String,
}

/// What a schedule means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleInterpretation {
    /// One sentence: why these tasks, or why none.
    pub note: String,
    /// The tasks to be made now. Empty when the schedule asks for nothing at this time.
    #[schemars(length(max = 10))]
    pub tasks: Vec<ScheduledTask>,
}

/// A task that a schedule asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct ScheduledTask {
    /// A few words.
    pub name: String,
    /// What is to be done, in the words of the schedule.
    pub description: String,
    /// What must be shown for it to be done.
    #[schemars(length(max = 30))]
    pub acceptance_criteria: Vec<String>,
}

fn check_length(name: &str, text: &str, most: usize) -> Result<(), String> {
    let got = text.chars().count();
    if got > most {
        return Err(format!("`{name}` has at most {most} characters, got {got}"));
    }
    Ok(())
}

fn check_not_empty(name: &str, value: &str, most: usize) -> Result<(), String> {
    if value.trim().is_empty() {
        return Err(format!("`{name}` must not be empty"));
    }
    check_length(name, value, most)
}

fn check_list(name: &str, items: &[String], most: usize) -> Result<(), String> {
    if items.len() > most {
        return Err(format!("`{name}` has at most {most} items, got {}", items.len()));
    }
    items.iter().try_for_each(|item| check_length(name, item, MAX_SHORT_CHARS))
}

impl DecisionOutput for Classified {
    const KIND: DecisionKind = DecisionKind::Classify;
    const TIER: Tier = Tier::Fast;

    fn validate_decision(&self) -> Result<(), String> {
        check_length("reason", &self.reason, MAX_SHORT_CHARS)
    }
}

impl DecisionOutput for Scoped {
    const KIND: DecisionKind = DecisionKind::AssessScope;
    const TIER: Tier = Tier::Fast;

    fn validate_decision(&self) -> Result<(), String> {
        check_length("reason", &self.reason, MAX_SHORT_CHARS)?;
        check_list("components", &self.components, MAX_LIST_ITEMS)
    }
}

impl DecisionOutput for ProjectAnalysis {
    const KIND: DecisionKind = DecisionKind::AnalyseProject;
    const TIER: Tier = Tier::Standard;

    fn validate_decision(&self) -> Result<(), String> {
        check_not_empty("architecture", &self.architecture, MAX_LONG_CHARS)?;
        for KeyPath { path, what } in &self.key_paths {
            check_not_empty("path", path, MAX_SHORT_CHARS)?;
            check_length("what", what, MAX_SHORT_CHARS)?;
        }
        for ProjectPattern { name, how } in &self.patterns {
            check_not_empty("name", name, MAX_SHORT_CHARS)?;
            check_length("how", how, MAX_SHORT_CHARS)?;
        }
        check_list("build_commands", &self.build_commands, MAX_LIST_ITEMS)
    }
}

impl DecisionOutput for PlanProposal {
    const KIND: DecisionKind = DecisionKind::Plan;
    const TIER: Tier = Tier::Standard;

    fn validate_decision(&self) -> Result<(), String> {
        check_length("reason", &self.reason, MAX_LONG_CHARS)?;
        check_length("question", &self.question, MAX_SHORT_CHARS)?;
        check_list("leave_out", &self.leave_out, MAX_PROPOSED_UNITS)?;
        check_list("assumptions", &self.assumptions, MAX_LIST_ITEMS)?;
        check_list("look_at", &self.look_at, MAX_FILES_TO_LOOK_AT)?;
        if self.units.is_empty()
            && self.leave_out.is_empty()
            && self.look_at.is_empty()
            && self.question.trim().is_empty()
        {
            return Err("give at least one unit, or a question".into());
        }
        if self.units.len() > MAX_PROPOSED_UNITS {
            return Err(format!(
                "give at most {MAX_PROPOSED_UNITS} units, got {}",
                self.units.len()
            ));
        }
        self.units.iter().try_for_each(UnitProposal::validate_unit)?;
        for unit in &self.units {
            let known = |title: &String| self.units.iter().any(|other| other.title == *title);
            if let Some(missing) = unit.depends_on.iter().find(|title| !known(title)) {
                return Err(format!("`depends_on` names `{missing}`, which is no title of a unit"));
            }
        }
        order_units(&self.units).map(drop)
    }
}

impl UnitProposal {
    fn validate_unit(&self) -> Result<(), String> {
        check_not_empty("title", &self.title, MAX_SHORT_CHARS)?;
        check_length("pattern_reference", &self.pattern_reference, MAX_SHORT_CHARS)?;
        check_list("files_to_modify", &self.files_to_modify, MAX_LIST_ITEMS)?;
        check_list("files_to_read_first", &self.files_to_read_first, MAX_LIST_ITEMS)?;
        check_list("constraints", &self.constraints, MAX_LIST_ITEMS)?;
        check_list("requirements", &self.requirements, MAX_LIST_ITEMS)?;
        check_list("depends_on", &self.depends_on, MAX_PROPOSED_UNITS)?;
        if self.checks.len() > MAX_LIST_ITEMS {
            return Err(format!(
                "`checks` has at most {MAX_LIST_ITEMS} items, got {}",
                self.checks.len()
            ));
        }
        self.checks.iter().try_for_each(|check| check_list("argv", &check.argv, MAX_LIST_ITEMS))
    }
}

/// Sorts units topologically by their dependencies, otherwise in the given order.
pub fn order_units(units: &[UnitProposal]) -> Result<Vec<&UnitProposal>, String> {
    let mut left: Vec<&UnitProposal> = units.iter().collect();
    let mut ordered: Vec<&UnitProposal> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let free = left.iter().position(|unit| {
            let waits = |title: &String| left.iter().any(|other| other.title == *title);
            !unit.depends_on.iter().any(waits)
        });
        let Some(free) = free else {
            let titles: Vec<_> = left.iter().map(|unit| unit.title.as_str()).collect();
            return Err(format!("these units wait for each other: {}", titles.join(", ")));
        };
        ordered.push(left.remove(free));
    }
    Ok(ordered)
}

impl DecisionOutput for TaskRefinement {
    const KIND: DecisionKind = DecisionKind::RefineTask;
    const TIER: Tier = Tier::Fast;

    fn validate_decision(&self) -> Result<(), String> {
        check_length("reason", &self.reason, MAX_SHORT_CHARS)?;
        if self.can_answer {
            return check_not_empty("instruction", &self.instruction, MAX_LONG_CHARS);
        }
        check_length("instruction", &self.instruction, MAX_LONG_CHARS)
    }
}

impl DecisionOutput for Reviewed {
    const KIND: DecisionKind = DecisionKind::ReviewArtifact;
    const TIER: Tier = Tier::Standard;

    fn validate_decision(&self) -> Result<(), String> {
        check_length("reason", &self.reason, MAX_LONG_CHARS)?;
        check_list("recommended_actions", &self.recommended_actions, MAX_LIST_ITEMS)?;
        self.findings
            .iter()
            .try_for_each(|finding| check_not_empty("text", &finding.text, MAX_SHORT_CHARS))?;
        let grave = self.findings.iter().any(|finding| {
            matches!(finding.severity, FindingSeverity::Critical | FindingSeverity::Major)
        });
        match self.status {
            AnalysisStatus::Pass if grave => {
                Err("a result with critical or major findings does not pass".into())
            }
            AnalysisStatus::Fail if self.findings.is_empty() => {
                Err("say in `findings` what is wrong".into())
            }
            AnalysisStatus::NeedsClarification if self.findings.is_empty() => {
                Err("say in `findings` what is not clear".into())
            }
            AnalysisStatus::Pass | AnalysisStatus::Fail | AnalysisStatus::NeedsClarification => {
                Ok(())
            }
        }
    }
}

impl Reviewed {
    /// Converts the findings to the common form.
    pub fn to_findings(&self) -> Vec<VerificationFinding> {
        let told = |finding: &ReviewFinding| {
            VerificationFinding::new(finding.severity, finding.text.trim())
        };
        self.findings.iter().map(told).collect()
    }
}

impl DecisionOutput for FailureHandled {
    const KIND: DecisionKind = DecisionKind::HandleFailure;
    const TIER: Tier = Tier::Fast;

    fn validate_decision(&self) -> Result<(), String> {
        check_length("reason", &self.reason, MAX_SHORT_CHARS)?;
        check_not_empty("note", &self.note, MAX_SHORT_CHARS)
    }
}

impl DecisionOutput for Routed {
    const KIND: DecisionKind = DecisionKind::Route;
    const TIER: Tier = Tier::Fast;

    fn validate_decision(&self) -> Result<(), String> {
        check_length("reason", &self.reason, MAX_SHORT_CHARS)?;
        if ROUTES.contains(&self.role) {
            return Ok(());
        }
        Err("`role` must be one of those who work in a sandbox".into())
    }
}

impl DecisionOutput for TestSelection {
    const KIND: DecisionKind = DecisionKind::ChooseTests;
    const TIER: Tier = Tier::Fast;

    fn validate_decision(&self) -> Result<(), String> {
        check_not_empty("why", &self.why, MAX_SHORT_CHARS)?;
        check_list("commands", &self.commands, MAX_LIST_ITEMS)
    }
}

impl DecisionOutput for TaskSummary {
    const KIND: DecisionKind = DecisionKind::Summarise;
    const TIER: Tier = Tier::Fast;

    fn validate_decision(&self) -> Result<(), String> {
        check_not_empty("summary", &self.summary, MAX_LONG_CHARS)
    }
}

impl DecisionOutput for ScheduleInterpretation {
    const KIND: DecisionKind = DecisionKind::InterpretSchedule;
    const TIER: Tier = Tier::Standard;

    fn validate_decision(&self) -> Result<(), String> {
        check_not_empty("note", &self.note, MAX_SHORT_CHARS)?;
        if self.tasks.len() > 10 {
            return Err(format!("a schedule makes at most 10 tasks, got {}", self.tasks.len()));
        }
        for task in &self.tasks {
            check_length("name", &task.name, MAX_SHORT_CHARS)?;
            check_not_empty("description", &task.description, MAX_LONG_CHARS)?;
            check_list("acceptance_criteria", &task.acceptance_criteria, MAX_LIST_ITEMS)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
