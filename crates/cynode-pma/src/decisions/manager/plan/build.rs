//! Builds a plan from the model's units and the units that the workflow adds.
//!
//! A job starts from the commits of the units that its unit names. Units with disjoint sets of changed files run in
//! parallel, and a unit that depends on several of them depends on a merge unit. All others run in sequence.

use std::collections::BTreeSet;

use cynode_core::{
    evidence::EvidenceCheck,
    names::Prose,
    workflow::{
        decisions::{
            IssueScope, StageUnits, UnitKind, derive_unit_key, first_free_key, unit_kind_for_role,
            workflow_stages,
        },
        plan::{Plan, PlanText, PlannedUnit, UnitKey, find_final_units, unit_leaves_files},
    },
};
use cynode_wire::manager::handoffs::TaskFacts;

use super::{
    super::{
        super::{
            fence, prompts,
            types::{PlanProposal, ProposalKind, Routed, UnitProposal, order_units},
            unit::{UnitBrief, UnitPayload, find_unit, is_repository_path},
        },
        design_path, spec_path,
    },
    PlanningFacts,
};
use crate::decision_context::{DecisionContext, DecisionError};

/// Validation error for a proposal that removes all units.
pub(super) const EMPTY_PLAN_COMPLAINT: &str =
    "nothing would be left of the plan: give at least one unit";

/// Maximum number of items of a list in a brief.
pub(super) const MAX_BRIEF_ITEMS: usize = 40;

/// What checks the final result of a plan beside the units' own checks.
#[derive(Clone, Copy)]
pub(super) struct ProjectChecks<'a> {
    /// Checks of the project's environment.
    pub(super) environment: &'a [EvidenceCheck],
    /// Commands that build and test the project, those of the environment among them.
    pub(super) commands: &'a [String],
}

impl ProjectChecks<'_> {
    /// Returns the checks in the order of the commands. One of the environment keeps its timeout and its report.
    fn to_checks(self) -> Vec<EvidenceCheck> {
        let check_of = |line: &String| {
            let known = self.environment.iter().find(|check| check.command_line() == *line);
            known.cloned().unwrap_or_else(|| EvidenceCheck {
                unless_before: true,
                ..EvidenceCheck::from_shell_line(line)
            })
        };
        self.commands.iter().map(check_of).collect()
    }
}

/// A plan under construction.
pub(super) struct PlanBuilder {
    pub(super) units: Vec<PlannedUnit>,
    assumptions: Vec<Prose>,
    /// Keys of removed units, which new units must not reuse.
    gone: BTreeSet<UnitKey>,
}

impl PlanBuilder {
    pub(super) fn from(plan: &Plan) -> Self {
        let (units, assumptions) = (plan.planned_units().to_vec(), plan.assumptions().to_vec());
        Self { units, assumptions, gone: BTreeSet::new() }
    }

    fn new() -> Self {
        Self { units: Vec::new(), assumptions: Vec::new(), gone: BTreeSet::new() }
    }

    fn used_keys(&self) -> BTreeSet<UnitKey> {
        self.units.iter().map(|unit| &unit.key).chain(&self.gone).cloned().collect()
    }

    /// Derives a key from a title.
    pub(super) fn key_for_title(&self, title: &str) -> UnitKey {
        derive_unit_key(title, &self.used_keys())
    }

    /// Returns the first free key of `name`, `name-2`, … or, with a start number, of `name-n`, `name-n+1`, …
    pub(super) fn numbered_key(&self, name: &str, number: u32) -> UnitKey {
        first_free_key(&UnitKey::derive_name(name), number, &self.used_keys())
    }

    pub(super) fn add_unit(
        &mut self,
        key: UnitKey,
        title: &str,
        depends_on: Vec<UnitKey>,
        payload: &UnitPayload,
    ) -> Result<(), DecisionError> {
        self.units.push(PlannedUnit {
            key,
            title: to_prose(title, "the work")?,
            depends_on,
            payload: payload.to_value()?,
        });
        Ok(())
    }

    pub(super) fn add_assumption(&mut self, text: &str) -> Result<(), DecisionError> {
        let text = fence::sanitize_line(text, 400);
        if !text.is_empty() && self.assumptions.len() < MAX_BRIEF_ITEMS {
            let text = to_prose(&text, "")?;
            if !self.assumptions.contains(&text) {
                self.assumptions.push(text);
            }
        }
        Ok(())
    }

