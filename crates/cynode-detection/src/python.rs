//! Python: the metadata of a project, its requirements and lock files, and pytest.

use std::collections::BTreeSet;

use cynode_core::environments::{EnvironmentCheckKind, PackageSource, TestReportFormat};
use toml::{Table, Value};

use crate::draft::{ProposalDraft, plain_check, reported_test};
use crate::packages::PYTHON_MINOR;
use crate::repository::RepositoryFiles;
use crate::shell::{in_directory, is_plain_word, python_minor, quote_word};

/// Maximum number of requirements of a list.
const MAX_REQUIREMENTS: usize = 60;

/// How deep dependency groups are followed that include groups.
const MAX_GROUP_DEPTH: usize = 5;

/// Memory of a test run, in MiB.
const TEST_MEMORY_MIB: u32 = 1024;

/// Names of extras and groups that tests need, and of those that are wide enough to hold them.
const TEST_GROUPS: [&str; 4] = ["test", "tests", "testing", "pytest"];
const DEV_GROUPS: [&str; 4] = ["dev", "develop", "development", "all"];

/// Files of requirements, without their folder and ending, in the order of preference.
const REQUIREMENT_FILES: [&str; 14] = [
    "requirements-test",
    "requirements-tests",
    "requirements-testing",
    "requirements_test",
    "requirements_tests",
    "test-requirements",
    "test_requirements",
    "requirements/test",
    "requirements/tests",
    "requirements-dev",
    "requirements_dev",
    "dev-requirements",
    "requirements/dev",
    "requirements/development",
];

/// Tools beside tests: documentation, releases, editors. Linters are here too; those that are configured are added on their own.
const OTHER_TOOLS: [&str; 26] = [
    "black",
    "build",
    "bump2version",
    "bumpversion",
    "check-manifest",
    "codecov",
    "commitizen",
    "coveralls",
    "flake8",
    "furo",
    "ipdb",
    "isort",
    "jupyter",
    "mypy",
    "nox",
    "pip-tools",
    "poetry",
    "pre-commit",
    "pylint",
    "pyright",
    "ruff",
    "sphinx",
    "tox",
    "twine",
    "wheel",
    "zest-releaser",
];

/// Options of pytest and the plugins that they belong to.
const PYTEST_PLUGINS: [(&str, &str); 6] = [
    ("--cov", "pytest-cov"),
    ("-n ", "pytest-xdist"),
    ("--numprocesses", "pytest-xdist"),
    ("--timeout", "pytest-timeout"),
    ("asyncio_mode", "pytest-asyncio"),
    ("--benchmark", "pytest-benchmark"),
];

/// Coverage reports that pytest-cov writes, by the option, and their files.
const COVERAGE_REPORTS: [(&str, &str); 3] =
    [("xml", "coverage.xml"), ("lcov", "coverage.lcov"), ("json", "coverage.json")];

/// What packages need to be built in which nothing is compiled.
const PLAIN_BUILD_REQUIREMENTS: [&str; 10] = [
    "flit-core",
    "hatch-fancy-pypi-readme",
    "hatch-vcs",
    "hatchling",
    "pdm-backend",
    "poetry-core",
    "setuptools",
    "setuptools-scm",
    "setuptools-git-versioning",
    "wheel",
];

/// Copy of the metadata with which the project was installed.
const INSTALLED_METADATA: &str = ".venv/pyproject.toml";

/// Script that turns a lock file into a list of constraints. A package with several versions is left to its markers.
const CONSTRAINTS_SCRIPT: &str = "import collections, sys, tomllib; \
    found = collections.defaultdict(set); \
    [found[p[\"name\"]].add(p[\"version\"]) for p in tomllib.load(open(sys.argv[1], \"rb\")).get(\"package\", []) if \"version\" in p and \
    not {\"editable\", \"virtual\", \"directory\", \"path\"} & set(p.get(\"source\", {}))]; \
    print(\"\\n\".join(n + \"==\" + v for n, vs in sorted(found.items()) if len(vs) == 1 for v in vs))";

/// Requirements of the tests and where they were found.
#[derive(Default)]
struct TestRequirements {
    extras: BTreeSet<String>,
    requirements: Vec<String>,
    files: Vec<String>,
    /// Names of packages that the extras and files are known to bring.
    names: BTreeSet<String>,
    source: String,
}

