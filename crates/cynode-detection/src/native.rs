//! C and C++: `CMake`, Meson, autotools and plain make.

use std::collections::BTreeSet;

use cynode_core::environments::{EnvironmentCheckKind, TestReportFormat};

use crate::draft::{ProposalDraft, plain_check, reported_test};
use crate::packages::package_of_module;
use crate::repository::RepositoryFiles;
use crate::shell::is_plain_word;

/// Memory of a build, in MiB.
const BUILD_MEMORY_MIB: u32 = 1024;

/// Maximum number of options that are switched on for tests.
const MAX_TEST_OPTIONS: usize = 10;

/// Options that add tests only together with a tool or a special compiler.
const SPECIAL_OPTIONS: [&str; 9] =
    ["VALGRIND", "SANITI", "FUZZ", "COVERAGE", "BENCH", "DOC", "TIDY", "INSTALL", "WIN"];

/// Returns whether a path is a build file of a test directory.
pub(crate) fn is_nested_build_file(path: &str) -> bool {
    let Some((directory, name)) = path.rsplit_once('/') else { return false };
    directory.matches('/').count() < 2
        && matches!(name, "CMakeLists.txt" | "Makefile.am" | "meson.build")
        && directory.to_lowercase().contains("test")
}

/// Proposes the lines of the first build system that the top level has.
pub(crate) fn detect(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    if files.has_file("CMakeLists.txt") {
        detect_cmake(files, draft);
    } else if files.has_file("meson.build") {
        detect_meson(files, draft);
    } else if files.has_file("configure.ac") || files.has_file("configure.in") {
        detect_autotools(files, draft);
    }
}

