//! A single-line text input.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Maximum length: more is not typed but pasted by mistake.
const MAX_INPUT_BYTES: usize = 4000;

/// A line and its cursor.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct LineInput {
    text: String,
    /// Cursor position in bytes, at a character boundary.
    at: usize,
}

// The text may be a password.
impl std::fmt::Debug for LineInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Input({} letters)", self.text.chars().count())
    }
}

impl LineInput {
    /// Creates an input with a text.
    pub(super) fn with_text(text: &str) -> Self {
        Self { text: text.to_owned(), at: text.len() }
    }

    /// Returns the text.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text before the cursor.
    pub(super) fn before_cursor(&self) -> &str {
        &self.text[..self.at]
    }

    /// Takes the text out.
    pub(super) fn take_text(&mut self) -> String {
        self.at = 0;
        std::mem::take(&mut self.text)
    }

    /// Inserts a text, without characters that are not valid in a line.
    pub(super) fn insert_text(&mut self, text: &str) {
        for letter in text.chars() {
            let letter = if letter == '\n' || letter == '\t' { ' ' } else { letter };
            if !letter.is_control() && self.text.len() < MAX_INPUT_BYTES {
                self.text.insert(self.at, letter);
                self.at += letter.len_utf8();
            }
        }
    }

    /// Handles a key. Returns whether the input used it.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('a') if control => self.at = 0,
            KeyCode::Char('e') if control => self.at = self.text.len(),
            KeyCode::Char('u') if control => {
                self.text.drain(..self.at);
                self.at = 0;
            }
            KeyCode::Char('w') if control => {
                let kept = self.before_cursor().trim_end();
                let kept = kept.rfind(' ').map_or(0, |at| at + 1);
                self.text.drain(kept..self.at);
                self.at = kept;
            }
            KeyCode::Char(_) if control => return false,
            KeyCode::Char(letter) => self.insert_text(letter.encode_utf8(&mut [0; 4])),
            KeyCode::Backspace => {
                if let Some(letter) = self.before_cursor().chars().next_back() {
                    self.at -= letter.len_utf8();
                    self.text.remove(self.at);
                }
            }
            KeyCode::Delete => {
                if self.at < self.text.len() {
                    self.text.remove(self.at);
                }
            }
            KeyCode::Left => {
                self.at -= self.before_cursor().chars().next_back().map_or(0, char::len_utf8);
            }
            KeyCode::Right => {
                self.at += self.text[self.at..].chars().next().map_or(0, char::len_utf8);
            }
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = self.text.len(),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[(KeyCode, KeyModifiers)]) -> LineInput {
        let mut input = LineInput::default();
        for (code, with) in keys {
            assert!(input.handle_key(KeyEvent::new(*code, *with)), "{code:?}");
        }
        input
    }

    #[test]
    fn letters_go_where_the_place_is_and_are_taken_away_there() {
        let none = KeyModifiers::NONE;
        let mut keys: Vec<_> = "grün".chars().map(|it| (KeyCode::Char(it), none)).collect();
        keys.extend([
            (KeyCode::Left, none),
            (KeyCode::Backspace, none),
            (KeyCode::Char('u'), none),
        ]);
        let input = typed(&keys);
        assert_eq!((input.as_str(), input.before_cursor()), ("grun", "gru"));
    }

    #[test]
    fn the_last_word_and_all_before_the_place_go_at_once() {
        let mut input = LineInput::with_text("one two  ");
        input.handle_key(KeyEvent::new(KeyCode::Char('w'), KeyModifiers::CONTROL));
        assert_eq!(input.as_str(), "one ");
        input.handle_key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
        assert_eq!(input.as_str(), "");
    }

    #[test]
    fn what_is_pasted_becomes_one_line_of_bounded_length() {
        let mut input = LineInput::default();
        input.insert_text("a\nb\u{1b}c");
        assert_eq!(input.as_str(), "a bc");
        input.insert_text(&"x".repeat(10_000));
        assert_eq!(input.as_str().len(), MAX_INPUT_BYTES);
        assert_eq!(input.take_text().len(), MAX_INPUT_BYTES);
        assert_eq!(input.as_str(), "");
    }

    #[test]
    fn what_was_typed_is_not_in_its_debug_form() {
        assert!(!format!("{:?}", LineInput::with_text("secret")).contains("secret"));
    }
}
