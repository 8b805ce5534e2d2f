//! Evidence: commands that show whether a criterion holds, the verdict over their runs, and changes that a commit must
//! not make.
//!
//! The worker that did the work takes no part. Checks run in a sandbox of their own from the commit that was delivered.
//! Changes to tests and to files that decide what checks do are read from the commit. [`is_plain_path`] refuses path
//! traversal.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::test_results::TestRunComparison;
use crate::environments::TestReportSource;

pub mod base;
pub mod languages;
pub mod test_results;

/// How long a check may take when it does not say.
pub const DEFAULT_CHECK_SECONDS: u32 = 600;

/// Longest time of a check.
pub const MAX_CHECK_SECONDS: u32 = 3600;

/// Most checks of one unit.
pub const MAX_CHECKS: usize = 200;

/// A command that shows whether something holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Check)]
pub struct EvidenceCheck {
    /// Program and arguments; no shell reads them.
    pub argv: Vec<String>,
    /// The exit code that is expected; 0 when it is left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expect_exit: i32,
    /// Words that must be in what it writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_output: Option<String>,
    /// Most seconds, 1 to 3600; 600 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_seconds: Option<u32>,
    /// Files that it goes by, taken from before the change whatever the change did to them. Files that `argv` names are always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<String>,
    /// Whether it counts only if it held before the change: a project's own tests may be broken for reasons that no change can help.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unless_before: bool,
    /// Whether it counts only where its program is there: whoever thought it up did not know the machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub if_runnable: bool,
    /// Where its results per test are; recognised from what it writes when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<TestReportSource>,
    /// File below the workspace that says which lines its tests ran: lcov, Cobertura XML, JSON of coverage.py or Istanbul, or a profile of go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl EvidenceCheck {
    /// A command that must succeed.
    pub fn new(argv: Vec<String>) -> Self {
        Self {
            argv,
            expect_exit: 0,
            expect_output: None,
            time_limit_seconds: None,
            pins: Vec::new(),
            unless_before: false,
            if_runnable: false,
            report: None,
            coverage: None,
        }
    }

    /// A line as people write it into a file for others; a shell reads it.
    pub fn from_shell_line(line: &str) -> Self {
        Self::new(vec!["sh".to_owned(), "-c".to_owned(), line.to_owned()])
    }

    /// Why it is no check, if it is none.
    pub fn validation_error(&self) -> Option<String> {
        let long = |text: &String| text.chars().count() > 4000 || text.contains('\0');
        if self.argv.is_empty() || self.argv[0].is_empty() || self.argv.len() > 100 {
            return Some("a check has a program and at most 99 arguments".into());
        }
        if self.argv.iter().chain(&self.pins).chain(&self.expect_output).any(long) {
            return Some("a word of a check has at most 4000 characters".into());
        }
        if self.time_limit_seconds.is_some_and(|it| !(1..=MAX_CHECK_SECONDS).contains(&it)) {
            return Some(format!("a check takes 1 to {MAX_CHECK_SECONDS} seconds"));
        }
        if self.pins.len() > 100 || !self.pins.iter().all(|path| is_plain_path(path)) {
            return Some("`pins` are at most 100 paths of files in the repository".into());
        }
        let report = self.report.as_ref().and_then(|report| report.path.as_ref());
        if report.is_some_and(|path| !is_plain_path(path)) {
            return Some("`report.path` is the path of a file in the workspace".into());
        }
        if self.coverage.as_ref().is_some_and(|path| !is_plain_path(path)) {
            return Some("`coverage` is the path of a file in the workspace".into());
        }
        None
    }

    /// Most seconds.
    pub fn timeout_seconds(&self) -> u32 {
        self.time_limit_seconds.unwrap_or(DEFAULT_CHECK_SECONDS)
    }

    /// As a person would type it.
    pub fn command_line(&self) -> String {
        match self.argv.as_slice() {
            [shell, flag, line] if shell == "sh" && flag == "-c" => line.clone(),
            words => words.join(" "),
        }
    }

    /// Whether that is how it must end. `expected` is whether its words are in all that it wrote, by whoever saw all of it; `output` is what
    /// was kept of that.
    pub fn is_satisfied_by(
        &self,
        exit_code: Option<i32>,
        output: &str,
        expected: Option<bool>,
    ) -> bool {
        let said = |words: &str| expected.unwrap_or_else(|| output.contains(words));
        exit_code == Some(self.expect_exit) && self.expect_output.as_deref().is_none_or(said)
    }