/// Returns a name for the build directory that the repository does not use itself.
fn build_directory(files: &RepositoryFiles<'_>) -> &'static str {
    if files.has_directory("build/") || files.has_file("build") { "cynode-build" } else { "build" }
}

fn detect_cmake(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    let path = "CMakeLists.txt";
    let build = build_directory(files);
    let top = files.text(path).unwrap_or_default();
    let nested =
        files.matching(|path| is_nested_build_file(path) && path.ends_with("CMakeLists.txt"));
    let texts: Vec<(&str, &str)> = std::iter::once((path, top))
        .chain(nested.map(|path| (path, files.text(path).unwrap_or_default())))
        .collect();
    draft.add_packages(&["build-essential", "cmake"], path, "CMake builds the code.");
    let modules = texts.iter().flat_map(|(file, text)| {
        let found = calls_of(text, "find_package").into_iter();
        let by_pkg_config = calls_of(text, "pkg_check_modules")
            .into_iter()
            .chain(calls_of(text, "pkg_search_module"));
        found.chain(by_pkg_config).map(|arguments| (*file, arguments)).collect::<Vec<_>>()
    });
    for (file, arguments) in modules {
        add_modules(&arguments, file, draft);
    }
    if texts
        .iter()
        .any(|(_, text)| text.contains("pkg_check_modules") || text.contains("PkgConfig"))
    {
        draft.add_package("pkg-config", path, "CMake asks it for libraries.");
    }
    let fetches = ["FetchContent_Declare", "ExternalProject_Add", "CPMAddPackage"];
    if texts.iter().any(|(_, text)| fetches.into_iter().any(|call| text.contains(call))) {
        draft.add_warning(
            "CMake fetches sources itself, which the sandbox does not allow: use Debian packages, or keep a copy in the repository.",
        );
    }
    let mut configure = format!("cmake -S . -B {build} -DCMAKE_BUILD_TYPE=Debug");
    let mut reason = "It configures the build, outside of the sources.".to_owned();
    for (option, file) in test_options(&texts) {
        configure.push_str(" -D");
        configure.push_str(&option);
        configure.push_str("=ON");
        reason = format!("{reason} `{file}` adds tests only with `{option}`.");
    }
    draft.add_setup(configure, path, &reason);
    let compile = format!("cmake --build {build} -j2");
    draft.add_setup(
        compile.clone(),
        path,
        "It compiles once, so that jobs compile only what changes.",
    );
    let tests = [
        "add_test",
        "enable_testing",
        "include(CTest)",
        "gtest_discover_tests",
        "catch_discover_tests",
    ];
    if texts.iter().any(|(_, text)| tests.into_iter().any(|call| text.contains(call))) {
        let command = format!("{compile} && ctest --test-dir {build} --output-on-failure");
        let check = reported_test(command, TestReportFormat::Ctest, None);
        draft.add_check(check, path, "CMake knows tests, which ctest runs.");
    } else {
        let check = plain_check(EnvironmentCheckKind::Build, compile);
        draft.add_check(check, path, "CMake knows no tests: the check is that it compiles.");
    }
    draft.add_cache(build, path, "CMake builds there.");
    draft.add_lock_file(path);
    draft.require_memory(BUILD_MEMORY_MIB, path, "Two compilers run at a time.");
}

/// Adds the packages of the modules that a call names.
fn add_modules(arguments: &[String], file: &str, draft: &mut ProposalDraft) {
    let optional = ["doxygen", "git", "threads", "clangformat"];
    for argument in arguments.iter().take(20) {
        let module = argument.split(['>', '<', '=']).next().unwrap_or_default();
        if optional.contains(&module.to_lowercase().as_str()) {
            continue;
        }
        if let Some(package) = package_of_module(module) {
            draft.add_package(package, file, &format!("The build looks for `{module}`."));
        }
    }
}

/// Words of the arguments of each call of a command, without quotes.
fn calls_of(text: &str, command: &str) -> Vec<Vec<String>> {
    let calls = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    calls
        .filter_map(|line| {
            let (before, rest) = line.split_once(command)?;
            let whole = !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let arguments = rest.trim_start().strip_prefix('(').filter(|_| whole)?;
            let arguments = arguments.split(')').next().unwrap_or_default();
            let words = arguments.split_whitespace().map(|word| word.trim_matches('"').to_owned());
            Some(words.take(30).collect())
        })
        .take(100)
        .collect()
}

/// Options that are off and that tests are added with, and the files that say so.
fn test_options(texts: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut off: BTreeSet<String> = BTreeSet::new();
    for (_, text) in texts {
        for arguments in calls_of(text, "option") {
            // Without a value, an option is off.
            let is_off = arguments.last().is_some_and(|last| {
                let value = last.to_uppercase();
                !["ON", "YES", "TRUE", "1"].contains(&value.as_str()) && !value.contains('$')
            });
            let name = arguments.into_iter().next().unwrap_or_default();
            let special =
                SPECIAL_OPTIONS.into_iter().any(|part| name.to_uppercase().contains(part));
            if is_off && !special && is_plain_word(&name) {
                off.insert(name);
            }
        }
    }
    let mut wanted: Vec<(String, String)> = Vec::new();
    for (file, text) in texts {
        for option in guards_of_tests(text) {
            let new = !wanted.iter().any(|(known, _)| *known == option);
            if off.contains(&option) && new && wanted.len() < MAX_TEST_OPTIONS {
                wanted.push((option, (*file).to_owned()));
            }
        }
    }
    wanted
}

/// Variables of the `if` blocks that tests stand in.
fn guards_of_tests(text: &str) -> Vec<String> {
    let mut open: Vec<Vec<String>> = Vec::new();
    let mut guards: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let small = line.to_lowercase();
        let call = small.split('(').next().unwrap_or_default().trim();
        match call {
            "if" => {
                let condition = line.split_once('(').map_or("", |(_, rest)| rest);
                let condition = condition.trim_end_matches(')');
                let negated = condition.contains("NOT ");
                let names = condition.split([' ', '(', ')']).filter(|word| is_plain_word(word));
                let names = names.filter(|_| !negated).take(10).map(str::to_owned);
                open.push(names.collect());
            }
            "else" | "elseif" => {
                // What follows holds when the variable is off.
                if let Some(last) = open.last_mut() {
                    last.clear();
                }
            }
            "endif" => drop(open.pop()),
            _ => {
                let adds_tests = call == "add_test"
                    || call == "enable_testing"
                    || call == "gtest_discover_tests"
                    || call == "catch_discover_tests"
                    || (call == "add_subdirectory" && small.contains("test"));
                if adds_tests {
                    guards.extend(open.iter().flatten().cloned());
                }
            }
        }
    }
    guards
}

fn detect_meson(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    let path = "meson.build";
    let build = build_directory(files);
    let text = files.text(path).unwrap_or_default();
    let packages = ["build-essential", "meson", "ninja-build", "pkg-config"];
    draft.add_packages(&packages, path, "Meson builds the code.");
    for rest in text.split("dependency(").skip(1).take(50) {
        let name = rest.trim_start().trim_start_matches(['\'', '"']);
        let name = name.split(['\'', '"']).next().unwrap_or_default();
        add_modules(&[name.to_owned()], path, draft);
    }
    let reason = "It configures the build, outside of the sources.";
    draft.add_setup(format!("meson setup {build}"), path, reason);
    let reason = "It compiles once, so that jobs compile only what changes.";
    draft.add_setup(format!("meson compile -C {build} -j 2"), path, reason);
    let command = format!("meson test -C {build} --print-errorlogs");
    let report = format!("{build}/meson-logs/testlog.junit.xml");
    let check = reported_test(command, TestReportFormat::Junit, Some(report));
    draft.add_check(check, path, "Meson compiles and runs its tests.");
    draft.add_cache(build, path, "Meson builds there.");
    draft.add_lock_file(path);
    draft.require_memory(BUILD_MEMORY_MIB, path, "Two compilers run at a time.");
}

