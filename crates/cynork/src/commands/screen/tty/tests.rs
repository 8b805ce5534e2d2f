use std::process::{Command, Stdio};

use super::*;

/// Takes the terminal and comes to harm; run by the test below, in a terminal of its own.
#[test]
#[ignore = "needs a terminal: `a_terminal_is_given_back_before_a_panic_says_why` gives it one"]
fn takes_a_terminal_and_panics() {
    let _tty = Tty::acquire_terminal().unwrap();
    panic!("it came to harm");
}

/// The same, but it ends well.
#[test]
#[ignore = "needs a terminal: `a_terminal_is_given_back_in_the_end` gives it one"]
fn takes_a_terminal_and_ends() {
    drop(Tty::acquire_terminal().unwrap());
}

/// What a test of this program writes to a terminal that `script` makes for it.
fn written(test: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let name = format!("commands::screen::tty::tests::{test}");
    let line = format!("{} --exact {name} --ignored --nocapture; stty -a", program.display());
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("`script` of util-linux is there");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How the alternate screen is entered and left, and the mouse taken and given back.
const SIGNS: [(&str, &str); 3] = [
    ("\u{1b}[?1049h", "\u{1b}[?1049l"),
    ("\u{1b}[?1000h", "\u{1b}[?1000l"),
    ("\u{1b}[?2004h", "\u{1b}[?2004l"),
];

fn given_back(written: &str) -> usize {
    let mut last = 0;
    for (taken, back) in SIGNS {
        let taken = written.find(taken).unwrap_or_else(|| panic!("not taken: {written:?}"));
        let back = written.find(back).unwrap_or_else(|| panic!("not given back: {written:?}"));
        assert!(taken < back, "{written:?}");
        last = last.max(back);
    }
    let modes = written.rsplit("speed").next().unwrap_or_default();
    assert!(modes.contains(" icanon") && modes.contains(" echo "), "{modes:?}");
    last
}

#[test]
fn a_terminal_is_given_back_in_the_end() {
    given_back(&written("takes_a_terminal_and_ends"));
}

#[test]
fn a_terminal_is_given_back_before_a_panic_says_why() {
    let written = written("takes_a_terminal_and_panics");
    let back = given_back(&written);
    let told = written.find("it came to harm").unwrap_or_else(|| panic!("{written:?}"));
    assert!(back < told, "what it says must not be on the screen that is left: {written:?}");
}
