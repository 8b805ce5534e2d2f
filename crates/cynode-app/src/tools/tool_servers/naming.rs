//! Names of a server's tools: the server's own name where it is valid, and unique in any case.

use cynode_policy::{digest::Sha256Digest, tool_names::ToolName};

use crate::Error;

/// Rejects unusable names of a server.
pub(super) fn validate_server_name(name: &str, prefix: &str) -> Result<(), Error> {
    let good = (1..=31).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && format!("ext.{name}").parse::<ToolName>().is_ok();
    if !good {
        let rule = "a tool server's name has 1 to 31 of a-z, 0-9 and single `-` inside";
        return Err(Error::Invalid(rule.into()));
    }
    if prefix.is_empty() {
        return Ok(());
    }
    match prefix.parse::<ToolName>() {
        Ok(prefix) if prefix.as_str().len() <= 40 && !is_native_prefix(&prefix) => Ok(()),
        _ => Err(Error::Invalid(
            "`prefix` is a tool's name of at most 40 characters outside our own namespaces, or empty".into(),
        )),
    }
}

fn is_native_prefix(prefix: &ToolName) -> bool {
    cynode_policy::tool_names::NATIVE_NAMESPACES.contains(&prefix.namespace())
}

/// Returns the name of a server's tool, or `None` when no valid one exists.
pub(super) fn tool_name_for(prefix: &str, tool: &str) -> Option<ToolName> {
    let with = |tail: &str| {
        let text = if prefix.is_empty() { tail.to_owned() } else { format!("{prefix}.{tail}") };
        text.parse::<ToolName>().ok()
    };
    if let Some(name) = with(tool) {
        return Some(name);
    }
    // A digest of the original name keeps sanitized names apart.
    let words: Vec<_> =
        tool.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let digest = Sha256Digest::of_bytes(tool.as_bytes()).to_string();
    let clean: String = words.join("-").chars().take(16).collect();
    let clean = clean.trim_end_matches('-');
    let tail = if clean.is_empty() {
        digest[..12].to_owned()
    } else {
        format!("{clean}-{}", &digest[..12])
    };
    with(&tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(prefix: &str, tool: &str) -> String {
        tool_name_for(prefix, tool).unwrap().to_string()
    }

    #[test]
    fn a_tool_keeps_its_name_where_it_is_one() {
        assert_eq!(named("ext.todo", "add_item"), "ext.todo.add_item");
        assert_eq!(named("", "test_simple_text"), "test_simple_text");
    }

    #[test]
    fn names_that_are_none_stay_apart() {
        let odd = ["a__b", "a--b", "a b", "a/b", "_ab", "日本", "", &"x".repeat(128)];
        let names: std::collections::BTreeSet<_> =
            odd.iter().map(|tool| named("ext.todo", tool)).collect();
        assert_eq!(names.len(), odd.len());
    }

    #[test]
    fn no_server_gets_a_name_or_prefix_inside_ours() {
        assert!(
            validate_server_name("todo", "ext.todo").is_ok()
                && validate_server_name("todo", "").is_ok()
        );
        for (name, prefix) in
            [("Todo", ""), ("a--b", "ext.x"), ("todo", "db"), ("todo", "db.x"), ("todo", "a..b")]
        {
            assert!(validate_server_name(name, prefix).is_err(), "{name} {prefix}");
        }
    }
}
