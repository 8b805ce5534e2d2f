use std::{collections::VecDeque, sync::Mutex};

use cynode_core::sync::lock_unpoisoned;

use super::*;

/// Sandbox whose steps end as given, in order. It notes the last argument of each.
#[derive(Default)]
struct StepScript {
    ends: Mutex<VecDeque<StepEnd>>,
    steps: Mutex<Vec<String>>,
}

impl StepScript {
    fn new(ends: &[(i32, &str)]) -> Self {
        let end = |(code, tail): &(i32, &str)| StepEnd {
            exit_code: Some(*code),
            tail: (*tail).to_owned(),
        };
        Self { ends: Mutex::new(ends.iter().map(end).collect()), steps: Mutex::default() }
    }
}

impl SetupSandbox for StepScript {
    fn run_step<'a>(
        &'a self,
        argv: &'a [String],
        _: &'a BTreeMap<String, String>,
        _: &'a [BindMount],
    ) -> BoxFuture<'a, Result<StepEnd, SandboxError>> {
        lock_unpoisoned(&self.steps).push(argv[4..].join(" "));
        let end = lock_unpoisoned(&self.ends).pop_front();
        Box::pin(async move { end.ok_or_else(|| SandboxError::Refused("no more steps".into())) })
    }
}

fn sources() -> AptSources {
    AptSources { lines: "deb http://127.0.0.1:1/debian/0 stable main\n".into(), check_expiry: true }
}

#[test]
fn a_package_that_the_system_has_or_provides_is_not_missing() {
    let status = "Package: nodejs\nStatus: install ok installed\nProvides: npm (= 10), node-x\nVersion: 20.1-1\n\
                  \nPackage: cmake\nStatus: deinstall ok config-files\nVersion: 3.25\n\n";
    let installed = InstalledPackages::parse_status(status);
    let asked = ["nodejs", "npm", "node-x", "nodejs=20.1-1", "nodejs=18", "cmake", "npm=10"];
    assert_eq!(
        asked.map(|name| installed.satisfies(name)),
        [true, true, true, true, false, false, false]
    );
}

#[test]
fn a_failure_of_apt_says_the_package_and_what_to_do() {
    let reason =
        |tail: &str| classify_failure("fetching the packages", Some(100), tail).to_string();
    let told = [
        reason("Reading package lists...\nE: Unable to locate package cmakee\n"),
        reason("E: Version '1.2' for 'cmake' was not found\n"),
        reason("E: Package 'old' has no installation candidate\n"),
        reason(
            " nodejs : Conflicts: npm\nE: Unable to correct problems, you have held broken packages.\n",
        ),
        reason(
            "W: GPG error: http://x stable InRelease: NO_PUBKEY 1\nE: The repository 'x' is not signed.\n",
        ),
        reason("E: Release file for http://x is expired (invalid since 3d).\n"),
        reason("Err:1 http://x stable InRelease\nE: Failed to fetch http://x 403 too young\n"),
        reason("tar: no space left\n"),
    ];
    assert_eq!(
        told,
        [
            "there is no Debian package `cmakee` in the archives that the node uses",
            "there is no version `1.2` of the Debian package `cmake`: leave the version out, or see which there are",
            "there is no Debian package `old` in the archives that the node uses",
            "the packages do not fit those that the node has: use the base `debian` of the environment \
             (nodejs : Conflicts: npm; E: Unable to correct problems, you have held broken packages.)",
            "the signature of the package index does not fit a keyring of the node: install debian-archive-keyring, or the keyring of the \
             mirror (W: GPG error: http://x stable InRelease: NO_PUBKEY 1; E: The repository 'x' is not signed.)",
            "the package index has expired: look whether the mirror is up to date, and the clock of the node \
             (E: Release file for http://x is expired (invalid since 3d).)",
            "packages could not be fetched through the package proxy: Err:1 http://x stable InRelease; E: Failed to fetch http://x 403 too young",
            "fetching the packages failed with exit code 100: tar: no space left",
        ]
    );
}

