//! JavaScript and TypeScript: the manifest, the lock files of npm, pnpm and yarn, and the test runners.

use std::collections::{BTreeMap, BTreeSet};

use cynode_core::environments::{
    EnvironmentCheck, EnvironmentCheckKind, PackageSource, TestReportFormat,
};
use serde::Deserialize;
use serde_json::Value;

use crate::draft::{ProposalDraft, plain_check, reported_test};
use crate::packages::NODE_MAJOR;
use crate::repository::RepositoryFiles;
use crate::shell::{first_number, in_directory, is_plain_word, split_segments};

/// Installs what the lock file says. `npm ci` begins with nothing; a set-up that starts from an earlier one changes only what is different.
const LOCKED_INSTALL: &str = "test -d node_modules && npm install --no-save || npm ci";

/// File that test runners write their results to.
const REPORT_FILE: &str = ".cynode-report.json";

/// Memory of a test run, in MiB.
const TEST_MEMORY_MIB: u32 = 1024;

/// How deep scripts are followed that run scripts.
const MAX_SCRIPT_DEPTH: usize = 5;

/// Names of scripts that may hold the tests, after `test`.
const TEST_SCRIPTS: [&str; 6] =
    ["tests-only", "test:unit", "unit", "test:node", "test:ci", "tests"];

/// Packages that compile C or C++ when they are installed.
const NATIVE_PACKAGES: [&str; 8] = [
    "bcrypt",
    "better-sqlite3",
    "canvas",
    "cpu-features",
    "node-gyp",
    "node-sass",
    "re2",
    "sqlite3",
];

/// Packages that need a browser.
const BROWSER_PACKAGES: [&str; 5] =
    ["@playwright/test", "cypress", "karma", "playwright", "puppeteer"];

/// Package manager.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PackageManager {
    Npm,
    Pnpm,
    YarnClassic,
    YarnBerry,
}

/// Test runner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TestRunner {
    Jest,
    Vitest,
    Mocha,
    Ava,
    Tape,
    Tap,
    Node,
}

impl TestRunner {
    const INSTALLED: [Self; 6] =
        [Self::Vitest, Self::Jest, Self::Ava, Self::Mocha, Self::Tape, Self::Tap];

    const fn program(self) -> &'static str {
        match self {
            Self::Jest => "jest",
            Self::Vitest => "vitest",
            Self::Mocha => "mocha",
            Self::Ava => "ava",
            Self::Tape => "tape",
            Self::Tap => "tap",
            Self::Node => "node",
        }
    }
}

/// Manifest of a package.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PackageManifest {
    scripts: BTreeMap<String, Value>,
    dependencies: BTreeMap<String, Value>,
    dev_dependencies: BTreeMap<String, Value>,
    optional_dependencies: BTreeMap<String, Value>,
    engines: Value,
    package_manager: Value,
    workspaces: Value,
}

/// Lock file of npm, as far as it concerns the package itself.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PackageLock {
    packages: BTreeMap<String, LockedPackage>,
}

/// Entry of a lock file.
#[derive(Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LockedPackage {
    dependencies: BTreeMap<String, Value>,
    dev_dependencies: BTreeMap<String, Value>,
    optional_dependencies: BTreeMap<String, Value>,
}

impl PackageManifest {
    fn script(&self, name: &str) -> Option<&str> {
        self.scripts.get(name).and_then(Value::as_str)
    }

    fn all_dependencies(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.dependencies.iter().chain(&self.dev_dependencies).chain(&self.optional_dependencies)
    }
}

/// Proposes the lines of a package in a directory.
pub(crate) fn detect(files: &RepositoryFiles<'_>, directory: &str, draft: &mut ProposalDraft) {
    let path = format!("{directory}package.json");
    if !files.has_file(&path) {
        return;
    }
    let manifest = files.text(&path).and_then(|text| serde_json::from_str(text).ok());
    let Some(manifest): Option<PackageManifest> = manifest else {
        draft.add_warning(format!("`{path}` cannot be read as the manifest of a package."));
        return;
    };
    if manifest.scripts.is_empty() && manifest.all_dependencies().next().is_none() {
        return;
    }
    draft.add_packages(&["nodejs", "npm"], &path, "Node runs the code and npm installs packages.");
    draft.add_source(PackageSource::Npm, &path, "Dependencies are packages of npm.");
    let quiet = "npm asks nothing but the registry's packages.";
    draft.add_variable("npm_config_audit", "false", &path, quiet);
    draft.add_variable("npm_config_fund", "false", &path, quiet);
    draft.add_variable("npm_config_update_notifier", "false", &path, quiet);
    draft.add_variable("CI", "1", &path, "Test runners neither watch files nor ask.");
    draft.add_variable("NO_COLOR", "1", &path, "Results are read as plain text.");
    let installed = add_install(files, directory, &manifest, draft);
    inspect_dependencies(files, directory, &manifest, &installed, draft);
    add_tests(directory, &manifest, &installed, draft);
    add_other_checks(directory, &manifest, &installed, draft);
    draft.add_cache(
        &format!("{directory}node_modules/.cache"),
        &path,
        "Build tools keep their results there.",
    );
    draft.require_memory(TEST_MEMORY_MIB, &path, "Test runners start several processes.");
}