    /// Files that are taken from before the change when it runs: what it names, and what was asked for. Names that are no files there
    /// are left as they are.
    pub fn pinned_paths(&self) -> Vec<String> {
        let mut paths = self.pins.clone();
        let words = self
            .argv
            .iter()
            .flat_map(|word| word.split([' ', ';', '&', '|', '=', '"', '\'', '\n']));
        for word in words {
            let path = word.strip_prefix("./").unwrap_or(word);
            if is_plain_path(path)
                && path.contains(['.', '/'])
                && !paths.iter().any(|it| it == path)
            {
                paths.push(path.to_owned());
            }
        }
        paths
    }

    /// Files that decide what its program does, by the program's own custom.
    pub fn definition_files(&self) -> Vec<&'static str> {
        self.files_by_program(|name| match name {
            "make" | "gmake" => &["Makefile", "makefile", "GNUmakefile"],
            "just" => &["justfile", "Justfile", ".justfile"],
            "npm" | "npx" | "pnpm" | "yarn" | "bun" => &["package.json"],
            "pytest" | "py.test" | "tox" | "nox" => &[
                "conftest.py",
                "pytest.ini",
                "tox.ini",
                "setup.cfg",
                "noxfile.py",
                "pyproject.toml",
            ],
            "cargo" => &[".cargo/config.toml", ".config/nextest.toml"],
            "mvn" => &["pom.xml"],
            "gradle" | "gradlew" => &["build.gradle", "build.gradle.kts"],
            "rake" => &["Rakefile"],
            "task" => &["Taskfile.yml"],
            _ => &[],
        })
    }

    /// Names of files that, once they are there, decide what its program does, though it does without them.
    fn override_files(&self) -> Vec<&'static str> {
        self.files_by_program(|name| match name {
            "make" | "gmake" => &["GNUmakefile", "makefile"],
            "just" => &[".justfile"],
            "npm" | "npx" | "pnpm" | "yarn" | "bun" => &[".npmrc", ".yarnrc", ".yarnrc.yml"],
            "pytest" | "py.test" | "tox" | "nox" | "python" | "python3" => &[
                "conftest.py",
                "pytest.ini",
                "pytest.py",
                "unittest.py",
                "sitecustomize.py",
                "usercustomize.py",
            ],
            "cargo" => &["config.toml", "nextest.toml"],
            _ => &[],
        })
    }

    /// What the words that are programs known here go by.
    fn files_by_program(&self, of: impl Fn(&str) -> &'static [&'static str]) -> Vec<&'static str> {
        let words = self.argv.iter().flat_map(|word| word.split([' ', ';', '&', '|', '\n']));
        let names = words.map(|word| word.rsplit('/').next().unwrap_or(word));
        names.flat_map(|name| of(name).iter().copied()).collect()
    }

    /// Whether a file of that path, once it is there, decides what the check does.
    fn is_overridden_by(&self, path: &str) -> bool {
        let mut parts = path.rsplit('/');
        let name = parts.next().unwrap_or(path);
        // A package is a module too.
        let module = (name == "__init__.py").then(|| parts.next()).flatten();
        let module = module.map(|module| format!("{module}.py"));
        let hidden = |name: &str| !name.ends_with(".toml") || path.starts_with('.');
        let is = |own: &&str| (*own == name && hidden(own)) || module.as_deref() == Some(*own);
        self.override_files().iter().any(is)
    }
}

/// An exit code in words. By the custom of shells 128 and a number says that a signal ended it, but a program may give such a code by itself.
pub fn describe_exit_code(code: i32) -> String {
    match code {
        129..=192 => format!("exit code {code} (or killed by signal {})", code - 128),
        code => format!("exit code {code}"),
    }
}

/// Whether a file is a program that others run, by its name: the ending of a script's, none at all, or a folder for such.
pub fn is_script_path(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    let folder = path.split('/').next().filter(|first| *first != name);
    matches!(
        ending,
        None | Some("sh" | "bash" | "zsh" | "mk" | "mak" | "just" | "ps1" | "bat" | "cmd")
    ) || matches!(
        folder,
        Some("scripts" | "script" | "ci" | "bin" | "tools" | "hack" | "build" | ".github")
    )
}