    /// Returns the dependencies of a unit that builds on the given units. If these are parallel, a merge unit is among them, which is
    /// added if it is missing.
    pub(super) fn join_dependencies(
        &mut self,
        mut after: Vec<UnitKey>,
        scope: IssueScope,
    ) -> Result<Vec<UnitKey>, DecisionError> {
        let wanted: BTreeSet<UnitKey> = after
            .iter()
            .filter(|key| {
                let unit = self.units.iter().find(|unit| unit.key == **key);
                unit.is_some_and(|unit| unit_leaves_files(&unit.payload))
            })
            .cloned()
            .collect();
        let graph = self.units.iter().map(|unit| (&unit.key, unit.depends_on.as_slice()));
        let heads: Vec<UnitKey> =
            find_final_units(&graph.collect::<Vec<_>>(), &wanted).into_iter().cloned().collect();
        if heads.len() < 2 {
            return Ok(after);
        }
        let same = |unit: &&PlannedUnit| {
            UnitPayload::from_unit(unit).is_some_and(|it| it.kind == UnitKind::Integration)
                && unit.depends_on.len() == heads.len()
                && heads.iter().all(|key| unit.depends_on.contains(key))
        };
        let key = match self.units.iter().find(same) {
            Some(unit) => unit.key.clone(),
            None => {
                let brief = UnitBrief {
                    requirements: vec![
                        "Everything that was made beside each other is there.".to_owned(),
                    ],
                    ..UnitBrief::default()
                };
                let payload = UnitPayload::new(UnitKind::Integration, scope, brief);
                let key = self.numbered_key("integrate", 1);
                self.add_unit(
                    key.clone(),
                    "Put together what was made beside each other",
                    heads,
                    &payload,
                )?;
                key
            }
        };
        after.push(key);
        Ok(after)
    }

    /// Completes the plan. The project's own commands check its final result.
    pub(super) fn finish_plan(mut self, checks: ProjectChecks<'_>) -> Result<Plan, DecisionError> {
        let left: BTreeSet<UnitKey> = self.file_units().into_iter().collect();
        let graph = self.units.iter().map(|unit| (&unit.key, unit.depends_on.as_slice()));
        let last: BTreeSet<UnitKey> =
            find_final_units(&graph.collect::<Vec<_>>(), &left).into_iter().cloned().collect();
        for unit in &mut self.units {
            let Some(mut payload) = UnitPayload::from_unit(unit) else { continue };
            if !payload.kind.leaves_files() {
                continue;
            }
            payload.checks.clone_from(&payload.brief.checks);
            if last.contains(&unit.key) {
                for check in checks.to_checks() {
                    // A check that the unit already has need not run twice.
                    if !payload.checks.iter().any(|own| own.command_line() == check.command_line())
                    {
                        payload.checks.push(check);
                    }
                }
            }
            let mut seen: Vec<EvidenceCheck> = Vec::new();
            payload.checks.retain(|check| {
                let new = !seen.contains(check) && check.validation_error().is_none();
                seen.push(check.clone());
                new
            });
            unit.payload = payload.to_value()?;
        }
        let Self { units, assumptions, gone: _ } = self;
        Plan::try_from(PlanText { steps: units, assumptions }).map_err(|error| {
            DecisionError::Permanent(format!("the plan does not hold together: {error}"))
        })
    }

    /// Returns the units that leave files, in order.
    fn file_units(&self) -> Vec<UnitKey> {
        let leaves = |unit: &&PlannedUnit| {
            UnitPayload::from_unit(unit).is_none_or(|payload| payload.kind.leaves_files())
        };
        self.units.iter().filter(leaves).map(|unit| unit.key.clone()).collect()
    }
}

fn to_prose(text: &str, otherwise: &str) -> Result<Prose, DecisionError> {
    let text = fence::sanitize_line(text, 1_000);
    let text = if text.is_empty() { otherwise.to_owned() } else { text };
    Prose::try_from(text)
        .map_err(|error| DecisionError::Permanent(format!("a text of a plan: {error}")))
}

/// Builds the first plan. If merge units would exceed the maximum number of steps, all units run in sequence.
pub(super) async fn build_plan(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    known: &PlanningFacts,
    made: &PlanProposal,
    most: usize,
    steps: usize,
) -> Result<Plan, DecisionError> {
    let mut builder = PlanBuilder::new();
    let proposed = order_proposals(desk, &mut builder, made, most).await?;
    let assumptions = builder.assumptions.clone();
    let beside = build_stages(builder, task, known, &proposed, most, true)?;
    if beside.planned_units().len() <= steps {
        return Ok(beside);
    }
    let builder = PlanBuilder { assumptions, ..PlanBuilder::new() };
    build_stages(builder, task, known, &proposed, most, false)
}

