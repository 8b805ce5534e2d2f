//! Base checks: the result of a check on the base commit, the reason why a check cannot run, and whether two runs
//! failed alike.
//!
//! **Invariant**: the functions are total over any output. Output that is not recognized means a failing check, never
//! one that cannot run.

use serde::{Deserialize, Serialize};

use super::{EvidenceCheck, is_plain_path};

/// How long the job that tries checks waits for a node; after that the work goes on without.
pub const BASE_CHECK_CLAIM_SECONDS: u32 = 60;

/// Longest time of one check that is tried before any change.
pub const MAX_BASE_CHECK_SECONDS: u32 = 300;

/// Most checks that are tried before any change.
pub const MAX_BASE_CHECKS: usize = 50;

/// What a check came to on the base commit, before any change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaseOutcome {
    /// It was not run.
    NotTried,
    /// It holds already.
    Passes,
    /// It does not hold: normal for something that is still to be built.
    Fails,
    /// It cannot run on the machine: no change of the code would help.
    CannotRun,
    /// It did not end within its time.
    TimedOut,
}

/// Why a check cannot run on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A program is not there, or not on the `PATH`.
    MissingProgram(Option<String>),
    /// A program is there and cannot be executed.
    NotExecutable(Option<String>),
    /// A package that the code needs is not installed.
    MissingDependency(Option<String>),
    /// A shared library is not there.
    MissingLibrary(Option<String>),
    /// It wants a host that the sandbox does not reach.
    NoNetwork(Option<String>),
}

impl Obstacle {
    /// What is wrong, without a full stop.
    pub fn describe_obstacle(&self) -> String {
        let named = |what: &Option<String>, thing: &str| match what {
            Some(name) => format!("{thing} `{name}`"),
            None => format!("a {thing}"),
        };
        match self {
            Self::MissingProgram(name) => format!("{} is not found", named(name, "program")),
            Self::NotExecutable(name) => format!("{} cannot be executed", named(name, "program")),
            Self::MissingDependency(name) => {
                format!("{} is not installed", named(name, "dependency"))
            }
            Self::MissingLibrary(name) => {
                format!("{} is not found", named(name, "shared library"))
            }
            Self::NoNetwork(Some(host)) => format!("the sandbox does not reach `{host}`"),
            Self::NoNetwork(None) => "the sandbox reaches no network".to_owned(),
        }
    }

    /// What a person can do about it.
    pub fn suggested_fix(&self, check: &EvidenceCheck) -> String {
        let command = check.command_line().lines().next().unwrap_or_default().to_owned();
        match self {
            Self::MissingProgram(_) | Self::NotExecutable(_) => format!(
                "Install it on the node, name its directory with `show` in node.toml, and put it on the PATH of the check: \
                 `PATH=/opt/DIRECTORY/bin:$PATH {command}`."
            ),
            Self::MissingDependency(_) => format!(
                "Install it on the node in a directory that `show` in node.toml names, and use it in the check, as in \
                 `PATH=/opt/venv/bin:$PATH {command}`; or keep a copy of it in the repository (`cargo vendor`)."
            ),
            Self::MissingLibrary(_) => {
                "Install it on the node, and name its directory with `show` in node.toml.".to_owned()
            }
            Self::NoNetwork(_) => "A check has no network. Install what it fetches on the node in a directory that `show` in \
                                   node.toml names, or keep a copy of it in the repository."
                .to_owned(),
        }
    }
}

/// What a run of a check on the base commit says.
pub fn classify_base_run(
    check: &EvidenceCheck,
    holds: bool,
    exit_code: Option<i32>,
    output: &str,
) -> BaseOutcome {
    match (holds, exit_code) {
        (true, _) => BaseOutcome::Passes,
        (false, None) => BaseOutcome::TimedOut,
        (false, code) if find_obstacle(check, code, output).is_some() => BaseOutcome::CannotRun,
        (false, Some(_)) => BaseOutcome::Fails,
    }
}

/// Why a check that did not hold cannot run on the machine, if that is why. A file of the repository that is missing is no such reason:
/// the work may bring it.
pub fn find_obstacle(
    check: &EvidenceCheck,
    exit_code: Option<i32>,
    output: &str,
) -> Option<Obstacle> {
    if exit_code? == check.expect_exit {
        return None;
    }
    if let Some(obstacle) = find_exit_obstacle(check, exit_code, output) {
        return Some(obstacle);
    }
    if matches!(exit_code, Some(126 | 127)) {
        return None;
    }
    output.lines().find_map(parse_obstacle_line)
}

