//! Pushes and mirrors over the real `git http-backend`.

use std::{path::Path, process::Command};

use cynode_forge::{
    ForgeKind,
    git::{self, GitCredential, GitRemote, GitRemoteError, PushOutcome},
};
use cynode_testkit::forges::{TOKEN, TestForge};
use tempfile::TempDir;

const BRANCH: &str = "cynode/fix-1";

fn remote(forge: &TestForge, token: &str) -> GitRemote {
    GitRemote {
        url: forge.clone_url().parse().unwrap(),
        credential: Some(GitCredential::new(forge.kind, token.into())),
        files: false,
        private: true,
    }
}

fn run(directory: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    for who in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{who}_NAME"), "Bob")
            .env(format!("GIT_{who}_EMAIL"), "bob@example.org");
    }
    let done = git.arg("--git-dir").arg(directory).args(args).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// An empty repository of ours.
fn own() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), &["init", "--quiet", "--bare"]);
    directory
}

/// A commit after another, with the same files.
fn after(directory: &Path, parent: &str, message: &str) -> String {
    run(directory, &["commit-tree", &format!("{parent}^{{tree}}"), "-p", parent, "-m", message])
}

fn refused(result: Result<impl std::fmt::Debug, GitRemoteError>, words: &str) {
    match result {
        Err(GitRemoteError::Refused(said)) => assert!(said.contains(words), "{said}"),
        other => panic!("{other:?} instead of a refusal"),
    }
}

#[tokio::test]
async fn a_branch_is_pushed_once_and_moves_forward_only() {
    for kind in ForgeKind::ALL {
        let forge = TestForge::serve(kind).await;
        let (own, remote) = (own(), remote(&forge, TOKEN));
        let main = git::fetch_branch(own.path(), &remote, "main").await.unwrap();
        assert_eq!(Some(&main), forge.tip("main").as_ref());
        let first = after(own.path(), &main, "first");
        let push = |commit: String| {
            let (own, remote) = (own.path().to_owned(), remote.clone());
            async move { git::push_branch(&own, &remote, BRANCH, &commit, "main").await }
        };
        assert_eq!(push(first.clone()).await.unwrap(), PushOutcome::Moved);
        assert_eq!(push(first.clone()).await.unwrap(), PushOutcome::Already);
        let second = after(own.path(), &first, "second");
        assert_eq!(push(second.clone()).await.unwrap(), PushOutcome::Moved);
        assert_eq!(forge.tip(BRANCH), Some(second.clone()));
        // Neither back nor aside, whether git knows what is there or not.
        refused(push(first.clone()).await, "nothing is forced");
        refused(push(after(own.path(), &main, "aside")).await, "nothing is forced");
        let theirs = forge.commit(BRANCH, "a", "by a person\n");
        refused(push(after(own.path(), &second, "late")).await, "nothing is forced");
        assert_eq!(forge.tip(BRANCH), Some(theirs));
        assert_eq!(forge.tip("main"), Some(main));
    }
}

#[tokio::test]
async fn nothing_but_our_branches_is_ever_pushed() {
    let forge = TestForge::serve(ForgeKind::Gitea).await;
    let (own, remote) = (own(), remote(&forge, TOKEN));
    let main = git::fetch_branch(own.path(), &remote, "main").await.unwrap();
    let commit = after(own.path(), &main, "first");
    for (branch, default) in [
        ("main", "main"),
        ("cynode/main", "cynode/main"),
        ("feature/x", "main"),
        ("cynode", "main"),
        ("cynode/", "main"),
        ("cynode/../main", "main"),
        ("cynode/a:refs/heads/main", "main"),
        ("cynode/a b", "main"),
    ] {
        let pushed = git::push_branch(own.path(), &remote, branch, &commit, default).await;
        assert!(matches!(pushed, Err(GitRemoteError::Refused(_))), "{branch}: {pushed:?}");
    }
    for commit in ["HEAD", "main", "", "--force", "+0123"] {
        let pushed = git::push_branch(own.path(), &remote, BRANCH, commit, "main").await;
        assert!(matches!(pushed, Err(GitRemoteError::Refused(_))), "{commit}: {pushed:?}");
    }
    assert_eq!(forge.tip("main"), Some(main));
    assert_eq!(
        run(&forge.directory(), &["for-each-ref", "--format=%(refname)"]),
        "refs/heads/main"
    );
}

