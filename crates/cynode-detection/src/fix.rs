//! Fixes: what would mend a set-up or a check that failed, with the line to add to the environment.

use cynode_core::environments::{EnvironmentSpec, PackageSource};
use cynode_core::evidence::EvidenceCheck;
use cynode_core::evidence::base::{Obstacle, find_obstacle};

use crate::packages::{
    package_of_header, package_of_library, package_of_module, package_of_program,
};
use crate::shell::{is_plain_word, quote_word};

/// Number of bytes at the end of an output that are read.
const OUTPUT_TAIL_BYTES: usize = 256 << 10;

/// Memory that is assumed when an environment names none, in MiB.
const ASSUMED_MEMORY_MIB: u32 = 1024;

/// Python modules whose package has another name.
const PYTHON_PACKAGES: [(&str, &str); 10] = [
    ("PIL", "pillow"),
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python-headless"),
    ("dateutil", "python-dateutil"),
    ("dotenv", "python-dotenv"),
    ("pkg_resources", "setuptools<81"),
    ("sklearn", "scikit-learn"),
    ("skimage", "scikit-image"),
    ("yaml", "PyYAML"),
];

/// Words of an output that each have one fix.
const KNOWN_WORDS: [(&str, &str); 7] = [
    (
        "ensurepip is not available",
        "A virtual environment needs the Debian package `python3-venv`: add \"python3-venv\" to `system_packages`.",
    ),
    (
        "externally-managed-environment",
        "Debian's Python is not changed by pip: make a virtual environment first (`python3 -m venv .venv`) and install with `.venv/bin/pip`.",
    ),
    (
        "setuptools-scm was unable to detect version",
        "The version comes from tags of git, which the workspace has not: add `SETUPTOOLS_SCM_PRETEND_VERSION = \"0.0.0\"` to `[variables]`.",
    ),
    (
        "can only install packages when your package.json and package-lock.json",
        "The lock file does not belong to `package.json`: commit the right one, or replace `npm ci` in `setup` by \
         `npm install --no-save --no-package-lock`.",
    ),
    (
        "needs to be updated but --locked was passed",
        "`Cargo.lock` does not belong to `Cargo.toml`: commit the right one, or leave `--locked` out of the command.",
    ),
    (
        "on by default",
        "A lint of the compiler is an error: add `RUSTFLAGS = \"--cap-lints=warn\"` to `[variables]`.",
    ),
    (
        "linker `cc` not found",
        "The linker is missing: add \"build-essential\" to `system_packages`.",
    ),
];

/// Returns what would mend a failing set-up or check command, if its output says so.
pub fn suggest_fix(
    spec: &EnvironmentSpec,
    command: &str,
    exit_code: Option<i32>,
    output: &str,
) -> Option<String> {
    let start = output.ceil_char_boundary(output.len().saturating_sub(OUTPUT_TAIL_BYTES));
    let output = output.get(start..).unwrap_or_default();
    let is_setup = spec.setup.iter().any(|line| line == command);
    let Some(exit_code) = exit_code else { return Some(suggest_time(spec, is_setup)) };
    if exit_code == 0 {
        return None;
    }
    suggest_memory(spec, exit_code, output)
        .or_else(|| output.lines().find_map(|line| suggest_package(spec, line)))
        .or_else(|| suggest_known(output))
        .or_else(|| suggest_service(output))
        .or_else(|| output.lines().find_map(suggest_installed_program))
        .or_else(|| {
            let check = EvidenceCheck::from_shell_line(command);
            let obstacle = find_obstacle(&check, Some(exit_code), output)?;
            suggest_for_obstacle(spec, command, is_setup, &obstacle)
        })
        .or_else(|| suggest_source(spec, command, is_setup, output))
}

fn suggest_time(spec: &EnvironmentSpec, is_setup: bool) -> String {
    if is_setup {
        let seconds = spec.setup_seconds().saturating_mul(2);
        format!("The set-up did not end in time: set `setup_seconds = {seconds}` in `[limits]`.")
    } else {
        "The command did not end in time: set `timeout_seconds` of this check.".to_owned()
    }
}