/// Builds the stages of the workflow with the proposed units, in parallel where possible.
fn build_stages(
    mut builder: PlanBuilder,
    task: &TaskFacts,
    known: &PlanningFacts,
    proposed: &[(&UnitProposal, UnitKind)],
    most: usize,
    beside_each_other: bool,
) -> Result<Plan, DecisionError> {
    // Units of each stage, as later stages refer to them.
    let mut stages: Vec<(UnitKind, UnitKey)> = Vec::new();
    for stage in workflow_stages(known.class, known.scope) {
        let before = |done: &[(UnitKind, UnitKey)]| -> Vec<UnitKey> {
            let named =
                done.iter().filter(|(kind, _)| *kind == stage.kind || stage.after.contains(kind));
            named.map(|(_, key)| key.clone()).collect()
        };
        let by_model = matches!(stage.kind, UnitKind::Implementation | UnitKind::Fix);
        if by_model {
            let count = if stage.units == StageUnits::One { 1 } else { most };
            let earlier = before(&stages);
            let mut beside: Vec<(&UnitProposal, UnitKey)> = Vec::new();
            for (unit, kind) in proposed.iter().take(count) {
                // In a fix stage every unit is a fix, regardless of its proposed kind.
                let kind = if stage.kind == UnitKind::Fix { UnitKind::Fix } else { *kind };
                let payload = UnitPayload::new(kind, known.scope, brief_of_proposal(unit));
                let own = beside
                    .iter()
                    .filter(|(other, _)| !beside_each_other || must_follow(unit, other));
                let after = earlier.iter().cloned().chain(own.map(|(_, key)| key.clone()));
                let after = builder.join_dependencies(after.collect(), known.scope)?;
                let key = builder.key_for_title(&unit.title);
                builder.add_unit(key.clone(), &unit.title, after, &payload)?;
                stages.push((stage.kind, key.clone()));
                beside.push((unit, key));
            }
        } else {
            let (title, brief) = workflow_unit(stage.kind, task, known, proposed);
            let payload = UnitPayload::new(stage.kind, known.scope, brief);
            let after = builder.join_dependencies(before(&stages), known.scope)?;
            let key = builder.numbered_key(stage.kind.as_str(), 1);
            builder.add_unit(key.clone(), &title, after, &payload)?;
            stages.push((stage.kind, key));
        }
    }
    // The final result is one commit, even if no stage verifies it.
    let files = builder.file_units();
    builder.join_dependencies(files, known.scope)?;
    builder.finish_plan(known.project_checks())
}

/// Returns whether a unit must follow another: it depends on it, or both may change the same files.
fn must_follow(unit: &UnitProposal, other: &UnitProposal) -> bool {
    let (mine, theirs) =
        (brief_of_proposal(unit).files_to_modify, brief_of_proposal(other).files_to_modify);
    unit.depends_on.contains(&other.title)
        || mine.is_empty()
        || theirs.is_empty()
        || mine.iter().any(|path| theirs.contains(path))
}

