//! Devcontainer files: image, features that are plain packages, commands and variables, read as a proposal.

use cynode_core::environments::{
    EnvironmentBase, EnvironmentProposal, EnvironmentSpec, ProposalReason,
};
use jsonc_parser::{ParseOptions, parse_to_serde_value};
use serde_json::{Map, Value};

use crate::draft::ProposalDraft;
use crate::shell::quote_word;

/// Maximum number of bytes of a devcontainer file.
const MAX_DEVCONTAINER_BYTES: usize = 256 << 10;

/// Name that reasons give the file.
const FILE: &str = "devcontainer.json";

/// Features that are plain packages.
const FEATURES: [(&str, &[&str]); 14] = [
    ("common-utils", &["curl", "git", "jq", "unzip"]),
    ("git", &["git"]),
    ("node", &["nodejs", "npm"]),
    ("python", &["python3", "python3-venv", "python3-pip"]),
    ("rust", &["rustc-web", "cargo-web"]),
    ("go", &["golang"]),
    ("java", &["default-jdk-headless", "maven"]),
    ("ruby", &["ruby", "bundler"]),
    ("php", &["php-cli"]),
    ("cmake", &["cmake", "build-essential"]),
    ("sqlite", &["sqlite3"]),
    ("postgres", &["postgresql", "postgresql-client"]),
    ("redis", &["redis-server", "redis-tools"]),
    ("protoc", &["protobuf-compiler"]),
];

/// Commands that prepare a container, in the order in which they run.
const SETUP_KEYS: [&str; 3] = ["onCreateCommand", "updateContentCommand", "postCreateCommand"];

/// Keys that only an editor or a terminal needs.
const EDITOR_KEYS: [&str; 10] = [
    "$schema",
    "name",
    "customizations",
    "extensions",
    "settings",
    "remoteUser",
    "containerUser",
    "updateRemoteUserUID",
    "otherPortsAttributes",
    "portsAttributes",
];

/// Reads a devcontainer file, which is JSON with comments, as a proposal.
pub fn read_devcontainer(text: &str) -> Result<EnvironmentProposal, String> {
    if text.len() > MAX_DEVCONTAINER_BYTES {
        return Err(format!("the devcontainer file has more than {MAX_DEVCONTAINER_BYTES} bytes"));
    }
    let document: Value = parse_to_serde_value(text, &ParseOptions::default())
        .map_err(|error| format!("the devcontainer file is no JSON with comments: {error}"))?;
    let Value::Object(mut document) = document else {
        return Err("the devcontainer file holds no object".to_owned());
    };
    let mut draft = ProposalDraft::default();
    let image = document.remove("image");
    if let Some(features) = document.remove("features").as_ref().and_then(Value::as_object) {
        add_features(features, &mut draft);
    }
    for key in SETUP_KEYS {
        if let Some(command) = document.remove(key) {
            add_command(key, &command, &mut draft);
        }
    }
    for key in ["containerEnv", "remoteEnv"] {
        if let Some(variables) = document.remove(key).as_ref().and_then(Value::as_object) {
            add_variables(key, variables, &mut draft);
        }
    }
    for key in document.keys().filter(|key| !EDITOR_KEYS.contains(&key.as_str())).take(30) {
        draft.add_warning(match key.as_str() {
            "build" | "dockerFile" | "dockerComposeFile" => {
                format!("`{key}` builds an image, which CyNode does not: build it and name it as `image`.")
            }
            "postStartCommand" | "postAttachCommand" => {
                format!("`{key}` runs at every start: put it into `services` if checks need it.")
            }
            "mounts" | "runArgs" | "privileged" | "capAdd" | "securityOpt" | "workspaceMount"
            | "workspaceFolder" => format!("`{key}` is not taken over: sandboxes have their own mounts and rights."),
            _ => format!("`{key}` is not taken over."),
        });
    }
    let mut proposal = draft.finish();
    if let Some(image) = image {
        set_image(&image, &mut proposal);
    }
    Ok(proposal)
}

/// Takes the image over, if it is the name of one.
fn set_image(image: &Value, proposal: &mut EnvironmentProposal) {
    let base = EnvironmentBase::Image(image.as_str().unwrap_or_default().trim().to_owned());
    let probe = EnvironmentSpec { base, ..EnvironmentSpec::default() };
    if let Some(error) = probe.validation_error() {
        proposal.warnings.push(format!("`image` is left out: {error}."));
        return;
    }
    proposal.reasons.insert(
        0,
        ProposalReason {
            line: format!("base: image {}", image.as_str().unwrap_or_default().trim()),
            file: FILE.to_owned(),
            reason: "The file names it as `image`; the installation must allow it.".to_owned(),
        },
    );
    proposal.spec.base = probe.base;
}

