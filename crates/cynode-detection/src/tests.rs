//! Proposals for repositories of several kinds.

use std::collections::BTreeMap;

use cynode_core::environments::{
    EnvironmentCheck, EnvironmentCheckKind, EnvironmentLimits, EnvironmentProposal,
    EnvironmentSpec, PackageSource, TestReportFormat, TestReportSource,
};
use proptest::prelude::*;

use super::*;

/// Detects what a repository of these files proposes. Only the texts that detection asks for are given to it.
fn detect(files: &[(&str, &str)]) -> EnvironmentProposal {
    let paths: Vec<String> = files.iter().map(|(path, _)| (*path).to_owned()).collect();
    let wanted = files_to_read(&paths);
    let texts = files
        .iter()
        .filter(|(path, _)| wanted.iter().any(|wanted| wanted == path))
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    let proposal = detect_environment(&paths, &texts);
    assert_eq!(proposal.spec.validation_error(), None);
    proposal
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn test_check(command: &str, format: TestReportFormat, path: Option<&str>) -> EnvironmentCheck {
    EnvironmentCheck {
        kind: EnvironmentCheckKind::Test,
        command: command.to_owned(),
        report: Some(TestReportSource { format, path: path.map(str::to_owned) }),
        coverage: None,
        timeout_seconds: None,
    }
}

fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn memory(mib: u32) -> EnvironmentLimits {
    EnvironmentLimits { memory_mib: Some(mib), ..EnvironmentLimits::default() }
}

#[test]
fn a_crate_with_a_lock_file_is_fetched_built_and_tested_offline() {
    let proposal = detect(&[
        (
            "Cargo.toml",
            "[package]\nname = \"a\"\nversion = \"1.0.0\"\nedition = \"2021\"\nrust-version = \"1.60\"\n",
        ),
        ("Cargo.lock", "[[package]]\nname = \"openssl-sys\"\nversion = \"0.9.1\"\n"),
        ("src/lib.rs", ""),
        (
            ".github/workflows/ci.yml",
            "jobs:\n  t:\n    runs-on: ubuntu-latest\n    steps:\n      - run: cargo test --all-features\n",
        ),
    ]);
    let expected = EnvironmentSpec {
        system_packages: strings(&["rustc-web", "cargo-web", "libssl-dev", "pkg-config"]),
        setup: strings(&[
            r#"cargo fetch --locked --target "$(rustc -vV | sed -n 's/^host: //p')""#,
            "cargo test --offline --locked --all-features --tests --no-run",
        ]),
        checks: vec![test_check(
            "cargo test --offline --locked --all-features --tests --no-fail-fast",
            TestReportFormat::Cargo,
            None,
        )],
        variables: variables(&[
            ("CARGO_INCREMENTAL", "0"),
            ("CARGO_PROFILE_DEV_DEBUG", "0"),
            ("RUSTFLAGS", "--cap-lints=warn"),
        ]),
        caches: strings(&["target"]),
        lock_files: strings(&["Cargo.lock"]),
        package_sources: vec![PackageSource::Crates, PackageSource::Debian],
        limits: memory(2048),
        ..EnvironmentSpec::default()
    };
    assert_eq!(proposal.spec, expected);
    assert_eq!(proposal.warnings, Vec::<String>::new());
    let lines: Vec<&str> = proposal.reasons.iter().map(|reason| reason.line.as_str()).collect();
    assert!(
        lines.contains(&"setup: cargo test --offline --locked --all-features --tests --no-run")
    );
}

#[test]
fn a_workspace_without_a_lock_file_is_told_so() {
    let proposal = detect(&[
        (
            "Cargo.toml",
            "[workspace]\nmembers = [\"a\"]\n[workspace.package]\nrust-version = \"1.95\"\n",
        ),
        ("a/Cargo.toml", "[package]\nname = \"a\"\n"),
        ("rust-toolchain.toml", "[toolchain]\nchannel = \"nightly\"\n"),
    ]);
    assert_eq!(
        proposal.spec.checks,
        [test_check(
            "cargo test --offline --workspace --tests --no-fail-fast",
            TestReportFormat::Cargo,
            None
        )]
    );
    assert_eq!(proposal.spec.lock_files, ["Cargo.toml", "rust-toolchain.toml"]);
    assert_eq!(proposal.warnings.len(), 2);
}

const NODE_VARIABLES: [(&str, &str); 5] = [
    ("CI", "1"),
    ("NO_COLOR", "1"),
    ("npm_config_audit", "false"),
    ("npm_config_fund", "false"),
    ("npm_config_update_notifier", "false"),
];

#[test]
fn a_runner_behind_scripts_is_called_directly_with_a_report_per_test() {
    let manifest = r#"{
        "scripts": { "pretest": "npm run lint", "test": "npm run tests-only && npm run more", "tests-only": "nyc tape 'test/*.js'", "lint": "eslint ." },
        "devDependencies": { "tape": "^5", "nyc": "^1", "eslint": "^8" }
    }"#;
    let lock = r#"{ "packages": { "": { "devDependencies": { "tape": "^5", "nyc": "^1", "eslint": "^8" } } } }"#;
    let proposal = detect(&[("package.json", manifest), ("package-lock.json", lock)]);
    let lint = EnvironmentCheck {
        kind: EnvironmentCheckKind::Lint,
        command: "npm run --silent lint".to_owned(),
        report: None,
        coverage: None,
        timeout_seconds: None,
    };
    let expected = EnvironmentSpec {
        system_packages: strings(&["nodejs", "npm"]),
        setup: strings(&["test -d node_modules && npm install --no-save || npm ci"]),
        checks: vec![
            test_check("node_modules/.bin/tape 'test/*.js'", TestReportFormat::Tap, None),
            lint,
        ],
        variables: variables(&NODE_VARIABLES),
        caches: strings(&["node_modules/.cache"]),
        lock_files: strings(&["package-lock.json"]),
        package_sources: vec![PackageSource::Npm, PackageSource::Debian],
        limits: memory(1024),
        ..EnvironmentSpec::default()
    };
    assert_eq!(proposal.spec, expected);
}