#[test]
fn the_setting_about_expired_indexes_is_the_last_that_is_no_comment() {
    let settings = [
        "Acquire::Check-Valid-Until \"false\";\n",
        "// Acquire::Check-Valid-Until \"false\";\n",
        "Acquire::Check-Valid-Until \"false\";\nAcquire::Check-Valid-Until \"true\";\n",
    ];
    assert_eq!(settings.map(parse_expiry_setting), [Some(false), None, Some(true)]);
}

#[test]
fn keyrings_of_the_machine_are_named_where_the_sandbox_has_them() {
    let lines = "deb [signed-by=/etc/apt/keyrings/a.gpg] http://127.0.0.1:1/debian/0 stable main";
    let sources = AptSources { lines: lines.into(), check_expiry: false };
    let env = step_environment(&sources, true);
    assert_eq!(
        [&env["APT_SOURCES"], &env["APT_STATUS"], &env["APT_CHECK_EXPIRY"]],
        [
            "deb [signed-by=/run/apt/keyrings/a.gpg] http://127.0.0.1:1/debian/0 stable main",
            "/run/apt/status",
            "false"
        ]
    );
}

#[test]
fn links_of_alternatives_are_relative_and_stand_once() {
    let links: BTreeSet<_> = ALTERNATIVES.iter().map(|(link, _)| link).collect();
    assert_eq!(links.len(), ALTERNATIVES.len());
    for (link, targets) in ALTERNATIVES {
        assert!(link.starts_with("usr/"), "{link}");
        assert!(!targets.split(' ').any(|target| target.starts_with('/')), "{link}");
    }
}

#[tokio::test]
async fn an_image_is_left_alone_and_no_package_needs_no_step() {
    let sandbox = StepScript::default();
    let root = tempfile::tempdir().unwrap();
    let (image, host) = (EnvironmentBase::Image("i".into()), EnvironmentBase::Host);
    let install = |base, packages: Vec<String>| {
        let (sandbox, root) = (&sandbox, root.path());
        async move { install_system_packages(sandbox, base, &packages, root, &sources()).await }
    };
    assert_eq!(install(&image, Vec::new()).await.unwrap(), SystemPackages::default());
    assert_eq!(install(&host, Vec::new()).await.unwrap(), SystemPackages::default());
    assert!(matches!(install(&image, vec!["cmake".into()]).await, Err(SystemPackageError::Image)));
    assert_eq!(*lock_unpoisoned(&sandbox.steps), Vec::<String>::new());
}

#[tokio::test]
async fn a_release_is_made_of_its_essential_packages_and_those_that_are_named() {
    if REQUIRED_PROGRAMS.iter().any(|path| !Path::new(path).exists()) {
        return;
    }
    let sandbox = StepScript::new(&[(0, ""), (0, ""), (0, "system packages added: 3 4096\n")]);
    let root = tempfile::tempdir().unwrap();
    let (base, packages) = (EnvironmentBase::Debian("bookworm".into()), ["gcc".to_owned()]);
    let added = install_system_packages(&sandbox, &base, &packages, root.path(), &sources()).await;
    assert_eq!(added.unwrap(), SystemPackages { packages: 3, bytes: 4096 });
    assert_eq!(
        *lock_unpoisoned(&sandbox.steps),
        ["", "?essential ca-certificates gcc git libgcc-s1 libstdc++6", ""]
    );
}

#[tokio::test]
async fn names_that_begin_alike_are_told_when_there_is_no_such_package() {
    if REQUIRED_PROGRAMS.iter().any(|path| !Path::new(path).exists()) {
        return;
    }
    let ends = [(0, ""), (100, "E: Unable to locate package gccc\n"), (0, "gcc\ngcc-12\n")];
    let sandbox = StepScript::new(&ends);
    let root = tempfile::tempdir().unwrap();
    let (base, packages) = (EnvironmentBase::Debian("bookworm".into()), ["gccc".to_owned()]);
    let added = install_system_packages(&sandbox, &base, &packages, root.path(), &sources()).await;
    assert_eq!(
        added.unwrap_err().to_string(),
        "there is no Debian package `gccc`; there are: gcc, gcc-12"
    );
}
