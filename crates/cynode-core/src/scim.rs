//! SCIM 2.0 (RFC 7643, RFC 7644): reads what a directory sends about users and groups.
//!
//! Of the core schemas this system stores what it uses. Other attributes of them are passed over; an attribute that no schema
//! knows is refused, so that a wrong mapping in a directory is noticed.

mod filter;
mod patch;

use serde_json::Value;

pub use self::{
    filter::{ScimFilter, parse_group_filter, parse_user_filter},
    patch::{parse_group_patch, parse_user_patch},
};
use crate::{
    ids::UserId,
    names::{EmailAddress, Title},
};

/// Schema of users.
pub const USER_SCHEMA: &str = "urn:ietf:params:scim:schemas:core:2.0:User";
/// Schema of groups.
pub const GROUP_SCHEMA: &str = "urn:ietf:params:scim:schemas:core:2.0:Group";
/// Schema of a list.
pub const LIST_SCHEMA: &str = "urn:ietf:params:scim:api:messages:2.0:ListResponse";
/// Schema of a partial change.
pub const PATCH_SCHEMA: &str = "urn:ietf:params:scim:api:messages:2.0:PatchOp";
/// Schema of an error.
pub const ERROR_SCHEMA: &str = "urn:ietf:params:scim:api:messages:2.0:Error";

/// Maximum number of members that one request names.
pub const MAX_SCIM_MEMBERS: usize = 10_000;

/// Maximum characters of a `userName` and of an `externalId`.
const MAX_NAME_CHARS: usize = 254;

/// Maximum characters of the name of a group.
const MAX_GROUP_NAME_CHARS: usize = 200;

/// Attributes of users that the schemas know and that this system does not store.
const IGNORED_USER_ATTRIBUTES: [&str; 20] = [
    "schemas",
    "id",
    "meta",
    "groups",
    "nickname",
    "profileurl",
    "title",
    "usertype",
    "preferredlanguage",
    "locale",
    "timezone",
    "phonenumbers",
    "ims",
    "photos",
    "addresses",
    "entitlements",
    "roles",
    "x509certificates",
    "name.givenname",
    "name.familyname",
];

/// Why a request of a directory cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct ScimSyntaxError {
    kind: &'static str,
    detail: String,
}

impl ScimSyntaxError {
    pub(crate) fn invalid_value(detail: impl Into<String>) -> Self {
        Self { kind: "invalidValue", detail: detail.into() }
    }

    pub(crate) fn invalid_path(detail: impl Into<String>) -> Self {
        Self { kind: "invalidPath", detail: detail.into() }
    }

    pub(crate) fn invalid_filter(detail: impl Into<String>) -> Self {
        Self { kind: "invalidFilter", detail: detail.into() }
    }

    pub(crate) fn invalid_syntax(detail: impl Into<String>) -> Self {
        Self { kind: "invalidSyntax", detail: detail.into() }
    }

    /// The word of RFC 7644 for it.
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// What is wrong.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// A change of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserChange {
    /// What the directory calls it.
    UserName(String),
    /// The directory's own id.
    ExternalId(Option<String>),
    /// What others see.
    DisplayName(Title),
    /// Where the person can be written to.
    Email(Option<EmailAddress>),
    /// Whether the account may be used.
    Active(bool),
}

/// A change of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// What the directory calls it.
    DisplayName(String),
    /// The directory's own id.
    ExternalId(Option<String>),
    /// Users to add.
    AddMembers(Vec<UserId>),
    /// Users to take out.
    RemoveMembers(Vec<UserId>),
    /// The only users.
    ReplaceMembers(Vec<UserId>),
}

/// A user as a directory describes it in whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedUser {
    /// What the directory calls it.
    pub user_name: String,
    /// The directory's own id.
    pub external_id: Option<String>,
    /// What others see.
    pub display_name: Title,
    /// Where the person can be written to.
    pub email: Option<EmailAddress>,
    /// Whether the account may be used; `None` if the directory does not say. A new account may, and one that is there stays
    /// as it is.
    pub active: Option<bool>,
}

/// A group as a directory describes it in whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedGroup {
    /// What the directory calls it.
    pub display_name: String,
    /// The directory's own id.
    pub external_id: Option<String>,
    /// Its members.
    pub members: Vec<UserId>,
}

impl DescribedUser {
    /// The changes that make a user what is described.
    pub fn into_changes(self) -> Vec<UserChange> {
        let mut changes = vec![
            UserChange::UserName(self.user_name),
            UserChange::ExternalId(self.external_id),
            UserChange::DisplayName(self.display_name),
            UserChange::Email(self.email),
        ];
        changes.extend(self.active.map(UserChange::Active));
        changes
    }
}

impl DescribedGroup {
    /// The changes that make a group what is described.
    pub fn into_changes(self) -> Vec<GroupChange> {
        vec![
            GroupChange::DisplayName(self.display_name),
            GroupChange::ExternalId(self.external_id),
            GroupChange::ReplaceMembers(self.members),
        ]
    }
}

/// Reads a whole user.
pub fn parse_user(body: &Value) -> Result<DescribedUser, ScimSyntaxError> {
    let body = require_object(body)?;
    let field = |name: &str| find_field(body, name);
    reject_password(field("password"))?;
    let user_name = required_text(field("userName"), "userName")?;
    validate_user_name(&user_name)?;
    let name = field("name").and_then(Value::as_object);
    let part = |wanted: &str| {
        let part = name.and_then(|name| find_field(name, wanted));
        part.and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty())
    };
    let full = [part("givenName"), part("familyName")].into_iter().flatten().collect::<Vec<_>>();
    let own = field("displayName").and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let full = full.join(" ");
    let full = Some(full.as_str()).filter(|full| !full.is_empty());
    let shown = own.or(part("formatted")).or(full).unwrap_or(&user_name);
    let email = field("emails").map(choose_email).transpose()?.flatten();
    Ok(DescribedUser {
        external_id: optional_name(field("externalId"), "externalId")?,
        display_name: parse_display_name(shown)?,
        email,
        active: field("active").map(|value| parse_bool(value, "active")).transpose()?,
        user_name,
    })
}

