//! Dispatch: assigns a worker and context to a unit by tables and preferences. No model is asked.

use std::collections::BTreeMap;

use cynode_core::{
    agents::AgentRole,
    models::Tier,
    names::DottedKey,
    workflow::{
        decisions::{UnitAssignment, UnitKind, assign_unit, review::ReviewOptions},
        environments::EnvironmentBrief,
        findings::{FindingSeverity, VerificationFinding},
        handoffs::{HandoffAnswer, ProjectContext, ReadyUnit, WorkAssignment},
        jobs::{
            CommitRule, JobSpec, PlacementSpec, RevisionFeedback, SandboxNeeds, StructuredContext,
            WorkerChoice,
        },
        plan::Plan,
    },
};
use cynode_wire::manager::handoffs::TaskFacts;
use serde_json::Value;

use super::{
    super::{
        fence,
        unit::{UnitBrief, UnitPayload, find_unit, is_repository_path},
    },
    criterion_texts, find_preference, review_options,
};
use crate::{
    decision_context::{DecisionContext, DecisionError},
    llm,
};

/// Default coding agent.
pub const DEFAULT_WORKER: &str = "goose";

const WORKER_PREFERENCE_PREFIX: &str = "agents.project_manager.workers";
const PLACEMENT_PREFERENCE_PREFIX: &str = "agents.project_manager.placement";

/// Report format for reviewers, so that code can parse it.
const REVIEW_REPORT_FORMAT: &str = "Report `review_approved` or `review_changes_requested` with `details` of this form: \
    {\"critical_issues\": [], \"major_issues\": [], \"minor_issues\": [], \"summary\": \"\"}; an issue is \
    {\"description\": \"\", \"file_location\": \"path:line\", \"how_to_fix\": \"\"}. Critical must be mended, major should be, minor could be.";
/// Report format for testers.
const TEST_REPORT_FORMAT: &str = "Run what the project has; do not mend anything. Report `tests_passed` or `tests_failed` with `details` of this form: \
    {\"passed\": 0, \"failed\": 0, \"command\": \"\", \"failures\": []}.";

/// Returns the path of the architect's specification.
pub fn spec_path(task: &TaskFacts) -> String {
    artifact_path("specs", task)
}

/// Returns the path of the designer's document.
pub fn design_path(task: &TaskFacts) -> String {
    artifact_path("designs", task)
}

fn artifact_path(directory: &str, task: &TaskFacts) -> String {
    let good = is_repository_path(&task.name) && !task.name.contains('/');
    format!("docs/{directory}/{}.md", if good { task.name.as_str() } else { "task" })
}

pub(super) fn assign_ready_units(
    desk: &DecisionContext<'_>,
    units: &[ReadyUnit],
) -> Result<HandoffAnswer, DecisionError> {
    let context = &desk.handoff.context;
    let scene = DispatchContext {
        task: super::handoff_task(desk)?,
        plan: context.planned.as_ref().map(|planned| &planned.plan),
        project: super::planned_project(desk),
        options: review_options(desk),
        preferences: &context.preferences,
        models: &desk.handoff.models,
        environment: super::accepted_environment(desk),
    };
    let assignments = units
        .iter()
        .map(|unit| Ok(WorkAssignment { unit: unit.unit.clone(), work: scene.build_work(unit)? }))
        .collect::<Result<_, DecisionError>>()?;
    Ok(HandoffAnswer::Assigned { assignments })
}

struct DispatchContext<'a> {
    task: &'a TaskFacts,
    plan: Option<&'a Plan>,
    project: ProjectContext,
    options: ReviewOptions,
    preferences: &'a BTreeMap<DottedKey, Value>,
    /// Available models.
    models: &'a [String],
    /// The project's environment, if it has one and the task uses it.
    environment: Option<&'a EnvironmentBrief>,
}

