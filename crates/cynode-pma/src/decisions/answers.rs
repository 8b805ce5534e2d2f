//! Parses a person's answer by rules, without a model. Only the exact words that a question offers decide; every other
//! answer is passed on unchanged.

use cynode_core::workflow::waits::{EndedWait, WaitReason, WaitResolution, is_stop_answer};

use super::fence;

/// Hint at the end of a question that names the answers with a fixed meaning.
pub const ANSWER_CHOICES_HINT: &str =
    "Answer `proceed` to take it as it is, `stop` to give the task up, or say what is to be done.";

/// Hint at the end of a question that a model wrote: any answer may be a reply to it.
pub const FREE_ANSWER_HINT: &str = "Answer in your own words, or `stop` to give the task up.";

/// Hint at the end of a question about a failure.
pub const FAILURE_ANSWER_HINT: &str = "Answer `stop` to give the task up, or say what is to be done otherwise: then it is tried again.";

/// Parsed answer of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PersonAnswer {
    /// Abandons the work; also used if nobody answered in time.
    Stop(String),
    /// Accepts the result as it is.
    Proceed,
    /// Any other answer: an instruction.
    Words(String),
}

/// Parses a person's answer; `None` if no question was asked.
pub fn parse_answer(answer: Option<&EndedWait>) -> Option<PersonAnswer> {
    interpret_answer(answer, parse_choice)
}

/// Parses a person's answer to a question that a model wrote; `None` if no question was asked.
pub fn parse_free_answer(answer: Option<&EndedWait>) -> Option<PersonAnswer> {
    interpret_answer(answer, |words| {
        if is_stop_answer(&words) { PersonAnswer::Stop(words) } else { PersonAnswer::Words(words) }
    })
}

fn interpret_answer(
    answer: Option<&EndedWait>,
    interpreted: fn(String) -> PersonAnswer,
) -> Option<PersonAnswer> {
    // A question that was cancelled has no answer.
    let answer = answer.filter(|wait| {
        wait.reason == WaitReason::HumanInput && wait.resolution != WaitResolution::Cancelled
    })?;
    let words = fence::sanitize_text(answer.answer.as_deref().unwrap_or_default(), 4_000);
    Some(match answer.resolution {
        WaitResolution::Expired => PersonAnswer::Stop("nobody answered in time".to_owned()),
        WaitResolution::Rejected | WaitResolution::Cancelled => {
            PersonAnswer::Stop(text_or_default(words, "a person said no"))
        }
        WaitResolution::Approved | WaitResolution::Resumed | WaitResolution::Woken
            if words.is_empty() =>
        {
            PersonAnswer::Proceed
        }
        WaitResolution::Approved
        | WaitResolution::Resumed
        | WaitResolution::Woken
        | WaitResolution::Answered => interpreted(words),
    })
}

/// Returns the question without its hint; `None` if it is unknown.
pub fn question_text(answer: Option<&EndedWait>) -> Option<String> {
    let question =
        answer.filter(|wait| wait.reason == WaitReason::HumanInput)?.question.as_deref()?;
    let ends = [ANSWER_CHOICES_HINT, FREE_ANSWER_HINT, FAILURE_ANSWER_HINT];
    let words = ends.into_iter().find_map(|end| question.trim_end().strip_suffix(end));
    let words = fence::sanitize_text(words.unwrap_or(question), 2_000);
    (!words.is_empty()).then_some(words)
}

/// Quotes a person's answer together with its question: many answers mean nothing without it.
pub fn quote_answer(words: &str, answer: Option<&EndedWait>) -> String {
    let said = format!("a person says: {words}");
    match question_text(answer) {
        Some(question) => {
            format!("{said}\nThey were asked: {}", fence::sanitize_line(&question, 600))
        }
        None => said,
    }
}

fn text_or_default(words: String, otherwise: &str) -> String {
    if words.is_empty() { otherwise.to_owned() } else { words }
}