/// Adds units to a plan and removes units that are no longer wanted.
pub(super) async fn extend_plan(
    desk: &DecisionContext<'_>,
    before: &Plan,
    known: &PlanningFacts,
    made: &PlanProposal,
    most: usize,
    begun: &[UnitKey],
) -> Result<Plan, DecisionError> {
    let mut builder = PlanBuilder::from(before);
    let unwanted = removable_units(before, made, begun);
    builder.units.retain(|unit| !unwanted.contains(&unit.key));
    // A unit that verified a removed unit verifies its replacement.
    let mut bereft: BTreeSet<UnitKey> = BTreeSet::new();
    for unit in &mut builder.units {
        let named = unit.depends_on.len();
        unit.depends_on.retain(|key| !unwanted.contains(key));
        if unit.depends_on.len() < named && !unit_leaves_files(&unit.payload) {
            bereft.insert(unit.key.clone());
        }
    }
    builder.gone = unwanted;
    let proposed = order_proposals(desk, &mut builder, made, most).await?;
    if proposed.is_empty() {
        if builder.units.is_empty() {
            return Err(DecisionError::Permanent(EMPTY_PLAN_COMPLAINT.into()));
        }
        return builder.finish_plan(known.project_checks());
    }
    let rounds = before.planned_units().iter().filter_map(UnitPayload::from_unit);
    let iteration = rounds.map(|payload| payload.iteration).max().unwrap_or(0);
    for (unit, kind) in &proposed {
        let payload = UnitPayload::new(*kind, known.scope, brief_of_proposal(unit));
        let files = builder.file_units();
        let after = builder.join_dependencies(files, known.scope)?;
        let key = builder.key_for_title(&unit.title);
        builder.add_unit(key.clone(), &unit.title, after, &payload)?;
        for judge in builder.units.iter_mut().filter(|unit| bereft.contains(&unit.key)) {
            judge.depends_on.push(key.clone());
        }
    }
    // If the previous plan had a review, the added units are reviewed too; a quick fix stays without one.
    let reviewed = before
        .planned_units()
        .iter()
        .filter_map(UnitPayload::from_unit)
        .any(|payload| payload.kind == UnitKind::Review);
    if reviewed {
        let brief = review_brief(&proposed);
        let payload =
            UnitPayload { iteration, ..UnitPayload::new(UnitKind::Review, known.scope, brief) };
        let (key, after) = (builder.numbered_key("review", 1), builder.file_units());
        builder.add_unit(key, "Review what was added", after, &payload)?;
    }
    builder.finish_plan(known.project_checks())
}

/// Returns the units to remove. Only a unit that leaves files and was not started can be removed: a proposal cannot remove a review or
/// a test.
pub(super) fn removable_units(
    before: &Plan,
    made: &PlanProposal,
    begun: &[UnitKey],
) -> BTreeSet<UnitKey> {
    let named = |key: &UnitKey| made.leave_out.iter().any(|named| named.trim() == key.as_str());
    let mut keys: BTreeSet<UnitKey> = PlanBuilder::from(before).file_units().into_iter().collect();
    keys.retain(|key| named(key) && !begun.contains(key) && !is_integration(before, key));
    keys
}

/// Returns whether a unit is a merge unit.
fn is_integration(plan: &Plan, key: &UnitKey) -> bool {
    find_unit(plan, key).is_some_and(|(_, payload)| payload.kind == UnitKind::Integration)
}

/// Orders the proposed units by their dependencies, each with its kind.
async fn order_proposals<'a>(
    desk: &DecisionContext<'_>,
    builder: &mut PlanBuilder,
    made: &'a PlanProposal,
    most: usize,
) -> Result<Vec<(&'a UnitProposal, UnitKind)>, DecisionError> {
    for assumption in &made.assumptions {
        builder.add_assumption(assumption)?;
    }
    let question = fence::sanitize_line(&made.question, 300);
    if !question.is_empty() {
        builder.add_assumption(&format!("nobody was asked again: {question}"))?;
    }
    let ordered = order_units(&made.units).map_err(DecisionError::Transient)?;
    for left_out in ordered.iter().skip(most) {
        builder.add_assumption(&format!(
            "left out, since no more steps may be planned: {}",
            left_out.title
        ))?;
    }
    let mut units = Vec::new();
    for unit in ordered.into_iter().take(most) {
        let kind = match unit.kind {
            ProposalKind::Implementation => UnitKind::Implementation,
            ProposalKind::Design => UnitKind::Design,
            ProposalKind::Unsure => {
                let work = format!("{}\n{}", unit.title, unit.requirements.join("\n"));
                let routed = desk.make_decision::<Routed>(&prompts::route_prompt(&work)).await?;
                // The workflow adds reviews and tests; they are not among the changes.
                let kind = unit_kind_for_role(routed.role).unwrap_or(UnitKind::Implementation);
                if kind.leaves_files() { kind } else { UnitKind::Implementation }
            }
        };
        units.push((unit, kind));
    }
    Ok(units)
}