fn detect_autotools(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    let path = if files.has_file("configure.ac") { "configure.ac" } else { "configure.in" };
    let text = files.text(path).unwrap_or_default();
    draft.add_package("build-essential", path, "The code is compiled.");
    let generated = files.has_file("configure");
    let macros: [(&[&str], &[&str], &str); 6] = [
        (&["AM_INIT_AUTOMAKE"], &["automake"], "The makefiles are automake's."),
        (
            &["LT_INIT", "AC_PROG_LIBTOOL", "AM_PROG_LIBTOOL"],
            &["libtool"],
            "Libraries are linked by libtool.",
        ),
        (
            &["AM_GNU_GETTEXT", "AM_ICONV"],
            &["autopoint", "gettext"],
            "Messages are translated by gettext.",
        ),
        (&["PROG_LEX", "PROG_FLEX"], &["flex"], "The configuration asks for lex."),
        (&["PROG_YACC", "PROG_BISON"], &["bison"], "The configuration asks for yacc."),
        (
            &["PKG_CHECK_MODULES", "PKG_PROG_PKG_CONFIG"],
            &["pkg-config"],
            "The configuration asks pkg-config for libraries.",
        ),
    ];
    if !generated {
        draft.add_package("autoconf", path, "It makes `configure`, which the repository has not.");
    }
    for (calls, packages, reason) in macros {
        if calls.iter().any(|call| text.contains(call)) {
            draft.add_packages(packages, path, reason);
        }
    }
    for rest in text.split("PKG_CHECK_MODULES(").skip(1).take(50) {
        let arguments = rest.split(')').next().unwrap_or_default();
        let words = arguments.split([',', ' ', '[', ']']).skip(1).map(str::to_owned);
        add_modules(&words.collect::<Vec<_>>(), path, draft);
    }
    if !generated {
        draft.add_setup(
            "autoreconf -fi",
            path,
            "It makes `configure`, which the repository has not.",
        );
    }
    draft.add_setup("./configure", path, "It looks at the system and makes the makefiles.");
    draft.add_setup("make -j2", path, "It compiles once, so that jobs compile only what changes.");
    let check = reported_test("make -j2 && make check", TestReportFormat::Automake, None);
    draft.add_check(check, path, "The target `check` compiles and runs the tests.");
    draft.add_lock_file(path);
    draft.require_memory(BUILD_MEMORY_MIB, path, "Two compilers run at a time.");
}

/// Proposes the lines of a makefile. It counts only where nothing else does: many repositories have one beside their build system.
pub(crate) fn detect_makefile(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    let names = ["GNUmakefile", "Makefile", "makefile"];
    let Some(path) = names.into_iter().find(|name| files.has_file(name)) else { return };
    let text = files.text(path).unwrap_or_default();
    let has_target = |name: &str| {
        text.lines().any(|line| {
            line.strip_prefix(name).is_some_and(|rest| {
                rest.trim_start().starts_with(':') && !rest.trim_start().starts_with(":=")
            })
        })
    };
    let compiled = files.matching(|path| {
        [".c", ".cc", ".cpp", ".cxx"].into_iter().any(|ending| path.ends_with(ending))
    });
    if compiled.take(1).count() > 0 {
        draft.add_package("build-essential", path, "The code is compiled.");
        draft.add_setup(
            "make -j2",
            path,
            "It compiles once, so that jobs compile only what changes.",
        );
        draft.add_lock_file(path);
    } else {
        draft.add_package("make", path, "The makefile runs commands.");
    }
    match ["check", "test", "tests"].into_iter().find(|name| has_target(name)) {
        Some(target) => {
            let command = format!("make {target}");
            let check = plain_check(EnvironmentCheckKind::Test, command);
            draft.add_check(check, path, &format!("The makefile has the target `{target}`."));
        }
        None => draft.add_warning(format!(
            "`{path}` has no target `check` or `test`: write the test command by hand."
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_tests_are_added_with_are_switched_on() {
        let top = "option(WITH_EXTRA \"Extra\" OFF)\noption(WITH_ON \"On\" ON)\noption(USE_VALGRIND \"v\" OFF)\nadd_subdirectory(tests)\n";
        let nested = "if(WITH_ON)\n  add_test(NAME a COMMAND a)\n  if (WITH_EXTRA)\n    add_test(NAME b COMMAND b)\n  endif()\nendif()\n\
                      if(USE_VALGRIND)\n  add_test(NAME c COMMAND c)\nendif()\n";
        assert_eq!(
            test_options(&[("CMakeLists.txt", top), ("tests/CMakeLists.txt", nested)]),
            [("WITH_EXTRA".to_owned(), "tests/CMakeLists.txt".to_owned())]
        );
        let otherwise =
            "option(NO_TESTS \"n\" OFF)\nif(NOT NO_TESTS)\n  enable_testing()\nendif()\n";
        assert_eq!(test_options(&[("CMakeLists.txt", otherwise)]), Vec::<(String, String)>::new());
    }
}
