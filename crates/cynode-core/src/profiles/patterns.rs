//! Patterns of a profile: how they are written, and what they mean.

use super::MAX_PROFILE_ENTRIES;

/// Maximum number of characters of one pattern.
const MAX_PATTERN_CHARS: usize = 200;

/// HTTP methods that a rule can name.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// Checks a list. `error_of` says which rule an entry breaks.
pub(super) fn validate_list(
    field: &str,
    entries: &[String],
    error_of: fn(&str) -> Option<&'static str>,
) -> Result<(), String> {
    if entries.len() > MAX_PROFILE_ENTRIES {
        return Err(format!("`{field}` has at most {MAX_PROFILE_ENTRIES} entries"));
    }
    for entry in entries {
        if !(1..=MAX_PATTERN_CHARS).contains(&entry.chars().count()) {
            return Err(format!("an entry of `{field}` has 1 to {MAX_PATTERN_CHARS} characters"));
        }
        if let Some(rule) = error_of(entry) {
            return Err(format!("an entry of `{field}` {rule}, got {entry:?}"));
        }
    }
    Ok(())
}

/// Returns the rule that a pattern of tools breaks.
pub(super) fn tool_error(pattern: &str) -> Option<&'static str> {
    if pattern == "*" {
        return None;
    }
    let name = pattern.strip_suffix(".*").unwrap_or(pattern);
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let fits = name.split('.').all(|part| !part.is_empty() && part.bytes().all(is_name_byte));
    (!fits).then_some("is the dotted name of a tool, a group as `memory.*`, or `*`")
}

/// Returns the rule that a pattern of environment variables breaks.
pub(super) fn variable_error(pattern: &str) -> Option<&'static str> {
    if pattern == "*" {
        return None;
    }
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let fits = starts && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (!fits).then_some("is the name of a variable, a prefix as `CARGO_*`, or `*`")
}

/// Returns the rule that a pattern of models breaks.
pub(super) fn model_error(pattern: &str) -> Option<&'static str> {
    let id = pattern.strip_suffix('*').unwrap_or(pattern);
    let fits = !id.contains('*') && id.chars().all(|c| !c.is_control() && !c.is_whitespace());
    (!fits).then_some("is the id of a model, a prefix as `gpt-*`, or `*`")
}

/// Returns the rule that a domain breaks.
pub(super) fn domain_error(domain: &str) -> Option<&'static str> {
    if domain == "*" {
        return None;
    }
    let host = domain.strip_prefix("*.").unwrap_or(domain);
    let is_host_byte = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')
    };
    let fits = host.len() <= 253
        && host.split('.').all(|label| !label.is_empty() && label.bytes().all(is_host_byte));
    (!fits).then_some("is a host in lower case, all below a domain as `*.example.org`, or `*`")
}

/// Returns the rule that a method breaks.
pub(super) fn method_error(method: &str) -> Option<&'static str> {
    let known = method == "*" || METHODS.contains(&method);
    (!known).then_some("is GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, or `*`")
}

/// Returns the rule that a glob over paths breaks.
pub(super) fn glob_error(glob: &str) -> Option<&'static str> {
    let fits = glob.chars().all(|c| !c.is_control() && c != '\\')
        && glob
            .split('/')
            .all(|part| !matches!(part, "" | "." | "..") && (part == "**" || !part.contains("**")));
    (!fits).then_some("is a path below the repository, in which `*` and `**` may stand for more")
}

/// Returns whether a pattern of tools means the name. `db.*` means all inside `db`, neither `db` itself nor `dbx.y`.
pub(super) fn matches_tool(pattern: &str, name: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    match pattern.strip_suffix(".*") {
        Some(group) => name.strip_prefix(group).is_some_and(|rest| rest.starts_with('.')),
        None => pattern == name,
    }
}

/// Returns whether a name, or a prefix with `*` behind it, means the text.
pub(super) fn matches_prefix(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => pattern == text,
    }
}

/// Returns whether a domain means the host. `*.example.org` means all below `example.org`, not `example.org` itself.
pub(super) fn matches_domain(domain: &str, host: &str) -> bool {
    if domain == "*" {
        return !host.is_empty();
    }
    match domain.strip_prefix("*.") {
        Some(parent) => host
            .strip_suffix(parent)
            .and_then(|below| below.strip_suffix('.'))
            .is_some_and(|below| !below.is_empty()),
        None => domain == host,
    }
}

/// Returns whether a glob means the path. A path that is not below the repository is never meant.
pub(super) fn matches_glob(glob: &str, path: &str) -> bool {
    let names: Vec<&str> = path.split('/').collect();
    if names.iter().any(|name| matches!(*name, "" | "." | "..")) {
        return false;
    }
    let mut parts: Vec<&str> = glob.split('/').collect();
    // `docs/**` is what is in `docs`, not `docs` itself.
    if parts.last() == Some(&"**") {
        parts.push("*");
    }
    let fits = |part: &&str, name: &&str| {
        matches_sequence(part.as_bytes(), name.as_bytes(), |byte| *byte == b'*', |a, b| a == b)
    };
    matches_sequence(&parts, &names, |part| *part == "**", fits)
}

/// Returns whether a sequence with wildcards, each of which takes any number of items, means the text. It goes back to the last wildcard only:
/// what an earlier one could still take, the last one can take too. The time is at most the product of the lengths.
fn matches_sequence<P, T>(
    pattern: &[P],
    text: &[T],
    is_wildcard: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut next) = (0, 0);
    let mut last_wildcard: Option<(usize, usize)> = None;
    while let Some(item) = text.get(next) {
        match pattern.get(at) {
            Some(part) if is_wildcard(part) => {
                at += 1;
                last_wildcard = Some((at, next));
            }
            Some(part) if fits(part, item) => {
                at += 1;
                next += 1;
            }
            Some(_) | None => {
                let Some((after, from)) = last_wildcard else { return false };
                last_wildcard = Some((after, from + 1));
                (at, next) = (after, from + 1);
            }
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(is_wildcard))
}
