//! What preferences say to coding agents: constraints of their work, and what people want them to keep in mind.

use serde_json::Value;

use super::PreferenceResolution;

/// The languages in which no file may be added.
pub const DISALLOWED_LANGUAGES_PREFERENCE: &str = "code.language.disallowed";
/// The language that is preferred where there is a choice.
const PREFERRED_LANGUAGE_PREFERENCE: &str = "language.preferred";
/// The longest line of Markdown.
const MARKDOWN_LINE_PREFERENCE: &str = "standards.markdown.line_length";
/// Before the name of a standard.
const STANDARDS_PREFIX: &str = "standards.";
/// What every agent in a sandbox is told.
const ADDITIONAL_CONTEXT_PREFERENCE: &str = "agents.sandbox_agent.additional_context";

/// Maximum number of constraints from preferences, and maximum characters of each.
const MAX_CONSTRAINTS: usize = 100;
const MAX_CONSTRAINT_CHARS: usize = 2000;
/// Maximum characters of the additional context.
const MAX_ADDITIONAL_CONTEXT_CHARS: usize = 24_000;

impl PreferenceResolution {
    /// The texts that hold for a key whose value is a text or a list of texts.
    pub fn texts_of_key(&self, key: &str) -> Vec<String> {
        let held = self.effective.iter().find(|(held, _)| held.as_str() == key);
        match held.map(|(_, held)| &held.value) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(items)) => {
                items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What a coding agent must not do otherwise, one sentence for each preference, by key.
    pub fn agent_constraints(&self) -> Vec<String> {
        let mut constraints = Vec::new();
        for (key, held) in &self.effective {
            let told = match key.as_str() {
                DISALLOWED_LANGUAGES_PREFERENCE => {
                    let languages = self.texts_of_key(DISALLOWED_LANGUAGES_PREFERENCE).join(", ");
                    (!languages.is_empty()).then(|| {
                        format!("Add no file in these languages, or the change is sent back: {languages}.")
                    })
                }
                PREFERRED_LANGUAGE_PREFERENCE => held.value.as_str().map(|language| {
                    format!("Where there is a choice, the preferred language is: {language}.")
                }),
                MARKDOWN_LINE_PREFERENCE => held
                    .value
                    .as_u64()
                    .map(|length| format!("A line of Markdown has at most {length} characters.")),
                other => other
                    .strip_prefix(STANDARDS_PREFIX)
                    .map(|name| format!("Standard `{name}`: {}", render_value(&held.value))),
            };
            constraints.extend(told.map(|text| truncate(&text, MAX_CONSTRAINT_CHARS)));
        }
        constraints.truncate(MAX_CONSTRAINTS);
        constraints
    }

    /// What people want every agent in a sandbox to keep in mind, if anything.
    pub fn agent_additional_context(&self) -> Option<String> {
        let told = self.texts_of_key(ADDITIONAL_CONTEXT_PREFERENCE).join("\n\n");
        let told = truncate(told.trim(), MAX_ADDITIONAL_CONTEXT_CHARS);
        (!told.is_empty()).then_some(told)
    }
}

fn render_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn truncate(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}