impl TestRequirements {
    fn is_empty(&self) -> bool {
        self.extras.is_empty() && self.requirements.is_empty() && self.files.is_empty()
    }

    fn add_requirement(&mut self, text: &str) {
        let text = text.trim();
        if !is_requirement(text) || self.requirements.len() >= MAX_REQUIREMENTS {
            return;
        }
        self.names.insert(requirement_name(text));
        if !self.requirements.iter().any(|known| known == text) {
            self.requirements.push(text.to_owned());
        }
    }
}

/// Project in a directory.
struct PythonProject<'repo> {
    files: &'repo RepositoryFiles<'repo>,
    directory: &'repo str,
    pyproject: Table,
}

/// Returns whether a path is a file of requirements.
pub(crate) fn is_requirements_file(path: &str) -> bool {
    path.strip_suffix(".txt").is_some_and(|path| REQUIREMENT_FILES.contains(&path))
}

/// Proposes the lines of a Python project in a directory.
pub(crate) fn detect(files: &RepositoryFiles<'_>, directory: &str, draft: &mut ProposalDraft) {
    let project = PythonProject::read(files, directory, draft);
    let Some(manifest) = project.manifest_path() else { return };
    let tested = project.has_tests();
    if !project.is_installable() && !tested && !project.has("requirements.txt") {
        return;
    }
    draft.add_packages(&["python3", "python3-venv"], &manifest, "Python runs the code.");
    draft.add_source(PackageSource::Pypi, &manifest, "Dependencies are packages of PyPI.");
    draft.add_variable(
        "PIP_DISABLE_PIP_VERSION_CHECK",
        "1",
        &manifest,
        "pip asks for nothing else.",
    );
    project.add_version_lines(&manifest, draft);
    let wanted = project.find_requirements(draft);
    project.add_install(&manifest, wanted, tested, draft);
    draft.require_memory(TEST_MEMORY_MIB, &manifest, "Tests of libraries fit into it.");
}

