//! Extends a plan by rule after a failed review or test: a unit that fixes and a unit that checks again. No model is
//! asked.

use cynode_core::workflow::{
    decisions::{UnitKind, review::ReviewOptions},
    findings::{FindingSeverity, VerificationFinding},
    plan::{Plan, UnitKey},
};
use cynode_wire::manager::handoffs::{PlanRevision, TaskFacts, UnitsConflict};

use super::{
    super::super::{
        fence,
        manager::TESTS_REQUIRED_PREFIX,
        unit::{UnitBrief, UnitPayload, find_unit},
    },
    build::{MAX_BRIEF_ITEMS, PlanBuilder, ProjectChecks, sanitize_lines, test_brief},
};
use crate::decision_context::DecisionError;

/// Applies a revision to a plan.
pub(super) fn apply_revision(
    before: &Plan,
    revision: &PlanRevision,
    options: ReviewOptions,
    task: &TaskFacts,
    checks: ProjectChecks<'_>,
) -> Result<Plan, DecisionError> {
    let Some((judged, payload)) = find_unit(before, &revision.unit) else {
        let why = format!("unit `{}` is not in the plan", revision.unit);
        return Err(DecisionError::Permanent(why));
    };
    let round = RevisionRound {
        judged: &judged.key,
        // Verified units: those that left files, without reviews and tests.
        files: judged
            .depends_on
            .iter()
            .filter(|key| find_unit(before, key).is_none_or(|(_, it)| it.kind.leaves_files()))
            .cloned()
            .collect(),
        payload,
        task,
    };
    let mut builder = PlanBuilder::from(before);
    if let Some(conflict) = &revision.conflict {
        round.add_conflict_fix(&mut builder, before, conflict)?;
        return builder.finish_plan(checks);
    }
    let wanted = revision.findings.iter().any(|finding| {
        finding.severity == FindingSeverity::Note && finding.text.starts_with(TESTS_REQUIRED_PREFIX)
    });
    if wanted {
        round.add_tests(&mut builder, &revision.recommended_actions)?;
    } else {
        round.add_fix(&mut builder, before, revision, options)?;
    }
    builder.finish_plan(checks)
}

/// One revision that a verdict requested.
struct RevisionRound<'a> {
    judged: &'a UnitKey,
    files: Vec<UnitKey>,
    payload: UnitPayload,
    task: &'a TaskFacts,
}

