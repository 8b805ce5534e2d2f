//! Puts a plan together: what was thought up, and what the workflow adds to it.
//!
//! A job starts from the commits of the units that its unit names. Units that say which files they change, and change different ones, are done
//! beside each other; whatever builds on several of them builds on a unit that puts them together. All others are done one after the other.

use std::collections::BTreeSet;

use cynode_core::{
    evidence::Check,
    judgement::{IssueScope, UnitKind, Units, free, kind_for, unit_key, workflow},
    names::Prose,
    workflow::plan::{Plan, PlanText, PlannedUnit, UnitKey, finals, leaves_files},
};
use cynode_wire::handoffs::TaskFacts;

use super::{
    super::super::{
        decisions::{MadeKind, PlanMade, Routed, UnitMade, in_order},
        fence, prompts,
        unit::{Brief, UnitPayload, find, is_path},
    },
    super::{design_path, spec_path},
    Known,
};
use crate::desk::{Desk, Trouble};

/// What is said of an answer that leaves everything out.
pub(super) const NOTHING_LEFT: &str = "nothing would be left of the plan: give at least one unit";

/// Most items of a list that an agent is given.
pub(super) const ITEMS: usize = 40;

/// A plan under construction.
pub(super) struct Builder {
    pub(super) units: Vec<PlannedUnit>,
    assumptions: Vec<Prose>,
    /// Keys that nothing new may have: they were those of something else.
    gone: BTreeSet<UnitKey>,
}

impl Builder {
    pub(super) fn from(plan: &Plan) -> Self {
        let (units, assumptions) = (plan.steps().to_vec(), plan.assumptions().to_vec());
        Self { units, assumptions, gone: BTreeSet::new() }
    }

    fn new() -> Self {
        Self { units: Vec::new(), assumptions: Vec::new(), gone: BTreeSet::new() }
    }

