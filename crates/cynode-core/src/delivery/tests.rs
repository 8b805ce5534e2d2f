use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;

fn task() -> TaskId {
    TaskId::from_uuid(Uuid::from_u128(0x0192_d5c8_b6f0_7cc1_a1a3_c2b4_d5e6_f708))
}

#[test]
fn a_branch_is_named_after_the_task_and_never_like_another() {
    let name: TaskName = "dark-mode".parse().unwrap();
    assert_eq!(delivery_branch(&name, task(), 1), "cynode/dark-mode-d5e6f708");
    assert_eq!(delivery_branch(&name, task(), 2), "cynode/dark-mode-d5e6f708-2");
}

#[test]
fn a_commit_says_what_it_is_and_ends_with_its_task_and_who_signs_it_off() {
    let author = CommitAuthor::default();
    assert_eq!(
        commit_message("Add a toggle", "It holds.\n", task(), &author),
        "Add a toggle\n\nIt holds.\n\nCyNode-Task: tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708\n\
         Signed-off-by: CyNode <cynode@localhost>\n"
    );
    assert_eq!(
        commit_message("Add a toggle", " ", task(), &author),
        "Add a toggle\n\nCyNode-Task: tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708\n\
         Signed-off-by: CyNode <cynode@localhost>\n"
    );
}

#[test]
fn an_author_has_a_name_and_an_address_and_nothing_that_git_could_misread() {
    let author: CommitAuthor = "Build Team <build@example.org>".parse().unwrap();
    assert_eq!((author.name.as_str(), author.email.as_str()), ("Build Team", "build@example.org"));
    assert_eq!(author.to_string().parse(), Ok(author));
    for text in ["", "Ada", "Ada <>", "<a@b>", "A <a@b> x", "A\n <a@b>", "A <a<b>", "A <a b>"] {
        assert!(text.parse::<CommitAuthor>().is_err(), "{text:?}");
    }
}

#[test]
fn only_the_exact_words_end_a_task_without_a_delivery() {
    for yes in ["end without", "End without.", " `end without` ", "END  WITHOUT!"] {
        assert!(is_end_without_answer(yes), "{yes}");
    }
    for no in ["", "again", "end", "do not end without it", "end without tests"] {
        assert!(!is_end_without_answer(no), "{no}");
    }
}

#[test]
fn without_a_good_word_a_pull_request_is_opened() {
    for other in [None, Some(json!(null)), Some(json!("twice")), Some(json!(1))] {
        assert_eq!(DeliveryMode::from_preference(other.as_ref()), DeliveryMode::PullRequest);
    }
    assert_eq!(DeliveryMode::from_preference(Some(&json!("none"))), DeliveryMode::None);
    assert_eq!(DeliveryMode::from_preference(Some(&json!("branch"))), DeliveryMode::Branch);
}

proptest! {
    #[test]
    fn a_title_is_one_short_line_whatever_was_said(text in ".{0,400}") {
        let line = commit_title(&text);
        prop_assert!(line.chars().count() <= 120);
        prop_assert!(!line.contains(char::is_control));
        prop_assert_eq!(commit_title(&line), line);
    }
}