impl RevisionRound<'_> {
    /// Adds tests after an approved review.
    fn add_tests(
        &self,
        builder: &mut PlanBuilder,
        commands: &[String],
    ) -> Result<(), DecisionError> {
        let mut after = self.files.clone();
        after.push(self.judged.clone());
        let brief = test_brief(commands);
        let payload = UnitPayload::new(UnitKind::Test, self.payload.scope, brief);
        let key = builder.numbered_key("test", 1);
        builder.add_unit(key, "Test the change", after, &payload)
    }

    /// Adds a unit that resolves a conflict between two changes; afterwards everything is merged again.
    fn add_conflict_fix(
        &self,
        builder: &mut PlanBuilder,
        before: &Plan,
        conflict: &UnitsConflict,
    ) -> Result<(), DecisionError> {
        let mut after = conflict.merged_units.clone();
        after.push(conflict.unit.clone());
        let parts: Vec<_> = after.iter().filter_map(|key| find_unit(before, key)).collect();
        let wanted = |brief: fn(&UnitBrief) -> &Vec<String>| -> Vec<String> {
            let mut kept: Vec<String> = Vec::new();
            for text in parts.iter().flat_map(|(_, payload)| brief(&payload.brief)) {
                if !kept.contains(text) {
                    kept.push(text.clone());
                }
            }
            kept
        };
        let kept = parts.iter().map(|(unit, _)| {
            format!(
                "What this was made for still holds: {}",
                fence::sanitize_line(unit.title.as_str(), 200)
            )
        });
        let mut requirements: Vec<String> = kept.collect();
        requirements.extend(wanted(|brief| &brief.requirements));
        let mut constraints = wanted(|brief| &brief.constraints);
        constraints.push(
            "Both sides were made beside each other and do not fit: the files have marks (`<<<<<<<`, `>>>>>>>`). Keep what both sides mean, and leave no mark."
                .to_owned(),
        );
        let brief = UnitBrief {
            files_to_modify: sanitize_lines(&conflict.files),
            requirements: sanitize_lines(&requirements),
            constraints: sanitize_lines(&constraints),
            checks: parts.iter().flat_map(|(_, payload)| payload.brief.checks.clone()).collect(),
            ..UnitBrief::default()
        };
        let payload = UnitPayload::new(UnitKind::Fix, self.payload.scope, brief);
        let key = builder.numbered_key("fit", 1);
        let files = fence::sanitize_line(&conflict.files.join(", "), 200);
        let title = format!("Make two changes fit together: {files}");
        // The unit comes before the one that needs it, as in any plan.
        builder.add_unit(key.clone(), &title, after, &payload)?;
        for unit in builder.units.iter_mut().filter(|unit| unit.key == *self.judged) {
            unit.depends_on.push(key.clone());
        }
        Ok(())
    }

    /// Adds a unit that fixes the findings, and repeats the verification.
    fn add_fix(
        &self,
        builder: &mut PlanBuilder,
        before: &Plan,
        revision: &PlanRevision,
        options: ReviewOptions,
    ) -> Result<(), DecisionError> {
        let iteration = self.payload.iteration + 1;
        let findings = findings_to_fix(&revision.findings, options);
        let fixes = before.planned_units().iter().filter_map(UnitPayload::from_unit);
        let fixes = fixes.filter(|it| it.kind == UnitKind::Fix && it.iteration > 0).count();
        let number = u32::try_from(fixes + 1).unwrap_or(u32::MAX);
        let fix = builder.fix_key(number);
        let brief = UnitBrief {
            files_to_read_first: self.payload.brief.files_to_read_first.clone(),
            requirements: findings.iter().map(VerificationFinding::describe_finding).collect(),
            findings,
            ..UnitBrief::default()
        };
        let payload =
            UnitPayload { iteration, ..UnitPayload::new(UnitKind::Fix, self.payload.scope, brief) };
        let about = fence::sanitize_line(&self.task.description, 120);
        let title = match self.payload.kind {
            UnitKind::Test => format!("Mend what the tests found: {about}"),
            UnitKind::Init
            | UnitKind::Spec
            | UnitKind::Design
            | UnitKind::Implementation
            | UnitKind::Integration
            | UnitKind::Fix
            | UnitKind::Review => format!("Mend what the review found: {about}"),
        };
        let mut files = self.files.clone();
        if self.payload.kind.leaves_files() {
            // The verified unit is work itself: it is fixed, and no review unit has to be repeated.
            files.push(self.judged.clone());
        }
        builder.add_unit(fix.clone(), &title, files, &payload)?;
        if self.payload.kind.leaves_files() {
            for unit in builder
                .units
                .iter_mut()
                .filter(|unit| unit.key != fix && unit.depends_on.contains(self.judged))
            {
                unit.depends_on.push(fix.clone());
            }
            return Ok(());
        }

        // The verification is repeated, over all verified units and the fix.
        let mut again = self.payload.clone();
        again.iteration = iteration;
        again.brief.findings = findings_to_fix(&revision.findings, options);
        let title = match again.kind {
            UnitKind::Test => "Test the change again",
            UnitKind::Init
            | UnitKind::Spec
            | UnitKind::Design
            | UnitKind::Implementation
            | UnitKind::Integration
            | UnitKind::Fix
            | UnitKind::Review => "Review the change again",
        };
        let mut after = self.files.clone();
        after.push(fix.clone());
        let key = builder.numbered_key(again.kind.as_str(), iteration + 1);
        builder.add_unit(key.clone(), title, after, &again)?;

        // Units that waited for the verification also wait for the repeated one and for the fix.
        for unit in builder.units.iter_mut().filter(|unit| unit.depends_on.contains(self.judged)) {
            unit.depends_on.extend([fix.clone(), key.clone()]);
        }
        Ok(())
    }
}

impl PlanBuilder {
    /// Returns `fix-1`, `fix-2`, …
    fn fix_key(&self, number: u32) -> UnitKey {
        let taken = |key: &UnitKey| self.units.iter().any(|unit| unit.key == *key);
        let key = UnitKey::derive_name(&format!("fix {number}"));
        if taken(&key) { self.numbered_key(key.as_str(), 2) } else { key }
    }
}

/// Returns the findings to fix, the worst first. Minor ones are included only if they are requested.
fn findings_to_fix(
    findings: &[VerificationFinding],
    options: ReviewOptions,
) -> Vec<VerificationFinding> {
    let wanted = |severity: FindingSeverity| -> Vec<VerificationFinding> {
        let of = findings.iter().filter(|finding| finding.severity == severity);
        let short = of.map(|finding| VerificationFinding {
            text: fence::sanitize_line(&finding.text, 600),
            ..finding.clone()
        });
        short.filter(|finding| !finding.text.is_empty()).take(MAX_BRIEF_ITEMS).collect()
    };
    let mut kept = wanted(FindingSeverity::Critical);
    kept.extend(wanted(FindingSeverity::Major));
    if !options.skip_minor_issues {
        kept.extend(wanted(FindingSeverity::Minor));
    }
    kept
}
