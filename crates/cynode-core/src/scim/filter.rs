//! Filters: `eq` on a few attributes, joined by `and`.

use super::ScimSyntaxError;

/// Maximum number of conditions of a filter.
const MAX_CONDITIONS: usize = 8;

/// What the listed resources must be. An attribute that is not named may have any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScimFilter {
    /// What the directory calls a user.
    pub user_name: Option<String>,
    /// The directory's own id.
    pub external_id: Option<String>,
    /// What others see.
    pub display_name: Option<String>,
    /// Whether conditions contradict each other, so that nothing fits.
    pub is_impossible: bool,
}

/// Reads a filter of users.
pub fn parse_user_filter(text: &str) -> Result<ScimFilter, ScimSyntaxError> {
    parse_filter(text, &["userName", "externalId", "displayName"])
}

/// Reads a filter of groups.
pub fn parse_group_filter(text: &str) -> Result<ScimFilter, ScimSyntaxError> {
    parse_filter(text, &["externalId", "displayName"])
}

fn parse_filter(text: &str, known: &[&'static str]) -> Result<ScimFilter, ScimSyntaxError> {
    let mut filter = ScimFilter::default();
    let mut rest = text;
    for _ in 0..MAX_CONDITIONS {
        let (attribute, value, after) = parse_condition(rest, known)?;
        filter.add_condition(attribute, value);
        let after = after.trim_start();
        if after.is_empty() {
            return Ok(filter);
        }
        rest = take_word(after, "and").ok_or_else(|| unsupported(known))?;
    }
    let told = format!("a filter has at most {MAX_CONDITIONS} conditions");
    Err(ScimSyntaxError::invalid_filter(told))
}

fn unsupported(known: &[&str]) -> ScimSyntaxError {
    ScimSyntaxError::invalid_filter(format!(
        "a filter is `ATTRIBUTE eq \"TEXT\"`, joined by `and`; the attributes are {}",
        known.join(", ")
    ))
}

/// Reads one condition. Returns the attribute, the text and what follows.
fn parse_condition<'a>(
    text: &'a str,
    known: &[&'static str],
) -> Result<(&'static str, String, &'a str), ScimSyntaxError> {
    let wrong = || unsupported(known);
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).ok_or_else(wrong)?;
    let (name, rest) = text.split_at(end);
    let attribute = known.iter().find(|known| known.eq_ignore_ascii_case(name));
    let attribute = *attribute.ok_or_else(wrong)?;
    let rest = take_word(rest.trim_start(), "eq").ok_or_else(wrong)?;
    let (value, rest) = parse_string(rest.trim_start()).ok_or_else(wrong)?;
    Ok((attribute, value, rest))
}

/// Takes a word in small or large letters, with the space behind it.
fn take_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (begin, rest) = text.split_at_checked(word.len())?;
    let ends = rest.starts_with(char::is_whitespace);
    (begin.eq_ignore_ascii_case(word) && ends).then_some(rest)
}

/// Reads a JSON string. Returns what follows it, too.
pub(super) fn parse_string(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut escaped = false;
    for (at, letter) in inner.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => {
                let (string, rest) = text.split_at_checked(at + 2)?;
                return Some((serde_json::from_str(string).ok()?, rest));
            }
            _ => {}
        }
    }
    None
}

impl ScimFilter {
    fn add_condition(&mut self, attribute: &str, value: String) {
        let place = match attribute {
            "userName" => &mut self.user_name,
            "externalId" => &mut self.external_id,
            _ => &mut self.display_name,
        };
        let exact = attribute == "externalId";
        let is_same = |there: &String| {
            if exact { *there == value } else { there.eq_ignore_ascii_case(&value) }
        };
        if place.as_ref().is_some_and(|there| !is_same(there)) {
            self.is_impossible = true;
        }
        *place = Some(value);
    }
}
