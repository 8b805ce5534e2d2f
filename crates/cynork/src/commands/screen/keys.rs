//! Which key means what. The help is made from the same table.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::state::{Pane, Part};

/// What a key means where nothing is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
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
    Part(Part),
    Filter,
    Approve,
    Deny,
    Pause,
    Resume,
    Revise,
    Cancel,
    Merge,
    Earlier,
    Later,
    Follow,
    GoToTask,
    Refresh,
    Suspend,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stroke {
    Letter(char),
    Control(char),
    Code(KeyCode),
}

use Stroke::{Code, Control, Letter};

/// A row of the table.
pub(super) struct Binding {
    pub(super) command: Command,
    pub(super) strokes: &'static [Stroke],
    /// How its keys are written.
    pub(super) shown: &'static str,
    /// What it does, as the help says; empty where another row says it too.
    pub(super) says: &'static str,
}

const fn row(
    command: Command,
    strokes: &'static [Stroke],
    shown: &'static str,
    says: &'static str,
) -> Binding {
    Binding { command, strokes, shown, says }
}

/// All keys, with the heads under which the help shows them.
pub(super) const KEYS: &[(&str, &[Binding])] = &[
    (
        "Go",
        &[
            row(Command::Down, &[Letter('j'), Code(KeyCode::Down)], "j ↓", "down"),
            row(Command::Up, &[Letter('k'), Code(KeyCode::Up)], "k ↑", "up"),
            row(
                Command::PageDown,
                &[Code(KeyCode::PageDown), Control('d'), Control('f'), Letter(' ')],
                "PgDn Space",
                "a page down",
            ),
            row(
                Command::PageUp,
                &[Code(KeyCode::PageUp), Control('u'), Control('b')],
                "PgUp ^u",
                "a page up",
            ),
            row(Command::First, &[Letter('g'), Code(KeyCode::Home)], "g Home", "to the first"),
            row(Command::Last, &[Letter('G'), Code(KeyCode::End)], "G End", "to the last"),
            row(Command::Open, &[Code(KeyCode::Enter)], "Enter", "open what is chosen"),
            row(Command::Back, &[Code(KeyCode::Esc), Code(KeyCode::Backspace)], "Esc", "back"),
            row(Command::Right, &[Letter('l'), Code(KeyCode::Right)], "l →", "next part of a task"),
            row(Command::Left, &[Letter('h'), Code(KeyCode::Left)], "h ←", "part before it"),
            row(Command::NextPane, &[Code(KeyCode::Tab)], "Tab", "next pane or part"),
            row(Command::LastPane, &[Code(KeyCode::BackTab)], "Shift-Tab", "the one before"),
        ],
    ),
    (
        "Panes",
        &[
            row(Command::Pane(Pane::Tasks), &[Letter('1')], "1", "tasks"),
            row(Command::Pane(Pane::Inbox), &[Letter('2')], "2", "inbox"),
            row(Command::Pane(Pane::Nodes), &[Letter('3')], "3", "nodes"),
            row(Command::Pane(Pane::Spend), &[Letter('4')], "4", "spend"),
            row(Command::Part(Part::Plan), &[Letter('5')], "5", "a task's plan"),
            row(Command::Part(Part::Timeline), &[Letter('6')], "6", "its timeline"),
            row(Command::Part(Part::Logs), &[Letter('7')], "7", "its logs"),
            row(Command::Part(Part::Diff), &[Letter('8')], "8", "its diff"),
            row(Command::Part(Part::Evidence), &[Letter('9')], "9", "its evidence"),
        ],
    ),
    (
        "Do",
        &[
            row(Command::Approve, &[Letter('a')], "a", "approve, or answer"),
            row(Command::Deny, &[Letter('d')], "d", "deny a plan or a call"),
            row(Command::Pause, &[Letter('p')], "p", "pause a task"),
            row(Command::Resume, &[Letter('r')], "r", "resume it"),
            row(Command::Revise, &[Letter('v')], "v", "have its plan made anew"),
            row(Command::Cancel, &[Letter('x')], "x", "cancel it"),
            row(Command::Merge, &[Letter('m')], "m", "merge its pull request"),
        ],
    ),
    (
        "Look",
        &[
            row(Command::Filter, &[Letter('/')], "/", "filter the tasks"),
            row(Command::Earlier, &[Letter('[')], "[", "job or file before"),
            row(Command::Later, &[Letter(']')], "]", "next job or file"),
            row(Command::Follow, &[Letter('f')], "f", "follow a log, or not"),
            row(Command::GoToTask, &[Letter('o')], "o", "from the inbox to the task"),
            row(Command::Refresh, &[Control('l'), Code(KeyCode::F(5))], "^l", "ask for all anew"),
            row(Command::Suspend, &[Control('z')], "^z", "to the shell; fg comes back"),
            row(Command::Help, &[Letter('?'), Code(KeyCode::F(1))], "?", "this help"),
            row(Command::Quit, &[Letter('q'), Control('c')], "q ^c", "quit"),
        ],
    ),
];

/// What a key means.
pub(super) fn command(key: KeyEvent) -> Option<Command> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let stroke = match key.code {
        KeyCode::Char(letter) if control => Control(letter),
        KeyCode::Char(letter) => Letter(letter),
        code => Code(code),
    };
    let mut all = KEYS.iter().flat_map(|(_, rows)| rows.iter());
    all.find(|row| row.strokes.contains(&stroke)).map(|row| row.command)
}

/// How the key of a command is written.
pub(super) fn shown(command: Command) -> &'static str {
    let mut all = KEYS.iter().flat_map(|(_, rows)| rows.iter());
    let row = all.find(|row| row.command == command);
    row.and_then(|row| row.shown.split(' ').next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things_and_each_has_words() {
        let rows: Vec<&Binding> = KEYS.iter().flat_map(|(_, rows)| rows.iter()).collect();
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
            let letter = command(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE));
            assert_eq!(letter, command(KeyEvent::new(code, KeyModifiers::NONE)));
            assert!(letter.is_some());
        }
        let end = command(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(end, Some(Command::Quit));
    }
}