#[test]
fn what_a_foreign_lock_file_locks_is_installed_beside_the_manifest() {
    let manifest = r#"{ "scripts": { "test": "pnpm vitest run" }, "devDependencies": { "odd": "github:some/thing" } }"#;
    let lock = r#"{ "packages": { "": { "dependencies": { "vitest": "3.0.0" } }, "node_modules/vitest": { "version": "3.0.0" } } }"#;
    let proposal = detect(&[("package.json", manifest), ("package-lock.json", lock)]);
    assert_eq!(proposal.spec.setup.len(), 3);
    assert_eq!(proposal.spec.setup[1], "(cd .cynode-npm && { npm ci || npm install; })");
    assert_eq!(
        proposal.spec.checks,
        [test_check(
            "node_modules/.bin/vitest run --reporter=default --reporter=json --outputFile.json=.cynode-report.json",
            TestReportFormat::Jest,
            Some(".cynode-report.json")
        )]
    );
    // The dependency from git is not installed, so that nobody need look at it.
    assert_eq!(
        proposal.warnings,
        [
            "`package-lock.json` does not belong to the dependencies of the manifest. Set-up installs what it locks."
        ]
    );
}

#[test]
fn each_runner_of_javascript_gives_results_per_test() {
    let command = |script: &str, dependency: &str| {
        let manifest = serde_json::json!({
            "scripts": { "test": script },
            "devDependencies": { dependency: "1" },
        });
        let proposal = detect(&[("package.json", manifest.to_string().as_str())]);
        let check = proposal.spec.checks.first().cloned();
        check.map(|check| (check.command, check.report.map(|report| report.format)))
    };
    let some = |text: &str, format| Some((text.to_owned(), Some(format)));
    assert_eq!(
        command("cross-env A=b jest --coverage --watch", "jest"),
        some(
            "A=b node_modules/.bin/jest --ci --json --outputFile=.cynode-report.json",
            TestReportFormat::Jest
        )
    );
    assert_eq!(
        command("c8 mocha --reporter dot test", "mocha"),
        some("node_modules/.bin/mocha test --reporter spec", TestReportFormat::Mocha)
    );
    assert_eq!(command("ava", "ava"), some("node_modules/.bin/ava --tap", TestReportFormat::Tap));
    assert_eq!(
        command("node --test test/", "x"),
        some("node --test --test-reporter=tap test/", TestReportFormat::Tap)
    );
    assert_eq!(command("karma start", "karma"), Some(("npm test".to_owned(), None)));
    assert_eq!(command("echo \"Error: no test specified\" && exit 1", "x"), None);
}