    fn taken(&self) -> BTreeSet<UnitKey> {
        self.units.iter().map(|unit| &unit.key).chain(&self.gone).cloned().collect()
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

    /// What a unit is to name that builds on these: where they are beside each other, also the unit that puts them together, which is
    /// added where it is missing.
    pub(super) fn joined(
        &mut self,
        mut after: Vec<UnitKey>,
        scope: IssueScope,
    ) -> Result<Vec<UnitKey>, Trouble> {
        let wanted: BTreeSet<UnitKey> = after
            .iter()
            .filter(|key| {
                let unit = self.units.iter().find(|unit| unit.key == **key);
                unit.is_some_and(|unit| leaves_files(&unit.payload))
            })
            .cloned()
            .collect();
        let graph = self.units.iter().map(|unit| (&unit.key, unit.depends_on.as_slice()));
        let heads: Vec<UnitKey> =
            finals(&graph.collect::<Vec<_>>(), &wanted).into_iter().cloned().collect();
        if heads.len() < 2 {
            return Ok(after);
        }
        let same = |unit: &&PlannedUnit| {
            UnitPayload::of(unit).is_some_and(|it| it.kind == UnitKind::Integration)
                && unit.depends_on.len() == heads.len()
                && heads.iter().all(|key| unit.depends_on.contains(key))
        };
        let key = match self.units.iter().find(same) {
            Some(unit) => unit.key.clone(),
            None => {
                let brief = Brief {
                    requirements: vec![
                        "Everything that was made beside each other is there.".to_owned(),
                    ],
                    ..Brief::default()
                };
                let payload = UnitPayload::new(UnitKind::Integration, scope, brief);
                let key = self.numbered("integrate", 1);
                self.add(
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

    /// The plan. What it leaves as a whole is checked by the project's own commands.
    pub(super) fn finish(mut self, commands: &[String]) -> Result<Plan, Trouble> {
        let left: BTreeSet<UnitKey> = self.files().into_iter().collect();
        let graph = self.units.iter().map(|unit| (&unit.key, unit.depends_on.as_slice()));
        let last: BTreeSet<UnitKey> =
            finals(&graph.collect::<Vec<_>>(), &left).into_iter().cloned().collect();
        for unit in &mut self.units {
            let Some(mut payload) = UnitPayload::of(unit) else { continue };
            if !payload.kind.leaves_files() {
                continue;
            }
            payload.checks.clone_from(&payload.brief.checks);
            if last.contains(&unit.key) {
                for line in commands {
                    let check = Check { unless_before: true, ..Check::line(line) };
                    // What the unit itself is checked by need not run twice.
                    if !payload.checks.iter().any(|own| own.told() == check.told()) {
                        payload.checks.push(check);
                    }
                }
            }
            let mut seen: Vec<Check> = Vec::new();
            payload.checks.retain(|check| {
                let new = !seen.contains(check) && check.complaint().is_none();
                seen.push(check.clone());
                new
            });
            unit.payload = payload.value()?;
        }
        let Self { units, assumptions, gone: _ } = self;
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

/// The first plan. Where putting things together would need more steps than there may be, everything is done one after the other.
pub(super) async fn plan(
    desk: &Desk<'_>,
    task: &TaskFacts,
    known: &Known,
    made: &PlanMade,
    most: usize,
    steps: usize,
) -> Result<Plan, Trouble> {
    let mut builder = Builder::new();
    let proposed = proposed(desk, &mut builder, made, most).await?;
    let assumptions = builder.assumptions.clone();
    let beside = staged(builder, task, known, &proposed, most, true)?;
    if beside.steps().len() <= steps {
        return Ok(beside);
    }
    let builder = Builder { assumptions, ..Builder::new() };
    staged(builder, task, known, &proposed, most, false)
}

/// The stages of the workflow with the units that were thought up; beside each other where they may be.
fn staged(
    mut builder: Builder,
    task: &TaskFacts,
    known: &Known,
    proposed: &[(&UnitMade, UnitKind)],
    most: usize,
    beside_each_other: bool,
) -> Result<Plan, Trouble> {
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
            let earlier = before(&stages);
            let mut beside: Vec<(&UnitMade, UnitKey)> = Vec::new();
            for (unit, kind) in proposed.iter().take(count) {
                // A fix is a fix, whatever it was thought to be.
                let kind = if stage.kind == UnitKind::Fix { UnitKind::Fix } else { *kind };
                let payload = UnitPayload::new(kind, known.scope, briefed(unit));
                let own =
                    beside.iter().filter(|(other, _)| !beside_each_other || follows(unit, other));
                let after = earlier.iter().cloned().chain(own.map(|(_, key)| key.clone()));
                let after = builder.joined(after.collect(), known.scope)?;
                let key = builder.key(&unit.title);
                builder.add(key.clone(), &unit.title, after, &payload)?;
                stages.push((stage.kind, key.clone()));
                beside.push((unit, key));
            }
        } else {
            let (title, brief) = added(stage.kind, task, known, proposed);
            let payload = UnitPayload::new(stage.kind, known.scope, brief);
            let after = builder.joined(before(&stages), known.scope)?;
            let key = builder.numbered(stage.kind.as_str(), 1);
            builder.add(key.clone(), &title, after, &payload)?;
            stages.push((stage.kind, key));
        }
    }
    // What the whole leaves is one thing, also where nobody judges it.
    let files = builder.files();
    builder.joined(files, known.scope)?;
    builder.finish(&known.project.build_commands)
}

/// Whether a unit must come after another: it says so, or both may change the same files.
fn follows(unit: &UnitMade, other: &UnitMade) -> bool {
    let (mine, theirs) = (briefed(unit).files_to_modify, briefed(other).files_to_modify);
    unit.depends_on.contains(&other.title)
        || mine.is_empty()
        || theirs.is_empty()
        || mine.iter().any(|path| theirs.contains(path))
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
    let unwanted = left_out(before, made, begun);
    builder.units.retain(|unit| !unwanted.contains(&unit.key));
    // Whoever judges what is left out judges what comes in its place.
    let mut bereft: BTreeSet<UnitKey> = BTreeSet::new();
    for unit in &mut builder.units {
        let named = unit.depends_on.len();
        unit.depends_on.retain(|key| !unwanted.contains(key));
        if unit.depends_on.len() < named && !leaves_files(&unit.payload) {
            bereft.insert(unit.key.clone());
        }
    }
    builder.gone = unwanted;
    let proposed = proposed(desk, &mut builder, made, most).await?;
    if proposed.is_empty() {
        if builder.units.is_empty() {
            return Err(Trouble::Permanent(NOTHING_LEFT.into()));
        }
        return builder.finish(&known.project.build_commands);
    }
    let rounds = before.steps().iter().filter_map(UnitPayload::of);
    let iteration = rounds.map(|payload| payload.iteration).max().unwrap_or(0);
    for (unit, kind) in &proposed {
        let payload = UnitPayload::new(*kind, known.scope, briefed(unit));
        let files = builder.files();
        let after = builder.joined(files, known.scope)?;
        let key = builder.key(&unit.title);
        builder.add(key.clone(), &unit.title, after, &payload)?;
        for judge in builder.units.iter_mut().filter(|unit| bereft.contains(&unit.key)) {
            judge.depends_on.push(key.clone());
        }
    }
    // What was reviewed before is reviewed again with what was added; a quick fix stays one.
    let reviewed = before
        .steps()
        .iter()
        .filter_map(UnitPayload::of)
        .any(|payload| payload.kind == UnitKind::Review);
    if reviewed {
        let brief = reviewing(&proposed);
        let payload =
            UnitPayload { iteration, ..UnitPayload::new(UnitKind::Review, known.scope, brief) };
        let (key, after) = (builder.numbered("review", 1), builder.files());
        builder.add(key, "Review what was added", after, &payload)?;
    }
    builder.finish(&known.project.build_commands)
}

/// The units that are not wanted any more. Only what leaves files and was not begun can go: nobody talks a review or a test away.
pub(super) fn left_out(before: &Plan, made: &PlanMade, begun: &[UnitKey]) -> BTreeSet<UnitKey> {
    let named = |key: &UnitKey| made.leave_out.iter().any(|named| named.trim() == key.as_str());
    let mut keys: BTreeSet<UnitKey> = Builder::from(before).files().into_iter().collect();
    keys.retain(|key| named(key) && !begun.contains(key) && !joins(before, key));
    keys
}

/// Whether a unit puts others together.
fn joins(plan: &Plan, key: &UnitKey) -> bool {
    find(plan, key).is_some_and(|(_, payload)| payload.kind == UnitKind::Integration)
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
            .map(|check| Check { if_runnable: true, ..Check::new(argv(&check.argv)) })
            // A sentence is no program.
            .filter(|check| {
                check.complaint().is_none() && !check.argv[0].contains(char::is_whitespace)
            })
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
        UnitKind::Test
        | UnitKind::Implementation
        | UnitKind::Integration
        | UnitKind::Fix => {
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