/// Programs of the repository that a text names, by their paths.
pub fn find_script_paths(text: &str) -> Vec<String> {
    let word = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    let mut found: Vec<String> = Vec::new();
    for path in text.split(|c| !word(c)) {
        let path = path.strip_prefix("./").unwrap_or(path);
        let named = path.contains(['.', '/']) && is_plain_path(path) && is_script_path(path);
        if named && !found.iter().any(|it| it == path) {
            found.push(path.to_owned());
        }
    }
    found
}

/// Whether a text is a path inside a repository and nothing else.
pub fn is_plain_path(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 300
        && !text.starts_with(['-', '/', '~', ':'])
        // The last stands for bytes that are no text: the file has another name.
        && !text.chars().any(|c| {
            c.is_control() || matches!(c, '\\' | '*' | '?' | '[' | '$' | '`' | '"' | '\u{fffd}')
        })
        && text
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != ".." && part != ".git")
}

/// What the runs of a check amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckTally {
    /// It is to be run, or run again.
    Again,
    /// It held at once.
    Passed,
    /// It held twice after it had not.
    Flaky,
    /// It did not hold.
    Failed,
    /// It did not hold, and did not before the change either.
    Before,
}

impl CheckTally {
    /// Whether nothing speaks against the change.
    pub const fn is_good(self) -> bool {
        matches!(self, Self::Passed | Self::Flaky | Self::Before)
    }
}

/// What the runs of a check amount to, oldest first. One that did not hold is run again: twice no is a no, and a yes after a no needs
/// another yes.
pub const fn tally_rounds(rounds: &[bool]) -> CheckTally {
    match rounds {
        [] | [false] | [false, true] => CheckTally::Again,
        [true, ..] => CheckTally::Passed,
        [false, true, true, ..] => CheckTally::Flaky,
        [false, ..] => CheckTally::Failed,
    }
}

/// One run of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckRunResult {
    /// Whether it held.
    pub holds: bool,
    /// How it ended; none when a signal or a limit ended it.
    pub exit_code: Option<i32>,
}

impl CheckRunResult {
    /// Whether its program was not there, or could not be run: by the custom of shells.
    pub const fn is_program_missing(self) -> bool {
        matches!(self.exit_code, Some(126 | 127))
    }
}

/// What the runs of a check amount to, with the run on what was there before the change. What may be excused by that run is to be run
/// there first.
pub fn evaluate_check(
    check: &EvidenceCheck,
    before: Option<CheckRunResult>,
    after: &[CheckRunResult],
) -> CheckTally {
    let rounds: Vec<bool> = after.iter().map(|ran| ran.holds).collect();
    let told = tally_rounds(&rounds);
    let unrunnable = after.last().is_some_and(|ran| ran.is_program_missing());
    if told != CheckTally::Failed || !(check.unless_before || (check.if_runnable && unrunnable)) {
        return told;
    }
    match before {
        None => CheckTally::Again,
        Some(ran) if check.unless_before && !ran.holds => CheckTally::Before,
        Some(ran) if check.if_runnable && unrunnable && ran.is_program_missing() => {
            CheckTally::Before
        }
        Some(_) => CheckTally::Failed,
    }
}

/// What the runs of a check amount to, with their results per test.
///
/// A test that passed before the change and fails now speaks against it, whatever the exit code: the check is repeated once and then does
/// not hold. A failure from before the change excuses a check only if every test that fails now failed then, too, and if the tests ran to
/// their end where they did before.
pub fn evaluate_check_with_tests(
    check: &EvidenceCheck,
    before: Option<CheckRunResult>,
    after: &[CheckRunResult],
    tests: Option<&TestRunComparison>,
) -> CheckTally {
    let tally = match evaluate_check(check, before, after) {
        // It was repeated because of its tests, and did not hold then.
        CheckTally::Passed if after.last().is_some_and(|ran| !ran.holds) => CheckTally::Failed,
        tally => tally,
    };
    let Some(tests) = tests else { return tally };
    match tally {
        CheckTally::Passed | CheckTally::Flaky if tests.has_broken_tests() => match after {
            [_] => CheckTally::Again,
            _ => CheckTally::Failed,
        },
        CheckTally::Before
            if tests.has_broken_tests() || tests.has_new_failures() || tests.broke_off =>
        {
            CheckTally::Failed
        }
        tally => tally,
    }
}