/// Why a check cannot run on the machine, by its exit code alone: 126 and 127, unless they are about a file of the repository.
pub fn find_exit_obstacle(
    check: &EvidenceCheck,
    exit_code: Option<i32>,
    output: &str,
) -> Option<Obstacle> {
    let obstacle: fn(Option<String>) -> Obstacle = match exit_code {
        Some(126) => Obstacle::NotExecutable,
        Some(127) => Obstacle::MissingProgram,
        _ => return None,
    };
    if let Some(library) = output.lines().find_map(parse_missing_library) {
        return Some(library);
    }
    let name = output
        .lines()
        .rev()
        .find_map(parse_missing_program)
        .or_else(|| program_without_shell(check));
    match name {
        // `./check.sh` and `scripts/test` are files of the repository: the work may bring them.
        Some(name) if is_repository_path(&name) => None,
        name => Some(obstacle(name)),
    }
}

/// The program of a check that no shell reads.
fn program_without_shell(check: &EvidenceCheck) -> Option<String> {
    let program = check.argv.first()?;
    let shell = matches!(program.rsplit('/').next(), Some("sh" | "bash" | "dash" | "zsh" | "env"));
    (!shell).then(|| program.clone())
}

/// Whether a word names a file of the repository.
fn is_repository_path(word: &str) -> bool {
    let path = word.strip_prefix("./").unwrap_or(word);
    is_plain_path(path) && (word.starts_with("./") || path.contains('/') || path.ends_with(".sh"))
}

/// The program that a shell's complaint names: `sh: 1: pytest: not found`, `bash: line 1: cargo: command not found`,
/// `env: ‘node’: No such file or directory`.
fn parse_missing_program(line: &str) -> Option<String> {
    let line = line.trim();
    let ends = [
        ": command not found",
        ": not found",
        ": No such file or directory",
        ": Permission denied",
    ];
    let before = ends.into_iter().find_map(|end| line.strip_suffix(end));
    if let Some(before) = before {
        let word = before.rsplit(": ").next().unwrap_or(before);
        return parse_name(word);
    }
    // zsh, and programs that start others.
    let after = [": command not found: ", "executable file not found in $PATH: "];
    after
        .into_iter()
        .find_map(|middle| line.split_once(middle))
        .and_then(|(_, word)| parse_name(word))
}

/// A line that says what is missing, of any program.
fn parse_obstacle_line(line: &str) -> Option<Obstacle> {
    let line = line.trim();
    if let Some((_, rest)) = line.split_once("ModuleNotFoundError: No module named ") {
        return Some(Obstacle::MissingDependency(parse_name(rest)));
    }
    // `/usr/bin/python3: No module named pytest`
    if let Some((before, rest)) = line.split_once(": No module named ")
        && before.contains("python")
    {
        return Some(Obstacle::MissingDependency(parse_name(rest)));
    }
    for start in [
        "Error: Cannot find module ",
        "Cannot find module ",
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find package ",
    ] {
        if let Some((_, rest)) = line.split_once(start) {
            let module = parse_name(rest);
            // What begins with a dot or a slash is a file of the repository.
            let own = module.as_deref().is_some_and(|it| it.starts_with(['.', '/']));
            return (!own).then_some(Obstacle::MissingDependency(module));
        }
    }
    for start in ["could not find `", "no matching package named `", "failed to get `"] {
        if let Some((_, rest)) = line.split_once(start)
            && (start.starts_with("no matching")
                || rest.contains("registry")
                || rest.contains("as a dependency"))
        {
            return Some(Obstacle::MissingDependency(rest.split('`').next().and_then(parse_name)));
        }
    }
    for start in [
        "Could not resolve host: ",
        "could not resolve host: ",
        "getaddrinfo ENOTFOUND ",
        "getaddrinfo EAI_AGAIN ",
    ] {
        if let Some((_, rest)) = line.split_once(start) {
            return Some(Obstacle::NoNetwork(parse_name(rest)));
        }
    }
    let no_network = ["Temporary failure in name resolution", "Network is unreachable"];
    if no_network.into_iter().any(|words| line.contains(words)) {
        return Some(Obstacle::NoNetwork(None));
    }
    if let Some(library) = parse_missing_library(line) {
        return Some(library);
    }
    // A program that a check's own program wanted to start.
    let said = ["command not found", "executable file not found in $PATH"]
        .into_iter()
        .any(|words| line.contains(words));
    let shell = ["sh: ", "/bin/sh: "].into_iter().any(|start| line.starts_with(start));
    let found = said || (shell && line.ends_with(": not found"));
    match parse_missing_program(line).filter(|_| found) {
        None if !found => None,
        Some(program) if is_repository_path(&program) => None,
        program => Some(Obstacle::MissingProgram(program)),
    }
}

/// `error while loading shared libraries: libfoo.so.1: cannot open shared object file`
fn parse_missing_library(line: &str) -> Option<Obstacle> {
    let (_, rest) = line.split_once("error while loading shared libraries: ")?;
    Some(Obstacle::MissingLibrary(rest.split(':').next().and_then(parse_name)))
}

