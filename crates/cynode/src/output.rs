//! What a person reads on the terminal. Programs ask for JSON.

use std::{
    io::{ErrorKind, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use cynode_wire::health::{Check, CheckStatus};

/// Whether something could not be printed that somebody waits for.
static LOST: AtomicBool = AtomicBool::new(false);

/// Prints a line.
pub(crate) fn say(line: &str) {
    match writeln!(std::io::stdout(), "{line}") {
        // A reader that has gone away is no reason to fail; a token that is not where it was sent is one.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            if !LOST.swap(true, Ordering::Relaxed) {
                complain(&format!("standard output cannot be written: {error}"));
            }
        }
        Ok(()) | Err(_) => {}
    }
}

/// Whether something was lost that was to be printed.
pub(crate) fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// Prints why something failed.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "cynode: {line}");
}

/// Prints a value for a program.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    say(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints what was looked at, with the fix under each line that needs one.
pub(crate) fn checks(checks: &[Check]) {
    let colour = std::io::stdout().is_terminal() && !crate::config::no_colour();
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        let (mark, code) = match check.status {
            CheckStatus::Ok => ("✓", "32"),
            CheckStatus::Warning => ("!", "33"),
            CheckStatus::Failed => ("✗", "31"),
        };
        let mark = if colour { format!("\u{1b}[{code}m{mark}\u{1b}[0m") } else { mark.to_owned() };
        say(&format!(" {mark} {:width$}  {}", check.name, check.detail));
        if let Some(fix) = &check.fix {
            say(&format!("   {:width$}  fix: {fix}", ""));
        }
    }
}