/// Adds the lines that install dependencies. Returns the names of those that the package itself asks for.
fn add_install(
    files: &RepositoryFiles<'_>,
    directory: &str,
    manifest: &PackageManifest,
    draft: &mut ProposalDraft,
) -> BTreeSet<String> {
    let own = || -> BTreeSet<String> {
        manifest.all_dependencies().map(|(name, _)| name.clone()).collect()
    };
    let path = format!("{directory}package.json");
    let (manager, lock) = find_package_manager(files, directory, manifest);
    if let Some(lock) = &lock {
        draft.add_lock_file(&format!("{directory}{lock}"));
    } else {
        draft.add_lock_file(&path);
    }
    let version = manifest.package_manager.as_str().and_then(|text| {
        let (_, version) = text.split_once('@')?;
        let version = version.split('+').next()?;
        is_plain_word(version).then_some(version)
    });
    let lock_text = lock.as_ref().and_then(|lock| files.text(&format!("{directory}{lock}")));
    match (manager, lock) {
        (PackageManager::Npm, Some(lock)) => {
            let root = lock_text
                .and_then(|text| serde_json::from_str::<PackageLock>(text).ok())
                .and_then(|mut lock| lock.packages.remove(""));
            match root {
                Some(root) if is_out_of_sync(manifest, &root) => {
                    add_locked_install(directory, &lock, draft);
                    let names =
                        [root.dependencies, root.dev_dependencies, root.optional_dependencies];
                    return names.into_iter().flat_map(BTreeMap::into_keys).collect();
                }
                _ => {
                    let reason = "It installs exactly what the lock file says.";
                    let lock = format!("{directory}{lock}");
                    draft.add_setup(in_directory(directory, LOCKED_INSTALL), &lock, reason);
                }
            }
        }
        (PackageManager::Npm, None) => {
            let command = in_directory(directory, "npm install --no-save --no-package-lock");
            let reason = "There is no lock file: it installs the newest versions that fit.";
            draft.add_setup(command, &path, reason);
            draft.add_warning(format!(
                "`{path}` has no lock file: commit one, so that every set-up installs the same versions."
            ));
        }
        (manager, _) => add_foreign_install(directory, manager, version, lock_text, draft),
    }
    own()
}

fn find_package_manager(
    files: &RepositoryFiles<'_>,
    directory: &str,
    manifest: &PackageManifest,
) -> (PackageManager, Option<String>) {
    let has = |name: &str| files.has_file(&format!("{directory}{name}"));
    for lock in ["package-lock.json", "npm-shrinkwrap.json"] {
        if has(lock) {
            return (PackageManager::Npm, Some(lock.to_owned()));
        }
    }
    if has("pnpm-lock.yaml") {
        return (PackageManager::Pnpm, Some("pnpm-lock.yaml".to_owned()));
    }
    if has("yarn.lock") {
        let text = files.text(&format!("{directory}yarn.lock")).unwrap_or_default();
        let asked = manifest.package_manager.as_str().unwrap_or_default();
        let berry = text.contains("__metadata:")
            || has(".yarnrc.yml")
            || asked.strip_prefix("yarn@").is_some_and(|version| !version.starts_with("1."));
        let manager = if berry { PackageManager::YarnBerry } else { PackageManager::YarnClassic };
        return (manager, Some("yarn.lock".to_owned()));
    }
    (PackageManager::Npm, None)
}

/// Whether `npm ci` would refuse the lock file because it belongs to other dependencies.
fn is_out_of_sync(manifest: &PackageManifest, root: &LockedPackage) -> bool {
    let all = |maps: [&BTreeMap<String, Value>; 3]| -> BTreeMap<String, Value> {
        maps.into_iter().flatten().map(|(name, range)| (name.clone(), range.clone())).collect()
    };
    manifest.workspaces.is_null()
        && all([
            &manifest.dependencies,
            &manifest.dev_dependencies,
            &manifest.optional_dependencies,
        ]) != all([&root.dependencies, &root.dev_dependencies, &root.optional_dependencies])
}