/// A file that a change touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TouchedFile {
    /// Where it is, or was.
    pub path: String,
    /// What was done to it.
    pub how: FileChangeKind,
    /// What git calls what it is now: its mode and its object.
    pub is: String,
    /// How what it says differs from what it said, where that matters and somebody has read both.
    pub compared: Option<TestComparison>,
}

/// How two versions of a test differ. The words themselves are not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestComparison {
    /// How it shows less than before, if it does.
    pub weaker: Option<String>,
    /// The first line that is a mark of a merge.
    pub marks: Option<usize>,
}

impl TestComparison {
    /// Compares what a test said with what it says.
    pub fn compare_versions(before: &str, after: &str) -> Self {
        Self { weaker: find_weakening(before, after), marks: find_merge_marker(after) }
    }
}

/// What was done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChangeKind {
    /// It is new.
    Added,
    /// It says something else.
    Changed,
    /// It is gone.
    Removed,
}

/// Something about a change that has to be answered for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "anomaly", rename_all = "snake_case")]
pub enum ChangeAnomaly {
    /// A test is gone.
    TestRemoved {
        /// Which file.
        path: String,
    },
    /// A test says less than before, or is skipped.
    TestWeakened {
        /// Which file.
        path: String,
        /// How it shows less, in words.
        detail: String,
    },
    /// A file that decides what checks do was changed.
    CheckTouched {
        /// Which.
        path: String,
    },
    /// Marks of a merge were left in a file.
    MergeMarks {
        /// Which.
        path: String,
        /// The line.
        line: usize,
    },
    /// A new file is written in a language that the preference `code.language.disallowed` names.
    LanguageDisallowed {
        /// Which file.
        path: String,
        /// The language.
        language: String,
    },
    /// Nobody could look at all of it, and so nobody knows what else is odd.
    Unseen {
        /// Which file; empty when it is the whole change.
        path: String,
        /// Why not.
        reason: String,
    },
}

/// An anomaly of a file as a change leaves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAnomaly {
    /// The anomaly.
    #[serde(flatten)]
    pub anomaly: ChangeAnomaly,
    /// Git's mode and object of the file as it is, or the commit where no file is meant: an acceptance is of this object alone.
    #[serde(default)]
    pub object_id: String,
}

impl ChangeAnomaly {
    /// The file.
    pub fn file_path(&self) -> &str {
        match self {
            Self::TestRemoved { path }
            | Self::TestWeakened { path, .. }
            | Self::CheckTouched { path }
            | Self::MergeMarks { path, .. }
            | Self::LanguageDisallowed { path, .. }
            | Self::Unseen { path, .. } => path,
        }
    }

    /// What is wrong, in a sentence.
    pub fn describe_anomaly(&self) -> String {
        match self {
            Self::TestRemoved { path } => {
                format!("the test `{path}` was removed, and nobody asked for that")
            }
            Self::TestWeakened { path, detail } => {
                format!("the test `{path}` shows less than before: {detail}")
            }
            Self::CheckTouched { path } => {
                format!(
                    "`{path}` decides what the checks do; it was changed, and nobody asked for that"
                )
            }
            Self::MergeMarks { path, line } => {
                format!("`{path}:{line}` still has marks of a merge")
            }
            Self::LanguageDisallowed { path, language } => {
                format!("`{path}` is new and written in {language}, which is not wanted here")
            }
            Self::Unseen { path, reason } if path.is_empty() => {
                format!("the change could not be looked at as a whole: {reason}")
            }
            Self::Unseen { path, reason } => {
                format!("what was done to `{path}` could not be looked at: {reason}")
            }
        }
    }

    /// What to do about it.
    pub fn suggested_fix(&self) -> &'static str {
        match self {
            Self::TestRemoved { .. } => "bring it back",
            Self::TestWeakened { .. } => "bring back what it showed, and mend the code instead",
            Self::CheckTouched { .. } => "undo the change",
            Self::MergeMarks { .. } => "decide between both sides and remove the marks",
            Self::LanguageDisallowed { .. } => "write it in another language, or leave it out",
            Self::Unseen { path, .. } if path.is_empty() => {
                "make the change smaller, or have a person look at it"
            }
            Self::Unseen { .. } => "leave it as it was, or have a person look at it",
        }
    }
}

