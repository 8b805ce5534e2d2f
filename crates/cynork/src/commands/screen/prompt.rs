//! The command prompt behind `:`: its commands, completion, and errors for unknown ones.

use super::state::{Pane, ScreenState, TaskPart};

/// The action of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptAction {
    Pane(Pane),
    Part(TaskPart),
    Task,
    New,
    Retry,
    Help,
    Refresh,
    Quit,
}

/// The argument of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptArgument {
    None,
    /// The optional name of a project.
    Project,
    /// The name of a task.
    Task,
}

/// A command of the prompt.
#[derive(Debug)]
pub(super) struct PromptCommand {
    /// Its names; the first is displayed.
    pub(super) names: &'static [&'static str],
    pub(super) argument: PromptArgument,
    pub(super) action: PromptAction,
}

const fn prompt_command(
    names: &'static [&'static str],
    argument: PromptArgument,
    action: PromptAction,
) -> PromptCommand {
    PromptCommand { names, argument, action }
}

/// All commands.
pub(super) const PROMPT_COMMANDS: &[PromptCommand] = &[
    prompt_command(&["tasks"], PromptArgument::Project, PromptAction::Pane(Pane::Tasks)),
    prompt_command(&["inbox"], PromptArgument::None, PromptAction::Pane(Pane::Inbox)),
    prompt_command(&["nodes"], PromptArgument::None, PromptAction::Pane(Pane::Nodes)),
    prompt_command(&["spend", "usage"], PromptArgument::None, PromptAction::Pane(Pane::Spend)),
    prompt_command(&["projects"], PromptArgument::None, PromptAction::Pane(Pane::Projects)),
    prompt_command(
        &["prs", "pull-requests"],
        PromptArgument::Project,
        PromptAction::Pane(Pane::PullRequests),
    ),
    prompt_command(&["models"], PromptArgument::None, PromptAction::Pane(Pane::Models)),
    prompt_command(&["chat"], PromptArgument::Project, PromptAction::Pane(Pane::Chat)),
    prompt_command(&["new", "run"], PromptArgument::Project, PromptAction::New),
    prompt_command(&["task"], PromptArgument::Task, PromptAction::Task),
    prompt_command(&["retry"], PromptArgument::None, PromptAction::Retry),
    prompt_command(&["plan"], PromptArgument::None, PromptAction::Part(TaskPart::Plan)),
    prompt_command(&["timeline"], PromptArgument::None, PromptAction::Part(TaskPart::Timeline)),
    prompt_command(&["logs"], PromptArgument::None, PromptAction::Part(TaskPart::Logs)),
    prompt_command(&["diff"], PromptArgument::None, PromptAction::Part(TaskPart::Diff)),
    prompt_command(&["evidence"], PromptArgument::None, PromptAction::Part(TaskPart::Evidence)),
    prompt_command(&["refresh"], PromptArgument::None, PromptAction::Refresh),
    prompt_command(&["help"], PromptArgument::None, PromptAction::Help),
    prompt_command(&["q", "quit", "exit"], PromptArgument::None, PromptAction::Quit),
];

/// A parsed command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParsedPrompt {
    pub(super) action: PromptAction,
    pub(super) argument: Option<String>,
}

/// Parses a command; an unambiguous prefix is enough.
pub(super) fn parse_prompt(line: &str) -> Result<ParsedPrompt, String> {
    let mut words = line.split_whitespace();
    let Some(name) = words.next() else { return Err("type a command, such as :tasks".to_owned()) };
    let argument = words.next().map(str::to_owned);
    let entry = find_command(name)?;
    let needless =
        words.next().is_some() || (entry.argument == PromptArgument::None && argument.is_some());
    if needless {
        let takes = if entry.argument == PromptArgument::None { "nothing" } else { "one name" };
        return Err(format!(":{} takes {takes} behind it", entry.names[0]));
    }
    if entry.argument == PromptArgument::Task && argument.is_none() {
        return Err(format!(":{} needs the name of a task", entry.names[0]));
    }
    Ok(ParsedPrompt { action: entry.action, argument })
}

