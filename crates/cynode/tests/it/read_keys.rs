//! Every preference and every setting is read by some code: what nobody reads is not offered.

use cynode_core::{preferences::registry::KNOWN, settings::registry::SETTINGS};

use crate::source::{files, read};

/// The source of the programs without their registries and tests.
fn sources() -> Vec<String> {
    files("crates")
        .into_iter()
        .filter(|path| path.contains("/src/") && path.ends_with(".rs"))
        .filter(|path| !path.contains("/tests") && !path.ends_with("/registry.rs"))
        .filter(|path| !path.starts_with("crates/cynode-e2e/") && !path.contains("-testkit"))
        .map(|path| read(&path))
        .collect()
}

#[test]
fn every_preference_is_read_by_code_or_told_to_an_agent() {
    let sources = sources();
    let unread: Vec<_> = KNOWN
        .iter()
        .filter(|known| !known.meaning.contains(" told"))
        .map(|known| known.key)
        .filter(|key| {
            // Code reads a whole key, or a group of keys and then the last part.
            let last = key.rsplit('.').next().unwrap_or(key);
            let part =
                if last.starts_with('<') { key.split(".<").next().unwrap_or(key) } else { last };
            !sources.iter().any(|text| text.contains(part))
        })
        .collect();
    assert_eq!(unread, Vec::<&str>::new());
}

#[test]
fn every_setting_is_read_by_code() {
    let (registry, sources) = (read("crates/cynode-core/src/settings/registry.rs"), sources());
    let migrations = files("crates/cynode-db/migrations").into_iter();
    let functions: Vec<_> = migrations.map(|path| read(&path)).collect();
    let unread: Vec<_> = SETTINGS
        .iter()
        .map(|setting| setting.key)
        .filter(|key| {
            // A long constant has its value on the next line. Some stand beside what they configure.
            let constant = registry
                .split_once(&format!("\"{key}\";"))
                .and_then(|(before, _)| before.rsplit_once("pub const "))
                .and_then(|(_, constant)| constant.split_once(':'))
                .map_or(*key, |(constant, _)| constant);
            !sources.iter().any(|text| text.contains(constant))
        })
        // A function of the database reads its own.
        .filter(|key| !functions.iter().any(|text| text.contains(&format!("s.key = '{key}'"))))
        .collect();
    assert_eq!(unread, Vec::<&str>::new());
}