/// Endings of files that are code, in which a test may be written.
const CODE_EXTENSIONS: &[&str] = &[
    "rs", "py", "js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts", "vue", "svelte", "go",
    "java", "kt", "kts", "groovy", "scala", "clj", "cljs", "cljc", "cs", "fs", "vb", "rb", "php",
    "c", "cc", "cpp", "cxx", "h", "hh", "hpp", "hxx", "m", "mm", "swift", "dart", "zig", "nim",
    "cr", "sh", "bash", "bats", "ps1", "ex", "exs", "erl", "hs", "ml", "mli", "elm", "lua", "jl",
    "pl", "pm", "feature",
];

/// What builds the tests or tells of them, and says nothing of what they expect.
const TEST_SUPPORT_FILES: &[&str] = &[
    "CMakeLists.txt",
    "meson.build",
    "BUILD",
    "BUILD.bazel",
    "Makefile",
    "package.json",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "yarn.lock",
    "pnpm-lock.yaml",
    "bun.lock",
    "deno.lock",
    "Cargo.toml",
    "Cargo.lock",
    "go.mod",
    "go.sum",
    "pyproject.toml",
    "poetry.lock",
    "uv.lock",
    "Pipfile",
    "Pipfile.lock",
    "requirements.txt",
    "Gemfile",
    "Gemfile.lock",
    "composer.json",
    "composer.lock",
    "pubspec.yaml",
    "pubspec.lock",
    "mix.lock",
    "packages.lock.json",
    "README",
    "README.txt",
    "LICENSE",
    "LICENSE.txt",
    "CHANGELOG",
    "CHANGELOG.txt",
    ".gitignore",
];

/// The name of a file without its ending, and the ending.
fn stem_and_ending(path: &str) -> (&str, &str) {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').unwrap_or((name, ""))
}

/// Whether a file is in a folder of one of the names, however deep.
fn is_in_folder(path: &str, folders: &[&str]) -> bool {
    path.split('/').rev().skip(1).any(|part| folders.contains(&part))
}

/// Whether a file is a test, by the customs of the usual languages.
pub fn is_test_file(path: &str) -> bool {
    let (stem, ending) = stem_and_ending(path);
    let below =
        is_in_folder(path, &["tests", "test", "spec", "specs", "__tests__", "testing", "e2e"]);
    let named = stem.starts_with("test_")
        || stem.ends_with("_test")
        || stem.ends_with("_spec")
        || stem.ends_with(".test")
        || stem.ends_with(".spec")
        || stem.ends_with("Test")
        || stem.ends_with("Tests")
        || stem == "test"
        || stem == "tests";
    CODE_EXTENSIONS.contains(&ending) && (below || named)
}

/// Whether a file is no test and yet decides what tests find good: what they expect, or what they are given. A folder `spec` may as well
/// hold what is to be built, and code in a folder `snapshots` or `golden` may be the product. What builds tests or tells of them is only
/// meant where it is the data of a test itself.
pub fn is_test_expectation(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let (_, ending) = stem_and_ending(path);
    let tested = is_in_folder(path, &["tests", "test", "__tests__", "testing", "e2e"]);
    let kept = is_in_folder(path, &["snapshots", "golden"]);
    let data = is_in_folder(path, &["__snapshots__", "testdata"]);
    let around = ending == "md" || TEST_SUPPORT_FILES.contains(&name);
    let below = if around {
        data || is_in_folder(path, &["golden"])
            || (tested && is_in_folder(path, &["snapshots", "fixtures"]))
    } else {
        data || tested || (kept && !CODE_EXTENSIONS.contains(&ending))
    };
    (below || ending == "snap") && !is_test_file(path)
}

/// Tests that a change touched and nobody asked for: checks run with what they said before.
pub fn tests_to_restore(touched: &[TouchedFile], asked_for: &[String]) -> Vec<String> {
    let wanted = |file: &&TouchedFile| {
        file.how != FileChangeKind::Added
            && is_test_file(&file.path)
            && is_plain_path(&file.path)
            && !asked_for.contains(&file.path)
    };
    touched.iter().filter(wanted).map(|file| file.path.clone()).collect()
}

