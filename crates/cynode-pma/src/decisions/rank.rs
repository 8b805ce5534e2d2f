//! Ranks tools by the words they share with a goal.

use std::collections::BTreeSet;

/// A tool to be ranked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankableTool<'a> {
    /// Dotted name.
    pub name: &'a str,
    /// Description of the tool.
    pub description: &'a str,
}

/// A tool that is relevant for a goal.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedTool<'a> {
    /// Dotted name.
    pub name: &'a str,
    /// Share of the goal's words that it covers, above 0 and at most 1.
    pub score: f64,
}

/// Stop words that say nothing about a goal. Sorted.
const STOP_WORDS: &[&str] = &[
    "a", "about", "after", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been",
    "before", "both", "but", "by", "can", "could", "did", "do", "does", "for", "from", "had",
    "has", "have", "how", "i", "if", "in", "into", "is", "it", "its", "just", "me", "more", "most",
    "must", "my", "no", "not", "now", "of", "on", "one", "only", "or", "our", "out", "please",
    "should", "so", "some", "such", "than", "that", "the", "their", "them", "then", "there",
    "these", "they", "this", "those", "to", "too", "us", "use", "very", "was", "we", "were",
    "what", "when", "where", "which", "while", "who", "why", "will", "with", "would", "you",
    "your",
];

/// Returns the tools that share a word with the goal, the most relevant first, at most `most`. Ties are sorted by name.
pub fn rank_tools<'a>(goal: &str, tools: &[RankableTool<'a>], most: usize) -> Vec<RankedTool<'a>> {
    let goal = stemmed_words(goal);
    if goal.is_empty() {
        return Vec::new();
    }
    let mut ranked: Vec<RankedTool<'a>> = tools
        .iter()
        .filter_map(|tool| {
            let score = score_tool(&goal, tool);
            (score > 0.0).then_some(RankedTool { name: tool.name, score })
        })
        .collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.name.cmp(b.name)));
    ranked.dedup_by(|a, b| a.name == b.name);
    ranked.truncate(most);
    ranked
}

/// Returns the share of the goal's words in the tool's name and description.
fn score_tool(goal: &BTreeSet<String>, tool: &RankableTool<'_>) -> f64 {
    let mut known = stemmed_words(tool.name);
    known.extend(stemmed_words(tool.description));
    let shared = goal.intersection(&known).count();
    // Word sets are far smaller than the integers that a float represents exactly.
    let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    count(shared) / count(goal.len())
}

/// Returns the significant words of a text, stemmed and without duplicates.
fn stemmed_words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .filter(|word| STOP_WORDS.binary_search(&word.as_str()).is_err())
        .map(|word| stem_word(&word).to_owned())
        .collect()
}

/// Strips the most common English endings, so that `lists`, `listed` and `listing` are the same word.
fn stem_word(word: &str) -> &str {
    for ending in ["ings", "ing", "ies", "ed", "es", "s", "e", "y"] {
        if let Some(short) = word.strip_suffix(ending)
            && short.chars().count() >= 3
            && !(ending == "s" && short.ends_with('s'))
        {
            return short;
        }
    }
    word
}

#[cfg(test)]
mod tests;