#[tokio::test]
async fn a_wrong_password_is_said_to_be_one_and_is_written_nowhere() {
    let forge = TestForge::serve(ForgeKind::Github).await;
    let own = own();
    let wrong = remote(&forge, "wrong-password-1");
    refused(git::fetch_branch(own.path(), &wrong, "main").await, "credential is not taken");
    let good = remote(&forge, TOKEN);
    let main = git::fetch_branch(own.path(), &good, "main").await.unwrap();
    let pushed = git::push_branch(own.path(), &wrong, BRANCH, &main, "main").await;
    refused(pushed, "credential is not taken");
    let mut grep = Command::new("grep");
    let written = grep
        .args(["-rE", "wrong-password-1|forge-token-1|Basic"])
        .arg(own.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&written.stdout), "");
    let nowhere = GitRemote { url: format!("{}x", forge.clone_url()).parse().unwrap(), ..good };
    refused(git::fetch_branch(own.path(), &nowhere, "main").await, "no such repository");
}

#[tokio::test]
async fn a_mirror_moves_forward_only() {
    let forge = TestForge::serve(ForgeKind::Gitlab).await;
    let (own, remote) = (own(), remote(&forge, TOKEN));
    let first = git::fetch_branch(own.path(), &remote, "main").await.unwrap();
    assert_eq!(git::fetch_branch(own.path(), &remote, "main").await.unwrap(), first);
    let second = forge.commit("main", "a", "more\n");
    assert_eq!(git::fetch_branch(own.path(), &remote, "main").await.unwrap(), second);
    forge.force("main", &first);
    refused(git::fetch_branch(own.path(), &remote, "main").await, "nothing is forced");
    assert_eq!(run(own.path(), &["rev-parse", "main"]), second);
    refused(git::fetch_branch(own.path(), &remote, "other").await, "no such branch");
}

#[tokio::test]
async fn a_directory_is_a_remote_only_when_it_was_allowed() {
    let forge = TestForge::serve(ForgeKind::Gitea).await;
    let own = own();
    let url: url::Url = format!("file://{}", forge.directory().display()).parse().unwrap();
    let files = |files| GitRemote { url: url.clone(), credential: None, files, private: false };
    refused(git::fetch_branch(own.path(), &files(false), "main").await, "http or https");
    let main = git::fetch_branch(own.path(), &files(true), "main").await.unwrap();
    assert_eq!(Some(main), forge.tip("main"));
}

#[tokio::test]
async fn somebody_who_does_not_answer_may_be_asked_again() {
    let own = own();
    let url = "http://127.0.0.1:1/acme/web.git".parse().unwrap();
    let remote = GitRemote { url, credential: None, files: false, private: true };
    let fetched = git::fetch_branch(own.path(), &remote, "main").await;
    assert!(matches!(fetched, Err(GitRemoteError::Failed(_))), "{fetched:?}");
}

#[tokio::test]
async fn a_host_that_leads_to_this_machine_is_not_asked_unless_it_may_be_here() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let own = own();
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{port}/acme/web.git").parse().unwrap();
        let remote = GitRemote { url, credential: None, files: false, private: false };
        refused(git::fetch_branch(own.path(), &remote, "main").await, "private network");
        let pushed = git::push_branch(own.path(), &remote, BRANCH, &"a".repeat(40), "main").await;
        refused(pushed, "private network");
    }
    let nobody = listener.accept().unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}
