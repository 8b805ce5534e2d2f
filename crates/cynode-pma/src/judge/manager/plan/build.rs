//! Puts a plan together: what was thought up, and what the workflow adds to it.
//!
//! A job starts from the commits of the units that its unit names, and commits beside each other cannot be put together. So units that
//! leave files are done one after the other, and each names all of them that come before it.

use std::collections::BTreeSet;

use cynode_core::{
    judgement::{UnitKind, Units, free, kind_for, unit_key, workflow},
    names::Prose,
    workflow::plan::{Plan, PlanText, PlannedUnit, UnitKey},
};
use cynode_wire::handoffs::TaskFacts;

use super::{
    super::super::{
        decisions::{MadeKind, PlanMade, Routed, UnitMade, in_order},
        fence, prompts,
        unit::{Brief, Check, UnitPayload, is_path},
    },
    super::{design_path, spec_path},
    Known,
};
use crate::desk::{Desk, Trouble};

/// Most items of a list that an agent is given.
const ITEMS: usize = 40;

/// A plan under construction.
pub(super) struct Builder {
    pub(super) units: Vec<PlannedUnit>,
    assumptions: Vec<Prose>,
}

impl Builder {
    pub(super) fn from(plan: &Plan) -> Self {
        Self { units: plan.steps().to_vec(), assumptions: plan.assumptions().to_vec() }
    }

    fn new() -> Self {
        Self { units: Vec::new(), assumptions: Vec::new() }
    }

    fn taken(&self) -> BTreeSet<UnitKey> {
        self.units.iter().map(|unit| unit.key.clone()).collect()
    }

    /// A key from a title.
    pub(super) fn key(&self, title: &str) -> UnitKey {
        unit_key(title, &self.taken())
    }

    /// The first free of `name`, `name-2`, … or, counting from above, of `name-n`, `name-n+1`, …
    pub(super) fn numbered(&self, name: &str, number: u32) -> UnitKey {
        free(&UnitKey::derive(name), number, &self.taken())
    }

    pub(super) fn add(
        &mut self,
        key: UnitKey,
        title: &str,
        depends_on: Vec<UnitKey>,
        payload: &UnitPayload,
    ) -> Result<(), Trouble> {
        self.units.push(PlannedUnit {
            key,
            title: prose(title, "the work")?,
            depends_on,
            payload: payload.value()?,
        });
        Ok(())
    }