impl<'repo> PythonProject<'repo> {
    fn read(
        files: &'repo RepositoryFiles<'repo>,
        directory: &'repo str,
        draft: &mut ProposalDraft,
    ) -> Self {
        let path = format!("{directory}pyproject.toml");
        let pyproject = match files.text(&path).map(toml::from_str::<Table>) {
            Some(Ok(table)) => table,
            Some(Err(_)) => {
                draft.add_warning(format!("`{path}` cannot be read as TOML."));
                Table::new()
            }
            None => Table::new(),
        };
        Self { files, directory, pyproject }
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.directory)
    }

    fn has(&self, name: &str) -> bool {
        self.files.has_file(&self.path(name))
    }

    fn text(&self, name: &str) -> &'repo str {
        self.files.text(&self.path(name)).unwrap_or_default()
    }

    /// Value of the project file at a path of keys.
    fn value(&self, keys: &[&str]) -> Option<&Value> {
        let (first, rest) = keys.split_first()?;
        rest.iter().try_fold(self.pyproject.get(*first)?, |value, key| value.get(*key))
    }

    fn table(&self, keys: &[&str]) -> Option<&Table> {
        self.value(keys).and_then(Value::as_table)
    }

    fn manifest_path(&self) -> Option<String> {
        let names = ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile"];
        names.into_iter().find(|name| self.has(name)).map(|name| self.path(name))
    }

    /// Whether `pip install -e .` can work.
    fn is_installable(&self) -> bool {
        self.has("setup.py")
            || self.value(&["project", "name"]).is_some()
            || self.value(&["tool", "poetry", "name"]).is_some()
            || self.value(&["tool", "flit", "metadata"]).is_some()
            || (self.has("setup.cfg")
                && self.text("setup.cfg").contains("[metadata]")
                && self.has("pyproject.toml"))
    }

    /// Whether there are tests that pytest finds.
    fn has_tests(&self) -> bool {
        let is_test = |path: &str| {
            let Some(path) = path.strip_prefix(self.directory) else { return false };
            let name = path.rsplit('/').next().unwrap_or(path);
            name.ends_with(".py")
                && (name.starts_with("test_")
                    || name.ends_with("_test.py")
                    || name == "conftest.py")
        };
        self.files.matching(is_test).next().is_some()
    }

    /// Adds what versions and the build need.
    fn add_version_lines(&self, manifest: &str, draft: &mut ProposalDraft) {
        let asked = self.value(&["project", "requires-python"]).and_then(Value::as_str);
        let poetry = || self.value(&["tool", "poetry", "dependencies", "python"])?.as_str();
        if let Some(minor) = asked.or_else(poetry).and_then(python_minor)
            && minor > PYTHON_MINOR
        {
            draft.add_warning(format!(
                "`{manifest}` asks for Python 3.{minor}; Debian's package has 3.{PYTHON_MINOR}. Choose an image as `base`."
            ));
        }
        let requires = self.strings(&["build-system", "requires"]).join(" ").to_lowercase();
        let requires = requires.replace('_', "-");
        let setup = self.text("setup.py");
        let by_tags = requires.contains("hatch-vcs")
            || requires.contains("setuptools-scm")
            || requires.contains("versioningit")
            || setup.contains("use_scm_version");
        if by_tags && !self.has("PKG-INFO") {
            let reason = "The version comes from tags of git, which the workspace has not.";
            draft.add_variable("SETUPTOOLS_SCM_PRETEND_VERSION", "0.0.0", manifest, reason);
        }
        if requires.contains("poetry-dynamic-versioning") {
            let reason = "The version comes from tags of git, which the workspace has not.";
            draft.add_variable("POETRY_DYNAMIC_VERSIONING_BYPASS", "0.0.0", manifest, reason);
        }
        let compiled = ["cython", "pybind11", "scikit-build", "meson-python", "cffi", "nanobind"];
        if compiled.into_iter().any(|name| requires.contains(name))
            || setup.contains("ext_modules")
            || setup.contains("Extension(")
        {
            let reason = "The package has parts in C.";
            draft.add_packages(&["build-essential", "python3-dev"], manifest, reason);
        }
        if requires.contains("maturin") || requires.contains("setuptools-rust") {
            let reason = "The package has parts in Rust.";
            draft.add_packages(&["rustc-web", "cargo-web"], manifest, reason);
            draft.add_source(PackageSource::Crates, manifest, reason);
        }
    }

    fn strings(&self, keys: &[&str]) -> Vec<String> {
        let values = self.value(keys).and_then(Value::as_array);
        let texts = values.into_iter().flatten().filter_map(Value::as_str);
        texts.take(MAX_REQUIREMENTS).map(str::to_owned).collect()
    }

    /// Finds what the tests need: extras and groups first, then tox, then files of requirements.
    fn find_requirements(&self, draft: &mut ProposalDraft) -> TestRequirements {
        let mut wanted = TestRequirements::default();
        for names in [TEST_GROUPS, DEV_GROUPS] {
            for name in names {
                self.add_extra(name, &mut wanted);
                self.add_group(name, MAX_GROUP_DEPTH, &mut wanted);
                self.add_poetry_group(name, &mut wanted);
            }
            if !wanted.is_empty() {
                wanted.source = if wanted.extras.is_empty() || self.has("pyproject.toml") {
                    self.path("pyproject.toml")
                } else {
                    self.manifest_path().unwrap_or_default()
                };
                return wanted;
            }
        }
        self.add_hatch_environments(&mut wanted);
        if !wanted.is_empty() {
            wanted.source = self.path("pyproject.toml");
            return wanted;
        }
        self.add_tox(&mut wanted, draft);
        if !wanted.is_empty() {
            wanted.source = self.path("tox.ini");
            return wanted;
        }
        self.add_pipfile(&mut wanted);
        if !wanted.is_empty() {
            wanted.source = self.path("Pipfile");
            return wanted;
        }
        if let Some(name) =
            REQUIREMENT_FILES.into_iter().find(|name| self.has(&format!("{name}.txt")))
        {
            self.add_requirements_file(&format!("{name}.txt"), &mut wanted);
        }
        if self.has("requirements.txt") {
            self.add_requirements_file("requirements.txt", &mut wanted);
        }
        wanted
    }

    /// Adds an extra of that name.
    fn add_extra(&self, name: &str, wanted: &mut TestRequirements) {
        let listed = self.strings(&["project", "optional-dependencies", name]);
        let setup_cfg = ini_lines(self.text("setup.cfg"), "options.extras_require", name);
        let setup_py = has_extra(self.text("setup.py"), name);
        let poetry = self.value(&["tool", "poetry", "extras", name]).is_some();
        if listed.is_empty() && setup_cfg.is_empty() && !setup_py && !poetry {
            return;
        }
        wanted.extras.insert(name.to_owned());
        let names = listed.iter().chain(&setup_cfg).map(|text| requirement_name(text));
        wanted.names.extend(names);
    }

    /// Adds a dependency group (PEP 735), or one of pdm. The pip of Debian does not know groups, so that they are written out.
    fn add_group(&self, name: &str, depth: usize, wanted: &mut TestRequirements) {
        let Some(depth) = depth.checked_sub(1) else { return };
        let own = self.value(&["dependency-groups", name]);
        let group = own.or_else(|| self.value(&["tool", "pdm", "dev-dependencies", name]));
        let entries = group.and_then(Value::as_array).into_iter().flatten();
        for entry in entries.take(MAX_REQUIREMENTS) {
            if let Some(text) = entry.as_str() {
                wanted.add_requirement(text);
            } else if let Some(included) = entry.get("include-group").and_then(Value::as_str) {
                self.add_group(included, depth, wanted);
            }
        }
    }

    /// Adds a group of poetry, in pip's words.
    fn add_poetry_group(&self, name: &str, wanted: &mut TestRequirements) {
        let group = self.table(&["tool", "poetry", "group", name, "dependencies"]);
        let old = || {
            (name == "dev").then(|| self.table(&["tool", "poetry", "dev-dependencies"])).flatten()
        };
        let constraints = self.text("constraints.txt");
        let constrained: BTreeSet<String> = constraints.lines().map(requirement_name).collect();
        let entries = group.or_else(old).into_iter().flatten().take(MAX_REQUIREMENTS);
        let mut entries: Vec<_> =
            entries.map(|(name, range)| (requirement_name(name), name, range)).collect();
        entries.sort_unstable_by(|first, second| first.0.cmp(&second.0));
        for (normal, name, range) in entries {
            if name == "python" || is_other_tool(&normal) {
                continue;
            }
            // A file of constraints says the version; both might contradict each other.
            let range = if constrained.contains(&normal) { None } else { poetry_range(range) };
            wanted.add_requirement(&format!("{name}{}", range.unwrap_or_default()));
        }
    }

    fn add_hatch_environments(&self, wanted: &mut TestRequirements) {
        for name in ["test", "tests", "hatch-test", "default"] {
            for key in ["dependencies", "extra-dependencies"] {
                for text in self.strings(&["tool", "hatch", "envs", name, key]) {
                    if !is_other_tool(&requirement_name(&text)) {
                        wanted.add_requirement(&text);
                    }
                }
            }
            for extra in self.strings(&["tool", "hatch", "envs", name, "features"]) {
                wanted.extras.extend(is_plain_word(&extra).then_some(extra));
            }
            if !wanted.is_empty() {
                return;
            }
        }
    }

    /// Adds what tox installs for its tests.
    fn add_tox(&self, wanted: &mut TestRequirements, draft: &mut ProposalDraft) {
        let text = self.text("tox.ini");
        for extra in ini_lines(text, "testenv", "extras") {
            let names = extra.split(',').map(str::trim).filter(|name| is_plain_word(name));
            wanted.extras.extend(names.map(str::to_owned));
        }
        for line in ini_lines(text, "testenv", "deps") {
            let line = tox_requirement(&line);
            if let Some(file) = line.and_then(|line| line.strip_prefix("-r")) {
                let file = file.trim().trim_start_matches("{toxinidir}/");
                if self.has(file) {
                    self.add_requirements_file(file, wanted);
                }
            } else if let Some(line) = line.filter(|line| !line.contains('{')) {
                if !is_other_tool(&requirement_name(line)) {
                    wanted.add_requirement(line);
                }
            } else if let Some(line) = line {
                draft.add_warning(format!("`tox.ini` refers to `{line}`, which is not followed."));
            }
        }
    }

    /// Adds the packages of a `Pipfile`, in pip's words.
    fn add_pipfile(&self, wanted: &mut TestRequirements) {
        let pipfile = toml::from_str::<Table>(self.text("Pipfile")).unwrap_or_default();
        for section in ["packages", "dev-packages"] {
            let entries = pipfile.get(section).and_then(Value::as_table).into_iter().flatten();
            for (name, range) in entries.take(MAX_REQUIREMENTS) {
                wanted
                    .add_requirement(&format!("{name}{}", poetry_range(range).unwrap_or_default()));
            }
        }
    }

    fn add_requirements_file(&self, name: &str, wanted: &mut TestRequirements) {
        if is_plain_word(name) && !wanted.files.iter().any(|known| known == name) {
            wanted.files.push(name.to_owned());
            wanted.names.extend(self.text(name).lines().map(requirement_name));
            wanted.source = self.path(name);
        }
    }

    /// Adds the virtual environment, what is installed in it, and the checks.
    fn add_install(
        &self,
        manifest: &str,
        mut wanted: TestRequirements,
        tested: bool,
        draft: &mut ProposalDraft,
    ) {
        if self.has("requirements.txt") && !self.is_installable() {
            self.add_requirements_file("requirements.txt", &mut wanted);
        }
        if tested {
            let options = self.pytest_options();
            if !wanted.names.contains("pytest") {
                wanted.add_requirement("pytest");
            }
            for (option, plugin) in PYTEST_PLUGINS {
                if options.contains(option) && !wanted.names.contains(plugin) {
                    wanted.add_requirement(plugin);
                }
            }
        }
        let source = if wanted.source.is_empty() { manifest } else { wanted.source.as_str() };
        let venv = in_directory(self.directory, "test -x .venv/bin/pip || python3 -m venv .venv");
        draft.add_setup(venv, manifest, "Packages are installed apart from the system's Python.");
        let lock = ["uv.lock", "poetry.lock", "pdm.lock"].into_iter().find(|name| self.has(name));
        let mut command = String::new();
        if self.has("constraints.txt") {
            draft.add_lock_file(&self.path("constraints.txt"));
            command.push_str("PIP_CONSTRAINT=\"$PWD/constraints.txt\" ");
        }
        command.push_str(".venv/bin/pip install");
        if let Some(lock) = lock {
            let path = self.path(lock);
            draft.add_lock_file(&path);
            let script =
                format!("python3 -c '{CONSTRAINTS_SCRIPT}' {lock} > .venv/constraints.txt");
            let reason = "pip installs the versions of the lock file.";
            draft.add_setup(in_directory(self.directory, &script), &path, reason);
            command.push_str(" -c .venv/constraints.txt");
        }
        for name in &wanted.files {
            draft.add_lock_file(&self.path(name));
            command.push_str(" -r ");
            command.push_str(name);
        }
        for requirement in &wanted.requirements {
            command.push(' ');
            command.push_str(&quote_word(requirement));
        }
        if self.is_installable() {
            command = self.add_own_install(&command, &wanted.extras);
        }
        draft.add_lock_file(manifest);
        if !command.ends_with("install") && !command.ends_with("constraints.txt") {
            let reason = "It installs the project and what its tests need.";
            draft.add_setup(in_directory(self.directory, &command), source, reason);
        }
        if tested {
            self.add_test(manifest, draft);
        }
        self.add_linters(manifest, &wanted.names, draft);
    }

    /// Adds the project itself to a command that installs packages. Building its metadata takes most of the time, so it is not built
    /// again by a set-up that starts from an earlier one with the same metadata: then only its requirements are installed.
    fn add_own_install(&self, command: &str, extras: &BTreeSet<String>) -> String {
        let extras: Vec<&str> = extras.iter().map(String::as_str).collect();
        let extras =
            if extras.is_empty() { String::new() } else { format!("[{}]", extras.join(",")) };
        let own = quote_word(&format!(".{extras}"));
        let Some(name) = self.plain_package_name() else { return format!("{command} -e {own}") };
        let named = quote_word(&format!("{name}{extras}"));
        format!(
            "cmp -s pyproject.toml {INSTALLED_METADATA} && set -- {named} || set -- -e {own}; \
             {command} \"$@\" && cp pyproject.toml {INSTALLED_METADATA}"
        )
    }

    /// Returns the name of the package if `pyproject.toml` alone says what its metadata is, and if nothing is compiled.
    fn plain_package_name(&self) -> Option<&str> {
        let own = self.value(&["project", "name"]);
        let name = own.or_else(|| self.value(&["tool", "poetry", "name"]))?.as_str()?;
        let dynamic = self.value(&["project", "dynamic"]).and_then(Value::as_array);
        let is_dynamic = dynamic
            .into_iter()
            .flatten()
            .any(|field| matches!(field.as_str(), Some("dependencies" | "optional-dependencies")));
        let requires = self.value(&["build-system", "requires"]).and_then(Value::as_array)?;
        let is_plain = |requirement: &Value| {
            let requirement = requirement.as_str().map(requirement_name).unwrap_or_default();
            PLAIN_BUILD_REQUIREMENTS.contains(&requirement.as_str())
        };
        let builds = self.has("setup.py")
            || self.value(&["tool", "poetry", "build"]).is_some()
            || self.value(&["tool", "setuptools", "ext-modules"]).is_some()
            || self.value(&["tool", "hatch", "build", "hooks", "custom"]).is_some();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_usable = !is_dynamic && !builds && requires.iter().all(is_plain);
        (is_usable && !name.is_empty() && name.chars().all(is_name)).then_some(name)
    }

    fn add_test(&self, manifest: &str, draft: &mut ProposalDraft) {
        let options = self.pytest_options();
        let cached =
            ["--lf", "--ff", "--nf", "--sw", "--last-failed", "--failed-first", "--stepwise"];
        let mut command =
            "PATH=\"$PWD/.venv/bin:$PATH\" .venv/bin/python -m pytest -rA --color=no".to_owned();
        if !cached.into_iter().any(|option| options.contains(option)) {
            command.push_str(" -p no:cacheprovider");
        }
        let command = in_directory(self.directory, &command);
        let mut check = reported_test(command, TestReportFormat::Pytest, None);
        let written = COVERAGE_REPORTS.into_iter().find(|(kind, _)| {
            ["=", " "].iter().any(|gap| options.contains(&format!("--cov-report{gap}{kind}")))
        });
        check.coverage = written.map(|(_, file)| self.path(file));
        draft.add_check(check, manifest, "There are tests that pytest finds.");
    }

    /// Adds linters that are configured and installed.
    fn add_linters(&self, manifest: &str, names: &BTreeSet<String>, draft: &mut ProposalDraft) {
        let configured = |tool: &str| self.value(&["tool", tool]).is_some();
        let reason = "It is configured, and its package is installed.";
        let mut add = |kind, command: &str| {
            let command = in_directory(self.directory, command);
            draft.add_check(plain_check(kind, command), manifest, reason);
        };
        if names.contains("ruff") && (configured("ruff") || self.has("ruff.toml")) {
            add(EnvironmentCheckKind::Lint, ".venv/bin/ruff check --no-fix --no-cache .");
        }
        if names.contains("black") && configured("black") {
            add(EnvironmentCheckKind::Format, ".venv/bin/black --check .");
        }
    }

    /// Text of the options that pytest is configured with.
    fn pytest_options(&self) -> String {
        let options = self.value(&["tool", "pytest", "ini_options"]);
        let mut options = options.map(ToString::to_string).unwrap_or_default();
        for (file, section) in
            [("pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")]
        {
            if !options.is_empty() {
                break;
            }
            options = ini_lines(self.text(file), section, "addopts").join(" ");
            if !ini_lines(self.text(file), section, "asyncio_mode").is_empty() {
                options.push_str(" asyncio_mode");
            }
        }
        options
    }
}