/// Reads a whole group.
pub fn parse_group(body: &Value) -> Result<DescribedGroup, ScimSyntaxError> {
    let body = require_object(body)?;
    let display_name = required_text(find_field(body, "displayName"), "displayName")?;
    validate_group_name(&display_name)?;
    let members = find_field(body, "members").map(parse_members).transpose()?.unwrap_or_default();
    let external_id = optional_name(find_field(body, "externalId"), "externalId")?;
    Ok(DescribedGroup { display_name, external_id, members })
}

/// Rejects a text that cannot be a `userName`.
pub fn validate_user_name(text: &str) -> Result<(), ScimSyntaxError> {
    validate_name(text, "userName", MAX_NAME_CHARS)
}

fn validate_group_name(text: &str) -> Result<(), ScimSyntaxError> {
    validate_name(text, "displayName", MAX_GROUP_NAME_CHARS)
}

fn validate_name(text: &str, what: &str, max: usize) -> Result<(), ScimSyntaxError> {
    let visible = !text.chars().any(|c| c.is_control() || is_invisible(c)) && text.trim() == text;
    if (1..=max).contains(&text.chars().count()) && visible {
        return Ok(());
    }
    Err(ScimSyntaxError::invalid_value(format!(
        "`{what}` has 1 to {max} visible characters, without spaces at either end"
    )))
}

const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn require_object(body: &Value) -> Result<&serde_json::Map<String, Value>, ScimSyntaxError> {
    body.as_object().ok_or_else(|| ScimSyntaxError::invalid_syntax("the body is no JSON object"))
}

/// Returns an attribute. Names of attributes are the same in small and large letters.
fn find_field<'a>(body: &'a serde_json::Map<String, Value>, name: &str) -> Option<&'a Value> {
    let found = body.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value).filter(|value| !value.is_null())
}

/// Passwords of accounts of a directory do not exist here: such accounts log in at the identity provider.
fn reject_password(value: Option<&Value>) -> Result<(), ScimSyntaxError> {
    match value {
        None => Ok(()),
        Some(_) => Err(ScimSyntaxError {
            kind: "mutability",
            detail: "`password` is not taken: users of a directory log in at the identity provider"
                .to_owned(),
        }),
    }
}

fn required_text(value: Option<&Value>, what: &str) -> Result<String, ScimSyntaxError> {
    let text = value.and_then(Value::as_str);
    let missing = || ScimSyntaxError::invalid_value(format!("`{what}` is a text and is missing"));
    text.map(str::to_owned).ok_or_else(missing)
}

fn optional_name(value: Option<&Value>, what: &str) -> Result<Option<String>, ScimSyntaxError> {
    let Some(value) = value else { return Ok(None) };
    let text = required_text(Some(value), what)?;
    if text.is_empty() {
        return Ok(None);
    }
    validate_name(&text, what, MAX_NAME_CHARS)?;
    Ok(Some(text))
}

fn parse_display_name(text: &str) -> Result<Title, ScimSyntaxError> {
    let short: String = text.trim().chars().take(200).collect();
    short.trim().parse::<Title>().map_err(|error| {
        ScimSyntaxError::invalid_value(format!("`displayName` cannot be shown: {error}"))
    })
}

/// Reads a truth value. Some directories write it as a text.
fn parse_bool(value: &Value, what: &str) -> Result<bool, ScimSyntaxError> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(ScimSyntaxError::invalid_value(format!("`{what}` is true or false"))),
    }
}

fn parse_email(text: &str) -> Result<Option<EmailAddress>, ScimSyntaxError> {
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = text.parse::<EmailAddress>();
    parsed.map(Some).map_err(|error| ScimSyntaxError::invalid_value(error.to_string()))
}

/// Chooses the address that is primary, else the one of work, else the first.
fn choose_email(value: &Value) -> Result<Option<EmailAddress>, ScimSyntaxError> {
    let wrong = || ScimSyntaxError::invalid_value("`emails` is a list of objects with `value`");
    let all = value.as_array().ok_or_else(wrong)?;
    let is_primary = |email: &&Value| email["primary"].as_bool() == Some(true);
    let is_work = |email: &&Value| email["type"].as_str() == Some("work");
    let chosen = all.iter().find(is_primary).or_else(|| all.iter().find(is_work));
    match chosen.or_else(|| all.first()) {
        Some(email) => parse_email(email["value"].as_str().ok_or_else(wrong)?),
        None => Ok(None),
    }
}

/// Reads members: objects with the id of a user as `value`.
fn parse_members(value: &Value) -> Result<Vec<UserId>, ScimSyntaxError> {
    let all = match value {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    if all.len() > MAX_SCIM_MEMBERS {
        return Err(ScimSyntaxError::invalid_value(format!(
            "`members` has at most {MAX_SCIM_MEMBERS}"
        )));
    }
    all.iter().map(|member| parse_member_id(member["value"].as_str())).collect()
}

fn parse_member_id(text: Option<&str>) -> Result<UserId, ScimSyntaxError> {
    text.and_then(|text| text.parse::<UserId>().ok()).ok_or_else(|| {
        ScimSyntaxError::invalid_value("a member is an object with the `id` of a user as `value`")
    })
}

#[cfg(test)]
mod tests;
