//! What agents were given beside their questions: records of memory and skills.

use std::collections::BTreeMap;

use cynode_core::workflow::given_context::GivenContext;

use crate::terminal::escape_for_terminal;

/// Maximum number of records that are shown of a whole task.
const MAX_SHOWN_RECORDS: usize = 10;

/// Renders what one handoff or job was given, one row for each record and skill: claim, what, score, profile.
pub fn render_given_rows(given: &[GivenContext]) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    for claim in given {
        let profile = escape_for_terminal(&format!("{} {}", claim.profile, claim.profile_version));
        let row = |what: String, score: String| {
            [claim.fencing_token.to_string(), escape_for_terminal(&what), score, profile.clone()]
        };
        rows.extend(
            claim
                .memories
                .iter()
                .map(|memory| row(memory.memory_id.to_string(), format!("{:.2}", memory.score))),
        );
        rows.extend(claim.skills.iter().map(|skill| {
            row(format!("skill {} version {}", skill.name, skill.version), String::new())
        }));
        let failure = claim.failure.iter();
        rows.extend(failure.map(|why| row(format!("no memory: {why}"), String::new())));
    }
    rows
}

/// Describes what the agents of a task were given: records of memory, the best first, then skills and what failed.
pub fn describe_given(given: &[GivenContext]) -> String {
    let mut records: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for memory in given.iter().flat_map(|claim| &claim.memories) {
        let (best, times) = records.entry(memory.memory_id.to_string()).or_default();
        *best = best.max(memory.score);
        *times += 1;
    }
    let mut records: Vec<_> = records.into_iter().collect();
    records.sort_by(|(_, (one, _)), (_, (other, _))| other.total_cmp(one));
    let more = records.len().saturating_sub(MAX_SHOWN_RECORDS);
    let shown = records.iter().take(MAX_SHOWN_RECORDS);
    let mut lines: Vec<String> = shown
        .map(|(id, (score, times))| match times {
            1 => format!("{id}, score {score:.2}"),
            times => format!("{id}, score {score:.2}, {times} times"),
        })
        .collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let skills = given.iter().flat_map(|claim| &claim.skills);
    let mut skills: Vec<String> =
        skills.map(|skill| format!("skill {} version {}", skill.name, skill.version)).collect();
    skills.sort_unstable();
    skills.dedup();
    lines.extend(skills);
    match given.iter().filter(|claim| claim.failure.is_some()).count() {
        0 => {}
        1 => lines.push("once no memory, because it could not be searched".to_owned()),
        times => {
            lines.push(format!("{times} times no memory, because it could not be searched"));
        }
    }
    escape_for_terminal(&lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ONE: &str = "mem_0192d5c8b6f07cc1a1a3c2b4d5e6f701";
    const TWO: &str = "mem_0192d5c8b6f07cc1a1a3c2b4d5e6f702";

    fn given(token: i64, memories: &[(&str, f64)], failure: Option<&str>) -> GivenContext {
        let memories: Vec<Value> =
            memories.iter().map(|(id, score)| json!({ "memory_id": id, "score": score })).collect();
        let skill = json!({ "skill_id": "skl_0192d5c8b6f07cc1a1a3c2b4d5e6f701", "name": "run-tests", "version": 3 });
        serde_json::from_value(json!({
            "job_id": "job_0192d5c8b6f07cc1a1a3c2b4d5e6f701", "fencing_token": token, "profile": "builder",
            "profile_version": 2, "memories": memories, "skills": [skill], "failure": failure,
            "given_at": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn each_record_and_skill_of_a_claim_is_a_row() {
        let rows =
            render_given_rows(&[given(1, &[(ONE, 0.826)], None), given(2, &[], Some("late"))]);
        let wanted = [
            ["1", ONE, "0.83", "builder 2"],
            ["1", "skill run-tests version 3", "", "builder 2"],
            ["2", "skill run-tests version 3", "", "builder 2"],
            ["2", "no memory: late", "", "builder 2"],
        ];
        assert_eq!(rows, wanted.map(|row| row.map(str::to_owned)));
    }

    #[test]
    fn a_task_shows_each_record_once_and_the_best_first() {
        let claims = [
            given(1, &[(ONE, 0.4), (TWO, 0.3)], None),
            given(1, &[(TWO, 0.9)], None),
            given(1, &[], Some("late")),
        ];
        let wanted = format!(
            "{TWO}, score 0.90, 2 times\n{ONE}, score 0.40\nskill run-tests version 3\n\
            once no memory, because it could not be searched"
        );
        assert_eq!(describe_given(&claims), wanted);
        assert_eq!(describe_given(&[]), "");
    }
}
