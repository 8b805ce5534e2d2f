//! What a forge is asked and what becomes of it, the same in all three dialects.

use std::time::Duration;

use cynode_forge::{
    CheckState, CommentTarget, Forge, ForgeCheck, ForgeEndpoint, ForgeError, ForgeKind,
    IssueFilter, IssueText, NewPullRequest, PullState, RemotePullRequest, ReviewComment,
    ReviewCommentKind,
};
use cynode_testkit::{
    NOW,
    forges::{BOT, Level, REPOSITORY, Source, TOKEN, TestForge, Trouble, Verdict},
};
use time::OffsetDateTime;

const BRANCH: &str = "cynode/fix-1";

async fn both(kind: ForgeKind) -> (TestForge, Box<dyn Forge>) {
    let forge = TestForge::serve(kind).await;
    let client = connect(&forge, TOKEN);
    (forge, client)
}

fn connect(forge: &TestForge, token: &str) -> Box<dyn Forge> {
    let site = ForgeEndpoint {
        api: forge.api().parse().unwrap(),
        repository: REPOSITORY.to_owned(),
        token: token.into(),
        private: true,
    };
    forge.kind.connect_repository(site).unwrap()
}

fn new() -> NewPullRequest {
    NewPullRequest {
        branch: BRANCH.into(),
        base: "main".into(),
        title: "Fix it".into(),
        body: "It was broken.".into(),
    }
}

#[tokio::test]
async fn a_pull_request_is_opened_once_however_often_it_is_asked_for() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        let head = forge.commit(BRANCH, "a", "fixed\n");
        assert_eq!(client.find_pull_request(BRANCH).await.unwrap(), None);
        let opened = client.open_pull_request(&new()).await.unwrap();
        let expected = RemotePullRequest {
            number: 1,
            state: PullState::Open,
            branch: BRANCH.into(),
            ours: true,
            base: "main".into(),
            head,
            merge_commit: None,
            url: opened.url.clone(),
        };
        assert_eq!(opened, expected);
        assert!(
            opened.url.starts_with("http://127.0.0.1:") && opened.url.ends_with("/1"),
            "{}",
            opened.url
        );
        assert_eq!(client.open_pull_request(&new()).await.unwrap(), expected);
        assert_eq!(client.get_pull_request(1).await.unwrap(), expected);
        // Made behind our back, after we have looked: the forge says so, and it is found.
        assert!(matches!(client.create_pull_request(&new()).await, Err(ForgeError::Conflict(_))));
        assert_eq!(forge.pulls().len(), 1);
    }
}

#[tokio::test]
async fn an_answer_that_is_lost_on_the_way_makes_no_second_pull_request_and_no_second_comment() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        forge.commit(BRANCH, "a", "fixed\n");
        let new = new();
        forge.trouble(Trouble::Lost);
        assert!(client.create_pull_request(&new).await.unwrap_err().is_transient());
        assert_eq!(client.open_pull_request(&new).await.unwrap().number, 1);
        assert_eq!(forge.pulls().len(), 1);
        for _ in 0..3 {
            client.ensure_comment(CommentTarget::PullRequest(1), "task/1", "Done.").await.unwrap();
        }
        client.ensure_comment(CommentTarget::PullRequest(1), "task/2", "More.").await.unwrap();
        let bodies: Vec<String> = forge.comments().into_iter().map(|said| said.body).collect();
        assert_eq!(bodies, ["Done.\n\n<!-- cynode:task/1 -->", "More.\n\n<!-- cynode:task/2 -->"]);
    }
}

#[tokio::test]
async fn what_became_of_a_pull_request_is_seen() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        let head = forge.commit(BRANCH, "a", "fixed\n");
        let open = client.open_pull_request(&new()).await.unwrap();
        forge.merge(1);
        let merged = RemotePullRequest {
            state: PullState::Merged,
            merge_commit: Some(head),
            ..open.clone()
        };
        assert_eq!(client.get_pull_request(1).await.unwrap(), merged);
        // A branch whose pull request has ended gets no second one.
        assert_eq!(client.open_pull_request(&new()).await.unwrap(), merged);
        forge.commit("cynode/two", "b", "two\n");
        client
            .open_pull_request(&NewPullRequest { branch: "cynode/two".into(), ..new() })
            .await
            .unwrap();
        forge.close(2);
        assert_eq!(client.get_pull_request(2).await.unwrap().state, PullState::Closed);
        assert!(matches!(client.get_pull_request(99).await, Err(ForgeError::Missing(_))));
    }
}