fn add_features(features: &Map<String, Value>, draft: &mut ProposalDraft) {
    for (name, options) in features.iter().take(50) {
        // `registry/owner/features/NAME:VERSION`
        let short = name.rsplit('/').next().unwrap_or(name);
        let short = short.split([':', '@']).next().unwrap_or(short);
        match FEATURES.iter().find(|(known, _)| *known == short) {
            Some((_, packages)) => {
                let reason = format!("The feature `{short}` is made of plain packages.");
                draft.add_packages(packages, FILE, &reason);
                let version = options.get("version").or(Some(options)).and_then(Value::as_str);
                if let Some(version) = version
                    && !["latest", "lts", "none", "os-provided", "stable"].contains(&version)
                {
                    draft.add_warning(format!(
                        "The feature `{short}` asks for version `{version}`; Debian's packages have their own."
                    ));
                }
            }
            None => draft.add_warning(format!(
                "The feature `{name}` runs a script of its own and is not taken over: name Debian packages in `system_packages` instead."
            )),
        }
    }
}

/// Adds a command: a line for a shell, a list of words, or an object of both, whose values run one after the other.
fn add_command(key: &str, command: &Value, draft: &mut ProposalDraft) {
    let reason = format!("The file names it as `{key}`.");
    match command {
        Value::String(line) => draft.add_setup(line.trim(), FILE, &reason),
        Value::Array(words) => {
            let words: Vec<String> =
                words.iter().filter_map(Value::as_str).map(quote_word).collect();
            draft.add_setup(words.join(" "), FILE, &reason);
        }
        Value::Object(commands) => {
            for command in commands.values().filter(|it| !it.is_object()).take(50) {
                add_command(key, command, draft);
            }
        }
        _ => draft.add_warning(format!("`{key}` is no command.")),
    }
}

fn add_variables(key: &str, variables: &Map<String, Value>, draft: &mut ProposalDraft) {
    for (name, value) in variables.iter().take(100) {
        match value.as_str() {
            Some(value) if !value.contains("${") => {
                draft.add_variable(name, value, FILE, &format!("The file sets it in `{key}`."));
            }
            Some(_) => draft.add_warning(format!(
                "The variable `{name}` takes its value from elsewhere: set it by hand, or as a secret."
            )),
            None => draft.add_warning(format!("The variable `{name}` has no text as its value.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cynode_core::environments::PackageSource;

    use super::*;

    #[test]
    fn a_devcontainer_file_becomes_a_proposal_and_the_rest_warnings() {
        let text = r#"{
            // the image
            "image": "registry.example/team/base:1",
            "features": { "ghcr.example/features/node:1": { "version": "20" }, "ghcr.example/other/thing:1": {} },
            "onCreateCommand": "make prepare",
            "postCreateCommand": { "web": ["npm", "ci"], "more": "echo it's", },
            "containerEnv": { "MODE": "test", "HOME_OF": "${localEnv:HOME}" },
            "mounts": [],
            "customizations": {},
        }"#;
        let proposal = read_devcontainer(text).unwrap();
        let expected = EnvironmentSpec {
            base: EnvironmentBase::Image("registry.example/team/base:1".to_owned()),
            system_packages: vec!["nodejs".to_owned(), "npm".to_owned()],
            setup: vec!["make prepare".to_owned(), "npm ci".to_owned(), "echo it's".to_owned()],
            variables: BTreeMap::from([("MODE".to_owned(), "test".to_owned())]),
            package_sources: vec![PackageSource::Debian],
            ..EnvironmentSpec::default()
        };
        assert_eq!(proposal.spec, expected);
        assert_eq!(
            proposal.warnings,
            [
                "The feature `node` asks for version `20`; Debian's packages have their own.",
                "The feature `ghcr.example/other/thing:1` runs a script of its own and is not taken over: name Debian packages in `system_packages` instead.",
                "The variable `HOME_OF` takes its value from elsewhere: set it by hand, or as a secret.",
                "`mounts` is not taken over: sandboxes have their own mounts and rights.",
            ]
        );
        assert_eq!(proposal.spec.validation_error(), None);
    }

    #[test]
    fn what_is_no_devcontainer_file_is_refused() {
        assert!(read_devcontainer("[1]").is_err());
        assert!(read_devcontainer("{").is_err());
        assert!(read_devcontainer(&"[".repeat(100_000)).is_err());
        assert!(read_devcontainer(&" ".repeat(1 << 20)).is_err());
    }
}
