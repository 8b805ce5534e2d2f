//! Detection: what the files of a repository say about the environment that builds and tests it.
//!
//! **Invariant**: the functions are total over any text. Files are untrusted; what cannot be read becomes a warning, and every proposal is a
//! valid environment. Nothing here runs a command: a person accepts the proposal first.

mod ci;
mod devcontainer;
mod draft;
mod fix;
mod javascript;
mod native;
mod other_languages;
mod packages;
mod python;
mod repository;
mod rust;
mod shell;

use std::collections::BTreeMap;

use cynode_core::environments::EnvironmentProposal;

pub use devcontainer::read_devcontainer;
pub use fix::suggest_fix;

use ci::CiHints;
use draft::ProposalDraft;
use repository::RepositoryFiles;

/// Maximum number of files that detection reads.
pub const MAX_FILES_TO_READ: usize = 60;

/// Maximum size of a file that detection reads, in bytes. Larger files count as unreadable.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// Maximum number of directories below the top that are looked at for a language that the top has not.
const MAX_SUBPROJECTS: usize = 3;

/// Files of the top level, and of a directory below it, whose text says something.
const MANIFESTS: [&str; 40] = [
    "Cargo.toml",
    "package.json",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "CMakeLists.txt",
    "configure.ac",
    "configure.in",
    "meson.build",
    "Makefile",
    "makefile",
    "GNUmakefile",
    "Makefile.am",
    "go.mod",
    "Gemfile",
    "pom.xml",
    "build.gradle",
    "build.gradle.kts",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "pnpm-lock.yaml",
    "yarn.lock",
    ".yarnrc.yml",
    "Cargo.lock",
    "rust-toolchain",
    "rust-toolchain.toml",
    ".cargo/config",
    ".cargo/config.toml",
    "tox.ini",
    "pytest.ini",
    "requirements.txt",
    "constraints.txt",
    "Pipfile",
    "Pipfile.lock",
    "ruff.toml",
    ".tool-versions",
    ".nvmrc",
    ".node-version",
    ".python-version",
    ".gitlab-ci.yml",
];

/// Returns the files whose text detection wants, the telling ones first. At most [`MAX_FILES_TO_READ`].
pub fn files_to_read(paths: &[String]) -> Vec<String> {
    let texts = BTreeMap::new();
    let files = RepositoryFiles::new(paths, &texts);
    let mut wanted: Vec<String> = Vec::new();
    let mut add = |path: &str| {
        if wanted.len() < MAX_FILES_TO_READ && !wanted.iter().any(|known| known == path) {
            wanted.push(path.to_owned());
        }
    };
    MANIFESTS.iter().filter(|name| files.has_file(name)).for_each(|name| add(name));
    let devcontainers = [".devcontainer/devcontainer.json", ".devcontainer.json"];
    devcontainers.iter().filter(|name| files.has_file(name)).for_each(|name| add(name));
    files.matching(ci::is_workflow).take(10).for_each(&mut add);
    files.matching(python::is_requirements_file).take(8).for_each(&mut add);
    files.matching(native::is_nested_build_file).take(10).for_each(&mut add);
    for directory in subprojects(&files) {
        let manifests = MANIFESTS.iter().map(|name| format!("{directory}{name}"));
        manifests.filter(|path| files.has_file(path)).for_each(|path| add(&path));
    }
    wanted
}

/// Proposes an environment from the paths of a repository and the texts of [`files_to_read`].
pub fn detect_environment(
    paths: &[String],
    texts: &BTreeMap<String, String>,
) -> EnvironmentProposal {
    let files = RepositoryFiles::new(paths, texts);
    let mut draft = ProposalDraft::default();
    for path in files.unreadable() {
        draft.add_warning(format!("`{path}` is too large to be read."));
    }
    let hints = CiHints::read(&files, &mut draft);
    let mut directories = vec![String::new()];
    directories.extend(subprojects(&files));
    for directory in &directories {
        let top = directory.is_empty();
        if top || !files.has_file("Cargo.toml") {
            rust::detect(&files, directory, &hints, &mut draft);
        }
        if top || !files.has_file("package.json") {
            javascript::detect(&files, directory, &mut draft);
        }
        if top || !has_python(&files) {
            python::detect(&files, directory, &mut draft);
        }
    }
    native::detect(&files, &mut draft);
    other_languages::detect(&files, &mut draft);
    if draft.is_empty() {
        native::detect_makefile(&files, &mut draft);
    }
    hints.add_to(&mut draft);
    warn_about_versions(&files, &mut draft);
    if draft.is_empty() {
        draft.add_warning("No build system was recognised: write `setup` and `checks` by hand.");
    }
    draft.finish()
}

fn has_python(files: &RepositoryFiles<'_>) -> bool {
    files.has_file("pyproject.toml") || files.has_file("setup.py")
}

/// Directories one level below the top with a manifest of a language that the top has not, as `name/`.
fn subprojects(files: &RepositoryFiles<'_>) -> Vec<String> {
    let has_python = has_python(files);
    let wanted: Vec<&str> = [
        ("Cargo.toml", files.has_file("Cargo.toml")),
        ("package.json", files.has_file("package.json")),
        ("pyproject.toml", has_python),
        ("setup.py", has_python),
    ]
    .into_iter()
    .filter_map(|(name, covered)| (!covered).then_some(name))
    .collect();
    let mut directories: Vec<String> = Vec::new();
    for path in files.matching(|path| path.matches('/').count() == 1) {
        let Some((directory, name)) = path.split_once('/') else { continue };
        let hidden = directory.starts_with('.');
        let sample =
            ["examples", "example", "docs", "doc", "tests", "test", "fuzz", "benches", "vendor"]
                .contains(&directory);
        let directory = format!("{directory}/");
        if wanted.contains(&name)
            && !hidden
            && !sample
            && shell::is_plain_word(&directory)
            && !directories.contains(&directory)
            && directories.len() < MAX_SUBPROJECTS
        {
            directories.push(directory);
        }
    }
    directories
}

/// Warns where a version file asks for more than Debian's packages have.
fn warn_about_versions(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    for (path, name, available) in
        [(".nvmrc", "Node", packages::NODE_MAJOR), (".node-version", "Node", packages::NODE_MAJOR)]
    {
        if let Some(major) = files.text(path).and_then(shell::first_number)
            && major > available
        {
            draft.add_warning(format!(
                "`{path}` asks for {name} {major}; the Debian package has {available}. If tests need it, choose an image as `base`."
            ));
        }
    }
    if let Some(text) = files.text(".python-version")
        && let Some(minor) = shell::python_minor(text)
        && minor > packages::PYTHON_MINOR
    {
        draft.add_warning(format!(
            "`.python-version` asks for Python 3.{minor}; the Debian package has 3.{}. If tests need it, choose an image as `base`.",
            packages::PYTHON_MINOR
        ));
    }
    for line in files.text(".tool-versions").unwrap_or_default().lines().take(50) {
        let mut words = line.split_whitespace();
        let (Some(tool), Some(version)) = (words.next(), words.next()) else { continue };
        let known = match tool {
            "nodejs" | "node" => Some(("Node", packages::NODE_MAJOR, shell::first_number(version))),
            "python" => Some(("Python 3", packages::PYTHON_MINOR, shell::python_minor(version))),
            _ => None,
        };
        if let Some((name, available, Some(asked))) = known
            && asked > available
        {
            draft.add_warning(format!(
                "`.tool-versions` asks for {name} ({version}), which is newer than Debian's package."
            ));
        }
    }
}

#[cfg(test)]
mod tests;
