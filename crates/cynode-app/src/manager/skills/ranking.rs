//! Ranks skills for a piece of work, by the words of its text and those of their names and descriptions.

use std::collections::{BTreeMap, BTreeSet};

use cynode_core::ids::SkillId;
use cynode_memory::{bm25, lexemes};

/// Minimum score: the share of the words of a skill that the text of the work has, weighted as they are for the ranking.
const MIN_SCORE: f64 = 0.15;

/// Maximum length of the text that skills are ranked by, in bytes.
pub(super) const MAX_RANKED_TEXT_BYTES: usize = 32 * 1024;

/// What is known of a skill before its instructions are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankedSkill<'a> {
    pub(super) id: SkillId,
    pub(super) name: &'a str,
    pub(super) description: &'a str,
}

/// Returns the skills that fit a text, the best first, at most `max`.
///
/// They are ranked by the BM25 score of the text for the skill's name and description; words of the name count twice. A skill fits when that
/// is at least [`MIN_SCORE`] of the score that all words of the skill would give. Equal scores are ordered by name, then by id.
pub(super) fn rank_skills(text: &str, skills: &[RankedSkill<'_>], max: usize) -> Vec<SkillId> {
    let wanted: BTreeSet<String> = lexemes::term_counts(text).into_keys().collect();
    let documents: Vec<BTreeMap<String, u32>> = skills
        .iter()
        .map(|skill| lexemes::record_term_counts(skill.name, skill.description))
        .collect();
    let lengths: Vec<u32> = documents.iter().map(|terms| terms.values().sum()).collect();
    let total = u64::try_from(documents.len()).unwrap_or(u64::MAX);
    let average = average_length(&lengths);
    let mut frequencies: BTreeMap<&str, u64> = BTreeMap::new();
    for term in documents.iter().flat_map(BTreeMap::keys) {
        *frequencies.entry(term).or_default() += 1;
    }
    let score = |terms: &BTreeMap<String, u32>, length: u32| {
        let (mut shared, mut own) = (0.0, 0.0);
        for (term, count) in terms {
            let df = frequencies.get(term.as_str()).copied().unwrap_or(1);
            let part = bm25::term_score(*count, length, average, bm25::idf(total, df));
            own += part;
            if wanted.contains(term) {
                shared += part;
            }
        }
        (own > 0.0 && shared / own >= MIN_SCORE).then_some(shared)
    };
    let mut ranked: Vec<(f64, &RankedSkill<'_>)> = skills
        .iter()
        .zip(documents.iter().zip(&lengths))
        .filter_map(|(skill, (terms, length))| Some((score(terms, *length)?, skill)))
        .collect();
    ranked.sort_by(|(one, left), (other, right)| {
        other.total_cmp(one).then_with(|| (left.name, left.id).cmp(&(right.name, right.id)))
    });
    ranked.into_iter().take(max).map(|(_, skill)| skill.id).collect()
}

fn average_length(lengths: &[u32]) -> f64 {
    let count = u32::try_from(lengths.len()).unwrap_or(u32::MAX);
    let sum: f64 = lengths.iter().map(|length| f64::from(*length)).sum();
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> SkillId {
        SkillId::from_uuid(Uuid::from_u128(number))
    }

    fn skills() -> Vec<RankedSkill<'static>> {
        let skill = |number, name, description| RankedSkill { id: id(number), name, description };
        vec![
            skill(
                1,
                "run-the-tests",
                "How to run the tests of this project before a change is reported.",
            ),
            skill(2, "database-migrations", "Writing a migration of the PostgreSQL schema."),
            skill(3, "release-notes", "How the changelog is written for a release."),
            skill(4, "http-errors", "How an HTTP endpoint refuses a request with problem+json."),
        ]
    }

    #[test]
    fn the_skill_whose_words_the_work_has_comes_first_and_others_do_not_come() {
        let rank = |text: &str| rank_skills(text, &skills(), 3);
        assert_eq!(rank("Add a migration that adds a column to the schema"), [id(2)]);
        assert_eq!(rank("Make the tests of the parser run again"), [id(1)]);
        assert_eq!(rank("Refuse a bad request at the endpoint with a problem"), [id(4)]);
        assert_eq!(rank("Zebras are striped"), []);
        assert_eq!(rank(""), []);
    }

    #[test]
    fn the_ranking_has_a_limit_and_does_not_depend_on_the_order_in_which_skills_are_given() {
        let text = "Write the migration, run the tests, then the changelog for the release";
        let mut skills = skills();
        let ranked = rank_skills(text, &skills, 3);
        assert_eq!(ranked.len(), 3, "{ranked:?}");
        skills.reverse();
        assert_eq!(rank_skills(text, &skills, 3), ranked);
        assert_eq!(rank_skills(text, &skills, 1), ranked[..1]);
        assert_eq!(rank_skills(text, &skills, 0), []);
        let twins: Vec<_> = [7, 5]
            .map(|number| RankedSkill {
                id: id(number),
                name: "same",
                description: "The same words.",
            })
            .into();
        assert_eq!(rank_skills("same words", &twins, 9), [id(5), id(7)]);
    }

    #[test]
    fn one_skill_alone_is_found_and_one_that_says_nothing_is_not() {
        let alone =
            [RankedSkill { id: id(1), name: "deploy", description: "Deploying to staging." }];
        assert_eq!(rank_skills("deploy the service", &alone, 3), [id(1)]);
        let empty = [RankedSkill { id: id(1), name: "a", description: "the" }];
        assert_eq!(rank_skills("the a", &empty, 3), []);
    }
}