    pub(super) fn assume(&mut self, text: &str) -> Result<(), Trouble> {
        let text = fence::line(text, 400);
        if !text.is_empty() && self.assumptions.len() < ITEMS {
            let text = prose(&text, "")?;
            if !self.assumptions.contains(&text) {
                self.assumptions.push(text);
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Plan, Trouble> {
        let Self { units, assumptions } = self;
        Plan::try_from(PlanText { steps: units, assumptions }).map_err(|error| {
            Trouble::Permanent(format!("the plan does not hold together: {error}"))
        })
    }

    /// The units that leave files, in order.
    fn files(&self) -> Vec<UnitKey> {
        let leaves = |unit: &&PlannedUnit| {
            UnitPayload::of(unit).is_none_or(|payload| payload.kind.leaves_files())
        };
        self.units.iter().filter(leaves).map(|unit| unit.key.clone()).collect()
    }
}

fn prose(text: &str, otherwise: &str) -> Result<Prose, Trouble> {
    let text = fence::line(text, 1_000);
    let text = if text.is_empty() { otherwise.to_owned() } else { text };
    Prose::try_from(text).map_err(|error| Trouble::Permanent(format!("a text of a plan: {error}")))
}

/// The first plan.
pub(super) async fn plan(
    desk: &Desk<'_>,
    task: &TaskFacts,
    known: &Known,
    made: &PlanMade,
    most: usize,
) -> Result<Plan, Trouble> {
    let mut builder = Builder::new();
    let proposed = proposed(desk, &mut builder, made, most).await?;
    // The units of each stage, as later stages name them.
    let mut stages: Vec<(UnitKind, UnitKey)> = Vec::new();
    for stage in workflow(known.class, known.scope) {
        let before = |done: &[(UnitKind, UnitKey)]| -> Vec<UnitKey> {
            let named =
                done.iter().filter(|(kind, _)| *kind == stage.kind || stage.after.contains(kind));
            named.map(|(_, key)| key.clone()).collect()
        };
        let by_model = matches!(stage.kind, UnitKind::Implementation | UnitKind::Fix);
        if by_model {
            let count = if stage.units == Units::One { 1 } else { most };
            for (unit, kind) in proposed.iter().take(count) {
                // A fix is a fix, whatever it was thought to be.
                let kind = if stage.kind == UnitKind::Fix { UnitKind::Fix } else { *kind };
                let payload =
                    UnitPayload { kind, scope: known.scope, brief: briefed(unit), iteration: 0 };
                let key = builder.key(&unit.title);
                builder.add(key.clone(), &unit.title, before(&stages), &payload)?;
                stages.push((stage.kind, key));
            }
        } else {
            let (title, brief) = added(stage.kind, task, known, &proposed);
            let payload = UnitPayload { kind: stage.kind, scope: known.scope, brief, iteration: 0 };
            let key = builder.numbered(stage.kind.as_str(), 1);
            builder.add(key.clone(), &title, before(&stages), &payload)?;
            stages.push((stage.kind, key));
        }
    }
    builder.finish()
}

/// A plan with more units than before, and without those that are not wanted any more.
pub(super) async fn more(
    desk: &Desk<'_>,
    before: &Plan,
    known: &Known,
    made: &PlanMade,
    most: usize,
    begun: &[UnitKey],
) -> Result<Plan, Trouble> {
    let mut builder = Builder::from(before);
    // Only what leaves files and was not begun can be left out: nobody talks a review or a test away.
    let may_go: BTreeSet<UnitKey> =
        builder.files().into_iter().filter(|key| !begun.contains(key)).collect();
    let unwanted = |key: &UnitKey| {
        may_go.contains(key) && made.leave_out.iter().any(|named| named.trim() == key.as_str())
    };
    builder.units.retain(|unit| !unwanted(&unit.key));
    for unit in &mut builder.units {
        unit.depends_on.retain(|key| !unwanted(key));
    }
    let proposed = proposed(desk, &mut builder, made, most).await?;
    if proposed.is_empty() {
        if builder.units.is_empty() {
            return Err(Trouble::Transient("nothing would be left of the plan".into()));
        }
        return builder.finish();
    }
    let rounds = before.steps().iter().filter_map(UnitPayload::of);
    let iteration = rounds.map(|payload| payload.iteration).max().unwrap_or(0);
    for (unit, kind) in &proposed {
        let payload =
            UnitPayload { kind: *kind, scope: known.scope, brief: briefed(unit), iteration: 0 };
        let (key, after) = (builder.key(&unit.title), builder.files());
        builder.add(key, &unit.title, after, &payload)?;
    }
    // What was reviewed before is reviewed again with what was added; a quick fix stays one.
    let reviewed = before
        .steps()
        .iter()
        .filter_map(UnitPayload::of)
        .any(|payload| payload.kind == UnitKind::Review);
    if reviewed {
        let brief = reviewing(&proposed);
        let payload = UnitPayload { kind: UnitKind::Review, scope: known.scope, brief, iteration };
        let (key, after) = (builder.numbered("review", 1), builder.files());
        builder.add(key, "Review what was added", after, &payload)?;
    }
    builder.finish()
}

/// The units that were thought up, in an order in which they can be done, each with its kind.
async fn proposed<'a>(
    desk: &Desk<'_>,
    builder: &mut Builder,
    made: &'a PlanMade,
    most: usize,
) -> Result<Vec<(&'a UnitMade, UnitKind)>, Trouble> {
    for assumption in &made.assumptions {
        builder.assume(assumption)?;
    }
    let question = fence::line(&made.question, 300);
    if !question.is_empty() {
        builder.assume(&format!("nobody was asked again: {question}"))?;
    }
    let ordered = in_order(&made.units).map_err(Trouble::Transient)?;
    for left_out in ordered.iter().skip(most) {
        builder
            .assume(&format!("left out, since no more steps may be planned: {}", left_out.title))?;
    }
    let mut units = Vec::new();
    for unit in ordered.into_iter().take(most) {
        let kind = match unit.kind {
            MadeKind::Implementation => UnitKind::Implementation,
            MadeKind::Design => UnitKind::Design,
            MadeKind::Unsure => {
                let work = format!("{}\n{}", unit.title, unit.requirements.join("\n"));
                let routed = desk.think::<Routed>(&prompts::route(&work)).await?;
                // Reviews and tests are the workflow's to add; their place is not among the changes.
                let kind = kind_for(routed.role).unwrap_or(UnitKind::Implementation);
                if kind.leaves_files() { kind } else { UnitKind::Implementation }
            }
        };
        units.push((unit, kind));
    }
    Ok(units)
}

/// What the agent of a proposed unit is told. Paths that lead elsewhere are left out.
fn briefed(unit: &UnitMade) -> Brief {
    let paths = |paths: &[String]| -> Vec<String> {
        let mut kept: Vec<String> = Vec::new();
        for path in paths.iter().map(|path| path.trim()).filter(|path| is_path(path)) {
            let path = path.strip_prefix("./").unwrap_or(path).to_owned();
            if !path.is_empty() && !kept.contains(&path) && kept.len() < ITEMS {
                kept.push(path);
            }
        }
        kept
    };
    let reference = fence::line(&unit.pattern_reference, 400);
    let argv = |argv: &[String]| -> Vec<String> {
        argv.iter().map(|word| fence::line(word, 400)).collect()
    };
    Brief {
        files_to_modify: paths(&unit.files_to_modify),
        files_to_read_first: paths(&unit.files_to_read_first),
        pattern_reference: (!reference.is_empty()).then_some(reference),
        constraints: lines(&unit.constraints),
        requirements: lines(&unit.requirements),
        checks: unit
            .checks
            .iter()
            .filter(|check| check.argv.first().is_some_and(|program| !program.trim().is_empty()))
            .map(|check| Check { argv: argv(&check.argv) })
            .collect(),
        findings: Vec::new(),
    }
}

pub(super) fn lines(texts: &[String]) -> Vec<String> {
    let texts = texts.iter().map(|text| fence::line(text, 600)).filter(|text| !text.is_empty());
    texts.take(ITEMS).collect()
}

/// A unit that the workflow adds: its title, and what its agent is told.
fn added(
    kind: UnitKind,
    task: &TaskFacts,
    known: &Known,
    proposed: &[(&UnitMade, UnitKind)],
) -> (String, Brief) {
    let about = fence::line(&task.description, 120);
    let planned: Vec<String> = proposed
        .iter()
        .map(|(unit, _)| format!("It can be built as: {}", fence::line(&unit.title, 200)))
        .collect();
    match kind {
        UnitKind::Init => (
            "Lay the ground of the project".to_owned(),
            Brief {
                requirements: vec![
                    "The project builds and its (empty) tests run, by commands that are written in its README.".to_owned(),
                ],
                ..Brief::default()
            },
        ),
        UnitKind::Spec => {
            let path = spec_path(task);
            let mut requirements = vec![
                format!("`{path}` says how it is to be built: parts, interfaces, data, order, what can go wrong."),
                "Nothing is built yet.".to_owned(),
            ];
            requirements.extend(planned);
            let brief = Brief { files_to_modify: vec![path], requirements, ..Brief::default() };
            (format!("Lay out how it is built: {about}"), brief)
        }
        UnitKind::Design => {
            let path = design_path(task);
            let requirements = vec![
                format!("`{path}` says what people see and do: screens or commands, words, states, errors."),
                "Nothing is built yet.".to_owned(),
            ];
            let brief = Brief { files_to_modify: vec![path], requirements, ..Brief::default() };
            (format!("Lay out what people see: {about}"), brief)
        }
        UnitKind::Review => ("Review the change".to_owned(), reviewing(proposed)),
        UnitKind::Test | UnitKind::Implementation | UnitKind::Fix => {
            ("Test the change".to_owned(), testing(&known.project.build_commands))
        }
    }
}

/// What a reviewer is told.
fn reviewing(proposed: &[(&UnitMade, UnitKind)]) -> Brief {
    let briefs: Vec<Brief> = proposed.iter().map(|(unit, _)| briefed(unit)).collect();
    let all = |of: fn(&Brief) -> &Vec<String>| -> Vec<String> {
        let mut kept: Vec<String> = Vec::new();
        for item in briefs.iter().flat_map(of) {
            if !kept.contains(item) && kept.len() < ITEMS {
                kept.push(item.clone());
            }
        }
        kept
    };
    Brief {
        files_to_read_first: all(|brief| &brief.files_to_modify),
        requirements: all(|brief| &brief.requirements),
        constraints: all(|brief| &brief.constraints),
        ..Brief::default()
    }
}

/// What a tester is told.
pub(super) fn testing(commands: &[String]) -> Brief {
    let requirements = lines(commands)
        .iter()
        .map(|command| format!("This runs and succeeds: `{command}`"))
        .collect();
    Brief { requirements, ..Brief::default() }
}
