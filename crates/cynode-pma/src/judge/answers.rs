//! What a person said when they were asked, read by rules: no model interprets it. Only the bare words that a question offers decide
//! something; a yes, a no and all else is said to whoever asked, and goes to them as it is.

use cynode_core::workflow::waits::{WaitReason, stops};
use cynode_wire::workflow::{EndedWait, Resolution};

use super::fence;

/// How a question to a person says which answers are understood.
pub const CHOICES: &str =
    "Answer `proceed` to take it as it is, `stop` to give the task up, or say what is to be done.";

/// How a question that a model asks in its own words says it: any answer may be one to what it asks.
pub const OWN_WORDS: &str = "Answer in your own words, or `stop` to give the task up.";

/// How a question about a failure says it.
pub const OTHERWISE: &str = "Answer `stop` to give the task up, or say what is to be done otherwise: then it is tried again.";

/// What a person said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Give it up; also when nobody answered in time.
    Stop(String),
    /// Take it as it is.
    Proceed,
    /// Something else: what is to be done.
    Words(String),
}

/// What the person answered to a question; nothing when none was asked.
pub fn read(answer: Option<&EndedWait>) -> Option<Said> {
    said(answer, decided)
}

/// What the person answered to a question that a model asked in its own words; nothing when none was asked.
pub fn in_own_words(answer: Option<&EndedWait>) -> Option<Said> {
    said(answer, |words| if stops(&words) { Said::Stop(words) } else { Said::Words(words) })
}

fn said(answer: Option<&EndedWait>, interpreted: fn(String) -> Said) -> Option<Said> {
    // A question that was cut off has no answer.
    let answer = answer.filter(|wait| {
        wait.reason == WaitReason::HumanInput && wait.resolution != Resolution::Cancelled
    })?;
    let words = fence::clean(answer.answer.as_deref().unwrap_or_default(), 4_000);
    Some(match answer.resolution {
        Resolution::Expired => Said::Stop("nobody answered in time".to_owned()),
        Resolution::Rejected | Resolution::Cancelled => Said::Stop(told(words, "a person said no")),
        Resolution::Approved | Resolution::Continued | Resolution::Woken if words.is_empty() => {
            Said::Proceed
        }
        Resolution::Approved | Resolution::Continued | Resolution::Woken | Resolution::Answered => {
            interpreted(words)
        }
    })
}

/// What the person was asked, without what the question says of the answers; nothing when that is not known.
pub fn asked(answer: Option<&EndedWait>) -> Option<String> {
    let question =
        answer.filter(|wait| wait.reason == WaitReason::HumanInput)?.question.as_deref()?;
    let ends = [CHOICES, OWN_WORDS, OTHERWISE];
    let words = ends.into_iter().find_map(|end| question.trim_end().strip_suffix(end));
    let words = fence::clean(words.unwrap_or(question), 2_000);
    (!words.is_empty()).then_some(words)
}

/// What a person said, for somebody who did not ask it: many an answer means nothing without its question.
pub fn quoted(words: &str, answer: Option<&EndedWait>) -> String {
    let said = format!("a person says: {words}");
    match asked(answer) {
        Some(question) => format!("{said}\nThey were asked: {}", fence::line(&question, 600)),
        None => said,
    }
}

fn told(words: String, otherwise: &str) -> String {
    if words.is_empty() { otherwise.to_owned() } else { words }
}

/// Only the bare words give something up, or let something through that was not found good.
fn decided(words: String) -> Said {
    let plain: String = words
        .to_lowercase()
        .chars()
        .map(|c| if c.is_alphanumeric() || c == '\'' { c } else { ' ' })
        .collect();
    match plain.split_whitespace().collect::<Vec<_>>().join(" ").as_str() {
        "stop" | "give up" | "give it up" => Said::Stop(words),
        "proceed" | "ship it" | "take it as it is" => Said::Proceed,
        _ => Said::Words(told(words, "try it again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(resolution: Resolution, answer: Option<&str>) -> Option<Said> {
        let answer = answer.map(ToOwned::to_owned);
        let (reason, question) = (WaitReason::HumanInput, None);
        read(Some(&EndedWait { reason, resolution, question, answer }))
    }

    fn said(words: &str) -> Said {
        answered(Resolution::Answered, Some(words)).unwrap()
    }

    #[test]
    fn a_bare_word_that_is_offered_decides_and_anything_else_is_what_is_to_be_done() {
        for stop in ["stop", "Stop!", "give up", "Give it up."] {
            assert_eq!(said(stop), Said::Stop(stop.to_owned()), "{stop}");
        }
        for go in ["proceed", "Proceed.", "ship it!", "Take it as it is"] {
            assert_eq!(said(go), Said::Proceed, "{go}");
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
            assert_eq!(said(words), Said::Words(words.to_owned()), "{words}");
        }
        assert_eq!(said("  "), Said::Words("try it again".to_owned()));
    }

    #[test]
    fn what_a_model_asked_in_its_own_words_is_answered_by_all_but_a_bare_stop() {
        let said = |words: &str| {
            let (reason, resolution) = (WaitReason::HumanInput, Resolution::Answered);
            let (question, answer) = (None, Some(words.to_owned()));
            in_own_words(Some(&EndedWait { reason, resolution, question, answer }))
        };
        assert_eq!(said("Stop."), Some(Said::Stop("Stop.".to_owned())));
        for words in ["No", "yes", "proceed", "give up", "Cancel should close the dialog"] {
            assert_eq!(said(words), Some(Said::Words(words.to_owned())), "{words}");
        }
    }

    #[test]
    fn an_answer_is_quoted_with_its_question_where_that_is_known() {
        let mut wait = EndedWait {
            reason: WaitReason::HumanInput,
            resolution: Resolution::Answered,
            question: None,
            answer: Some("b".to_owned()),
        };
        assert_eq!(quoted("b", Some(&wait)), "a person says: b");
        for end in [CHOICES, OWN_WORDS, OTHERWISE] {
            wait.question = Some(format!("The fixer says:\n(a) or (b)?\n{end}"));
            let words = "a person says: b\nThey were asked: The fixer says: (a) or (b)?";
            assert_eq!(quoted("b", Some(&wait)), words);
        }
    }

    #[test]
    fn silence_and_refusal_stop() {
        let late = Said::Stop("nobody answered in time".to_owned());
        assert_eq!(answered(Resolution::Expired, None), Some(late));
        let no = Said::Stop("a person said no".to_owned());
        assert_eq!(answered(Resolution::Rejected, None), Some(no));
        assert_eq!(answered(Resolution::Approved, None), Some(Said::Proceed));
    }

    #[test]
    fn a_wait_for_something_else_is_no_answer() {
        let wait = EndedWait {
            reason: WaitReason::Job,
            resolution: Resolution::Woken,
            question: None,
            answer: Some("stop".to_owned()),
        };
        assert_eq!(read(Some(&wait)), None);
        assert_eq!(read(None), None);
    }
}