/// Lines of a key in a section of an INI file, without comments and empty lines.
fn ini_lines(text: &str, section: &str, key: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut in_section = false;
    let mut in_key = false;
    for line in text.lines() {
        let content = line.trim();
        if content.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            in_section = name.split(']').next().is_some_and(|name| name.trim() == section);
            in_key = false;
        } else if line.starts_with([' ', '\t']) {
            if in_key && !content.is_empty() {
                lines.push(content.to_owned());
            }
        } else if in_section && let Some((name, value)) = line.split_once('=') {
            in_key = name.trim() == key;
            if in_key && !value.trim().is_empty() {
                lines.push(value.trim().to_owned());
            }
        }
    }
    lines.truncate(MAX_REQUIREMENTS);
    lines
}

/// Whether `setup.py` has an extra of that name, as far as its text shows.
fn has_extra(setup: &str, name: &str) -> bool {
    let Some((_, rest)) = setup.split_once("extras_require") else { return false };
    [format!("\"{name}\""), format!("'{name}'")]
        .iter()
        .filter_map(|quoted| rest.split_once(quoted.as_str()))
        .any(|(_, after)| after.trim_start().starts_with(':'))
}

/// Requirement of a line of tox, if it is for the Python at hand: `py{39,311}: name`.
fn tox_requirement(line: &str) -> Option<&str> {
    let Some((factors, rest)) = line.split_once(": ") else { return Some(line.trim()) };
    let is_factor = |c: char| c.is_ascii_alphanumeric() || "{},-_.! ".contains(c);
    if !factors.chars().all(is_factor) {
        return Some(line.trim());
    }
    let ours = format!("3{PYTHON_MINOR}");
    (factors.contains("py") && factors.contains(&ours)).then_some(rest.trim())
}

