//! Go, Ruby and Java. The package proxy has no registry of theirs: what they need is in the repository, or a person adds it.

use cynode_core::environments::{EnvironmentCheckKind, TestReportFormat};

use crate::draft::{ProposalDraft, plain_check, reported_test};
use crate::packages::GO_MINOR;
use crate::repository::RepositoryFiles;

/// Memory of a build for the Java machine, in MiB.
const JAVA_MEMORY_MIB: u32 = 2048;

/// Proposes the lines of these languages.
pub(crate) fn detect(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    if files.has_file("go.mod") {
        detect_go(files, draft);
    }
    if files.has_file("Gemfile") {
        detect_ruby(files, draft);
    }
    if files.has_file("pom.xml") {
        detect_java(files, "pom.xml", draft);
    } else if let Some(path) =
        ["build.gradle", "build.gradle.kts"].into_iter().find(|path| files.has_file(path))
    {
        detect_java(files, path, draft);
    }
}

fn detect_go(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    let path = "go.mod";
    let text = files.text(path).unwrap_or_default();
    draft.add_package("golang", path, "Go builds and tests the code.");
    draft.add_variable("GOTOOLCHAIN", "local", path, "Go fetches no other version of itself.");
    draft.add_variable("GOPROXY", "off", path, "The package proxy has no modules of Go.");
    let version = text.lines().find_map(|line| line.strip_prefix("go 1."));
    let minor = version.and_then(|version| version.trim().split('.').next()?.parse::<u32>().ok());
    if let Some(minor) = minor
        && minor > GO_MINOR
    {
        draft.add_warning(format!(
            "`{path}` asks for Go 1.{minor}; Debian's package has 1.{GO_MINOR}. Choose an image as `base`."
        ));
    }
    let needs_modules = text.contains("require");
    let vendored = files.has_directory("vendor/");
    if vendored {
        let reason = "The repository keeps its modules in `vendor`.";
        draft.add_variable("GOFLAGS", "-mod=vendor", path, reason);
    } else if needs_modules {
        draft.add_warning(
            "The package proxy has no modules of Go: keep them in the repository (`go mod vendor`), or choose an image that has them.",
        );
    }
    if vendored || !needs_modules {
        let reason = "It compiles once, so that jobs compile only what changes.";
        draft.add_setup("go test -run '^$' ./...", path, reason);
    }
    let check = reported_test("go test -json ./...", TestReportFormat::Go, None);
    draft.add_check(check, path, "Go runs the tests and says the result of each.");
    draft.add_lock_file(if files.has_file("go.sum") { "go.sum" } else { path });
}

fn detect_ruby(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) {
    let path = "Gemfile";
    draft.add_packages(&["ruby", "bundler"], path, "Ruby runs the code.");
    draft.add_warning(
        "The package proxy has no gems: keep them in the repository (`bundle cache`), or choose an image that has them.",
    );
    if files.has_directory("vendor/cache/") {
        let command = "bundle config set --local path vendor/bundle && bundle install --local";
        draft.add_setup(command, path, "It installs the gems that the repository keeps.");
    }
    let command =
        if files.has_directory("spec/") { "bundle exec rspec" } else { "bundle exec rake test" };
    let check = plain_check(EnvironmentCheckKind::Test, command);
    draft.add_check(check, path, "It is the usual test command beside these folders.");
    draft.add_lock_file(if files.has_file("Gemfile.lock") { "Gemfile.lock" } else { path });
}

fn detect_java(files: &RepositoryFiles<'_>, path: &str, draft: &mut ProposalDraft) {
    let maven = path == "pom.xml";
    let program = if maven { "maven" } else { "gradle" };
    draft.add_packages(&["default-jdk-headless", program], path, "It builds and tests the code.");
    let command = if maven { "mvn -o -B test" } else { "gradle --offline test" };
    let check = plain_check(EnvironmentCheckKind::Test, command);
    draft.add_check(check, path, "It is the usual test command.");
    draft.add_warning(
        "The package proxy has no artefacts of Maven: choose an image that has them in its local repository.",
    );
    let wrapper = if maven { "mvnw" } else { "gradlew" };
    if files.has_file(wrapper) {
        draft.add_warning(format!("`{wrapper}` fetches the build tool itself, which the sandbox does not allow; Debian's package is used."));
    }
    draft.add_lock_file(path);
    draft.require_memory(
        JAVA_MEMORY_MIB,
        path,
        "The build and the tests run in two machines of Java.",
    );
}
