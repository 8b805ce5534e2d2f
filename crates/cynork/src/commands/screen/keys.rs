//! Key bindings. The help is generated from the same table.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::state::{Pane, TaskPart};

/// A command of a key outside text inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyCommand {
    Quit,
    Help,
    Back,
    Open,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Left,
    Right,
    NextPane,
    LastPane,
    Pane(Pane),
    Part(TaskPart),
    Filter,
    Approve,
    Deny,
    Pause,
    Resume,
    Revise,
    Cancel,
    Merge,
    NewTask,
    Retry,
    Prompt,
    NextMatch,
    PreviousMatch,
    Wrap,
    ShiftLeft,
    ShiftRight,
    Edit,
    Page,
    Earlier,
    Later,
    Follow,
    GoToTask,
    Refresh,
    Suspend,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyStroke {
    Letter(char),
    Control(char),
    Code(KeyCode),
}

use KeyStroke::{Code, Control, Letter};

/// A row of the table.
pub(super) struct KeyBinding {
    pub(super) command: KeyCommand,
    pub(super) strokes: &'static [KeyStroke],
    /// The label of its keys.
    pub(super) shown: &'static str,
    /// Its description in the help; empty if another row describes it too.
    pub(super) says: &'static str,
}

const fn bind_key(
    command: KeyCommand,
    strokes: &'static [KeyStroke],
    shown: &'static str,
    says: &'static str,
) -> KeyBinding {
    KeyBinding { command, strokes, shown, says }
}

/// All key bindings, with the headings of the help.
pub(super) const KEY_BINDINGS: &[(&str, &[KeyBinding])] = &[
    (
        "Go",
        &[
            bind_key(KeyCommand::Down, &[Letter('j'), Code(KeyCode::Down)], "j ↓", "down"),
            bind_key(KeyCommand::Up, &[Letter('k'), Code(KeyCode::Up)], "k ↑", "up"),
            bind_key(
                KeyCommand::PageDown,
                &[Code(KeyCode::PageDown), Control('d'), Control('f'), Letter(' ')],
                "PgDn Space",
                "a page down",
            ),
            bind_key(
                KeyCommand::PageUp,
                &[Code(KeyCode::PageUp), Control('u'), Control('b')],
                "PgUp ^u",
                "a page up",
            ),
            bind_key(
                KeyCommand::First,
                &[Letter('g'), Code(KeyCode::Home)],
                "g Home",
                "to the first",
            ),
            bind_key(KeyCommand::Last, &[Letter('G'), Code(KeyCode::End)], "G End", "to the last"),
            bind_key(KeyCommand::Open, &[Code(KeyCode::Enter)], "Enter", "open what is chosen"),
            bind_key(
                KeyCommand::Back,
                &[Code(KeyCode::Esc), Code(KeyCode::Backspace)],
                "Esc",
                "back",
            ),
            bind_key(
                KeyCommand::Right,
                &[Letter('l'), Code(KeyCode::Right)],
                "l →",
                "next part of a task",
            ),
            bind_key(
                KeyCommand::Left,
                &[Letter('h'), Code(KeyCode::Left)],
                "h ←",
                "part before it",
            ),
            bind_key(KeyCommand::NextPane, &[Code(KeyCode::Tab)], "Tab", "next pane or part"),
            bind_key(
                KeyCommand::LastPane,
                &[Code(KeyCode::BackTab)],
                "Shift-Tab",
                "the one before",
            ),
        ],
    ),
    (
        "Panes",
        &[
            bind_key(KeyCommand::Pane(Pane::Tasks), &[Letter('1')], "1", "tasks"),
            bind_key(KeyCommand::Pane(Pane::Inbox), &[Letter('2')], "2", "inbox"),
            bind_key(KeyCommand::Pane(Pane::Nodes), &[Letter('3')], "3", "nodes"),
            bind_key(KeyCommand::Pane(Pane::Spend), &[Letter('4')], "4", "spend"),
            bind_key(KeyCommand::Part(TaskPart::Plan), &[Letter('5')], "5", "a task's plan"),
            bind_key(KeyCommand::Part(TaskPart::Timeline), &[Letter('6')], "6", "its timeline"),
            bind_key(KeyCommand::Part(TaskPart::Logs), &[Letter('7')], "7", "its logs"),
            bind_key(KeyCommand::Part(TaskPart::Diff), &[Letter('8')], "8", "its diff"),
            bind_key(KeyCommand::Part(TaskPart::Evidence), &[Letter('9')], "9", "its evidence"),
            bind_key(KeyCommand::Pane(Pane::Projects), &[Letter('P')], "P", "projects"),
            bind_key(KeyCommand::Pane(Pane::PullRequests), &[Letter('U')], "U", "pull requests"),
            bind_key(KeyCommand::Pane(Pane::Models), &[Letter('M')], "M", "models"),
            bind_key(KeyCommand::Pane(Pane::Chat), &[Letter('C')], "C", "chat with the manager"),
        ],
    ),
    (
        "Do",
        &[
            bind_key(KeyCommand::NewTask, &[Letter('c')], "c", "create a task"),
            bind_key(KeyCommand::Approve, &[Letter('a')], "a", "approve, or answer"),
            bind_key(KeyCommand::Deny, &[Letter('d')], "d", "deny a plan or a call"),
            bind_key(KeyCommand::Pause, &[Letter('p')], "p", "pause a task"),
            bind_key(KeyCommand::Resume, &[Letter('r')], "r", "resume it"),
            bind_key(KeyCommand::Revise, &[Letter('v')], "v", "have its plan made anew"),
            bind_key(KeyCommand::Retry, &[Letter('R')], "R", "retry it"),
            bind_key(KeyCommand::Cancel, &[Letter('x')], "x", "cancel it"),
            bind_key(KeyCommand::Merge, &[Letter('m')], "m", "merge its pull request"),
        ],
    ),
    (
        "Look",
        &[
            bind_key(KeyCommand::Filter, &[Letter('/')], "/", "filter tasks, search a text"),
            bind_key(KeyCommand::NextMatch, &[Letter('n')], "n", "next match"),
            bind_key(KeyCommand::PreviousMatch, &[Letter('N')], "N", "match before"),
            bind_key(KeyCommand::Wrap, &[Letter('w')], "w", "wrap long lines, or not"),
            bind_key(KeyCommand::ShiftLeft, &[Letter('<')], "<", "to the left of long lines"),
            bind_key(KeyCommand::ShiftRight, &[Letter('>')], ">", "to the right of long lines"),
            bind_key(KeyCommand::Edit, &[Letter('e')], "e", "open it in $EDITOR"),
            bind_key(KeyCommand::Page, &[Letter('|')], "|", "open it in $PAGER"),
            bind_key(KeyCommand::Earlier, &[Letter('[')], "[", "job or file before"),
            bind_key(KeyCommand::Later, &[Letter(']')], "]", "next job or file"),
            bind_key(KeyCommand::Follow, &[Letter('f')], "f", "follow a log, or not"),
            bind_key(KeyCommand::GoToTask, &[Letter('o')], "o", "to the task of it"),
            bind_key(
                KeyCommand::Refresh,
                &[Control('l'), Code(KeyCode::F(5))],
                "^l",
                "ask for all anew",
            ),
            bind_key(KeyCommand::Suspend, &[Control('z')], "^z", "to the shell; fg comes back"),
            bind_key(KeyCommand::Prompt, &[Letter(':')], ":", "command line, Tab completes"),
            bind_key(KeyCommand::Help, &[Letter('?'), Code(KeyCode::F(1))], "?", "this help"),
            bind_key(KeyCommand::Quit, &[Letter('q'), Control('c')], "q ^c", "quit"),
        ],
    ),
];

