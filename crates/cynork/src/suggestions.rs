//! Hints for words that other tools use as commands. They are not commands here: each leads to a hint.

/// The typed words after `cynork`, and the hint.
const COMMAND_HINTS: &[(&str, &str)] = &[
    (
        "agent",
        "`cynork node list` shows which machine has which agents; `cynode-node agents install goose` installs one",
    ),
    (
        "agents",
        "`cynork node list` shows which machine has which agents; `cynode-node agents install goose` installs one",
    ),
    ("approve", "`cynork task approve last` says yes to a plan"),
    ("ask", "`cynork run \"…\"` asks for work; `cynork chat` asks the project manager"),
    ("cancel", "`cynork task cancel last`"),
    ("create", "`cynork run \"…\"` asks for work"),
    ("diff", "`cynork task diff last`"),
    ("help", "`cynork --help`, or `cynork task --help`"),
    ("jobs", "`cynork task timeline last` has the jobs of a task"),
    ("list", "`cynork task list`"),
    ("logs", "`cynork task logs last`"),
    ("ls", "`cynork task list`"),
    ("merge", "`cynork pr merge 1`"),
    ("models", "`cynork model list`"),
    ("new", "`cynork run \"…\"` asks for work"),
    ("nodes", "`cynork node list`"),
    (
        "notifications",
        "`cynork notification list`; `cynork channel list` lists the notification channels",
    ),
    ("open", "`cynork` alone opens the screen"),
    ("plan", "`cynork task plan last`"),
    ("projects", "`cynork project list`"),
    ("prs", "`cynork pr list`"),
    ("ps", "`cynork task list --state running`"),
    ("retry", "`cynork task retry last`"),
    ("screen", "`cynork` alone opens the screen"),
    ("show", "`cynork task show last`"),
    ("start", "`cynode up` starts an installation; `cynork run \"…\"` asks for work"),
    ("stop", "`cynork task pause last` or `cynork task cancel last`"),
    ("tasks", "`cynork task list`"),
    ("top", "`cynork` alone opens the screen"),
    ("tui", "`cynork` alone opens the screen"),
    ("ui", "`cynork` alone opens the screen"),
    ("up", "`cynode up` starts an installation"),
    ("version", "`cynork --version`; `cynork status` has the version of the installation"),
    ("watch", "`cynork task watch last`"),
    ("project add", "`cynork project create NAME`, or `cynork run \"…\"` in a repository"),
    ("project new", "`cynork project create NAME`, or `cynork run \"…\"` in a repository"),
    ("task ls", "`cynork task list`"),
    ("task new", "`cynork run \"…\"`, or `cynork task create \"…\"`"),
    ("task stop", "`cynork task pause last` or `cynork task cancel last`"),
];

/// Returns the hint for words that are not a command.
pub(crate) fn find_command_hint(words: &[&str]) -> Option<&'static str> {
    let typed = words.join(" ");
    COMMAND_HINTS.iter().find(|(guess, _)| *guess == typed).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands in backticks that are of this program.
    fn commands(hint: &str) -> Vec<Vec<String>> {
        let quoted = hint.split('`').skip(1).step_by(2);
        let own = quoted.filter(|it| it.starts_with("cynork "));
        own.map(|it| it.split(' ').map(|word| word.trim_matches('"').to_owned()).collect())
            .collect()
    }

    #[test]
    fn no_guess_is_a_command_and_every_hint_is_understood() {
        for (guess, hint) in COMMAND_HINTS {
            let words = std::iter::once("cynork").chain(guess.split(' '));
            let error = crate::cli::build_command().try_get_matches_from(words).unwrap_err();
            let is_unknown = error.kind() == clap::error::ErrorKind::InvalidSubcommand;
            assert!(is_unknown, "`cynork {guess}` is a command by now");
            for command in commands(hint) {
                let understood = match crate::cli::build_command().try_get_matches_from(&command) {
                    Ok(_) => true,
                    Err(error) => !error.use_stderr(),
                };
                assert!(understood, "{guess}: {command:?}");
            }
        }
    }

    #[test]
    fn a_guess_is_found_by_all_its_words() {
        assert_eq!(find_command_hint(&["ps"]), Some("`cynork task list --state running`"));
        assert_eq!(find_command_hint(&["task", "ls"]), Some("`cynork task list`"));
        assert_eq!(find_command_hint(&["task", "ps"]), None);
    }
}
