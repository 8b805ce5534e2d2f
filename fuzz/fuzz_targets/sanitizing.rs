//! Whatever a stranger writes, nothing of it is hidden from a person, commands a terminal or gets out of the fence of a prompt. To
//! sanitize twice is to sanitize once.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/cynode-pma/src/prompt_composition/fence.rs"]
mod fence;
#[path = "../../crates/cynode-notify/src/text.rs"]
mod text;
#[path = "../../crates/cynork/src/untrusted_text.rs"]
mod untrusted_text;

use cynode_forge::sanitize::{is_invisible_char, sanitize_line, sanitize_text};
use libfuzzer_sys::fuzz_target;

/// Bytes of untrusted text in a prompt: less than an input, so that some texts are cut.
const FENCED_BYTES: usize = 1024;

fuzz_target!(|data: &[u8]| {
    let raw = String::from_utf8_lossy(data);
    check_forge(&raw);
    check_fence(&raw);
    check_notification(&raw);
    check_terminal(&raw);
});

/// Text of a forge, before an agent reads it.
fn check_forge(raw: &str) {
    let once = sanitize_text(raw);
    assert!(!once.text.chars().any(is_invisible_char));
    assert_no_control(&once.text, &['\n', '\t']);
    assert!(once.text.len() <= raw.len());
    let twice = sanitize_text(&once.text);
    assert_eq!(twice.text, once.text);
    if !raw.contains(['`', '~']) {
        assert!(!once.text.contains("<!--"));
    }
    let line = sanitize_line(raw);
    assert!(!line.chars().any(is_invisible_char));
    assert_no_control(&line, &[]);
}

/// Untrusted text in a prompt.
fn check_fence(raw: &str) {
    let fenced = fence::quote_untrusted(raw, FENCED_BYTES);
    assert!(fenced.ends_with('\n'));
    for line in fenced.split_terminator('\n') {
        assert!(line.starts_with(fence::QUOTE_PREFIX), "{line:?}");
        assert!(!line.contains(fence::is_line_break), "{line:?}");
    }
    assert_no_control(&fenced, &['\n', '\t']);
}

/// Text of a question that a person answers by a link.
fn check_notification(raw: &str) {
    let line = text::to_single_line(raw);
    assert_no_control(&line, &[]);
    assert_eq!(text::to_single_line(&line), line);
    let shown = text::escape_hidden_chars(raw);
    assert_no_control(&shown, &['\n', '\t']);
    assert_eq!(text::escape_hidden_chars(&shown), shown);
}

/// Text on the terminal of a person.
fn check_terminal(raw: &str) {
    let plain = untrusted_text::sanitize_text(raw);
    assert_no_control(&plain, &['\n']);
    assert_eq!(untrusted_text::sanitize_text(&plain), plain);
    let escaped = untrusted_text::escape_invisible(raw);
    assert_no_control(&escaped, &['\n', '\t']);
    assert_eq!(untrusted_text::escape_invisible(&escaped), escaped);
}

/// No control character but these is left: every control sequence of a terminal begins with one.
fn assert_no_control(text: &str, allowed: &[char]) {
    assert!(!text.chars().any(|c| c.is_control() && !allowed.contains(&c)), "{text:?}");
}