/// Adds lines that install what the lock file says, although the manifest says something else.
fn add_locked_install(directory: &str, lock: &str, draft: &mut ProposalDraft) {
    let file = format!("{directory}{lock}");
    let script = format!(
        "const fs = require(\"fs\"); const lock = JSON.parse(fs.readFileSync(\"{lock}\")); \
         fs.mkdirSync(\".cynode-npm\", {{ recursive: true }}); \
         fs.writeFileSync(\".cynode-npm/package.json\", JSON.stringify(lock.packages[\"\"])); \
         fs.copyFileSync(\"{lock}\", \".cynode-npm/package-lock.json\")"
    );
    let reason = "The lock file belongs to other dependencies than the manifest names, which `npm ci` refuses: what it locks is installed \
                  beside the manifest.";
    draft.add_setup(in_directory(directory, &format!("node -e '{script}'")), &file, reason);
    // Versions of npm differ in what they take for complete; the copy of the lock file may be completed.
    let install = format!("(cd {directory}.cynode-npm && {{ npm ci || npm install; }})");
    draft.add_setup(install, &file, reason);
    let move_here =
        "rm -rf node_modules && mv .cynode-npm/node_modules node_modules && rm -rf .cynode-npm";
    draft.add_setup(in_directory(directory, move_here), &file, reason);
    draft.add_warning(format!(
        "`{file}` does not belong to the dependencies of the manifest. Set-up installs what it locks."
    ));
}

/// Adds lines that install pnpm or yarn, and the dependencies with it.
fn add_foreign_install(
    directory: &str,
    manager: PackageManager,
    version: Option<&str>,
    lock_text: Option<&str>,
    draft: &mut ProposalDraft,
) {
    let old_lock = lock_text.is_some_and(|text| {
        let format = text.lines().find_map(|line| line.strip_prefix("lockfileVersion:"));
        format.and_then(first_number).is_some_and(|number| number < 9)
    });
    let (package, program, install, lock) = match manager {
        PackageManager::Npm => return,
        PackageManager::Pnpm => {
            let version = version.unwrap_or(if old_lock { "8" } else { "9" });
            (format!("pnpm@{version}"), "pnpm", "install --frozen-lockfile", "pnpm-lock.yaml")
        }
        PackageManager::YarnClassic => {
            let package = format!("yarn@{}", version.unwrap_or("1.22.22"));
            (package, "yarn", "install --frozen-lockfile --non-interactive", "yarn.lock")
        }
        PackageManager::YarnBerry => {
            let package = format!("@yarnpkg/cli-dist@{}", version.unwrap_or("4"));
            (package, "yarn", "install --immutable", "yarn.lock")
        }
    };
    let file = format!("{directory}{lock}");
    let reason = "The lock file is of this package manager, which Debian does not have.";
    draft.add_setup(
        format!("npm install --global --prefix \"$HOME/.local\" {package}"),
        &file,
        reason,
    );
    let command = in_directory(directory, &format!("\"$HOME/.local/bin/{program}\" {install}"));
    draft.add_setup(command, &file, "It installs exactly what the lock file says.");
    if manager == PackageManager::YarnBerry {
        let reason = "Programs and tests find packages in `node_modules`.";
        draft.add_variable("YARN_NODE_LINKER", "node-modules", &file, reason);
        draft.add_variable("YARN_ENABLE_TELEMETRY", "0", &file, "Yarn reports nothing.");
    }
}

/// Adds what dependencies need of the system, and warns about what cannot be had.
fn inspect_dependencies(
    files: &RepositoryFiles<'_>,
    directory: &str,
    manifest: &PackageManifest,
    installed: &BTreeSet<String>,
    draft: &mut ProposalDraft,
) {
    let path = format!("{directory}package.json");
    let native = NATIVE_PACKAGES.into_iter().find(|name| installed.contains(*name));
    if native.is_some() || files.has_file(&format!("{directory}binding.gyp")) {
        let reason = "A package compiles code when it is installed.";
        draft.add_packages(&["build-essential", "python3"], &path, reason);
    }
    if installed.contains("husky") {
        draft.add_variable("HUSKY", "0", &path, "Set-up installs no hooks of git.");
    }
    for name in BROWSER_PACKAGES.into_iter().filter(|name| installed.contains(*name)) {
        draft.add_warning(format!(
            "`{name}` needs a browser, which set-up does not install: add `chromium` to `system_packages` or leave these tests out."
        ));
    }
    for (name, range) in manifest.all_dependencies().filter(|(name, _)| installed.contains(*name)) {
        let range = range.as_str().unwrap_or_default();
        let from_git = range.starts_with("git") || range.contains("://") || {
            let plain = !range.contains(':') && !range.starts_with(['.', '/', '@', '~']);
            plain && range.contains('/')
        };
        if from_git {
            draft.add_warning(format!(
                "The dependency `{name}` comes from `{range}`, which the package proxy does not fetch: use a release."
            ));
        }
    }
    let engine = manifest.engines.get("node").and_then(Value::as_str).unwrap_or_default();
    let lower = engine.trim_start().starts_with(['>', '^', '~'])
        || engine.starts_with(|c: char| c.is_ascii_digit());
    if lower
        && !engine.contains("||")
        && let Some(major) = first_number(engine)
        && major > NODE_MAJOR
    {
        draft.add_warning(format!(
            "`{path}` asks for Node {major}; Debian's package has {NODE_MAJOR}. If tests need it, choose an image as `base`."
        ));
    }
}