/// The first word of a text, without quotes; none when it is no name.
fn parse_name(text: &str) -> Option<String> {
    let quotes = ['\'', '"', '`', '‘', '’', '“', '”'];
    let text = text.trim().trim_start_matches(quotes);
    let word = text.split(|c: char| c.is_whitespace() || quotes.contains(&c)).next()?;
    let word = word.trim_end_matches([',', ';', ':', '.', ')']);
    let good = !word.is_empty() && word.len() <= 100 && !word.chars().any(char::is_control);
    good.then(|| word.to_owned())
}

/// Whether two runs that did not hold failed alike: the same exit code and the same words, but for what differs from run to run by itself.
pub fn is_same_failure(first: (Option<i32>, &str), second: (Option<i32>, &str)) -> bool {
    first.0 == second.0 && normalize_output(first.1) == normalize_output(second.1)
}

/// Output without what differs from run to run by itself: times, dates, addresses, names of temporary files. Counts stay: fewer failures are
/// another failure.
fn normalize_output(output: &str) -> String {
    let mut text = String::with_capacity(output.len());
    for line in output.lines() {
        let mut words: Vec<String> = Vec::new();
        let mut after_number = false;
        for word in line.split_whitespace() {
            let unit = matches!(
                word.trim_end_matches(is_punctuation),
                "s" | "ms" | "us" | "µs" | "ns" | "sec" | "secs" | "second" | "seconds" | "minutes"
            );
            if after_number && unit {
                // A number that turns out to be a time.
                words.pop();
                words.push("#".to_owned());
            } else {
                words.push(normalize_word(word));
            }
            after_number = word.trim_matches(is_punctuation).parse::<f64>().is_ok();
        }
        if !words.is_empty() {
            text.push_str(&words.join(" "));
            text.push('\n');
        }
    }
    text
}

const fn is_punctuation(c: char) -> bool {
    matches!(c, '(' | ')' | '[' | ']' | '{' | '}' | ',' | ';' | ':' | '.' | '!' | '=' | '"' | '\'')
}

fn normalize_word(word: &str) -> String {
    let core = word.trim_matches(is_punctuation);
    let stands_for = if core.starts_with("0x") || core.contains("@0x") {
        "0x#"
    } else if core.starts_with("/tmp/") || core.starts_with("/var/tmp/") {
        "/tmp/#"
    } else if is_digest(core) || is_clock_time(core) || is_calendar_date(core) || is_duration(core)
    {
        "#"
    } else {
        return word.to_owned();
    };
    word.replacen(core, stands_for, 1)
}

/// A long number in hexadecimal: a commit, a digest, an id.
fn is_digest(word: &str) -> bool {
    word.len() >= 12
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `10:01:02`, with or without parts of a second.
fn is_clock_time(word: &str) -> bool {
    word.contains(':')
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_digit() || matches!(c, ':' | '.' | ','))
}

/// `2026-11-17`, with or without a time behind it.
fn is_calendar_date(word: &str) -> bool {
    let parts: Vec<&str> = word.splitn(3, '-').collect();
    let number = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    match parts.as_slice() {
        [year, month, day] => {
            number(year, 4) && number(month, 2) && day.get(..2).is_some_and(|it| number(it, 2))
        }
        _ => false,
    }
}

