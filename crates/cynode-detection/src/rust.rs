//! Rust: Cargo's manifest, lock file, toolchain file and configuration.

use cynode_core::environments::{PackageSource, TestReportFormat};
use toml::{Table, Value};

use crate::ci::CiHints;
use crate::draft::{ProposalDraft, reported_test};
use crate::packages::RUST_MINOR;
use crate::repository::RepositoryFiles;
use crate::shell::{in_directory, is_plain_word};

/// Minor version of Rust from which on a crate counts as written for today's compiler.
const RECENT_RUST_MINOR: u32 = 85;

/// Memory of a build, in MiB.
const BUILD_MEMORY_MIB: u32 = 2048;

/// Crates that need a library or a program of the system.
const NATIVE_CRATES: [(&str, &[&str]); 16] = [
    ("alsa-sys", &["libasound2-dev", "pkg-config"]),
    ("aws-lc-sys", &["cmake"]),
    ("bindgen", &["libclang-dev"]),
    ("clang-sys", &["libclang-dev"]),
    ("cmake", &["cmake", "build-essential"]),
    ("cxx-build", &["build-essential"]),
    ("glib-sys", &["libglib2.0-dev", "pkg-config"]),
    ("gtk-sys", &["libgtk-3-dev", "pkg-config"]),
    ("libdbus-sys", &["libdbus-1-dev", "pkg-config"]),
    ("libudev-sys", &["libudev-dev", "pkg-config"]),
    ("link-cplusplus", &["build-essential"]),
    ("openssl-sys", &["libssl-dev", "pkg-config"]),
    ("pq-sys", &["libpq-dev", "pkg-config"]),
    ("prost-build", &["protobuf-compiler"]),
    ("protobuf-src", &["build-essential", "cmake"]),
    ("rdkafka-sys", &["build-essential"]),
];

/// Proposes the lines of a Cargo package or workspace in a directory.
pub(crate) fn detect(
    files: &RepositoryFiles<'_>,
    directory: &str,
    hints: &CiHints,
    draft: &mut ProposalDraft,
) {
    let path = format!("{directory}Cargo.toml");
    if !files.has_file(&path) {
        return;
    }
    let manifest = files.text(&path).and_then(|text| toml::from_str::<Table>(text).ok());
    let Some(manifest) = manifest else {
        draft.add_warning(format!("`{path}` cannot be read as TOML."));
        return;
    };
    draft.add_packages(&["rustc-web", "cargo-web"], &path, "Cargo builds and tests the code.");
    draft.add_source(PackageSource::Crates, &path, "Dependencies are crates.");
    let lock = format!("{directory}Cargo.lock");
    let locked = files.has_file(&lock);
    let locked_flag = if locked { " --locked" } else { "" };
    if locked {
        draft.add_lock_file(&lock);
        inspect_lock_file(files.text(&lock).unwrap_or_default(), &lock, draft);
    } else {
        draft.add_lock_file(&path);
        draft.add_warning(format!(
            "There is no `{lock}`: set-up makes one, which is kept with the environment and is no part of the repository."
        ));
    }
    inspect_toolchain(files, directory, draft);
    let flags = test_flags(&manifest, hints);
    let host = r#""$(rustc -vV | sed -n 's/^host: //p')""#;
    let fetch = format!("cargo fetch{locked_flag} --target {host}");
    let fetch_reason = if locked {
        "It fetches the crates of the lock file, for this machine only."
    } else {
        "It fetches the newest crates that fit, for this machine only."
    };
    draft.add_setup(in_directory(directory, &fetch), &path, fetch_reason);
    let build = format!("cargo test --offline{locked_flag}{flags} --tests --no-run");
    let build_reason =
        "It compiles dependencies and tests once, so that jobs compile only what changes.";
    draft.add_setup(in_directory(directory, &build), &path, build_reason);
    let test = format!("cargo test --offline{locked_flag}{flags} --tests --no-fail-fast");
    let test = reported_test(in_directory(directory, &test), TestReportFormat::Cargo, None);
    let test_reason = "It runs unit and integration tests. Examples in the documentation are compiled one by one and left out; \
                       `cargo test --doc` runs them.";
    draft.add_check(test, &path, test_reason);
    draft.add_cache(&format!("{directory}target"), &path, "Cargo builds there.");
    let smaller = "The build is smaller and twice as fast; tests do not need it.";
    draft.add_variable("CARGO_INCREMENTAL", "0", &path, smaller);
    draft.add_variable("CARGO_PROFILE_DEV_DEBUG", "0", &path, smaller);
    let config = [format!("{directory}.cargo/config.toml"), format!("{directory}.cargo/config")];
    let own_flags =
        config.iter().filter_map(|path| files.text(path)).any(|text| text.contains("rustflags"));
    if is_old(&manifest) && !own_flags {
        let reason = "The code is older than the compiler: lints that have become errors since are shown as warnings.";
        draft.add_variable("RUSTFLAGS", "--cap-lints=warn", &path, reason);
    }
    draft.require_memory(BUILD_MEMORY_MIB, &path, "The compiler and the linker need it.");
    if let Some((_, file)) = hints.arguments_of(&["cargo", "clippy"]) {
        draft.add_warning(format!(
            "`{file}` runs `cargo clippy`, which Debian's packages of Rust do not have: choose an image with it as `base` to check lints."
        ));
    }
}