fn suggest_memory(spec: &EnvironmentSpec, exit_code: i32, output: &str) -> Option<String> {
    let words = [
        "heap out of memory",
        "out of memory",
        "Cannot allocate memory",
        "virtual memory exhausted",
        "(signal: 9, SIGKILL",
        "Killed signal terminated program",
        "MemoryError",
    ];
    let short = exit_code == 137 || words.into_iter().any(|words| output.contains(words));
    short.then(|| {
        let memory = spec.limits.memory_mib.unwrap_or(ASSUMED_MEMORY_MIB).saturating_mul(2);
        format!("The memory was used up: set `memory_mib = {memory}` in `[limits]`.")
    })
}

/// Line of the environment with one more package.
fn add_package(spec: &EnvironmentSpec, package: &str, missing: &str) -> Option<String> {
    let known = spec.system_packages.iter().map(String::as_str);
    if known.clone().any(|known| known == package) {
        return None;
    }
    let names: Vec<String> = known.chain([package]).map(|name| format!("\"{name}\"")).collect();
    Some(format!("{missing} Set `system_packages = [{}]`.", names.join(", ")))
}

/// Reads a line that names a header, a library, a module or a macro that is missing.
fn suggest_package(spec: &EnvironmentSpec, line: &str) -> Option<String> {
    let between = |start: &str, ends: &[char]| -> Option<&str> {
        let (_, rest) = line.split_once(start)?;
        let name = rest.split(ends).next()?.trim();
        (!name.is_empty() && name.len() <= 100).then_some(name)
    };
    if let Some(header) = between("fatal error: ", &[':'])
        && let Some(package) = package_of_header(header)
    {
        return add_package(spec, package, &format!("The header `{header}` is missing."));
    }
    if let Some(library) = between("cannot find -l", &[':', ' ', '\''])
        && let Some(package) = package_of_library(library)
    {
        return add_package(spec, package, &format!("The library `{library}` is missing."));
    }
    let modules = [
        between("No package '", &['\'']),
        between("Package '", &['\'']),
        between("Package ", &[' ']).filter(|_| line.contains("pkg-config search path")),
        between("Could NOT find ", &[' ', '(']),
        between("package configuration file provided by \"", &['"']),
        between("Dependency \"", &['"']),
    ];
    for module in modules.into_iter().flatten() {
        if let Some(package) = package_of_module(module) {
            return add_package(spec, package, &format!("The library `{module}` is missing."));
        }
    }
    let macros = [
        ("LT_INIT", "libtool"),
        ("AC_PROG_LIBTOOL", "libtool"),
        ("AM_GNU_GETTEXT", "gettext"),
        ("PKG_CHECK_MODULES", "pkg-config"),
        ("AX_", "autoconf-archive"),
    ];
    if let Some(name) = between("possibly undefined macro: ", &[' '])
        && let Some((_, package)) = macros.into_iter().find(|(known, _)| name.starts_with(known))
    {
        return add_package(spec, package, &format!("The macro `{name}` is missing."));
    }
    let compiler = ["No CMAKE_C_COMPILER could be found", "no acceptable C compiler found"];
    if compiler.into_iter().any(|words| line.contains(words)) {
        return add_package(spec, "build-essential", "There is no compiler.");
    }
    let program = between("Can't exec \"", &['"']).or_else(|| {
        between("WARNING: '", &['\'']).filter(|_| line.contains("is missing on your system"))
    });
    let program = program?;
    let package = package_of_program(program)?;
    add_package(spec, package, &format!("The program `{program}` is missing."))
}

fn suggest_known(output: &str) -> Option<String> {
    let known = KNOWN_WORDS.iter().find(|(words, _)| match *words {
        "on by default" => output.contains("#[deny(") && output.contains(words),
        words => output.contains(words),
    });
    known.map(|(_, fix)| (*fix).to_owned())
}

/// Names a service that nobody started.
fn suggest_service(output: &str) -> Option<String> {
    let refused = |line: &&str| line.contains("refused") || line.contains("REFUSED");
    let line = output
        .lines()
        .filter(refused)
        .find(|line| line.contains("5432") || line.contains("6379"))?;
    let (name, command, ready) = if line.contains("6379") {
        ("redis", "redis-server --save ''", "redis-cli ping")
    } else {
        ("postgresql", "postgres -D DIRECTORY -k /tmp", "pg_isready")
    };
    Some(format!(
        "Nothing answers as {name}: add its package to `system_packages` and a service: `[[services]]`, `name = \"{name}\"`, `command = \"{command}\"`, \
         `ready = \"{ready}\"`."
    ))
}

