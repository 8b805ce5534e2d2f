//! The fallback: search for whole words.

use cynode_memory::whole_words::{score, search};
use proptest::prelude::*;
use uuid::Uuid;

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

#[test]
fn the_score_is_shared_words_divided_by_words_of_the_query() {
    assert_eq!(score("red green blue", "Green and RED."), 2.0 / 3.0, "B001-06");
    assert_eq!(score("red red", "red"), 1.0, "B001-06: each word counts once");
    assert_eq!(score("red", "blue"), 0.0);
    assert_eq!(score("", "red"), 0.0, "B001-06: an empty query has no hits");
    assert_eq!(score("?!", "red"), 0.0);
}

#[test]
fn a_part_of_a_word_is_no_match() {
    assert_eq!(score("art", "start"), 0.0, "S001-54");
    assert_eq!(score("art", "the art of it"), 1.0, "S001-54");
    assert_eq!(score("max", "max_retries"), 0.0, "S001-54: `_` belongs to a word");
    assert_eq!(score("ca", "café"), 0.0, "B001-28");
}

#[test]
fn hits_have_scores_best_first_and_ties_by_id() {
    let records = [(id(3), "a cat"), (id(1), "a cat"), (id(2), "cat and dog"), (id(4), "bird")];
    let hits = search("cat dog", &records, 10);
    let found: Vec<_> = hits.iter().map(|hit| (hit.id, hit.score)).collect();
    assert_eq!(found, [(id(2), 1.0), (id(1), 0.5), (id(3), 0.5)], "S001-53, S001-55, B001-06");
    assert_eq!(search("cat dog", &records, 2).len(), 2, "B001-06: at most top_k");
    assert_eq!(search("cat", &records, 0), []);
    assert_eq!(search("", &records, 10), [], "B001-06");
}

#[test]
fn words_of_other_scripts_are_found() {
    let records = [(id(1), "Le café est fermé"), (id(2), "猫が好きです"), (id(3), "дом у моря")];
    let find =
        |query: &str| search(query, &records, 5).iter().map(|hit| hit.id).collect::<Vec<_>>();
    assert_eq!(find("café"), [id(1)], "B001-28");
    assert_eq!(find("CAFÉ"), [id(1)], "B001-28");
    assert_eq!(find("cafe\u{301}"), [id(1)], "B001-28");
    assert_eq!(find("猫"), [id(2)], "B001-28");
    assert_eq!(find("好き"), [id(2)], "B001-28");
    assert_eq!(find("Дом"), [id(3)], "B001-28");
    assert_eq!(find("犬"), [] as [Uuid; 0]);
}

/// Words of several scripts with spaces.
fn word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-zA-Z0-9_]{1,8}", "[à-öø-ÿ]{1,6}", "[а-я]{1,6}", "[α-ρσ-ω]{1,6}"]
}

proptest! {
    #[test]
    fn a_word_hits_exactly_the_texts_that_have_it(word in word(), words in prop::collection::vec(word(), 0..8)) {
        let fold = |word: &String| word.to_lowercase();
        let text = words.join(", ");
        let expected = words.iter().any(|it| fold(it) == fold(&word));
        prop_assert_eq!(score(&word, &text) > 0.0, expected, "S001-54, B001-28");
        let longer = format!("x{word}x");
        prop_assert_eq!(score(&word, &longer), 0.0, "S001-54");
    }

    #[test]
    fn text_without_spaces_is_found_inside_a_sentence(before in "[一-龥]{0,6}", word in "[一-龥]{1,5}", after in "[一-龥]{0,6}") {
        prop_assert_eq!(score(&word, &format!("{before}{word}{after}")), 1.0, "B001-28");
    }

    #[test]
    fn the_ranking_does_not_depend_on_the_order_of_the_records(
        texts in prop::collection::vec("(cat|dog|bird| ){0,6}", 0..12), rotation in 0_usize..12, top in 0_usize..12,
    ) {
        let mut records: Vec<_> = (0..).map(id).zip(texts.iter().map(String::as_str)).collect();
        let hits = search("cat dog", &records, top);
        for pair in hits.windows(2) {
            let ordered = pair[0].score > pair[1].score || (pair[0].score == pair[1].score && pair[0].id < pair[1].id);
            prop_assert!(ordered, "S001-55: {:?}", hits);
        }
        prop_assert!(hits.len() <= top && hits.iter().all(|hit| hit.score > 0.0 && hit.score <= 1.0));
        let length = records.len().max(1);
        records.rotate_left(rotation % length);
        records.reverse();
        prop_assert_eq!(search("cat dog", &records, top), hits, "S001-55");
    }

    #[test]
    fn any_text_has_a_score(query in any::<String>(), text in any::<String>()) {
        prop_assert!((0.0..=1.0).contains(&score(&query, &text)));
        let own = score(&query, &query);
        prop_assert!(own == 1.0 || own == 0.0, "a text has all of its own words: {own}");
    }
}