/// Flags that choose packages and features.
fn test_flags(manifest: &Table, hints: &CiHints) -> String {
    let mut flags = String::new();
    if manifest.contains_key("workspace") {
        flags.push_str(" --workspace");
    }
    let (arguments, _) = hints.arguments_of(&["cargo", "test"]).unwrap_or_default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all-features" | "--no-default-features" => {
                flags.push(' ');
                flags.push_str(argument);
            }
            "--features" => {
                if let Some(names) = arguments.next().filter(|names| is_plain_word(names)) {
                    flags.push_str(" --features ");
                    flags.push_str(names);
                }
            }
            _ => {}
        }
    }
    flags
}

/// Adds what the crates of a lock file need of the system, and warns about those that no registry has.
fn inspect_lock_file(text: &str, path: &str, draft: &mut ProposalDraft) {
    let names = text.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    for name in names {
        if let Some((_, packages)) = NATIVE_CRATES.iter().find(|(known, _)| *known == name) {
            draft.add_packages(packages, path, &format!("The crate `{name}` needs it."));
        }
    }
    if text.contains("source = \"git+") {
        draft.add_warning(format!(
            "`{path}` has dependencies from git, which the package proxy does not fetch: use releases, or keep a copy (`cargo vendor`)."
        ));
    }
}

/// Warns about a toolchain that Debian does not have.
fn inspect_toolchain(files: &RepositoryFiles<'_>, directory: &str, draft: &mut ProposalDraft) {
    for name in ["rust-toolchain.toml", "rust-toolchain"] {
        let path = format!("{directory}{name}");
        let Some(text) = files.text(&path) else { continue };
        draft.add_lock_file(&path);
        let table = toml::from_str::<Table>(text).ok();
        let channel = table.as_ref().and_then(|table| table.get("toolchain")?.get("channel"));
        let channel = channel.and_then(Value::as_str).unwrap_or_else(|| text.trim());
        let minor = rust_minor(channel);
        if channel != "stable" && minor.is_none_or(|minor| minor > RUST_MINOR) {
            draft.add_warning(format!(
                "`{path}` asks for the toolchain `{channel}`; Debian's package is the stable Rust 1.{RUST_MINOR}. \
                 If the code needs another, choose an image as `base`."
            ));
        }
        return;
    }
}

/// Whether the manifest says that the code was written for a much older compiler.
fn is_old(manifest: &Table) -> bool {
    let package = manifest.get("package");
    let workspace = manifest.get("workspace").and_then(|workspace| workspace.get("package"));
    let field = |name: &str| {
        let own = package.and_then(|package| package.get(name)?.as_str());
        own.or_else(|| workspace.and_then(|package| package.get(name)?.as_str()))
    };
    match field("rust-version").and_then(rust_minor) {
        Some(minor) => minor < RECENT_RUST_MINOR,
        None => package.is_some() && matches!(field("edition"), None | Some("2015" | "2018")),
    }
}

/// Minor version of `1.64` or `1.64.0`.
fn rust_minor(version: &str) -> Option<u32> {
    version.strip_prefix("1.")?.split('.').next()?.parse().ok()
}
