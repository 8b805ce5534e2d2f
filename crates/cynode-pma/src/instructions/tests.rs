use proptest::prelude::*;

use super::*;

/// The bundles that are shipped.
fn shipped() -> InstructionPaths {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../instructions");
    InstructionPaths { root, ..InstructionPaths::default() }
}

fn write(dir: &Path, files: &[(&str, &str)]) {
    std::fs::create_dir_all(dir).unwrap();
    for (name, text) in files {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

const GOOD: [(&str, &str); 2] = [
    ("01_baseline.md", "I am.\n## Responsibilities\nThis.\n## Non-goals\nNot that.\n"),
    ("02_rest.md", "## Output contract\nSo.\n## Tool-use contract\nThus.\n## References\nREQ-1\n"),
];

#[test]
fn both_shipped_bundles_have_contracts_duties_limits_and_references_and_differ() {
    let bundles = PmaRole::ALL
        .map(|role| load_bundle(role, &shipped().path_for_role(role).unwrap()).unwrap());
    for bundle in &bundles {
        assert_eq!(missing_heading(bundle), None, "S000-051: {}", bundle.role);
        let identity = format!("Your role is `{}`", bundle.role);
        for part in ["# Who you are", identity.as_str(), "## Responsibilities", "## Non-goals"] {
            assert!(bundle.baseline.contains(part), "S000-059: {}: {part}", bundle.role);
        }
        for part in ["## Output contract", "## Tool-use contract", "## References"] {
            assert!(bundle.instructions.contains(part), "S000-061: {}: {part}", bundle.role);
        }
        assert!(bundle.instructions.contains("REQ-PMAGNT-0108"));
    }
    assert_ne!(bundles[0].digest, bundles[1].digest, "S000-052");
    assert_ne!(bundles[0].baseline, bundles[1].baseline, "S000-059: each role has its own");
    let paths = PmaRole::ALL.map(|role| shipped().path_for_role(role).unwrap());
    assert_ne!(paths[0], paths[1], "S000-052");
}

#[test]
fn the_requirements_that_the_manager_rests_on_are_named_in_its_references() {
    let bundle = load_bundle(
        PmaRole::ProjectManager,
        &shipped().path_for_role(PmaRole::ProjectManager).unwrap(),
    )
    .unwrap();
    for name in [
        "CYNAI.PMAGNT.Doc.CyNodePma",
        "CYNAI.PMAGNT.RequestSource",
        "CYNAI.PMAGNT.RoleModes",
        "CYNAI.PMAGNT.InstructionsLoading",
        "CYNAI.PMAGNT.LLMContextComposition",
        "CYNAI.PMAGNT.ChatSurfaceMapping",
        "CYNAI.PMAGNT.PolicyAndTools",
        "CYNAI.PMAGNT.McpToolAccess",
        "CYNAI.PMAGNT.SkillsAndDefaultSkill",
        "REQ-AGENTS-0132",
        "REQ-AGENTS-0133",
        "REQ-AGENTS-0134",
        "REQ-PMAGNT-0108",
    ] {
        assert!(bundle.instructions.contains(name), "S000-003: {name}");
    }
}

#[test]
fn the_baseline_is_the_first_file_and_the_rest_follow_in_the_order_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &GOOD);
    write(
        dir.path(),
        &[
            ("10_last.md", "last"),
            ("03_next.md", "next"),
            (".hidden.md", "no"),
            ("notes.txt", "no"),
        ],
    );
    let bundle = load_bundle(PmaRole::ProjectAnalyst, dir.path()).unwrap();
    assert_eq!(bundle.baseline, GOOD[0].1.trim(), "S000-059: the baseline is of the bundle");
    let rest = format!("{}\n\nnext\n\nlast", GOOD[1].1.trim());
    assert_eq!(bundle.instructions, rest, "S000-061: the rest of the bundle");
    assert_eq!(load_bundle(PmaRole::ProjectAnalyst, dir.path()).unwrap(), bundle);
}

