use super::*;

fn tree(paths: &[&str]) -> RepositoryTree {
    let entry = |path: &&str| RepositoryEntry { path: (*path).to_owned(), kind: "file".to_owned() };
    RepositoryTree { entries: paths.iter().map(entry).collect(), ..RepositoryTree::default() }
}

#[test]
fn words_alone_are_bare_and_code_is_not() {
    assert!(tree(&[]).has_no_code());
    assert!(
        tree(&["PROJECT-BRIEF.md", "docs/idea.txt", ".gitignore", ".github/x.yml", "LICENSE"])
            .has_no_code()
    );
    assert!(!tree(&["PROJECT-BRIEF.md", "src/main.rs"]).has_no_code());
    assert!(!tree(&["PROJECT-BRIEF.md", "Makefile"]).has_no_code());
    assert!(!RepositoryTree { truncated: true, ..tree(&["README.md"]) }.has_no_code());
}

#[test]
fn a_brief_calls_itself_one_in_its_first_line() {
    for brief in ["# Project Brief\n\nA shop", "\n\nPROJECT-BRIEF.md\n", "**Project brief: shop**"]
    {
        assert!(is_brief(brief), "{brief}");
    }
    for other in ["", "Read the project brief", "Fix the typo in PROJECT-BRIEF.md"] {
        assert!(!is_brief(other), "{other}");
    }
}

#[test]
fn a_listing_shows_what_is_near_the_root_first_and_counts_the_rest() {
    let deep: Vec<String> = (0..200).map(|n| format!("a/b/f{n:03}.rs")).collect();
    let mut paths: Vec<&str> = deep.iter().map(String::as_str).collect();
    paths.push("z.toml");
    let listing = tree(&paths).render_listing();
    assert!(listing.starts_with("z.toml\na/b/f000.rs\n"));
    assert!(listing.ends_with("\n… and 81 more"));
    assert_eq!(listing.lines().count(), 121);
}
