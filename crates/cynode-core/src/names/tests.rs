use proptest::prelude::*;

use super::*;

#[test]
fn a_label_that_could_leave_its_directory_or_url_is_refused() {
    for text in ["../etc", "a/b", "a b", "A", "-a", "a-", "a--b", "1a", "", "a\0", "%2e%2e", "é"] {
        assert!(text.parse::<ProjectSlug>().is_err(), "S001-11: {text:?}");
    }
    assert_eq!("web-app-2".parse::<ProjectSlug>().map(String::from), Ok("web-app-2".to_owned()));
}

#[test]
fn the_refusal_says_what_was_expected() {
    assert_eq!(
        "Web".parse::<Handle>().unwrap_err().to_string(),
        "a handle cannot contain 'W': it has small letters, digits and dashes only"
    );
    assert_eq!(
        "Gate.x".parse::<DottedKey>().unwrap_err().to_string(),
        "a key cannot contain 'G': it has small letters, digits, dots, dashes and underscores only"
    );
    assert_eq!(
        "".parse::<Title>().unwrap_err().to_string(),
        "a title has 1 to 200 characters, got 0"
    );
    assert_eq!(
        "a..b".parse::<DottedKey>().unwrap_err().to_string(),
        "a key has no empty part between dots"
    );
}

#[test]
fn text_that_hides_something_from_the_reader_is_refused() {
    for text in ["a\u{202e}b", "a\u{7}", "a\u{feff}", "zero\u{200b}width"] {
        assert!(text.parse::<Prose>().is_err(), "S001-11: {text:?}");
        assert!(text.parse::<Title>().is_err(), "S001-11: {text:?}");
    }
    assert!("two\nlines\tand a tab".parse::<Prose>().is_ok());
}

#[test]
fn a_name_is_made_from_the_first_words_of_a_brief() {
    assert_eq!(
        TaskName::derive_name("Deploy the docs, please!").as_str(),
        "deploy-the-docs-please"
    );
    assert_eq!(TaskName::derive_name("42 is the answer").as_str(), "task-42-is-the-answer");
    assert_eq!(TaskName::derive_name("¡ñ!").as_str(), "task");
    assert_eq!(TaskName::derive_name("deploy docs").with_number(2).as_str(), "deploy-docs-2");
}

#[test]
fn a_handle_is_made_from_the_name_that_a_directory_gives() {
    let handle = |text: &str| Handle::derive_handle(text).to_string();
    assert_eq!(handle("Ada.Lovelace@example.com"), "ada-lovelace");
    assert_eq!(handle("7of9@example.com"), "user-7of9");
    assert_eq!(handle("žluť"), "lu");
    assert_eq!(handle("@"), "user");
    assert_eq!(Handle::derive_handle("ada").with_number(2).as_str(), "ada-2");
    assert_eq!(GroupName::derive_name("Platform Engineers").as_str(), "platform-engineers");
}

proptest! {
    #[test]
    fn a_derived_handle_is_always_a_legal_one(text in ".{0,300}|[0-9a-z.@-]{0,90}", number in 0_u32..100_000) {
        let handle = Handle::derive_handle(&text).with_number(number);
        prop_assert_eq!(handle.as_str().parse::<Handle>(), Ok(handle.clone()));
    }

    #[test]
    fn a_derived_name_is_always_a_legal_name(brief in ".{0,300}|[0-9a-z ]{50,90}|[a-z0-9]{40,70}", number in 0_u32..100_000) {
        let name = TaskName::derive_name(&brief).with_number(number);
        prop_assert_eq!(name.as_str().parse::<TaskName>(), Ok(name.clone()));
    }

    #[test]
    fn no_accepted_text_has_a_control_character_or_is_oversize(text in "\\PC{0,40}|[\\x00-\\x7f]{0,40}") {
        let oversize = format!("{text}{}", "x".repeat(201));
        prop_assert!(oversize.parse::<Title>().is_err(), "S001-11: {} characters", oversize.len());
        if let Ok(title) = text.parse::<Title>() {
            prop_assert!(title.as_str().chars().all(|c| !c.is_control()), "S001-11");
        }
        if let Ok(slug) = text.parse::<ProjectSlug>() {
            prop_assert!(slug.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
        }
    }
}
