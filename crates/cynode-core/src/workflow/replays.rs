//! Replays of decisions: the recorded prompt asked again, and how its answer differs from the recorded one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Maximum number of differences that a comparison lists.
pub const MAX_FIELD_DIFFERENCES: usize = 200;

/// How far a replay has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayState {
    /// The model is asked.
    Running,
    /// The model answered in the form that was asked for.
    Answered,
    /// The model answered, and not in that form.
    Invalid,
    /// There is no answer.
    Failed,
}

impl ReplayState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Running, Self::Answered, Self::Invalid, Self::Failed];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Answered => "answered",
            Self::Invalid => "invalid",
            Self::Failed => "failed",
        }
    }

    /// Parses the name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// A field in which two answers differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FieldDifference {
    /// Where, as a JSON pointer such as `/units/0/title`; empty for the whole answer.
    pub path: String,
    /// The value of the recorded answer; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Value>,
    /// The value of the replay; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Value>,
}

/// Compares two answers field by field, in the order of their names. A field that is null counts as absent: models write both. Lists are
/// compared place by place. At most [`MAX_FIELD_DIFFERENCES`] are returned.
pub fn compare_answers(original: Option<&Value>, replay: Option<&Value>) -> Vec<FieldDifference> {
    let mut differences = Vec::new();
    collect_differences("", original, replay, &mut differences);
    differences
}

fn collect_differences(
    path: &str,
    original: Option<&Value>,
    replay: Option<&Value>,
    differences: &mut Vec<FieldDifference>,
) {
    let original = original.filter(|value| !value.is_null());
    let replay = replay.filter(|value| !value.is_null());
    if original == replay || differences.len() >= MAX_FIELD_DIFFERENCES {
        return;
    }
    match (original, replay) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for name in names {
                let inner = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
                collect_differences(&inner, left.get(name), right.get(name), differences);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            for index in 0..left.len().max(right.len()) {
                let inner = format!("{path}/{index}");
                collect_differences(&inner, left.get(index), right.get(index), differences);
            }
        }
        _ => differences.push(FieldDifference {
            path: path.to_owned(),
            original: original.cloned(),
            replay: replay.cloned(),
        }),
    }
}

/// Extracts the JSON of an answer of a model: all of it, the content of its code fence, or from its first brace to its last.
pub fn extract_json(text: &str) -> Result<Value, String> {
    let text = text.trim();
    // Some models write their reasoning first.
    let text = match text.strip_prefix("<think>").and_then(|rest| rest.split_once("</think>")) {
        Some((_, rest)) => rest.trim(),
        None => text,
    };
    let whole = serde_json::from_str(text);
    let complaint = match whole {
        Ok(value) => return Ok(value),
        Err(error) => format!("it is not JSON: {error}"),
    };
    let fenced = text.split("```").nth(1).map(|block| {
        let (first, rest) = block.split_once('\n').unwrap_or(("", block));
        if first.trim().chars().all(char::is_alphanumeric) { rest } else { block }
    });
    let braced = text.find('{').zip(text.rfind('}')).and_then(|(from, to)| text.get(from..=to));
    let mut inner = [fenced, braced].into_iter().flatten();
    inner.find_map(|text| serde_json::from_str(text.trim()).ok()).ok_or(complaint)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_differ_where_a_field_does_and_null_is_absent() {
        let original =
            json!({ "class": "quick_fix", "reason": "a typo", "files": ["a", "b"], "note": null });
        let replay = json!({ "class": "quick_fix", "reason": "a word", "files": ["a"], "a/b": 1 });
        let expected = [
            ("/a~1b", None, Some(json!(1))),
            ("/files/1", Some(json!("b")), None),
            ("/reason", Some(json!("a typo")), Some(json!("a word"))),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(path, original, replay)| FieldDifference {
                path: path.to_owned(),
                original,
                replay,
            })
            .collect();
        assert_eq!(compare_answers(Some(&original), Some(&replay)), expected);
        assert!(compare_answers(Some(&original), Some(&original)).is_empty());
        assert!(compare_answers(None, Some(&Value::Null)).is_empty());
    }

    #[test]
    fn a_long_comparison_ends() {
        let (left, right) = (json!(vec![0; 1000]), json!(vec![1; 1000]));
        assert_eq!(compare_answers(Some(&left), Some(&right)).len(), MAX_FIELD_DIFFERENCES);
    }

    #[test]
    fn every_state_has_a_name() {
        for state in ReplayState::ALL {
            assert_eq!(ReplayState::from_name(state.as_str()), Some(state));
        }
    }
}
