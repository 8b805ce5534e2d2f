//! Text of shell commands: words, segments, and the little arithmetic of versions.

/// Maximum number of words of a command that are looked at.
const MAX_WORDS: usize = 200;

/// Splits a command at `&&`, `||`, `;` and line ends into segments of words. A pipe or a redirection ends what counts of its segment. Quotes stay on
/// their words, so that the words joined by spaces are the command again.
pub(crate) fn split_segments(command: &str) -> Vec<Vec<String>> {
    let mut segments: Vec<Vec<String>> = vec![Vec::new()];
    let mut word = String::new();
    let mut quote: Option<char> = None;
    let mut muted = false;
    let mut escaped = false;
    let mut letters = command.chars().take(crate::MAX_FILE_BYTES).peekable();
    let end_word = |word: &mut String, segments: &mut Vec<Vec<String>>, muted: bool| {
        let word = std::mem::take(word);
        if let Some(last) = segments.last_mut()
            && !word.is_empty()
            && !muted
            && last.len() < MAX_WORDS
        {
            last.push(word);
        }
    };
    while let Some(letter) = letters.next() {
        if escaped {
            escaped = false;
            if letter != '\n' {
                word.push('\\');
                word.push(letter);
            }
            continue;
        }
        match (quote, letter) {
            (None | Some('"'), '\\') => escaped = true,
            (Some(open), _) => {
                word.push(letter);
                if letter == open {
                    quote = None;
                }
            }
            (None, '\'' | '"') => {
                word.push(letter);
                quote = Some(letter);
            }
            (None, '&' | '|' | ';' | '\n') => {
                end_word(&mut word, &mut segments, muted);
                let doubled = letters.next_if_eq(&letter).is_some();
                // A single `|` leads the output elsewhere; what it leads to is not the command.
                muted = letter == '|' && !doubled;
                if !muted && segments.len() < MAX_WORDS {
                    segments.push(Vec::new());
                }
            }
            (None, '>' | '<') => {
                // The number in `2>&1` names a stream.
                if word.bytes().all(|byte| byte.is_ascii_digit()) {
                    word.clear();
                }
                end_word(&mut word, &mut segments, muted);
                let _ = letters.next_if_eq(&'&');
                muted = true;
            }
            (None, _) if letter.is_whitespace() => end_word(&mut word, &mut segments, muted),
            (None, _) => word.push(letter),
        }
    }
    end_word(&mut word, &mut segments, muted);
    segments.retain(|segment| !segment.is_empty());
    segments
}

/// Returns whether a word needs no quotes in a shell.
pub(crate) fn is_plain_word(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('-')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./@+=:,%".contains(c))
}

/// Returns the word in single quotes, if it needs some.
pub(crate) fn quote_word(word: &str) -> String {
    if is_plain_word(word) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Returns the command as it runs in a directory, which is empty or ends with a slash.
pub(crate) fn in_directory(directory: &str, command: &str) -> String {
    match directory.strip_suffix('/') {
        Some(directory) => format!("(cd {directory} && {command})"),
        None => command.to_owned(),
    }
}

/// Returns the first number of a text: `18` of `>=18.2`.
pub(crate) fn first_number(text: &str) -> Option<u32> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let digits: String = text[start..].chars().take_while(char::is_ascii_digit).take(6).collect();
    digits.parse().ok()
}

/// Returns the minor version of a Python 3: `12` of `>=3.12,<4`.
pub(crate) fn python_minor(text: &str) -> Option<u32> {
    let (before, rest) = text.split_once("3.")?;
    // `<3.13` is an upper bound, and `13.2` no version of Python.
    let lower =
        !before.trim_end().ends_with('<') && !before.ends_with(|c: char| c.is_ascii_digit());
    lower.then(|| first_number(rest)).flatten()
}
