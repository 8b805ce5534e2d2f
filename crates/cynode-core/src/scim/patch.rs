//! Partial changes (RFC 7644, 3.5.2), as directories write them: with a path, or with an object of attributes without one.

use serde_json::Value;

use super::{
    GroupChange, IGNORED_USER_ATTRIBUTES, ScimSyntaxError, UserChange, choose_email,
    filter::parse_string, find_field, optional_name, parse_bool, parse_display_name, parse_email,
    parse_member_id, parse_members, reject_password, require_object, required_text,
    validate_group_name, validate_user_name,
};

/// Maximum number of operations of a request.
const MAX_OPERATIONS: usize = 100;

/// Prefix of attributes of other schemas, which are passed over.
const EXTENSION_PREFIX: &str = "urn:ietf:params:scim:schemas:extension:";

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchAction {
    /// Adds to what is there.
    Add,
    /// Puts it in the place of what is there.
    Replace,
    /// Takes away.
    Remove,
}

/// One operation.
struct PatchOperation<'a> {
    action: PatchAction,
    /// The attribute, without the URN of the core schema.
    path: Option<&'a str>,
    value: Option<&'a Value>,
}

/// Reads the changes of a user.
pub fn parse_user_patch(body: &Value) -> Result<Vec<UserChange>, ScimSyntaxError> {
    let mut changes = Vec::new();
    for operation in parse_operations(body)? {
        match operation.path {
            Some(path) => {
                changes.extend(parse_user_change(path, operation.action, operation.value)?);
            }
            None => {
                for (name, value) in require_object(require_value(operation.value)?)? {
                    changes.extend(parse_user_change(name, operation.action, Some(value))?);
                }
            }
        }
    }
    Ok(changes)
}

/// Reads the changes of a group.
pub fn parse_group_patch(body: &Value) -> Result<Vec<GroupChange>, ScimSyntaxError> {
    let mut changes = Vec::new();
    for operation in parse_operations(body)? {
        match operation.path {
            Some(path) => {
                changes.extend(parse_group_change(path, operation.action, operation.value)?);
            }
            None => {
                for (name, value) in require_object(require_value(operation.value)?)? {
                    changes.extend(parse_group_change(name, operation.action, Some(value))?);
                }
            }
        }
    }
    Ok(changes)
}

fn parse_operations(body: &Value) -> Result<Vec<PatchOperation<'_>>, ScimSyntaxError> {
    let wrong = || ScimSyntaxError::invalid_syntax("`Operations` is a list of operations");
    let all = find_field(require_object(body)?, "Operations").and_then(Value::as_array);
    let all = all.ok_or_else(wrong)?;
    if !(1..=MAX_OPERATIONS).contains(&all.len()) {
        let told = format!("`Operations` has 1 to {MAX_OPERATIONS}");
        return Err(ScimSyntaxError::invalid_value(told));
    }
    all.iter().map(parse_operation).collect()
}

fn parse_operation(operation: &Value) -> Result<PatchOperation<'_>, ScimSyntaxError> {
    let fields = require_object(operation)?;
    let word = find_field(fields, "op").and_then(Value::as_str).unwrap_or_default();
    let action = match word.to_ascii_lowercase().as_str() {
        "add" => PatchAction::Add,
        "replace" => PatchAction::Replace,
        "remove" => PatchAction::Remove,
        _ => {
            let told = "`op` is add, replace or remove";
            return Err(ScimSyntaxError::invalid_syntax(told));
        }
    };
    let path = find_field(fields, "path").and_then(Value::as_str).map(strip_core_schema);
    if action == PatchAction::Remove && path.is_none() {
        return Err(ScimSyntaxError {
            kind: "noTarget",
            detail: "`remove` needs a `path`".to_owned(),
        });
    }
    Ok(PatchOperation { action, path, value: find_field(fields, "value") })
}

fn strip_core_schema(path: &str) -> &str {
    let core = [super::USER_SCHEMA, super::GROUP_SCHEMA];
    let stripped = core.into_iter().find_map(|schema| path.strip_prefix(schema));
    stripped.and_then(|rest| rest.strip_prefix(':')).unwrap_or(path)
}

fn require_value(value: Option<&Value>) -> Result<&Value, ScimSyntaxError> {
    value.ok_or_else(|| ScimSyntaxError::invalid_value("`value` is missing"))
}

fn unknown_path(path: &str) -> ScimSyntaxError {
    ScimSyntaxError::invalid_path(format!("there is no attribute `{path}`"))
}

fn required_attribute(path: &str) -> ScimSyntaxError {
    ScimSyntaxError::invalid_value(format!("`{path}` is needed and cannot be removed"))
}