/// `0.12s`, `3ms`
fn is_duration(word: &str) -> bool {
    let at = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (number, unit) = word.split_at(at);
    number.parse::<f64>().is_ok() && matches!(unit, "s" | "ms" | "us" | "µs" | "ns" | "m" | "sec")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "it stands where an optional name is expected")]
    fn named(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn a_check_that_cannot_run_here_is_told_from_one_that_fails() {
        use Obstacle::{
            MissingDependency, MissingLibrary, MissingProgram, NoNetwork, NotExecutable,
        };
        let table: &[(&str, i32, &str, Option<Obstacle>)] = &[
            ("pytest -q", 127, "sh: 1: pytest: not found\n", Some(MissingProgram(named("pytest")))),
            (
                "cargo test",
                127,
                "bash: line 1: cargo: command not found",
                Some(MissingProgram(named("cargo"))),
            ),
            ("npm test", 127, "", Some(MissingProgram(None))),
            (
                "x",
                127,
                "env: ‘node’: No such file or directory",
                Some(MissingProgram(named("node"))),
            ),
            ("x", 127, "zsh: command not found: go", Some(MissingProgram(named("go")))),
            (
                "x",
                126,
                "sh: 1: /opt/tool: Permission denied",
                Some(NotExecutable(named("/opt/tool"))),
            ),
            (
                "x",
                127,
                "/opt/v/bin/x: error while loading shared libraries: libssl.so.3: cannot open shared object file",
                Some(MissingLibrary(named("libssl.so.3"))),
            ),
            (
                "make test",
                2,
                "sh: 1: gcc: not found\nmake: gcc: command not found",
                Some(MissingProgram(named("gcc"))),
            ),
            (
                "python3 -m pytest",
                1,
                "/usr/bin/python3: No module named pytest",
                Some(MissingDependency(named("pytest"))),
            ),
            (
                "python3 t.py",
                1,
                "Traceback\nModuleNotFoundError: No module named 'requests'",
                Some(MissingDependency(named("requests"))),
            ),
            (
                "node t.js",
                1,
                "Error: Cannot find module 'express'",
                Some(MissingDependency(named("express"))),
            ),
            ("node t.js", 1, "Error: Cannot find module './new.js'", None),
            (
                "cargo test --offline",
                101,
                "error: no matching package named `serde` found",
                Some(MissingDependency(named("serde"))),
            ),
            (
                "cargo test",
                101,
                "could not find `serde` in registry `crates-io` with version `*`",
                Some(MissingDependency(named("serde"))),
            ),
            (
                "cargo test",
                101,
                "error: failed to get `serde` as a dependency of package `x`",
                Some(MissingDependency(named("serde"))),
            ),
            ("cargo test", 101, "error[E0432]: could not find `Thing` in `crate`", None),
            (
                "pip install x",
                1,
                "curl: (6) Could not resolve host: pypi.org",
                Some(NoNetwork(named("pypi.org"))),
            ),
            ("x", 1, "Temporary failure in name resolution", Some(NoNetwork(None))),
            // Files of the repository are the work's to bring.
            ("./check.sh", 127, "sh: 1: ./check.sh: not found", None),
            ("bash scripts/t", 127, "bash: scripts/t: No such file or directory", None),
            ("cat new.txt", 1, "cat: new.txt: No such file or directory", None),
            ("sh ./check.sh", 126, "sh: 1: ./check.sh: Permission denied", None),
            ("pytest", 1, "E  assert 1 == 2\n1 failed", None),
            ("pytest", 4, "ERROR: file or directory not found: tests/test_new.py", None),
        ];
        for (line, code, output, expected) in table {
            let found = find_obstacle(&EvidenceCheck::from_shell_line(line), Some(*code), output);
            assert_eq!(found, *expected, "{line}: {output}");
        }
    }

    #[test]
    fn a_run_on_the_base_is_one_of_four_things() {
        let check = EvidenceCheck::from_shell_line("pytest -q");
        let read = |holds, code, output| classify_base_run(&check, holds, code, output);
        assert_eq!(read(true, Some(0), ""), BaseOutcome::Passes);
        assert_eq!(read(false, Some(1), "1 failed"), BaseOutcome::Fails);
        assert_eq!(read(false, Some(127), "sh: 1: pytest: not found"), BaseOutcome::CannotRun);
        assert_eq!(read(false, None, ""), BaseOutcome::TimedOut);
        // The code that is expected is no obstacle, whatever it is: only the words are missing.
        let wants = EvidenceCheck {
            expect_exit: 127,
            expect_output: named("x"),
            ..EvidenceCheck::from_shell_line("nope")
        };
        assert_eq!(classify_base_run(&wants, false, Some(127), ""), BaseOutcome::Fails);
    }

    #[test]
    fn a_program_that_no_shell_starts_is_named_though_nothing_was_written() {
        let check = EvidenceCheck::new(vec!["ruff".into(), "check".into()]);
        let missing = Some(Obstacle::MissingProgram(named("ruff")));
        assert_eq!(find_exit_obstacle(&check, Some(127), ""), missing);
        let own = EvidenceCheck::new(vec!["./test.sh".into()]);
        assert_eq!(find_exit_obstacle(&own, Some(127), ""), None);
    }

    #[test]
    fn what_differs_by_itself_makes_no_other_failure_and_what_is_said_does() {
        let first = "FAILED t.py::a at 0x7f12 in /tmp/x1\n1 failed, 2 passed in 0.12s (2026-11-17 10:01:02)\n";
        let second = "FAILED t.py::a at 0x8a99 in /tmp/y2\n1 failed, 2 passed in 1.40 s (2026-11-18 09:11:32)\n\n";
        assert!(is_same_failure((Some(1), first), (Some(1), second)));
        assert!(!is_same_failure((Some(1), first), (Some(2), second)));
        assert!(!is_same_failure((Some(1), "3 failed"), (Some(1), "1 failed")));
        assert!(!is_same_failure((Some(1), "expected 2"), (Some(1), "expected 3")));
        assert!(is_same_failure((None, ""), (None, "\n")));
    }
}