/// Names the package of a program that should be in `node_modules` or in the virtual environment.
fn suggest_installed_program(line: &str) -> Option<String> {
    let missing = line.contains("not found") || line.contains("No such file or directory");
    let name_behind = |directory: &str| {
        let (_, rest) = line.split_once(directory)?;
        let name = rest.split([':', ' ', '\'', '"']).next()?;
        is_plain_word(name).then_some(name)
    };
    if !missing {
        return None;
    }
    if let Some(name) = name_behind("node_modules/.bin/") {
        return Some(format!(
            "The program `{name}` of npm is not installed: add it to `devDependencies`, or add to `setup`: `npm install --no-save --no-package-lock {name}`."
        ));
    }
    let name = name_behind(".venv/bin/")?;
    Some(format!(
        "The program `{name}` of Python is not installed: add to `setup`: `.venv/bin/pip install {name}`."
    ))
}

fn suggest_for_obstacle(
    spec: &EnvironmentSpec,
    command: &str,
    is_setup: bool,
    obstacle: &Obstacle,
) -> Option<String> {
    match obstacle {
        Obstacle::MissingProgram(Some(program)) => match package_of_program(program) {
            Some(package) => {
                add_package(spec, package, &format!("The program `{program}` is missing."))
            }
            None => Some(format!(
                "The program `{program}` is missing: add the Debian package that has it to `system_packages`."
            )),
        },
        Obstacle::MissingLibrary(Some(library)) => {
            let name = library.strip_prefix("lib")?.split(".so").next()?;
            let package = package_of_library(name)?;
            add_package(spec, package, &format!("The library `{library}` is missing."))
        }
        Obstacle::MissingDependency(Some(name)) => {
            suggest_dependency(spec, command, is_setup, name)
        }
        Obstacle::NoNetwork(_) => suggest_source(spec, command, is_setup, "Connection refused"),
        _ => None,
    }
}

/// Says how to install a module that the code imports.
fn suggest_dependency(
    spec: &EnvironmentSpec,
    command: &str,
    is_setup: bool,
    name: &str,
) -> Option<String> {
    match find_source(command) {
        Some(PackageSource::Pypi) => {
            let module = name.split('.').next().unwrap_or(name);
            let package = PYTHON_PACKAGES.iter().find(|(known, _)| *known == module);
            let package = package.map_or(module, |(_, package)| *package);
            Some(format!(
                "The module `{module}` is not installed: add to `setup`: `.venv/bin/pip install {}`.",
                quote_word(package)
            ))
        }
        Some(PackageSource::Npm) => {
            // `@scope/name/part` is a part of `@scope/name`.
            let parts = if name.starts_with('@') { 2 } else { 1 };
            let package: Vec<&str> = name.split('/').take(parts).collect();
            let package = quote_word(&package.join("/"));
            Some(format!(
                "The package `{name}` is not installed: add it to `devDependencies`, or add to `setup`: \
                 `npm install --no-save --no-package-lock {package}`."
            ))
        }
        Some(PackageSource::Crates) if !is_setup => Some(format!(
            "The crate `{name}` was not fetched: add to `setup`: `cargo fetch`, or commit a `Cargo.lock` that has it."
        )),
        _ => suggest_source(spec, command, is_setup, "Connection refused"),
    }
}