/// Adds the test command.
fn add_tests(
    directory: &str,
    manifest: &PackageManifest,
    installed: &BTreeSet<String>,
    draft: &mut ProposalDraft,
) {
    let path = format!("{directory}package.json");
    let names = ["test"].into_iter().chain(TEST_SCRIPTS);
    let scripted = names
        .filter_map(|name| find_runner(manifest, name, MAX_SCRIPT_DEPTH))
        .find(|(runner, _)| *runner == TestRunner::Node || installed.contains(runner.program()));
    let (runner, words) = match scripted {
        Some(scripted) => scripted,
        None => {
            let runner =
                TestRunner::INSTALLED.into_iter().find(|it| installed.contains(it.program()));
            match (runner, manifest.script("test")) {
                (Some(runner @ (TestRunner::Vitest | TestRunner::Jest | TestRunner::Ava)), _) => {
                    (runner, Vec::new())
                }
                (_, Some(script)) if !script.contains("no test specified") => {
                    let command = in_directory(directory, "npm test");
                    let check = plain_check(EnvironmentCheckKind::Test, command);
                    draft.add_check(check, &path, "The script `test` runs the tests.");
                    return;
                }
                _ => return,
            }
        }
    };
    let check = runner_check(runner, &words, directory, manifest);
    let program = runner.program();
    let reason =
        format!("The tests run with {program}; called directly, it says the result of each test.");
    draft.add_check(check, &path, &reason);
}

/// Finds the runner that a script comes to: the variables before it and the words behind it.
fn find_runner(
    manifest: &PackageManifest,
    name: &str,
    depth: usize,
) -> Option<(TestRunner, Vec<String>)> {
    let depth = depth.checked_sub(1)?;
    for words in split_segments(manifest.script(name)?) {
        if let Some(found) = parse_runner(&words) {
            return Some(found);
        }
        let mut plain = words.iter().map(String::as_str).filter(|word| !word.starts_with('-'));
        if !matches!(plain.next(), Some("npm" | "yarn" | "pnpm" | "run-s" | "npm-run-all")) {
            continue;
        }
        for script in plain.filter(|word| *word != "run").take(4) {
            if script != name
                && let Some(found) = find_runner(manifest, script, depth)
            {
                return Some(found);
            }
        }
    }
    None
}

/// Reads a segment that starts a runner.
fn parse_runner(words: &[String]) -> Option<(TestRunner, Vec<String>)> {
    let program = |word: &str| -> Option<TestRunner> {
        let name = word.rsplit('/').next().unwrap_or(word);
        let name = name.trim_end_matches(".mjs").trim_end_matches(".cjs").trim_end_matches(".js");
        let known = match name {
            "_mocha" => "mocha",
            known => known,
        };
        // A file of the repository may have the name of a runner.
        let own = word.contains('/') && !word.contains("node_modules/");
        TestRunner::INSTALLED.into_iter().find(|it| !own && it.program() == known)
    };
    let (at, runner) = if words.iter().any(|word| word == "--test")
        && let Some(at) = words.iter().position(|word| word == "node")
    {
        (at, TestRunner::Node)
    } else {
        words.iter().enumerate().find_map(|(at, word)| Some((at, program(word)?)))?
    };
    let is_assignment = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        })
    };
    let before = words.get(..at).unwrap_or_default();
    let mut kept: Vec<String> = before.iter().filter(|word| is_assignment(word)).cloned().collect();
    // `node --flag node_modules/jest/bin/jest.js` keeps its flags.
    let through_node = before.iter().any(|word| word == "node");
    if runner == TestRunner::Node {
        kept.push("node".to_owned());
    } else if through_node && words.get(at).is_some_and(|word| word.contains('/')) {
        let node = before.iter().skip_while(|word| *word != "node");
        kept.extend(node.cloned());
        kept.extend(words.get(at).cloned());
    } else {
        kept.push(format!("node_modules/.bin/{}", runner.program()));
    }
    kept.extend(words.iter().skip(at + 1).cloned());
    Some((runner, kept))
}