/// Parses a choice. Only the exact words abandon the work or accept a result that was not found good.
fn parse_choice(words: String) -> PersonAnswer {
    let plain: String = words
        .to_lowercase()
        .chars()
        .map(|c| if c.is_alphanumeric() || c == '\'' { c } else { ' ' })
        .collect();
    match plain.split_whitespace().collect::<Vec<_>>().join(" ").as_str() {
        "stop" | "give up" | "give it up" => PersonAnswer::Stop(words),
        "proceed" | "ship it" | "take it as it is" => PersonAnswer::Proceed,
        _ => PersonAnswer::Words(text_or_default(words, "try it again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(resolution: WaitResolution, answer: Option<&str>) -> Option<PersonAnswer> {
        let answer = answer.map(ToOwned::to_owned);
        let (reason, question) = (WaitReason::HumanInput, None);
        parse_answer(Some(&EndedWait { reason, resolution, question, answer }))
    }

    fn said(words: &str) -> PersonAnswer {
        answered(WaitResolution::Answered, Some(words)).unwrap()
    }

    #[test]
    fn a_bare_word_that_is_offered_decides_and_anything_else_is_what_is_to_be_done() {
        for stop in ["stop", "Stop!", "give up", "Give it up."] {
            assert_eq!(said(stop), PersonAnswer::Stop(stop.to_owned()), "{stop}");
        }
        for go in ["proceed", "Proceed.", "ship it!", "Take it as it is"] {
            assert_eq!(said(go), PersonAnswer::Proceed, "{go}");
        }
        for words in [
            "No",
            "Yes",
            "OK",
            "go ahead",
            "Cancel should be red",
            "stop using tabs",
            "abort the task",
            "no problem, use blue",
            "don't stop",
            "proceed once the tests pass",
            "Use blue.",
        ] {
            assert_eq!(said(words), PersonAnswer::Words(words.to_owned()), "{words}");
        }
        assert_eq!(said("  "), PersonAnswer::Words("try it again".to_owned()));
    }

    #[test]
    fn what_a_model_asked_in_its_own_words_is_answered_by_all_but_a_bare_stop() {
        let said = |words: &str| {
            let (reason, resolution) = (WaitReason::HumanInput, WaitResolution::Answered);
            let (question, answer) = (None, Some(words.to_owned()));
            parse_free_answer(Some(&EndedWait { reason, resolution, question, answer }))
        };
        assert_eq!(said("Stop."), Some(PersonAnswer::Stop("Stop.".to_owned())));
        for words in ["No", "yes", "proceed", "give up", "Cancel should close the dialog"] {
            assert_eq!(said(words), Some(PersonAnswer::Words(words.to_owned())), "{words}");
        }
    }

    #[test]
    fn an_answer_is_quoted_with_its_question_where_that_is_known() {
        let mut wait = EndedWait {
            reason: WaitReason::HumanInput,
            resolution: WaitResolution::Answered,
            question: None,
            answer: Some("b".to_owned()),
        };
        assert_eq!(quote_answer("b", Some(&wait)), "a person says: b");
        for end in [ANSWER_CHOICES_HINT, FREE_ANSWER_HINT, FAILURE_ANSWER_HINT] {
            wait.question = Some(format!("The fixer says:\n(a) or (b)?\n{end}"));
            let words = "a person says: b\nThey were asked: The fixer says: (a) or (b)?";
            assert_eq!(quote_answer("b", Some(&wait)), words);
        }
    }

    #[test]
    fn silence_and_refusal_stop() {
        let late = PersonAnswer::Stop("nobody answered in time".to_owned());
        assert_eq!(answered(WaitResolution::Expired, None), Some(late));
        let no = PersonAnswer::Stop("a person said no".to_owned());
        assert_eq!(answered(WaitResolution::Rejected, None), Some(no));
        assert_eq!(answered(WaitResolution::Approved, None), Some(PersonAnswer::Proceed));
    }

    #[test]
    fn a_wait_for_something_else_is_no_answer() {
        let wait = EndedWait {
            reason: WaitReason::Job,
            resolution: WaitResolution::Woken,
            question: None,
            answer: Some("stop".to_owned()),
        };
        assert_eq!(parse_answer(Some(&wait)), None);
        assert_eq!(parse_answer(None), None);
    }
}