/// Names the registry that a command wanted to reach.
fn suggest_source(
    spec: &EnvironmentSpec,
    command: &str,
    is_setup: bool,
    output: &str,
) -> Option<String> {
    let words = [
        "Connection refused",
        "connection refused",
        "ECONNREFUSED",
        "Could not resolve host",
        "ENOTFOUND",
        "EAI_AGAIN",
        "Temporary failure in name resolution",
        "Network is unreachable",
        "No matching distribution found",
        "failed to download",
    ];
    if !words.into_iter().any(|words| output.contains(words)) {
        return None;
    }
    let source = find_source(command)?;
    if !spec.package_sources.contains(&source) {
        let known = spec.package_sources.iter().copied().chain([source]);
        let names: Vec<String> = known.map(|it| format!("\"{}\"", it.as_str())).collect();
        return Some(format!(
            "The command fetches packages: set `package_sources = [{}]`.",
            names.join(", ")
        ));
    }
    (!is_setup && !spec.packages_during_work).then(|| {
        "The command fetches packages, which only set-up may: fetch them in `setup`, or set `packages_during_work = true`.".to_owned()
    })
}

/// Registry that the programs of a command use.
fn find_source(command: &str) -> Option<PackageSource> {
    let has = |names: &[&str]| {
        let separate = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_';
        command.split(separate).any(|word| names.contains(&word))
    };
    if has(&["npm", "npx", "node", "yarn", "pnpm", "node_modules", "jest", "vitest", "mocha"]) {
        Some(PackageSource::Npm)
    } else if has(&["pip", "pip3", "python", "python3", "pytest", "uv", "tox", "poetry"]) {
        Some(PackageSource::Pypi)
    } else if has(&["cargo", "rustc"]) {
        Some(PackageSource::Crates)
    } else if has(&["apt", "apt-get"]) {
        Some(PackageSource::Debian)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::environments::EnvironmentLimits;

    use super::*;

    #[test]
    fn a_failure_is_answered_with_the_line_that_mends_it() {
        let spec = EnvironmentSpec {
            system_packages: vec!["make".to_owned()],
            setup: vec!["pip install x".to_owned()],
            limits: EnvironmentLimits { memory_mib: Some(512), ..EnvironmentLimits::default() },
            ..EnvironmentSpec::default()
        };
        let table: &[(&str, Option<i32>, &str, Option<&str>)] = &[
            (
                "cmake -S . -B build",
                Some(127),
                "sh: 1: cmake: not found",
                Some(
                    "The program `cmake` is missing. Set `system_packages = [\"make\", \"cmake\"]`.",
                ),
            ),
            (
                "make",
                Some(2),
                "a.c:1:10: fatal error: openssl/ssl.h: No such file or directory",
                Some(
                    "The header `openssl/ssl.h` is missing. Set `system_packages = [\"make\", \"libssl-dev\"]`.",
                ),
            ),
            (
                "make",
                Some(2),
                "/usr/bin/ld: cannot find -lz: No such file or directory",
                Some(
                    "The library `z` is missing. Set `system_packages = [\"make\", \"zlib1g-dev\"]`.",
                ),
            ),
            (
                "autoreconf -fi",
                Some(1),
                "Can't exec \"autopoint\": No such file or directory at x line 1.",
                Some(
                    "The program `autopoint` is missing. Set `system_packages = [\"make\", \"autopoint\"]`.",
                ),
            ),
            (
                ".venv/bin/python -m pytest",
                Some(1),
                "ModuleNotFoundError: No module named 'yaml'",
                Some(
                    "The module `yaml` is not installed: add to `setup`: `.venv/bin/pip install PyYAML`.",
                ),
            ),
            (
                "node t.js",
                Some(1),
                "Error: Cannot find module '@a/b/c'",
                Some(
                    "The package `@a/b/c` is not installed: add it to `devDependencies`, or add to `setup`: \
                     `npm install --no-save --no-package-lock @a/b`.",
                ),
            ),
            (
                "pip install x",
                Some(1),
                "Connection refused",
                Some("The command fetches packages: set `package_sources = [\"pypi\"]`."),
            ),
            (
                "npm test",
                Some(137),
                "",
                Some("The memory was used up: set `memory_mib = 1024` in `[limits]`."),
            ),
            (
                "npm test",
                None,
                "",
                Some("The command did not end in time: set `timeout_seconds` of this check."),
            ),
            ("make test", Some(1), "1 test failed", None),
            ("make test", Some(0), "fatal error: zlib.h: x", None),
        ];
        for (command, code, output, expected) in table {
            let fix = suggest_fix(&spec, command, *code, output);
            assert_eq!(fix.as_deref(), *expected, "{command}: {output}");
        }
    }
}
