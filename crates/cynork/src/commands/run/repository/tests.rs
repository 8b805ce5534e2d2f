use super::*;
use crate::context::project_of_repository;

fn sample() -> (tempfile::TempDir, WorkingCopy) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("My App");
    std::fs::create_dir(&root).unwrap();
    let repository = WorkingCopy { root };
    repository.git_output(&["init", "--quiet", "--initial-branch=main"]).unwrap();
    for (key, value) in
        [("user.name", "A"), ("user.email", "a@localhost"), ("commit.gpgsign", "false")]
    {
        repository.write_config(key, value).unwrap();
    }
    (dir, repository)
}

fn commit(repository: &WorkingCopy, file: &str, text: &str) -> String {
    std::fs::write(repository.root.join(file), text).unwrap();
    repository.git_output(&["add", "--all"]).unwrap();
    repository.git_output(&["commit", "--quiet", "--message", file]).unwrap();
    repository.git_output(&["rev-parse", "HEAD"]).unwrap()
}

#[test]
fn a_name_for_urls_is_made_from_the_name_of_a_directory() {
    for (name, number, wanted) in [
        ("slug", 1, "slug"),
        ("My App", 1, "my-app"),
        ("My App", 3, "my-app-3"),
        ("2048", 1, "project-2048"),
        ("..hidden__thing..", 1, "hidden-thing"),
        ("漢字", 1, "project"),
        (&"long ".repeat(40), 2, "long-long-long-long-long-long-long-long-long-long-long-l-2"),
    ] {
        assert_eq!(derive_slug(name, number).unwrap().as_str(), wanted, "{name}");
    }
}

#[test]
fn what_is_not_committed_is_named_once() {
    let listed = " M slug\0?? new file.txt\0R  now\0before\0D  gone\0";
    assert_eq!(parse_status_paths(listed), ["slug", "new file.txt", "now", "gone"]);
    assert_eq!(parse_status_paths(""), [""; 0]);
}

#[test]
fn work_is_a_branch_with_a_commit_and_says_what_is_left_behind() {
    let (_dir, repository) = sample();
    let none = repository.checked_out_branch().unwrap_err();
    assert_eq!((none.kind, none.detail.as_str()), (CliErrorKind::Usage, "main has no commit yet"));
    let head = commit(&repository, "a", "1");
    std::fs::write(repository.root.join("b"), "2").unwrap();
    let work = CheckedOutBranch { branch: "main".into(), head, left: vec!["b".into()] };
    assert_eq!(repository.checked_out_branch().unwrap(), work);
    repository.git_output(&["checkout", "--quiet", "--detach"]).unwrap();
    assert_eq!(repository.checked_out_branch().unwrap_err().kind, CliErrorKind::Usage);
}

#[test]
fn a_bundle_holds_what_is_not_known_and_nothing_else() {
    let (dir, repository) = sample();
    let first = commit(&repository, "a", "1");
    let whole = repository.create_bundle("main", None).unwrap();
    let second = commit(&repository, "b", "2");
    let rest = repository.create_bundle("main", Some(&first)).unwrap();
    let other = WorkingCopy { root: dir.path().join("other") };
    std::fs::create_dir(&other.root).unwrap();
    other.git_output(&["init", "--quiet", "--bare"]).unwrap();
    for (name, bytes, head) in [("one", whole, &first), ("two", rest, &second)] {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        let file = dir.path().join(name).display().to_string();
        other.git_output(&["fetch", "--quiet", &file, "refs/heads/*:refs/heads/*"]).unwrap();
        assert_eq!(other.git_output(&["rev-parse", "main"]).unwrap(), **head);
    }
}

#[test]
fn the_project_is_remembered_in_the_repository_and_nowhere_else() {
    let (dir, repository) = sample();
    assert_eq!(project_of_repository(&repository.root), None);
    repository.write_config(PROJECT_CONFIG_KEY, "prj_1").unwrap();
    let inside = repository.root.join("deep");
    std::fs::create_dir(&inside).unwrap();
    assert_eq!(project_of_repository(&inside).as_deref(), Some("prj_1"));
    assert_eq!(project_of_repository(dir.path()), None);
    assert!(WorkingCopy::find_repository(dir.path()).unwrap().is_none());
    assert_eq!(WorkingCopy::find_repository(&inside).unwrap().unwrap().directory_name(), "My App");
    assert_eq!(
        WorkingCopy::find_repository(Path::new("/nowhere/at/all")).unwrap_err().kind,
        CliErrorKind::Usage
    );
}