impl DispatchContext<'_> {
    fn build_work(&self, unit: &ReadyUnit) -> Result<JobSpec, DecisionError> {
        let payload = UnitPayload::parse_payload(&unit.unit, &unit.payload)?;
        let assignment = assign_unit(payload.scope, payload.kind);
        Ok(JobSpec {
            role: assignment.role,
            worker: match payload.kind {
                UnitKind::Integration => WorkerChoice::Merge,
                _ => self.select_worker(assignment),
            },
            context: self.build_context(unit, &payload),
            models: vec![self.model_for_tier(assignment.tier)],
            tools: None,
            sandbox: self.sandbox_needs(&payload),
            placement: self.preferred_placement(),
            commit: match payload.kind {
                UnitKind::Review | UnitKind::Test => CommitRule::Never,
                UnitKind::Implementation | UnitKind::Integration | UnitKind::Fix => {
                    CommitRule::Required
                }
                UnitKind::Init | UnitKind::Spec | UnitKind::Design => CommitRule::IfChanged,
            },
        })
    }

    /// Returns the sandbox of a unit: the project's environment with its resources, and what the unit asks for beyond them.
    fn sandbox_needs(&self, payload: &UnitPayload) -> SandboxNeeds {
        let needs = match self.environment {
            // A merge runs git only, which the node's own system has.
            Some(environment) if payload.kind != UnitKind::Integration => {
                environment.sandbox_needs()
            }
            Some(_) | None => SandboxNeeds::plain_sandbox(),
        };
        needs.with_unit_needs(payload.needs.unwrap_or_default())
    }

    /// Returns the model of the tier, or the nearest available one. If none is available it returns the tier itself: a model may become
    /// available before the work starts.
    fn model_for_tier(&self, tier: Tier) -> String {
        llm::select_model(self.models, tier).map_or_else(|| tier.tier_model_id(), ToOwned::to_owned)
    }

    /// Selects the worker that preferences name for the role, else for the worker kind, else the default.
    fn select_worker(&self, assignment: UnitAssignment) -> WorkerChoice {
        let keys = [assignment.role.as_str(), assignment.worker.as_str()];
        for key in keys.map(|name| format!("{WORKER_PREFERENCE_PREFIX}.{name}")) {
            let Some(value) = find_preference(self.preferences, &key) else { continue };
            match serde_json::from_value(value.clone()) {
                Ok(
                    worker @ (WorkerChoice::Acp { .. }
                    | WorkerChoice::Command { .. }
                    | WorkerChoice::Scripted { .. }),
                ) => return worker,
                Ok(WorkerChoice::Checks { .. } | WorkerChoice::Merge) | Err(_) => {
                    tracing::warn!(
                        event = "preference.invalid",
                        key,
                        "the preference names no worker"
                    );
                }
            }
        }
        WorkerChoice::Acp { agent: DEFAULT_WORKER.to_owned() }
    }

    /// Returns the preferred placement. The registry balances among the matching nodes.
    fn preferred_placement(&self) -> PlacementSpec {
        let text = |value: &Value| {
            value.as_str().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let node =
            find_preference(self.preferences, &format!("{PLACEMENT_PREFERENCE_PREFIX}.node"))
                .and_then(text);
        let labels = match find_preference(
            self.preferences,
            &format!("{PLACEMENT_PREFERENCE_PREFIX}.labels"),
        ) {
            Some(Value::Array(labels)) => labels.iter().filter_map(text).collect(),
            Some(one) => text(one).into_iter().collect(),
            None => Vec::new(),
        };
        PlacementSpec { node, labels }
    }

    fn build_context(&self, unit: &ReadyUnit, payload: &UnitPayload) -> StructuredContext {
        let UnitPayload { kind, ref brief, iteration, .. } = *payload;
        let mut requirements = brief.requirements.clone();
        if self.covers_task_criteria(kind, iteration) {
            let criteria =
                criterion_texts(self.task).into_iter().map(|text| fence::sanitize_line(&text, 600));
            requirements.extend(criteria.filter(|text| !brief.requirements.contains(text)));
        }
        let mut constraints = brief.constraints.clone();
        match kind {
            UnitKind::Review => constraints.push(REVIEW_REPORT_FORMAT.to_owned()),
            UnitKind::Test => constraints.push(TEST_REPORT_FORMAT.to_owned()),
            UnitKind::Init
            | UnitKind::Spec
            | UnitKind::Design
            | UnitKind::Implementation
            | UnitKind::Integration
            | UnitKind::Fix => {}
        }
        constraints.extend(brief.checks.iter().map(|check| {
            format!("This must succeed in the end: `{}`", check.command_line().replace('`', "'"))
        }));
        let mut patterns = self.project.patterns.clone();
        if !self.project.build_commands.is_empty() {
            let commands = self.project.build_commands.join("; ");
            patterns.entry("build and test".to_owned()).or_insert(commands);
        }
        StructuredContext {
            task_summary: self.render_summary(unit, kind),
            requirements,
            architecture: self.project.architecture.clone(),
            key_paths: self.project.key_paths.clone(),
            patterns,
            files_to_modify: brief.files_to_modify.clone(),
            files_to_read_first: brief.files_to_read_first.clone(),
            pattern_reference: brief.pattern_reference.clone(),
            constraints,
            spec_artifact_path: self
                .has_result_of_kind(unit, UnitKind::Spec)
                .then(|| spec_path(self.task)),
            design_artifact_path: self
                .has_result_of_kind(unit, UnitKind::Design)
                .then(|| design_path(self.task)),
            revision_feedback: self.build_feedback(unit, brief),
            // The orchestrator adds what is known, the skills and the words of people when a node takes the job.
            ..StructuredContext::default()
        }
    }

    /// Returns whether a unit must meet the criteria of the whole task. One of several units answers for its own part only, and a fix for
    /// its findings.
    fn covers_task_criteria(&self, kind: UnitKind, iteration: u32) -> bool {
        match kind {
            UnitKind::Init | UnitKind::Integration => false,
            UnitKind::Fix => iteration == 0,
            UnitKind::Spec | UnitKind::Design | UnitKind::Review | UnitKind::Test => true,
            UnitKind::Implementation => {
                let units = self.plan.map_or(&[][..], |plan| plan.planned_units());
                let same = |payload: &UnitPayload| payload.kind == UnitKind::Implementation;
                units.iter().filter_map(UnitPayload::from_unit).filter(same).count() <= 1
            }
        }
    }

    /// Renders the work of a unit in one or two sentences.
    fn render_summary(&self, unit: &ReadyUnit, kind: UnitKind) -> String {
        let title = fence::sanitize_line(&unit.title, 400);
        let task = fence::sanitize_line(&self.task.description, 400);
        let whole = title.trim_end_matches('.') == task.trim_end_matches('.');
        match kind {
            UnitKind::Review => {
                format!("Judge the change in this workspace. It was made for: {task}")
            }
            UnitKind::Test => format!("Try the change in this workspace. It was made for: {task}"),
            UnitKind::Init
            | UnitKind::Spec
            | UnitKind::Design
            | UnitKind::Implementation
            | UnitKind::Integration
            | UnitKind::Fix
                if whole =>
            {
                title
            }
            UnitKind::Init
            | UnitKind::Spec
            | UnitKind::Design
            | UnitKind::Implementation
            | UnitKind::Integration
            | UnitKind::Fix => {
                format!("{} (The whole task: {task})", title.trim_end_matches('.'))
            }
        }
    }

    /// Returns whether the unit builds on a completed unit of that kind.
    fn has_result_of_kind(&self, unit: &ReadyUnit, kind: UnitKind) -> bool {
        let Some(plan) = self.plan else { return false };
        unit.results.keys().filter_map(|key| key.parse().ok()).any(|key| {
            find_unit(plan, &key)
                .is_some_and(|(_, payload)| payload.kind == kind && payload.iteration == 0)
        })
    }

    /// Builds the feedback on the last attempt or from the review.
    fn build_feedback(&self, unit: &ReadyUnit, brief: &UnitBrief) -> Option<RevisionFeedback> {
        let kept = |finding: &&VerificationFinding| match finding.severity {
            FindingSeverity::Critical | FindingSeverity::Major | FindingSeverity::Note => true,
            FindingSeverity::Minor => !self.options.skip_minor_issues,
        };
        let mut findings: Vec<VerificationFinding> =
            unit.findings.iter().filter(kept).cloned().collect();
        let again = !findings.is_empty();
        for finding in brief.findings.iter().filter(kept) {
            if !findings.contains(finding) {
                findings.push(finding.clone());
            }
        }
        let summary = match (findings.is_empty(), again) {
            (true, _) => return None,
            (false, true) => "The last attempt was not good.",
            (false, false) => "This was found when the change was judged.",
        };
        Some(RevisionFeedback { summary: summary.to_owned(), findings })
    }
}

/// Returns the role whose report decides about a unit.
pub(super) fn reporting_role(payload: &UnitPayload) -> AgentRole {
    assign_unit(payload.scope, payload.kind).role
}
