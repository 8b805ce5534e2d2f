//! What verified claims say about a person.

use serde_json::{Map, Value};

use crate::{OidcError, ProviderConfig};

/// Maximum number of groups that are read.
const MAX_GROUPS: usize = 2000;

/// Maximum number of methods of a login that are read.
const MAX_METHODS: usize = 50;

/// Maximum length of a subject, as the protocol says.
const MAX_SUBJECT_BYTES: usize = 255;

/// Maximum length of any other text, in characters. A longer one is left out.
const MAX_TEXT_CHARS: usize = 200;

/// A person, as a provider describes them in claims that were verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedIdentity {
    /// Identifier of the person, unique at the provider and never reused.
    pub subject: String,
    /// Session of the person at the provider.
    pub session: Option<String>,
    /// Name for others to see.
    pub display_name: Option<String>,
    /// Name that the person logs in with there.
    pub user_name: Option<String>,
    /// E-mail address, only if the provider says that it is verified.
    pub email: Option<String>,
    /// Groups; `None` if the claims do not say which.
    pub groups: Option<Vec<String>>,
    /// How the person proved who they are (`amr`, RFC 8176).
    pub authentication_methods: Vec<String>,
    /// Class of that proof (`acr`).
    pub authentication_context: Option<String>,
    /// Identifier of the person in the directory.
    pub directory_id: Option<String>,
    /// Whether the claims have the values that the configuration requires.
    pub has_required_claims: bool,
}

impl VerifiedIdentity {
    /// Reads the claims.
    pub(crate) fn from_claims(
        claims: &Map<String, Value>,
        provider: &ProviderConfig,
    ) -> Result<Self, OidcError> {
        let text = |name: &str| {
            let text = claims.get(name).and_then(Value::as_str)?.trim();
            let fits = !text.is_empty() && text.chars().count() <= MAX_TEXT_CHARS;
            (fits && !text.chars().any(char::is_control)).then(|| text.to_owned())
        };
        let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
        if subject.is_empty() || subject.len() > MAX_SUBJECT_BYTES || subject.contains('\0') {
            return Err(OidcError::Protocol("its claims do not name a person".into()));
        }
        let verified = claims.get("email_verified").and_then(Value::as_bool) == Some(true);
        Ok(Self {
            subject: subject.to_owned(),
            session: text("sid"),
            display_name: text("name").or_else(|| text("preferred_username")),
            user_name: text("preferred_username"),
            email: text("email").filter(|_| verified),
            groups: find_claim(claims, &provider.groups_claim).map(read_groups).transpose()?,
            authentication_methods: claims.get("amr").map(read_methods).unwrap_or_default(),
            authentication_context: text("acr"),
            directory_id: text(&provider.directory_claim),
            has_required_claims: provider
                .required_claims
                .iter()
                .all(|(name, values)| has_value(find_claim(claims, name), values)),
        })
    }
}

/// Returns whether a claim has one of the values, or lists one of them.
fn has_value(claim: Option<&Value>, values: &[String]) -> bool {
    let is_wanted = |text: &str| values.iter().any(|value| value == text);
    match claim {
        Some(Value::String(text)) => is_wanted(text),
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).any(is_wanted),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => is_wanted(&value.to_string()),
        Some(Value::Null | Value::Object(_)) | None => false,
    }
}

/// Finds a claim by its name, else by a path with dots, such as `realm_access.roles`.
pub(crate) fn find_claim<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    let mut names = path.split('.');
    let first = claims.get(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name))
}

/// Reads the methods of a login. What is no list of names names none.
fn read_methods(value: &Value) -> Vec<String> {
    let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.take(MAX_METHODS).map(str::to_owned).collect()
}

fn read_groups(value: &Value) -> Result<Vec<String>, OidcError> {
    let wrong = || OidcError::Protocol("its claim of groups is not a list of names".into());
    let groups: Vec<String> = match value {
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => many
            .iter()
            .map(|one| one.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    if groups.len() > MAX_GROUPS {
        return Err(OidcError::Protocol(format!("it names more than {MAX_GROUPS} groups")));
    }
    Ok(groups)
}