/// What a change did that has to be answered for. What the plan asked to be changed may be changed. `behind` are programs of the
/// repository that stand behind the checks, though these do not name them.
pub fn find_anomalies(
    touched: &[TouchedFile],
    checks: &[EvidenceCheck],
    behind: &[String],
    asked_for: &[String],
) -> Vec<ChangeAnomaly> {
    let asked = |path: &str| asked_for.iter().any(|it| it == path);
    let behind: BTreeSet<&str> = behind.iter().map(String::as_str).collect();
    let mut found = Vec::new();
    for file in touched {
        let path = file.path.clone();
        let definer = |check: &EvidenceCheck| {
            // A part of the repository may have its own.
            let below = |own: &&str| path == **own || path.ends_with(&format!("/{own}"));
            let decides = check.definition_files().iter().any(below)
                || check.pinned_paths().iter().any(|pin| *pin == path && !is_test_file(pin))
                || behind.contains(path.as_str());
            (decides && file.how != FileChangeKind::Added) || check.is_overridden_by(&path)
        };
        match file.how {
            FileChangeKind::Removed if is_test_file(&path) && !asked(&path) => {
                found.push(ChangeAnomaly::TestRemoved { path: path.clone() });
            }
            FileChangeKind::Changed if is_test_file(&path) && !asked(&path) => {
                let weaker = file.compared.as_ref().map(|it| it.weaker.clone());
                let unseen = |reason: &str| ChangeAnomaly::Unseen {
                    path: path.clone(),
                    reason: reason.to_owned(),
                };
                found.extend(match weaker {
                    // No check runs with what it was before.
                    _ if !is_plain_path(&path) => {
                        Some(unseen("a test of such a name cannot be put back for the checks"))
                    }
                    Some(weaker) => weaker
                        .map(|detail| ChangeAnomaly::TestWeakened { path: path.clone(), detail }),
                    None => Some(unseen("it is too large, one of too many, or no text")),
                });
            }
            FileChangeKind::Added | FileChangeKind::Changed | FileChangeKind::Removed => {}
        }
        // Put back, they would fail whoever changed what is expected for a good reason.
        let expectation = file.how != FileChangeKind::Added && is_test_expectation(&path);
        if !asked(&path) && (expectation || checks.iter().any(definer)) {
            found.push(ChangeAnomaly::CheckTouched { path: path.clone() });
        }
        if let Some(line) = file.compared.as_ref().and_then(|it| it.marks) {
            found.push(ChangeAnomaly::MergeMarks { path, line });
        }
    }
    found
}

/// Words of lines that show something.
const ASSERTION_MARKERS: &[&str] = &[
    "assert",
    "expect(",
    "expect!",
    "should",
    "t.Error",
    "t.Fatal",
    "require.",
    "check!",
    "fail(",
    "ASSERT_",
    "EXPECT_",
    "REQUIRE(",
    "XCTAssert",
    "testing.expect",
    "@test ",
];
/// Words that keep a test from running.
const SKIP_MARKERS: &[&str] = &[
    "#[ignore",
    "@pytest.mark.skip",
    "@unittest.skip",
    "pytest.skip(",
    "it.skip",
    "test.skip",
    "describe.skip",
    "xit(",
    "xdescribe(",
    "t.Skip(",
    "@Disabled",
    "@Ignore",
    "[Ignore",
    ".only(",
];

/// How a test shows less than before, if it does.
fn find_weakening(before: &str, after: &str) -> Option<String> {
    let count = |text: &str, words: &[&str]| -> usize {
        text.lines().filter(|line| words.iter().any(|word| line.contains(word))).count()
    };
    let (had, has) = (count(before, ASSERTION_MARKERS), count(after, ASSERTION_MARKERS));
    if has < had {
        return Some(format!("it had {had} lines that show something and has {has}"));
    }
    let (had, has) = (count(before, SKIP_MARKERS), count(after, SKIP_MARKERS));
    (has > had).then(|| "something in it is skipped now".to_owned())
}

/// The first line that is a mark of a merge.
fn find_merge_marker(text: &str) -> Option<usize> {
    let mark = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    text.lines().position(mark).map(|at| at + 1)
}

#[cfg(test)]
mod tests;
