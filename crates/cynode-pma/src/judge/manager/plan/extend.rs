//! What reviews and tests send back, put into the plan by rule: whoever mends, and whoever looks again. No model is asked.

use cynode_core::{
    judgement::{UnitKind, review::ReviewOptions},
    workflow::plan::{Plan, UnitKey},
};
use cynode_wire::{
    handoffs::{Revision, TaskFacts, UnitsConflict},
    workflow::{Finding, Severity},
};

use super::{
    super::super::{
        fence,
        manager::TESTS_WANTED,
        unit::{Brief, UnitPayload, find},
    },
    build::{Builder, ITEMS, lines, testing},
};
use crate::desk::Trouble;

/// The plan with what a judgement sends back.
pub(super) fn revised(
    before: &Plan,
    revision: &Revision,
    options: ReviewOptions,
    task: &TaskFacts,
    commands: &[String],
) -> Result<Plan, Trouble> {
    let Some((judged, payload)) = find(before, &revision.unit) else {
        let why = format!("unit `{}` is not in the plan", revision.unit);
        return Err(Trouble::Permanent(why));
    };
    let round = Round {
        judged: &judged.key,
        // What was judged: the units that left files, and nothing of those that judge.
        files: judged
            .depends_on
            .iter()
            .filter(|key| find(before, key).is_none_or(|(_, it)| it.kind.leaves_files()))
            .cloned()
            .collect(),
        payload,
        task,
    };
    let mut builder = Builder::from(before);
    if let Some(conflict) = &revision.conflict {
        round.fit(&mut builder, before, conflict)?;
        return builder.finish(commands);
    }
    let wanted = revision.findings.iter().any(|finding| {
        finding.severity == Severity::Note && finding.text.starts_with(TESTS_WANTED)
    });
    if wanted {
        round.test(&mut builder, &revision.recommended_actions)?;
    } else {
        round.mend(&mut builder, before, revision, options)?;
    }
    builder.finish(commands)
}

/// One judgement that sends something back.
struct Round<'a> {
    judged: &'a UnitKey,
    files: Vec<UnitKey>,
    payload: UnitPayload,
    task: &'a TaskFacts,
}

impl Round<'_> {
    /// Tests, after a review that found the change good.
    fn test(&self, builder: &mut Builder, commands: &[String]) -> Result<(), Trouble> {
        let mut after = self.files.clone();
        after.push(self.judged.clone());
        let brief = testing(commands);
        let payload = UnitPayload::new(UnitKind::Test, self.payload.scope, brief);
        let key = builder.numbered("test", 1);
        builder.add(key, "Test the change", after, &payload)
    }

    /// Somebody who makes two changes fit together, and then all is put together again.
    fn fit(
        &self,
        builder: &mut Builder,
        before: &Plan,
        conflict: &UnitsConflict,
    ) -> Result<(), Trouble> {
        let mut after = conflict.with.clone();
        after.push(conflict.unit.clone());
        let parts: Vec<_> = after.iter().filter_map(|key| find(before, key)).collect();
        let wanted = |brief: fn(&Brief) -> &Vec<String>| -> Vec<String> {
            let mut kept: Vec<String> = Vec::new();
            for text in parts.iter().flat_map(|(_, payload)| brief(&payload.brief)) {
                if !kept.contains(text) {
                    kept.push(text.clone());
                }
            }
            kept
        };
        let kept = parts.iter().map(|(unit, _)| {
            format!("What this was made for still holds: {}", fence::line(unit.title.as_str(), 200))
        });
        let mut requirements: Vec<String> = kept.collect();
        requirements.extend(wanted(|brief| &brief.requirements));
        let mut constraints = wanted(|brief| &brief.constraints);
        constraints.push(
            "Both sides were made beside each other and do not fit: the files have marks (`<<<<<<<`, `>>>>>>>`). Keep what both sides mean, and leave no mark."
                .to_owned(),
        );
        let brief = Brief {
            files_to_modify: lines(&conflict.files),
            requirements: lines(&requirements),
            constraints: lines(&constraints),
            checks: parts.iter().flat_map(|(_, payload)| payload.brief.checks.clone()).collect(),
            ..Brief::default()
        };
        let payload = UnitPayload::new(UnitKind::Fix, self.payload.scope, brief);
        let key = builder.numbered("fit", 1);
        let files = fence::line(&conflict.files.join(", "), 200);
        let title = format!("Make two changes fit together: {files}");
        // It comes before the unit that needs it, as in any plan.
        builder.add(key.clone(), &title, after, &payload)?;
        for unit in builder.units.iter_mut().filter(|unit| unit.key == *self.judged) {
            unit.depends_on.push(key.clone());
        }
        Ok(())
    }

    /// Somebody who mends what was found, and the same judgement again.
    fn mend(
        &self,
        builder: &mut Builder,
        before: &Plan,
        revision: &Revision,
        options: ReviewOptions,
    ) -> Result<(), Trouble> {
        let iteration = self.payload.iteration + 1;
        let findings = mended(&revision.findings, options);
        let fixes = before.steps().iter().filter_map(UnitPayload::of);
        let fixes = fixes.filter(|it| it.kind == UnitKind::Fix && it.iteration > 0).count();
        let number = u32::try_from(fixes + 1).unwrap_or(u32::MAX);
        let fix = builder.fixing(number);
        let brief = Brief {
            files_to_read_first: self.payload.brief.files_to_read_first.clone(),
            requirements: findings.iter().map(Finding::told).collect(),
            findings,
            ..Brief::default()
        };
        let payload =
            UnitPayload { iteration, ..UnitPayload::new(UnitKind::Fix, self.payload.scope, brief) };
        let about = fence::line(&self.task.description, 120);
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
            // What was judged is work itself: it is mended, and nobody has to judge anew who has not judged before.
            files.push(self.judged.clone());
        }
        builder.add(fix.clone(), &title, files, &payload)?;
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

        // The same judgement again, of all that was judged and of what was mended.
        let mut again = self.payload.clone();
        again.iteration = iteration;
        again.brief.findings = mended(&revision.findings, options);
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
        let key = builder.numbered(again.kind.as_str(), iteration + 1);
        builder.add(key.clone(), title, after, &again)?;

        // What waited for the judgement waits for the next one, and for what was mended.
        for unit in builder.units.iter_mut().filter(|unit| unit.depends_on.contains(self.judged)) {
            unit.depends_on.extend([fix.clone(), key.clone()]);
        }
        Ok(())
    }
}

impl Builder {
    /// `fix-1`, `fix-2`, …
    fn fixing(&self, number: u32) -> UnitKey {
        let taken = |key: &UnitKey| self.units.iter().any(|unit| unit.key == *key);
        let key = UnitKey::derive(&format!("fix {number}"));
        if taken(&key) { self.numbered(key.as_str(), 2) } else { key }
    }
}

/// What is given to whoever mends, the worst first. Minor issues only when they are asked for.
fn mended(findings: &[Finding], options: ReviewOptions) -> Vec<Finding> {
    let wanted = |severity: Severity| -> Vec<Finding> {
        let of = findings.iter().filter(|finding| finding.severity == severity);
        let short =
            of.map(|finding| Finding { text: fence::line(&finding.text, 600), ..finding.clone() });
        short.filter(|finding| !finding.text.is_empty()).take(ITEMS).collect()
    };
    let mut kept = wanted(Severity::Critical);
    kept.extend(wanted(Severity::Major));
    if !options.skip_minor_issues {
        kept.extend(wanted(Severity::Minor));
    }
    kept
}
