use super::*;

#[test]
fn what_a_terminal_obeys_is_taken_out_of_the_words_of_others() {
    for (given, kept) in [
        ("plain", "plain"),
        ("\u{1b}[31mred\u{1b}[0m", "red"),
        ("\u{1b}]0;title\u{7}after", "after"),
        ("\u{1b}]8;;http://a\u{1b}\\link", "link"),
        ("a\rb\u{8}c\u{9b}d", "abcd"),
        ("one\n\ttwo", "one\n    two"),
        ("safe\u{202e}txt.exe", "safetxt.exe"),
        ("cut \u{1b}[3", "cut "),
        ("\u{1b}", ""),
    ] {
        assert_eq!(sanitize_text(given), kept, "{given:?}");
    }
}

#[test]
fn a_text_is_cut_by_the_columns_it_takes() {
    assert_eq!(truncate_to_width("short", 10), "short");
    assert_eq!(truncate_to_width("exactly ten", 10), "exactly t…");
    assert_eq!(truncate_to_width("漢字漢字", 5), "漢字…");
    assert_eq!(display_width(&truncate_to_width("漢字漢字", 6)), 5);
    assert_eq!(truncate_to_width("anything", 0), "");
}

#[test]
fn a_line_is_cut_where_its_words_end_and_colours_take_no_place() {
    let line = || {
        StyledLine::default()
            .with_styled(TextStyle::Green, "✓ done")
            .pad_to_column(10)
            .with_text("a long title here")
    };
    assert_eq!(line().render_fitted(80, Colorizer(false)), "✓ done    a long title here");
    assert_eq!(line().render_fitted(16, Colorizer(false)), "✓ done    a lon…");
    assert_eq!(line().render_fitted(16, Colorizer(true)), "\u{1b}[32m✓ done\u{1b}[0m    a lon…");
    assert_eq!(line().render_fitted(6, Colorizer(false)), "✓ don…");
    let exact = StyledLine::default().with_text("abc").with_text("def");
    assert_eq!(exact.render_fitted(6, Colorizer(false)), "abcdef");
    let long = StyledLine::default().with_text("abcdef").pad_to_column(4).with_text("xy");
    assert_eq!(long.render_fitted(80, Colorizer(false)), "abc…xy");
}

#[test]
fn a_long_line_is_broken_between_words_and_goes_on_below_its_first() {
    assert_eq!(wrap_line("short", 10), "short");
    assert_eq!(wrap_line(" 0:24  one two three", 14), " 0:24  one two\n       three");
    assert_eq!(
        wrap_line("  one \u{1b}[33mtwo three\u{1b}[0m", 9),
        "  one \u{1b}[33mtwo\n  three\u{1b}[0m"
    );
    assert_eq!(wrap_line("│  must   one two", 12), "│  must   \n   one two".replace("   \n", "\n"));
    // What cannot be broken stays whole.
    assert_eq!(wrap_line("see http://127.0.0.1/very/long", 10), "see\nhttp://127.0.0.1/very/long");
}

#[test]
fn the_first_line_that_says_something_is_taken() {
    assert_eq!(first_line("\n  \n  hello \nworld"), "hello");
    assert_eq!(first_line(""), "");
    assert_eq!(first_line("a\tb\u{1b}]0;c\u{7}d\ne"), "a    b\\u{1b}]0;c\\u{7}d");
}

#[test]
fn what_is_decided_by_loses_nothing_of_what_others_wrote() {
    assert_eq!(
        escape_for_terminal("one\n\ttwo\u{1b}]0;rm -rf\u{7}\u{202e}\u{200b}"),
        "one\n    two\\u{1b}]0;rm -rf\\u{7}\\u{202e}\\u{200b}"
    );
}

#[test]
fn what_is_taken_away_is_counted_in_rows_of_the_terminal_as_it_is() {
    let screen = |below: &[&str]| LiveTerminal {
        paint: Colorizer(false),
        live: true,
        below: below.iter().map(|line| (*line).to_owned()).collect(),
        turn: 0,
        before: None,
    };
    assert_eq!(screen(&[]).erase_sequence(), "");
    let (columns, _) = terminal_size();
    let long = "x".repeat(columns);
    assert_eq!(screen(&["a", &long]).erase_sequence(), "\u{1b}[3A\r\u{1b}[J");
    assert_eq!(screen(&["a", "b"]).render_status_lines(), " ⠋ a\n   b\n");
}