#[tokio::test]
async fn a_pull_request_of_a_fork_is_not_ours_whatever_its_branch_is_called() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        let head = forge.commit(BRANCH, "a", "fixed\n");
        for source in [Source::Fork("eve".into()), Source::Fork("acme".into()), Source::Gone] {
            let number = forge.pull_from(source, BRANCH, "main");
            assert!(!client.get_pull_request(number).await.unwrap().ours, "{kind}");
            assert_eq!(client.find_pull_request(BRANCH).await.unwrap(), None, "{kind}");
        }
        // Closed by whoever opened it, it keeps nobody from opening ours.
        forge.close(2);
        for _ in 0..2 {
            let opened = client.open_pull_request(&new()).await.unwrap();
            assert_eq!((opened.number, &opened.head, opened.ours), (4, &head, true), "{kind}");
        }
        assert_eq!(forge.pulls().len(), 4);
    }
}

#[tokio::test]
async fn a_branch_that_was_not_pushed_cannot_be_asked_for() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        let error = client.open_pull_request(&new()).await.unwrap_err();
        assert!(matches!(error, ForgeError::Conflict(_) | ForgeError::Missing(_)), "{error:?}");
        assert_eq!(forge.pulls(), []);
    }
}

#[tokio::test]
async fn remarks_come_in_order_over_all_pages_with_who_where_and_what_they_want() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        forge.commit(BRANCH, "a", "fixed\n");
        client.open_pull_request(&new()).await.unwrap();
        forge.page(2);
        for at in 0..7 {
            forge.say(1, "ann", &format!("word {at}"), None, None);
        }
        forge.say(1, "ann", "Name it better.", Some(("src/a.rs", 12)), None);
        forge.say(1, "bob", "Not yet.", None, Some(Verdict::Changes));
        forge.say(1, "ann", "", None, Some(Verdict::Approve));
        let remark = |id: u64, of: &str, author: &str, body: &str| ReviewComment {
            id: format!("{of}:{id}"),
            author: author.into(),
            body: body.into(),
            path: None,
            line: None,
            kind: ReviewCommentKind::Comment,
            at: NOW + time::Duration::seconds(i64::try_from(id).unwrap()),
        };
        let (plain, inline, review) = match kind {
            ForgeKind::Gitlab => ("note", "note", "note"),
            ForgeKind::Github | ForgeKind::Gitea => ("comment", "inline", "review"),
        };
        let mut expected: Vec<ReviewComment> =
            (0..7).map(|at| remark(at + 2, plain, "ann", &format!("word {at}"))).collect();
        let place = (Some("src/a.rs".to_owned()), Some(12));
        let at_line = remark(9, inline, "ann", "Name it better.");
        expected.push(ReviewComment { path: place.0, line: place.1, ..at_line });
        // GitLab keeps the verdict apart from the words.
        let words = if kind == ForgeKind::Gitlab { "" } else { "Not yet." };
        expected.push(ReviewComment {
            kind: ReviewCommentKind::ChangesRequested,
            ..remark(10, review, "bob", words)
        });
        expected.push(ReviewComment {
            kind: ReviewCommentKind::Approved,
            ..remark(11, review, "ann", "")
        });
        let all = client.list_review_comments(1, OffsetDateTime::UNIX_EPOCH).await.unwrap();
        assert_eq!(all, expected, "{kind}");
        let late = client.list_review_comments(1, NOW + time::Duration::seconds(9)).await.unwrap();
        assert_eq!(late, expected[7..], "{kind}");
    }
}