/// Returns the command of a key.
pub(super) fn command_for_key(key: KeyEvent) -> Option<KeyCommand> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let stroke = match key.code {
        KeyCode::Char(letter) if control => Control(letter),
        KeyCode::Char(letter) => Letter(letter),
        code => Code(code),
    };
    let mut all = KEY_BINDINGS.iter().flat_map(|(_, rows)| rows.iter());
    all.find(|row| row.strokes.contains(&stroke)).map(|row| row.command)
}

/// Returns the label of a command's key.
pub(super) fn key_label(command: KeyCommand) -> &'static str {
    let mut all = KEY_BINDINGS.iter().flat_map(|(_, rows)| rows.iter());
    let row = all.find(|row| row.command == command);
    row.and_then(|row| row.shown.split(' ').next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things_and_each_has_words() {
        let rows: Vec<&KeyBinding> =
            KEY_BINDINGS.iter().flat_map(|(_, rows)| rows.iter()).collect();
        for (at, row) in rows.iter().enumerate() {
            assert!(!row.says.is_empty() && !row.shown.is_empty(), "{:?}", row.command);
            for other in &rows[at + 1..] {
                let both = row.strokes.iter().find(|it| other.strokes.contains(it));
                assert_eq!(both, None, "{:?} and {:?}", row.command, other.command);
            }
        }
    }

    #[test]
    fn arrows_and_letters_of_vi_mean_the_same() {
        for (letter, code) in
            [('j', KeyCode::Down), ('k', KeyCode::Up), ('h', KeyCode::Left), ('l', KeyCode::Right)]
        {
            let letter = command_for_key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE));
            assert_eq!(letter, command_for_key(KeyEvent::new(code, KeyModifiers::NONE)));
            assert!(letter.is_some());
        }
        let end = command_for_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(end, Some(KeyCommand::Quit));
    }
}