#[test]
fn a_bundle_that_is_missing_or_empty_or_lacks_a_section_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let told = |files: &[(&str, &str)], name: &str| {
        let place = dir.path().join(name);
        write(&place, files);
        load_bundle(PmaRole::ProjectManager, &place).unwrap_err().to_string()
    };
    let absent = load_bundle(PmaRole::ProjectManager, &dir.path().join("absent")).unwrap_err();
    assert!(matches!(absent, InstructionsError::Unreadable { .. }), "S000-050: {absent}");
    assert!(told(&[], "nothing").contains("are empty"), "S000-050");
    assert!(told(&[("01.md", " \n"), GOOD[1]], "no-baseline").contains("are empty"));
    assert!(told(&[GOOD[0], ("02.md", "\n")], "no-rest").contains("are empty"));
    for heading in REQUIRED_HEADINGS {
        let without = GOOD.map(|(name, text)| (name, text.replace(heading, "## Other")));
        let without = without.each_ref().map(|(name, text)| (*name, text.as_str()));
        let told = told(&without, &heading.replace(['#', ' '], ""));
        assert!(told.ends_with(&format!("lack the section `{heading}`")), "S000-051: {told}");
    }
    let long = "x".repeat(300_000);
    assert!(told(&[GOOD[0], ("02.md", &long)], "long").contains("more than"));
}

#[test]
fn an_analyst_without_a_bundle_does_not_start_with_that_of_the_manager() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("project_manager"), &GOOD);
    let places = InstructionPaths { root: dir.path().to_owned(), ..InstructionPaths::default() };
    let analyst = places.path_for_role(PmaRole::ProjectAnalyst).unwrap();
    assert_eq!(analyst, dir.path().join("project_analyst"), "S000-053");
    let missing = load_bundle(PmaRole::ProjectAnalyst, &analyst);
    assert!(matches!(missing, Err(InstructionsError::Unreadable { .. })), "S000-053: {missing:?}");
    assert!(
        load_bundle(
            PmaRole::ProjectManager,
            &places.path_for_role(PmaRole::ProjectManager).unwrap()
        )
        .is_ok()
    );
}

#[test]
fn one_bundle_for_both_roles_is_taken_only_when_both_paths_were_set() {
    let shared = |root: &str, manager: Option<&str>, analyst: Option<&str>| InstructionPaths {
        root: root.into(),
        project_manager: manager.map(PathBuf::from),
        project_analyst: analyst.map(PathBuf::from),
    };
    for places in [
        shared("i", Some("i/project_analyst"), None),
        shared("i", None, Some("i/project_manager")),
        shared("i", None, Some("./i/x/../project_manager/")),
    ] {
        for role in PmaRole::ALL {
            assert!(
                matches!(places.path_for_role(role), Err(InstructionsError::Shared { .. })),
                "S000-053: {places:?}"
            );
        }
    }
    let both = shared("i", Some("same"), Some("same"));
    assert_eq!(both.path_for_role(PmaRole::ProjectAnalyst).unwrap(), Path::new("same"));

    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("project_manager"), &GOOD);
    std::os::unix::fs::symlink(dir.path().join("project_manager"), dir.path().join("other"))
        .unwrap();
    let linked = InstructionPaths {
        root: dir.path().to_owned(),
        project_manager: None,
        project_analyst: Some(dir.path().join("other")),
    };
    assert!(matches!(
        linked.path_for_role(PmaRole::ProjectAnalyst),
        Err(InstructionsError::Shared { .. })
    ));
}

#[test]
fn bundles_are_below_the_directory_instructions_unless_somebody_says_otherwise() {
    let places = InstructionPaths::default();
    assert_eq!(places.root, Path::new("instructions"), "S000-055, S000-103");
    assert_eq!(
        places.path_for_role(PmaRole::ProjectManager).unwrap(),
        Path::new("instructions/project_manager"),
        "S000-055, S000-103"
    );
    assert_eq!(
        places.path_for_role(PmaRole::ProjectAnalyst).unwrap(),
        Path::new("instructions/project_analyst"),
        "S000-055, S000-103"
    );
}

proptest! {
    #[test]
    fn the_same_settings_give_the_same_path_and_never_one_for_two_roles_by_default(root in "[a-z./]{1,20}") {
        let places = InstructionPaths { root: root.into(), ..InstructionPaths::default() };
        let (manager, analyst) = (places.path_for_role(PmaRole::ProjectManager).unwrap(), places.path_for_role(PmaRole::ProjectAnalyst).unwrap());
        prop_assert_ne!(&manager, &analyst, "S000-057: two roles never have one path by default");
        prop_assert_eq!(places.path_for_role(PmaRole::ProjectManager).unwrap(), manager, "S000-057: always the same path");
        prop_assert_eq!(places.path_for_role(PmaRole::ProjectAnalyst).unwrap(), analyst, "S000-057: always the same path");
    }
}