#[tokio::test]
async fn checks_are_passed_failed_or_pending() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        let head = forge.commit(BRANCH, "a", "fixed\n");
        assert_eq!(client.list_checks(&head).await.unwrap(), []);
        forge.check(&head, "build", "success", "all good", true);
        forge.check(&head, "test", "failure", "3 failed", true);
        forge.check(&head, "legacy", "pending", "waits", false);
        let got = client.list_checks(&head).await.unwrap();
        let got: Vec<(&str, CheckState, &str)> = got
            .iter()
            .map(|ForgeCheck { name, state, summary, .. }| {
                (name.as_str(), *state, summary.as_str())
            })
            .collect();
        let mut expected = vec![
            ("build", CheckState::Passed, "all good"),
            ("test", CheckState::Failed, "3 failed"),
            ("legacy", CheckState::Pending, "waits"),
        ];
        if kind == ForgeKind::Gitlab {
            expected.push(("pipeline", CheckState::Failed, "failed"));
        }
        assert_eq!(got, expected, "{kind}");
    }
}

#[tokio::test]
async fn issues_are_found_by_label_or_assignee_and_never_twice() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        let one = forge.issue("ann", "One", "Please.", &["cynode", "bug"]);
        forge.issue("ann", "Two", "", &["other"]);
        let three = forge.issue("bob", "Three", "", &["cynode"]);
        forge.change_issue(three, |issue| issue.assignees = vec![BOT.into()]);
        let four = forge.issue("bob", "Four", "", &["cynode"]);
        forge.change_issue(four, |issue| issue.open = false);
        forge.page(1);
        let wanted = IssueFilter { label: Some("cynode".into()), assignee: Some(BOT.into()) };
        let found = client.list_issues(&wanted, OffsetDateTime::UNIX_EPOCH).await.unwrap();
        let first = IssueText {
            number: one,
            open: true,
            title: "One".into(),
            body: "Please.".into(),
            author: "ann".into(),
            labels: vec!["cynode".into(), "bug".into()],
            assignees: Vec::new(),
            url: found[0].url.clone(),
            updated_at: NOW + time::Duration::seconds(1),
        };
        assert_eq!(found[0], first);
        assert_eq!(found.iter().map(|issue| issue.number).collect::<Vec<_>>(), [one, three]);
        assert_eq!(client.get_issue(one).await.unwrap(), Some(first));
        assert_eq!(client.get_issue(99).await.unwrap(), None);
        assert!(!client.get_issue(four).await.unwrap().unwrap().open);
        let late = client.list_issues(&wanted, NOW + time::Duration::seconds(2)).await.unwrap();
        assert_eq!(late.iter().map(|issue| issue.number).collect::<Vec<_>>(), [three]);
        assert_eq!(client.list_issues(&IssueFilter::default(), NOW).await.unwrap(), []);
    }
}

#[tokio::test]
async fn who_may_write_is_asked_of_the_forge() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        // Ids of the fake are lengths of names: each has its own.
        forge.member("ann", Level::Admin);
        forge.member("bobo", Level::Write);
        forge.member("carol", Level::Read);
        let mut got = Vec::new();
        for login in ["ann", "bobo", "carol", "nobody-here"] {
            got.push(client.can_write(login).await.unwrap());
        }
        assert_eq!(got, [true, true, false, false], "{kind}");
        assert_eq!(client.fetch_own_login().await.unwrap(), BOT);
    }
}

#[tokio::test]
async fn a_forge_that_is_asked_too_much_or_is_broken_is_asked_again_later() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        forge.trouble(Trouble::Limited(7));
        match client.fetch_own_login().await.unwrap_err() {
            ForgeError::Retry { after, why } => {
                assert_eq!(after, Duration::from_secs(7));
                assert!(why.contains("rate limit"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        forge.trouble(Trouble::Broken);
        assert!(client.fetch_own_login().await.unwrap_err().is_transient());
        assert_eq!(client.fetch_own_login().await.unwrap(), BOT);
    }
}

#[tokio::test]
async fn a_token_goes_to_no_other_host_and_a_wrong_one_is_said_to_be_wrong() {
    for kind in ForgeKind::ALL {
        let (forge, client) = both(kind).await;
        let other = TestForge::serve(kind).await;
        forge.trouble(Trouble::Elsewhere(format!("{}/user", other.api())));
        let error = client.fetch_own_login().await.unwrap_err();
        assert!(error.to_string().contains("not followed"), "{error}");
        assert_eq!(other.requests(), []);
        match connect(&forge, "wrong").fetch_own_login().await {
            Err(ForgeError::Refused(said)) => assert!(said.contains("set a new one"), "{said}"),
            other => panic!("{other:?}"),
        }
        assert!(!format!("{client:?}").contains(TOKEN));
    }
}
