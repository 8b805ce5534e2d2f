//! Baseline of the evaluation: one plain sentence, free text back, parsed leniently.

use super::rows::{EvalRow, EvalTable, RowInput};

/// Builds the whole question.
pub fn plain_question(row: &EvalRow) -> String {
    format!(
        "Classify this as one of: {}.\n\n{}",
        row.table.answer_labels().join(", "),
        render_input(&row.matter)
    )
}

fn render_input(matter: &RowInput) -> String {
    match matter {
        RowInput::Classify { input, .. } => input.clone(),
        RowInput::Scope { input, facts, .. } => format!("{input}\n\nProject: {facts}"),
        RowInput::Route { work, .. } => work.clone(),
        RowInput::Review { title, requirements, result, .. } => {
            let requirements: String =
                requirements.iter().map(|line| format!("- {line}\n")).collect();
            format!("Task: {title}\nRequirements:\n{requirements}Result:\n{result}")
        }
        RowInput::Failure { title, attempt, attempts_left, failure, .. } => {
            format!("Task: {title}\nAttempt {attempt}, {attempts_left} left.\nFailure: {failure}")
        }
    }
}

/// Returns the first label that an answer names, in any spelling: `Quick fix`, `quick-fix` and `QUICK_FIX` are the same.
pub fn parse_label(table: EvalTable, answer: &str) -> Option<&'static str> {
    let words = normalize_words(answer);
    table
        .answer_labels()
        .iter()
        .filter_map(|label| Some((words.find(&normalize_words(label))?, *label)))
        .min_by_key(|(at, _)| *at)
        .map(|(_, label)| label)
}

/// Normalizes a text to lower case words with one space around each, so that only whole words match.
fn normalize_words(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |line, word| line + word + " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_label_of_an_answer_counts_however_it_is_spelled() {
        let said = |answer| parse_label(EvalTable::Classify, answer);
        assert_eq!(said("quick_fix"), Some("quick_fix"));
        assert_eq!(said("This is a **Quick Fix**, not a new project."), Some("quick_fix"));
        assert_eq!(said("FEATURE-REQUEST\n\nIt adds to what exists."), Some("feature_request"));
        assert_eq!(said("A feature, I should say."), None);
        assert_eq!(said(""), None);
    }

    #[test]
    fn a_label_inside_another_word_is_not_found() {
        assert_eq!(parse_label(EvalTable::Review, "The surpassing quality failed nobody."), None);
        assert_eq!(parse_label(EvalTable::Scope, "enlarged, but small"), Some("small"));
    }
}