/// Builds the brief of a proposed unit. Invalid paths are left out.
fn brief_of_proposal(unit: &UnitProposal) -> UnitBrief {
    let paths = |paths: &[String]| -> Vec<String> {
        let mut kept: Vec<String> = Vec::new();
        for path in paths.iter().map(|path| path.trim()).filter(|path| is_repository_path(path)) {
            let path = path.strip_prefix("./").unwrap_or(path).to_owned();
            if !path.is_empty() && !kept.contains(&path) && kept.len() < MAX_BRIEF_ITEMS {
                kept.push(path);
            }
        }
        kept
    };
    let reference = fence::sanitize_line(&unit.pattern_reference, 400);
    let argv = |argv: &[String]| -> Vec<String> {
        argv.iter().map(|word| fence::sanitize_line(word, 400)).collect()
    };
    UnitBrief {
        files_to_modify: paths(&unit.files_to_modify),
        files_to_read_first: paths(&unit.files_to_read_first),
        pattern_reference: (!reference.is_empty()).then_some(reference),
        constraints: sanitize_lines(&unit.constraints),
        requirements: sanitize_lines(&unit.requirements),
        checks: unit
            .checks
            .iter()
            .filter(|check| check.argv.first().is_some_and(|program| !program.trim().is_empty()))
            .map(|check| EvidenceCheck {
                if_runnable: true,
                ..EvidenceCheck::new(argv(&check.argv))
            })
            // A sentence is not a command.
            .filter(|check| {
                check.validation_error().is_none() && !check.argv[0].contains(char::is_whitespace)
            })
            .collect(),
        findings: Vec::new(),
    }
}

pub(super) fn sanitize_lines(texts: &[String]) -> Vec<String> {
    let texts =
        texts.iter().map(|text| fence::sanitize_line(text, 600)).filter(|text| !text.is_empty());
    texts.take(MAX_BRIEF_ITEMS).collect()
}

/// Builds a unit that the workflow adds: its title and brief.
fn workflow_unit(
    kind: UnitKind,
    task: &TaskFacts,
    known: &PlanningFacts,
    proposed: &[(&UnitProposal, UnitKind)],
) -> (String, UnitBrief) {
    let about = fence::sanitize_line(&task.description, 120);
    let planned: Vec<String> = proposed
        .iter()
        .map(|(unit, _)| format!("It can be built as: {}", fence::sanitize_line(&unit.title, 200)))
        .collect();
    match kind {
        UnitKind::Init => (
            "Lay the ground of the project".to_owned(),
            UnitBrief {
                requirements: vec![
                    "The project builds and its (empty) tests run, by commands that are written in its README.".to_owned(),
                ],
                ..UnitBrief::default()
            },
        ),
        UnitKind::Spec => {
            let path = spec_path(task);
            let mut requirements = vec![
                format!("`{path}` says how it is to be built: parts, interfaces, data, order, what can go wrong."),
                "Nothing is built yet.".to_owned(),
            ];
            requirements.extend(planned);
            let brief = UnitBrief { files_to_modify: vec![path], requirements, ..UnitBrief::default() };
            (format!("Lay out how it is built: {about}"), brief)
        }
        UnitKind::Design => {
            let path = design_path(task);
            let requirements = vec![
                format!("`{path}` says what people see and do: screens or commands, words, states, errors."),
                "Nothing is built yet.".to_owned(),
            ];
            let brief = UnitBrief { files_to_modify: vec![path], requirements, ..UnitBrief::default() };
            (format!("Lay out what people see: {about}"), brief)
        }
        UnitKind::Review => ("Review the change".to_owned(), review_brief(proposed)),
        UnitKind::Test
        | UnitKind::Implementation
        | UnitKind::Integration
        | UnitKind::Fix => {
            ("Test the change".to_owned(), test_brief(&known.project.build_commands))
        }
    }
}

/// Builds the brief of a reviewer.
fn review_brief(proposed: &[(&UnitProposal, UnitKind)]) -> UnitBrief {
    let briefs: Vec<UnitBrief> = proposed.iter().map(|(unit, _)| brief_of_proposal(unit)).collect();
    let all = |of: fn(&UnitBrief) -> &Vec<String>| -> Vec<String> {
        let mut kept: Vec<String> = Vec::new();
        for item in briefs.iter().flat_map(of) {
            if !kept.contains(item) && kept.len() < MAX_BRIEF_ITEMS {
                kept.push(item.clone());
            }
        }
        kept
    };
    UnitBrief {
        files_to_read_first: all(|brief| &brief.files_to_modify),
        requirements: all(|brief| &brief.requirements),
        constraints: all(|brief| &brief.constraints),
        ..UnitBrief::default()
    }
}

/// Builds the brief of a tester.
pub(super) fn test_brief(commands: &[String]) -> UnitBrief {
    let requirements = sanitize_lines(commands)
        .iter()
        .map(|command| format!("This runs and succeeds: `{command}`"))
        .collect();
    UnitBrief { requirements, ..UnitBrief::default() }
}
