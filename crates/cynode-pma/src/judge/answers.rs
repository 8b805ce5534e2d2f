//! What a person said when they were asked, read by rules: no model interprets a yes or a no.

use cynode_core::workflow::waits::WaitReason;
use cynode_wire::workflow::{EndedWait, Resolution};

use super::fence;

/// How a question to a person says which answers are understood.
pub const CHOICES: &str =
    "Answer `proceed` to take it as it is, `stop` to give the task up, or say what is to be done.";

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

fn told(words: String, otherwise: &str) -> String {
    if words.is_empty() { otherwise.to_owned() } else { words }
}

fn interpreted(words: String) -> Said {
    let plain: String = words
        .to_lowercase()
        .chars()
        .map(|c| if c.is_alphanumeric() || c == '\'' { c } else { ' ' })
        .collect();
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = plain.split(' ').next().unwrap_or_default();
    let stops = matches!(first, "stop" | "abort" | "cancel" | "quit")
        || matches!(plain.as_str(), "no" | "end it" | "drop it" | "forget it" | "leave it")
        || plain.starts_with("give up")
        || plain.starts_with("give it up");
    // Only the bare word lets something through that was not found good.
    let proceeds = matches!(
        plain.as_str(),
        "proceed"
            | "go on"
            | "go ahead"
            | "accept"
            | "accept it"
            | "continue"
            | "yes"
            | "ok"
            | "okay"
            | "ship it"
            | "deliver"
            | "deliver it"
            | "fine"
            | "take it as it is"
    );
    match (stops, proceeds) {
        (true, _) => Said::Stop(words),
        (false, true) => Said::Proceed,
        (false, false) => Said::Words(told(words, "try it again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(resolution: Resolution, answer: Option<&str>) -> Option<Said> {
        let answer = answer.map(ToOwned::to_owned);
        read(Some(&EndedWait { reason: WaitReason::HumanInput, resolution, answer }))
    }

    fn said(words: &str) -> Said {
        answered(Resolution::Answered, Some(words)).unwrap()
    }

    #[test]
    fn a_bare_word_decides_and_anything_else_is_what_is_to_be_done() {
        for stop in
            ["stop", "Stop!", "give up", "Give it up, please.", "abort the task", "no", "NO."]
        {
            assert_eq!(said(stop), Said::Stop(stop.to_owned()), "{stop}");
        }
        for go in ["proceed", "Proceed.", "yes", "OK", "go on", "ship it!"] {
            assert_eq!(said(go), Said::Proceed, "{go}");
        }
        for words in
            ["no problem, use blue", "don't stop", "proceed once the tests pass", "Use blue."]
        {
            assert_eq!(said(words), Said::Words(words.to_owned()), "{words}");
        }
        assert_eq!(said("  "), Said::Words("try it again".to_owned()));
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
            answer: Some("stop".to_owned()),
        };
        assert_eq!(read(Some(&wait)), None);
        assert_eq!(read(None), None);
    }
}