#[test]
fn pnpm_and_yarn_are_installed_before_they_install() {
    let manifest = r#"{ "packageManager": "pnpm@9.1.0+sha512.ab", "scripts": { "test": "vitest" }, "devDependencies": { "vitest": "1" } }"#;
    let lock = "lockfileVersion: '9.0'\n";
    let proposal = detect(&[("package.json", manifest), ("pnpm-lock.yaml", lock)]);
    assert_eq!(
        proposal.spec.setup,
        [
            "npm install --global --prefix \"$HOME/.local\" pnpm@9.1.0",
            "\"$HOME/.local/bin/pnpm\" install --frozen-lockfile",
        ]
    );
    let proposal = detect(&[
        ("package.json", r#"{ "dependencies": { "a": "1" } }"#),
        ("yarn.lock", "# yarn lockfile v1\n"),
    ]);
    assert_eq!(
        proposal.spec.setup,
        [
            "npm install --global --prefix \"$HOME/.local\" yarn@1.22.22",
            "\"$HOME/.local/bin/yarn\" install --frozen-lockfile --non-interactive",
        ]
    );
}

const PYTEST: &str =
    "PATH=\"$PWD/.venv/bin:$PATH\" .venv/bin/python -m pytest -rA --color=no -p no:cacheprovider";

#[test]
fn a_python_project_is_installed_with_the_extra_of_its_tests() {
    let proposal = detect(&[
        (
            "pyproject.toml",
            "[build-system]\nrequires = [\"hatchling\", \"hatch-vcs\"]\n[project]\nname = \"a\"\n\
             optional-dependencies.tests = [\"pytest\", \"freezegun\"]\n[tool.pytest.ini_options]\naddopts = \"--cov\"\n",
        ),
        ("tests/test_a.py", ""),
    ]);
    let expected = EnvironmentSpec {
        system_packages: strings(&["python3", "python3-venv"]),
        setup: strings(&[
            "test -x .venv/bin/pip || python3 -m venv .venv",
            "cmp -s pyproject.toml .venv/pyproject.toml && set -- 'a[tests]' || set -- -e '.[tests]'; \
             .venv/bin/pip install pytest-cov \"$@\" && cp pyproject.toml .venv/pyproject.toml",
        ]),
        checks: vec![test_check(PYTEST, TestReportFormat::Pytest, None)],
        variables: variables(&[
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("SETUPTOOLS_SCM_PRETEND_VERSION", "0.0.0"),
        ]),
        lock_files: strings(&["pyproject.toml"]),
        package_sources: vec![PackageSource::Pypi, PackageSource::Debian],
        limits: memory(1024),
        ..EnvironmentSpec::default()
    };
    assert_eq!(proposal.spec, expected);
}

#[test]
fn a_coverage_report_is_named_where_the_tests_write_one_already() {
    let coverage = |options: &str| {
        let metadata = format!(
            "[project]\nname = \"a\"\n[tool.pytest.ini_options]\naddopts = \"{options}\"\n"
        );
        let proposal = detect(&[("pyproject.toml", metadata.as_str()), ("test_a.py", "")]);
        proposal.spec.checks[0].coverage.clone()
    };
    let found = ["--cov --cov-report=xml", "--cov --cov-report lcov", "--cov", "--cov-report=html"]
        .map(coverage);
    assert_eq!(
        found,
        [Some("coverage.xml".to_owned()), Some("coverage.lcov".to_owned()), None, None]
    );
}

#[test]
fn what_is_compiled_or_not_known_from_its_metadata_is_installed_each_time() {
    let is_repeated = |metadata: &str, other: &str| {
        let metadata = format!("[project]\nname = \"a\"\n{metadata}");
        let files = [("pyproject.toml", metadata.as_str()), (other, ""), ("test_a.py", "")];
        detect(&files).spec.setup.last().unwrap() == ".venv/bin/pip install pytest -e ."
    };
    let setuptools = "[build-system]\nrequires = [\"setuptools>=61\", \"wheel\"]\n";
    let compiled = "[build-system]\nrequires = [\"setuptools\", \"Cython\"]\n";
    let dynamic = format!("dynamic = [\"dependencies\"]\n{setuptools}");
    let found = [
        is_repeated(setuptools, "README"),
        is_repeated(setuptools, "setup.py"),
        is_repeated(compiled, "README"),
        is_repeated(&dynamic, "README"),
        is_repeated("", "README"),
    ];
    assert_eq!(found, [false, true, true, true, true]);
}

#[test]
fn requirements_of_tests_come_from_poetry_groups_and_tox() {
    let install = |files: &[(&str, &str)]| detect(files).spec.setup.last().cloned().unwrap();
    let poetry = "[tool.poetry]\nname = \"a\"\n[tool.poetry.dev-dependencies]\npytest = \"^7.2.0\"\nPyYAML = \"^6.0\"\nSphinx = \"^4\"\n";
    assert_eq!(
        install(&[("pyproject.toml", poetry), ("tests/test_a.py", "")]),
        ".venv/bin/pip install 'pytest>=7.2.0,<8' 'PyYAML>=6.0,<7' -e ."
    );
    assert_eq!(
        install(&[
            ("pyproject.toml", poetry),
            ("constraints.txt", "pytest==8.3.4\npyyaml==6.0.2\n"),
            ("tests/test_a.py", "")
        ]),
        "PIP_CONSTRAINT=\"$PWD/constraints.txt\" .venv/bin/pip install pytest PyYAML -e ."
    );
    let tox = "[testenv]\ndeps =\n    pytest\n    sh >= 2.0.2, <3\n    py{310,311}: extra\n    lint: flake8\n";
    assert_eq!(
        install(&[("setup.py", "setup()"), ("tox.ini", tox), ("tests/test_a.py", "")]),
        ".venv/bin/pip install pytest 'sh >= 2.0.2, <3' extra -e ."
    );
    let groups = "[project]\nname = \"a\"\n[dependency-groups]\ntest = [\"pytest\", { include-group = \"more\" }]\nmore = [\"hypothesis\"]\n";
    assert_eq!(
        install(&[("pyproject.toml", groups), ("uv.lock", ""), ("a_test.py", "")]),
        ".venv/bin/pip install -c .venv/constraints.txt pytest hypothesis -e ."
    );
    assert_eq!(
        install(&[
            ("Pipfile", "[packages]\nflask = \"*\"\n[dev-packages]\npytest = \">=8\"\n"),
            ("test_a.py", "")
        ]),
        ".venv/bin/pip install flask 'pytest>=8'"
    );
    assert_eq!(
        install(&[("requirements.txt", "flask\n"), ("test_a.py", "")]),
        ".venv/bin/pip install -r requirements.txt pytest"
    );
}

#[test]
fn cmake_builds_with_the_options_that_its_tests_need() {
    let proposal = detect(&[
        (
            "CMakeLists.txt",
            "project(a C)\noption(WITH_MORE \"More\" OFF)\nenable_testing()\nfind_package(ZLIB REQUIRED)\n",
        ),
        ("tests/CMakeLists.txt", "if(WITH_MORE)\n  add_test(NAME b COMMAND b)\nendif()\n"),
        ("Makefile", "test:\n\ttrue\n"),
    ]);
    let expected = EnvironmentSpec {
        system_packages: strings(&["build-essential", "cmake", "zlib1g-dev"]),
        setup: strings(&[
            "cmake -S . -B build -DCMAKE_BUILD_TYPE=Debug -DWITH_MORE=ON",
            "cmake --build build -j2",
        ]),
        checks: vec![test_check(
            "cmake --build build -j2 && ctest --test-dir build --output-on-failure",
            TestReportFormat::Ctest,
            None,
        )],
        caches: strings(&["build"]),
        lock_files: strings(&["CMakeLists.txt"]),
        package_sources: vec![PackageSource::Debian],
        limits: memory(1024),
        ..EnvironmentSpec::default()
    };
    assert_eq!(proposal.spec, expected);
}

#[test]
fn autotools_run_from_the_start_when_configure_is_not_there() {
    let configure =
        "AC_INIT(a, 1)\nAM_INIT_AUTOMAKE\nAM_PROG_LEX\nLT_INIT\nAM_GNU_GETTEXT([external])\n";
    let proposal = detect(&[("configure.ac", configure), ("Makefile.am", "")]);
    let expected = EnvironmentSpec {
        system_packages: strings(&[
            "build-essential",
            "autoconf",
            "automake",
            "libtool",
            "autopoint",
            "gettext",
            "flex",
        ]),
        setup: strings(&["autoreconf -fi", "./configure", "make -j2"]),
        checks: vec![test_check("make -j2 && make check", TestReportFormat::Automake, None)],
        lock_files: strings(&["configure.ac"]),
        package_sources: vec![PackageSource::Debian],
        limits: memory(1024),
        ..EnvironmentSpec::default()
    };
    assert_eq!(proposal.spec, expected);
}

#[test]
fn a_repository_of_several_languages_gets_the_lines_of_all() {
    let proposal = detect(&[
        ("backend/pyproject.toml", "[project]\nname = \"b\"\n"),
        ("backend/test_b.py", ""),
        (
            "frontend/package.json",
            r#"{ "scripts": { "test": "jest" }, "devDependencies": { "jest": "29" } }"#,
        ),
        (
            "frontend/package-lock.json",
            r#"{ "packages": { "": { "devDependencies": { "jest": "29" } } } }"#,
        ),
        ("docs/package.json", r#"{ "dependencies": { "x": "1" } }"#),
    ]);
    assert_eq!(
        proposal.spec.setup,
        [
            "(cd backend && test -x .venv/bin/pip || python3 -m venv .venv)",
            "(cd backend && .venv/bin/pip install pytest -e .)",
            "(cd frontend && test -d node_modules && npm install --no-save || npm ci)",
        ]
    );
    let reports: Vec<_> = proposal.spec.checks.iter().map(|check| check.report.clone()).collect();
    let jest = TestReportSource {
        format: TestReportFormat::Jest,
        path: Some("frontend/.cynode-report.json".to_owned()),
    };
    let pytest = TestReportSource { format: TestReportFormat::Pytest, path: None };
    assert_eq!(reports, [Some(pytest), Some(jest)]);
}

#[test]
fn a_pipeline_adds_packages_that_are_known_and_services() {
    let workflow = "jobs:\n  t:\n    runs-on: ubuntu-latest\n    services:\n      cache:\n        image: redis:7\n    steps:\n      \
                    - run: |\n          sudo apt-get update\n          sudo apt-get install -y libpq-dev odd-thing\n      - run: make check\n";
    let proposal = detect(&[
        (".github/workflows/test.yml", workflow),
        ("Makefile", "all:\n\ttrue\n"),
        ("a.c", ""),
    ]);
    assert_eq!(
        proposal.spec.system_packages,
        ["build-essential", "libpq-dev", "redis-server", "redis-tools"]
    );
    let services: Vec<&str> = proposal.spec.services.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(services, ["redis"]);
    let checks: Vec<&str> = proposal.spec.checks.iter().map(|it| it.command.as_str()).collect();
    assert_eq!(checks, ["make check"]);
    assert!(proposal.warnings.iter().any(|warning| warning.contains("`odd-thing`")));
}

#[test]
fn a_repository_without_a_build_system_gets_no_environment_and_is_told_so() {
    let proposal = detect(&[("README.md", "hello")]);
    assert_eq!(proposal.spec, EnvironmentSpec::default());
    assert_eq!(
        proposal.warnings,
        ["No build system was recognised: write `setup` and `checks` by hand."]
    );
}

#[test]
fn files_are_read_from_the_top_level_and_never_more_than_the_bound() {
    let mut paths: Vec<String> = (0..500).map(|n| format!(".github/workflows/w{n}.yml")).collect();
    paths.extend(MANIFESTS.iter().map(|name| (*name).to_owned()));
    paths.extend(strings(&["src/main.rs", "deep/er/Cargo.toml", "requirements-test.txt"]));
    let wanted = files_to_read(&paths);
    assert!(wanted.len() <= MAX_FILES_TO_READ);
    assert_eq!(wanted.first().map(String::as_str), Some("Cargo.toml"));
    assert!(wanted.iter().any(|path| path == "requirements-test.txt"));
    assert!(!wanted.iter().any(|path| path == "src/main.rs" || path == "deep/er/Cargo.toml"));
}

/// Text that resembles manifests, so that it gets past the parsers.
fn hostile_text() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "[project]\n",
        "name = \"a\"\n",
        "[tool.poetry.dev-dependencies]\n",
        "x = \"^\"\n",
        "{",
        "}",
        "[",
        "]",
        "\"scripts\":",
        "\"test\":",
        "\"jest --watch\"",
        "jobs:\n",
        "  - run: |\n",
        "apt-get install -y a b\n",
        "'",
        "\"",
        "\\",
        "\u{1b}[2J",
        "\0",
        "option(",
        "if(",
        ")\n",
        "endif()\n",
        "[testenv]\ndeps =\n ",
        "{\"packages\":{\"\":{}}}",
        "[package]\nrust-version = \"1.\"\n",
        "&a [*a]\n",
        "-r ../x\n",
        "; rm -rf /\n",
    ]);
    prop::collection::vec(pieces, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_gives_a_valid_proposal(
        texts in prop::collection::vec(prop_oneof![hostile_text(), ".{0,300}"], MANIFESTS.len()),
        workflow in hostile_text(),
    ) {
        let mut all: BTreeMap<String, String> =
            MANIFESTS.iter().map(|name| (*name).to_owned()).zip(texts).collect();
        all.insert(".github/workflows/ci.yml".to_owned(), workflow.clone());
        let paths: Vec<String> = all.keys().cloned().chain(["tests/test_a.py".to_owned()]).collect();
        let proposal = detect_environment(&paths, &all);
        prop_assert_eq!(proposal.spec.validation_error(), None);
        for reason in &proposal.reasons {
            prop_assert!(!reason.line.chars().any(char::is_control));
        }
        let _ = read_devcontainer(&workflow);
        let _ = suggest_fix(&proposal.spec, &workflow, Some(1), &workflow);
    }
}
