//! Terminal output for people. Programs use JSON.

use std::{
    io::{ErrorKind, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use cynode_wire::platform::health::{ReadinessCheck, ReadinessStatus};

/// Whether output that a caller needs could not be printed.
static STDOUT_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a line.
pub(crate) fn print_line(line: &str) {
    match writeln!(std::io::stdout(), "{line}") {
        // A closed pipe is not an error; a token that could not be written is one.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            if !STDOUT_FAILED.swap(true, Ordering::Relaxed) {
                print_error(&format!("standard output cannot be written: {error}"));
            }
        }
        Ok(()) | Err(_) => {}
    }
}

/// Returns whether any output was lost.
pub(crate) fn has_stdout_failed() -> bool {
    STDOUT_FAILED.load(Ordering::Relaxed)
}

/// Prints an error.
pub(crate) fn print_error(line: &str) {
    let _ = writeln!(std::io::stderr(), "cynode: {line}");
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print_line(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints the checks, with the fix under each line that needs one.
pub(crate) fn print_checks(checks: &[ReadinessCheck]) {
    let colour = std::io::stdout().is_terminal() && !crate::config::is_color_disabled();
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        let (mark, code) = match check.status {
            ReadinessStatus::Ok => ("✓", "32"),
            ReadinessStatus::Warning => ("!", "33"),
            ReadinessStatus::Failed => ("✗", "31"),
        };
        let mark = if colour { format!("\u{1b}[{code}m{mark}\u{1b}[0m") } else { mark.to_owned() };
        print_line(&format!(" {mark} {:width$}  {}", check.name, check.detail));
        if let Some(fix) = &check.fix {
            print_line(&format!("   {:width$}  fix: {fix}", ""));
        }
    }
}