fn find_command(name: &str) -> Result<&'static PromptCommand, String> {
    let exact = PROMPT_COMMANDS.iter().find(|entry| entry.names.contains(&name));
    if let Some(entry) = exact {
        return Ok(entry);
    }
    let begun: Vec<&PromptCommand> =
        PROMPT_COMMANDS.iter().filter(|it| it.names[0].starts_with(name)).collect();
    match begun.as_slice() {
        [one] => Ok(one),
        [] => {
            let near = nearest_match(
                name,
                PROMPT_COMMANDS.iter().flat_map(|entry| entry.names.iter().copied()),
            );
            let near = near.map_or(String::new(), |near| format!(" Did you mean :{near}?"));
            Err(format!("there is no command :{name}.{near} Tab lists all"))
        }
        several => {
            let names: Vec<String> =
                several.iter().map(|entry| format!(":{}", entry.names[0])).collect();
            Err(format!(":{name} could be {}", names.join(" or ")))
        }
    }
}

/// Returns the name closest to the typed text, if one is close.
pub(super) fn nearest_match<'a>(
    typed: &str,
    names: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let near = names.map(|name| (edit_distance(typed, name), name)).min()?;
    (near.0 <= 2.min(typed.chars().count() / 2)).then_some(near.1)
}

/// Returns the edit distance of two texts.
fn edit_distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, wanted) in other.iter().enumerate() {
            let exchanged = diagonal + usize::from(letter != *wanted);
            diagonal = row[column + 1];
            row[column + 1] = exchanged.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

/// Returns the candidates for the last word of a line.
pub(super) fn completion_candidates(state: &ScreenState, line: &str) -> Vec<String> {
    let Some((name, begun)) = line.trim_start().split_once(' ') else {
        let names = PROMPT_COMMANDS.iter().map(|entry| entry.names[0]);
        return names.filter(|it| it.starts_with(line.trim_start())).map(str::to_owned).collect();
    };
    let begun = begun.trim_start();
    let mut names: Vec<String> = match find_command(name).map(|entry| entry.argument) {
        Ok(PromptArgument::Project) => state.known.projects.values().cloned().collect(),
        Ok(PromptArgument::Task) => {
            let tasks = state.known.listed.iter().rev().filter_map(|id| state.known.tasks.get(id));
            tasks.map(|task| task.name.as_str().to_owned()).collect()
        }
        _ => Vec::new(),
    };
    names.retain(|it| it.starts_with(begun));
    names
}

/// Completes the last word of a line to the common prefix of its candidates.
pub(super) fn complete_prompt(state: &ScreenState, line: &str) -> String {
    let candidates = completion_candidates(state, line);
    let Some(first) = candidates.first() else { return line.to_owned() };
    let shared = candidates.iter().fold(first.as_str(), |shared, it| {
        let same = shared.char_indices().zip(it.chars()).find(|((_, one), other)| one != other);
        let end = same.map_or(shared.len().min(it.len()), |((at, _), _)| at);
        &shared[..end]
    });
    let head = line.rsplit_once(' ').map_or(String::new(), |(head, _)| format!("{head} "));
    let takes =
        |name: &str| find_command(name).is_ok_and(|entry| entry.argument != PromptArgument::None);
    let space = if candidates.len() == 1 && head.is_empty() && takes(first) { " " } else { "" };
    format!("{head}{shared}{space}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_its_name_or_a_beginning_that_fits_no_other() {
        let pane = |pane| Ok(ParsedPrompt { action: PromptAction::Pane(pane), argument: None });
        assert_eq!(parse_prompt("tasks"), pane(Pane::Tasks));
        assert_eq!(parse_prompt("mod"), pane(Pane::Models));
        assert_eq!(parse_prompt("pull-requests"), pane(Pane::PullRequests));
        let argument = Some("web".to_owned());
        assert_eq!(
            parse_prompt(" new  web "),
            Ok(ParsedPrompt { action: PromptAction::New, argument })
        );
        assert_eq!(parse_prompt("quit").map(|it| it.action), Ok(PromptAction::Quit));
    }

    #[test]
    fn an_unknown_command_names_the_nearest_and_an_ambiguous_one_all() {
        let said = |line| parse_prompt(line).unwrap_err();
        assert_eq!(said("taks"), "there is no command :taks. Did you mean :tasks? Tab lists all");
        assert_eq!(said("zebra"), "there is no command :zebra. Tab lists all");
        assert_eq!(said("n"), ":n could be :nodes or :new");
        assert_eq!(said("models web"), ":models takes nothing behind it");
        assert_eq!(said("tasks a b"), ":tasks takes one name behind it");
        assert_eq!(said("task"), ":task needs the name of a task");
        assert_eq!(said("  "), "type a command, such as :tasks");
    }

    #[test]
    fn no_two_commands_share_a_name() {
        let names: Vec<&str> =
            PROMPT_COMMANDS.iter().flat_map(|it| it.names.iter().copied()).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[at + 1..].contains(name), "{name}");
        }
    }
}