/// Whether a text is a requirement of a package, and nothing that pip would take for an option, a file or an address.
fn is_requirement(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= 200
        && text.chars().all(|c| c.is_ascii_alphanumeric() || " ._-[],<>=!~;()'\"+*".contains(c))
}

/// Name of the package of a requirement, as `PyPI` compares names.
fn requirement_name(text: &str) -> String {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c));
    let name = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    name.to_lowercase().replace(['_', '.'], "-")
}

fn is_other_tool(name: &str) -> bool {
    OTHER_TOOLS.contains(&name)
        || ["sphinx", "mkdocs", "types-"].into_iter().any(|start| name.starts_with(start))
}

/// Range of versions of poetry, in pip's words: `^1.2` is `>=1.2,<2`.
fn poetry_range(value: &Value) -> Option<String> {
    let table = value.as_table();
    let range = match table {
        Some(table) => table.get("version")?.as_str()?,
        None => value.as_str()?,
    };
    let ranges: Option<Vec<String>> = range.split(',').map(|part| pip_range(part.trim())).collect();
    ranges.map(|ranges| ranges.join(",")).filter(|range| !range.is_empty())
}

fn pip_range(range: &str) -> Option<String> {
    if range == "*" || range.is_empty() {
        return Some(String::new());
    }
    let numbers = |text: &str| -> Option<Vec<u32>> {
        text.split('.').map(|number| number.trim().parse().ok()).collect()
    };
    if let Some(text) = range.strip_prefix('^') {
        let numbers = numbers(text)?;
        let at = numbers.iter().position(|number| *number != 0).unwrap_or(numbers.len() - 1);
        let mut upper: Vec<String> = numbers.iter().take(at + 1).map(u32::to_string).collect();
        *upper.last_mut()? = (numbers.get(at)?.checked_add(1)?).to_string();
        return Some(format!(">={text},<{}", upper.join(".")));
    }
    if let Some(text) = range.strip_prefix('~').filter(|text| !text.starts_with('=')) {
        let numbers = numbers(text)?;
        let at = usize::from(numbers.len() > 1);
        let mut upper: Vec<String> = numbers.iter().take(at + 1).map(u32::to_string).collect();
        *upper.last_mut()? = (numbers.get(at)?.checked_add(1)?).to_string();
        return Some(format!(">={text},<{}", upper.join(".")));
    }
    if range.starts_with(|c: char| c.is_ascii_digit()) {
        return Some(format!("=={range}"));
    }
    range.starts_with(['<', '>', '=', '!', '~']).then(|| range.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_poetry_become_ranges_of_pip() {
        let range = |text: &str| poetry_range(&Value::String(text.to_owned()));
        let some = |text: &str| -> Option<String> { Some(text.to_owned()) };
        assert_eq!(range("^7.2.0"), some(">=7.2.0,<8"));
        assert_eq!(range("^0.3"), some(">=0.3,<0.4"));
        assert_eq!(range("^0.0.3"), some(">=0.0.3,<0.0.4"));
        assert_eq!(range("~1.2"), some(">=1.2,<1.3"));
        assert_eq!(range(">=1,<3"), some(">=1,<3"));
        assert_eq!(range("1.0"), some("==1.0"));
        assert_eq!(range("*"), None);
        assert_eq!(range("^x"), None);
    }

    #[test]
    fn lines_of_an_ini_file_are_those_of_the_key_in_its_section() {
        let text = "[other]\ndeps = no\n[testenv]\n# c\ndeps =\n    one>=1\n    py{310,311}: two\n    lint: three\nnext = 1\n";
        let lines = ini_lines(text, "testenv", "deps");
        assert_eq!(lines, ["one>=1", "py{310,311}: two", "lint: three"]);
        let ours: Vec<_> = lines.iter().filter_map(|line| tox_requirement(line)).collect();
        assert_eq!(ours, ["one>=1", "two"]);
    }
}