fn parse_user_change(
    path: &str,
    action: PatchAction,
    value: Option<&Value>,
) -> Result<Vec<UserChange>, ScimSyntaxError> {
    let removes = action == PatchAction::Remove;
    let name = path.to_ascii_lowercase();
    let change = match name.as_str() {
        "username" | "displayname" | "name.formatted" | "active" if removes => {
            return Err(required_attribute(path));
        }
        "username" => {
            let text = required_text(value, path)?;
            validate_user_name(&text)?;
            UserChange::UserName(text)
        }
        "displayname" | "name.formatted" => {
            UserChange::DisplayName(parse_display_name(&required_text(value, path)?)?)
        }
        "externalid" if removes => UserChange::ExternalId(None),
        "externalid" => UserChange::ExternalId(optional_name(value, path)?),
        "active" => UserChange::Active(parse_bool(require_value(value)?, path)?),
        "emails" if removes => UserChange::Email(None),
        "emails" => UserChange::Email(choose_email(require_value(value)?)?),
        "name" if !removes => return parse_name_object(require_value(value)?),
        "password" => return reject_password(Some(&Value::Null)).map(|()| Vec::new()),
        _ if is_email_path(&name) && removes => UserChange::Email(None),
        _ if is_email_path(&name) => UserChange::Email(parse_email(&required_text(value, path)?)?),
        _ if is_ignored(&name) => return Ok(Vec::new()),
        _ => return Err(unknown_path(path)),
    };
    Ok(vec![change])
}

/// Reads the parts of a name. Only the whole name is stored.
fn parse_name_object(value: &Value) -> Result<Vec<UserChange>, ScimSyntaxError> {
    match find_field(require_object(value)?, "formatted").and_then(Value::as_str) {
        Some(text) => Ok(vec![UserChange::DisplayName(parse_display_name(text)?)]),
        None => Ok(Vec::new()),
    }
}

/// Whether a path names the address of work or the primary one, as `emails[type eq "work"].value`.
fn is_email_path(path: &str) -> bool {
    let inner = path.strip_prefix("emails[").and_then(|rest| rest.strip_suffix("].value"));
    inner.is_some_and(|filter| {
        matches!(filter.trim(), "type eq \"work\"" | "primary eq true" | "primary eq \"true\"")
    })
}

fn is_ignored(path: &str) -> bool {
    let head = path.split(['[', '.']).next().unwrap_or_default();
    path.starts_with(EXTENSION_PREFIX)
        || head == "name"
        || IGNORED_USER_ATTRIBUTES.iter().any(|known| *known == path || *known == head)
}

fn parse_group_change(
    path: &str,
    action: PatchAction,
    value: Option<&Value>,
) -> Result<Vec<GroupChange>, ScimSyntaxError> {
    let name = path.to_ascii_lowercase();
    let change = match (name.as_str(), action) {
        ("displayname", PatchAction::Remove) => return Err(required_attribute(path)),
        ("displayname", PatchAction::Add | PatchAction::Replace) => {
            let text = required_text(value, path)?;
            validate_group_name(&text)?;
            GroupChange::DisplayName(text)
        }
        ("externalid", PatchAction::Remove) => GroupChange::ExternalId(None),
        ("externalid", PatchAction::Add | PatchAction::Replace) => {
            GroupChange::ExternalId(optional_name(value, path)?)
        }
        ("members", PatchAction::Add) => {
            GroupChange::AddMembers(parse_members(require_value(value)?)?)
        }
        ("members", PatchAction::Replace) => {
            GroupChange::ReplaceMembers(parse_members(require_value(value)?)?)
        }
        ("members", PatchAction::Remove) => match value {
            Some(value) => GroupChange::RemoveMembers(parse_members(value)?),
            None => GroupChange::ReplaceMembers(Vec::new()),
        },
        ("schemas" | "id" | "meta", _) => return Ok(Vec::new()),
        (_, PatchAction::Remove) => GroupChange::RemoveMembers(vec![parse_member_path(path)?]),
        (_, PatchAction::Add | PatchAction::Replace) => return Err(unknown_path(path)),
    };
    Ok(vec![change])
}

/// Reads `members[value eq "usr_…"]`.
fn parse_member_path(path: &str) -> Result<crate::ids::UserId, ScimSyntaxError> {
    let wrong = || unknown_path(path);
    let (name, filter) = path.split_once('[').ok_or_else(wrong)?;
    let filter = filter.strip_suffix(']').ok_or_else(wrong)?;
    let mut words = filter.trim().splitn(3, char::is_whitespace);
    let (Some(attribute), Some(operator), Some(text)) = (words.next(), words.next(), words.next())
    else {
        return Err(wrong());
    };
    let fits = name.eq_ignore_ascii_case("members")
        && attribute.eq_ignore_ascii_case("value")
        && operator.eq_ignore_ascii_case("eq");
    let (text, rest) = parse_string(text.trim()).filter(|_| fits).ok_or_else(wrong)?;
    if !rest.trim().is_empty() {
        return Err(wrong());
    }
    parse_member_id(Some(&text))
}