/// Makes the check of a runner: its words without what watches, measures coverage or chooses another report.
fn runner_check(
    runner: TestRunner,
    words: &[String],
    directory: &str,
    manifest: &PackageManifest,
) -> EnvironmentCheck {
    let program = format!("node_modules/.bin/{}", runner.program());
    let mut command: Vec<String> = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--reporter" | "-R" | "--reporters" | "--test-reporter" => {
                words.next();
            }
            "--tap" | "-t" if runner == TestRunner::Ava => {}
            "--watch" | "--watchAll" | "--ui" => {}
            // Jest's `-w` is a number of workers.
            "-w" if runner != TestRunner::Jest => {}
            "run" | "watch" if runner == TestRunner::Vitest => {}
            _ if word.starts_with("--coverage")
                || word.starts_with("--reporter")
                || word.starts_with("--test-reporter") => {}
            _ => command.push(word.clone()),
        }
    }
    if command.is_empty() {
        command.push(program);
    }
    let report = format!("{directory}{REPORT_FILE}");
    let json = Some(report);
    let (extra, format, report) = match runner {
        TestRunner::Jest => {
            let extra = format!("--ci --json --outputFile={REPORT_FILE}");
            (extra, TestReportFormat::Jest, json)
        }
        TestRunner::Vitest => {
            let extra =
                format!("--reporter=default --reporter=json --outputFile.json={REPORT_FILE}");
            let at =
                command.iter().position(|word| word.ends_with("vitest")).map_or(0, |at| at + 1);
            command.insert(at.min(command.len()), "run".to_owned());
            (extra, TestReportFormat::Jest, json)
        }
        TestRunner::Mocha => ("--reporter spec".to_owned(), TestReportFormat::Mocha, None),
        TestRunner::Ava => ("--tap".to_owned(), TestReportFormat::Tap, None),
        TestRunner::Tape => (String::new(), TestReportFormat::Tap, None),
        TestRunner::Tap => ("--reporter=tap".to_owned(), TestReportFormat::Tap, None),
        TestRunner::Node => {
            let at = command.iter().position(|word| word == "--test").map_or(0, |at| at + 1);
            command.insert(at.min(command.len()), "--test-reporter=tap".to_owned());
            (String::new(), TestReportFormat::Tap, None)
        }
    };
    if !extra.is_empty() {
        command.push(extra);
    }
    let builds =
        |script: &str| ["build", "tsc", "compile"].into_iter().any(|word| script.contains(word));
    let command = command.join(" ");
    let command = match manifest.script("pretest").filter(|script| builds(script)) {
        Some(_) => format!("npm run --silent pretest && {command}"),
        None => command,
    };
    reported_test(in_directory(directory, &command), format, report)
}

/// Adds lint, type and format checks whose programs are installed.
fn add_other_checks(
    directory: &str,
    manifest: &PackageManifest,
    installed: &BTreeSet<String>,
    draft: &mut ProposalDraft,
) {
    let path = format!("{directory}package.json");
    let scripts = [
        ("lint", EnvironmentCheckKind::Lint),
        ("typecheck", EnvironmentCheckKind::Lint),
        ("type-check", EnvironmentCheckKind::Lint),
        ("check-types", EnvironmentCheckKind::Lint),
        ("format:check", EnvironmentCheckKind::Format),
        ("format-check", EnvironmentCheckKind::Format),
        ("prettier:check", EnvironmentCheckKind::Format),
    ];
    for (name, kind) in scripts {
        let Some(script) = manifest.script(name) else { continue };
        let has_program = |words: &Vec<String>| {
            let program = words.first().map(String::as_str).unwrap_or_default();
            match program {
                "tsc" => installed.contains("typescript"),
                "biome" => installed.contains("@biomejs/biome"),
                program => installed.contains(program),
            }
        };
        let around = [format!("pre{name}"), format!("post{name}")];
        let more = around.iter().any(|name| manifest.scripts.contains_key(name));
        let changes_files = script.contains("--fix") || script.contains("--write");
        if split_segments(script).iter().all(has_program) && !more && !changes_files {
            let command = in_directory(directory, &format!("npm run --silent {name}"));
            let reason = format!("The script `{name}` is there, and its program is installed.");
            draft.add_check(plain_check(kind, command), &path, &reason);
        }
    }
}
