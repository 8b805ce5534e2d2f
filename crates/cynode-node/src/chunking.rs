//! Chunking of streamed text. Each event is redacted alone, so a cut never falls inside a secret.

/// Maximum length of a line. A longer line is cut before it ends.
pub(crate) const MAX_LINE_BYTES: usize = 4 * 1024;
/// Maximum length of a delimited block that is buffered until its end marker arrives.
const MAX_BLOCK_BYTES: usize = 16 * 1024;
const BLOCK_BEGIN_MARKER: &[u8] = b"-----BEGIN ";
const BLOCK_END_MARKER: &[u8] = b"-----END ";

/// Returns the length of the prefix that can be sent now: whole lines, without a block that has not ended. A line with more than
/// `most` bytes is cut after its last whitespace, or taken whole if it has none.
pub(crate) fn safe_cut_length(text: &[u8], most: usize) -> usize {
    let line = index_after_last(text, |byte| byte == b'\n');
    let cut = if text.len() - line <= most {
        line
    } else {
        let word = line + index_after_last(&text[line..], |byte| byte.is_ascii_whitespace());
        if text.len() - word <= most { word } else { text.len() }
    };
    cut.min(find_open_block(text, cut).unwrap_or(cut))
}

/// Returns the offset from which text must be buffered, because a block before `cut` has not ended.
fn find_open_block(text: &[u8], cut: usize) -> Option<usize> {
    let before = &text[..cut];
    let ended =
        before.windows(BLOCK_END_MARKER.len()).rposition(|it| it == BLOCK_END_MARKER).unwrap_or(0);
    let begun = before[ended..]
        .windows(BLOCK_BEGIN_MARKER.len())
        .enumerate()
        .filter(|(_, it)| *it == BLOCK_BEGIN_MARKER);
    let mut places = begun.map(|(at, _)| ended + at).flat_map(|at| {
        let line = index_after_last(&before[..at], |byte| byte == b'\n');
        [line, at]
    });
    places.find(|from| text.len() - from <= MAX_BLOCK_BYTES)
}

/// Returns the index after the last byte of a kind, or 0 if there is none.
fn index_after_last(text: &[u8], kind: impl Fn(u8) -> bool) -> usize {
    text.iter().rposition(|byte| kind(*byte)).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The pieces of a text that comes in chunks.
    fn pieces(chunks: &[String], most: usize) -> Vec<String> {
        let (mut told, mut waiting) = (Vec::new(), String::new());
        for chunk in chunks {
            waiting.push_str(chunk);
            let rest = waiting.split_off(safe_cut_length(waiting.as_bytes(), most));
            told.push(std::mem::replace(&mut waiting, rest));
        }
        told.push(waiting);
        told.retain(|piece| !piece.is_empty());
        told
    }

    #[test]
    fn whole_lines_go_and_what_follows_them_waits() {
        for (text, told) in
            [("", ""), ("one", ""), ("one\n", "one\n"), ("one\ntwo\nth", "one\ntwo\n")]
        {
            assert_eq!(&text[..safe_cut_length(text.as_bytes(), 8)], told);
        }
    }

    #[test]
    fn a_long_line_is_cut_at_its_last_white_space_and_where_there_is_none_anywhere() {
        for (text, told) in [
            ("a\nlong words", "a\nlong "),
            ("one two thr", "one two "),
            ("a wordwithout", "a wordwithout"),
            ("wordwithout", "wordwithout"),
        ] {
            assert_eq!(&text[..safe_cut_length(text.as_bytes(), 8)], told);
        }
    }

    #[test]
    fn a_block_waits_for_its_end_though_not_for_ever() {
        let block = "x\n  -----BEGIN KEY-----\nabc\n";
        assert_eq!(safe_cut_length(block.as_bytes(), MAX_LINE_BYTES), 2);
        let ending = format!("{block}-----END KEY-----");
        assert_eq!(safe_cut_length(ending.as_bytes(), MAX_LINE_BYTES), 2);
        let ended = format!("{ending}\n");
        assert_eq!(safe_cut_length(ended.as_bytes(), MAX_LINE_BYTES), ended.len());
        let again = format!("{ended}-----BEGIN KEY-----\n");
        assert_eq!(safe_cut_length(again.as_bytes(), MAX_LINE_BYTES), ended.len());
        let endless = format!("{block}{}", "abc\n".repeat(MAX_BLOCK_BYTES / 4));
        assert_eq!(safe_cut_length(endless.as_bytes(), MAX_LINE_BYTES), endless.len());
    }

    #[test]
    fn a_block_in_one_line_is_not_cut_at_its_spaces() {
        let line = format!("-----BEGIN PRIVATE KEY-----{}", "a".repeat(MAX_LINE_BYTES));
        assert_eq!(safe_cut_length(line.as_bytes(), MAX_LINE_BYTES), 0);
        let behind = format!("{}{line}", "b".repeat(MAX_BLOCK_BYTES));
        assert_eq!(safe_cut_length(behind.as_bytes(), MAX_LINE_BYTES), MAX_BLOCK_BYTES);
    }

    proptest! {
        #[test]
        fn pieces_are_the_text_and_no_short_line_is_in_two_of_them(
            chunks in proptest::collection::vec("([aé \n]{0,9}|-----BEGIN |-----END )", 0..40),
            most in 4..40_usize,
        ) {
            let told = pieces(&chunks, most);
            let text = chunks.concat();
            prop_assert_eq!(told.concat(), &*text);
            let mut at = 0;
            for piece in told.iter().take(told.len().saturating_sub(1)) {
                at += piece.len();
                let from = text[..at].rfind('\n').map_or(0, |end| end + 1);
                let to = text[at..].find('\n').map_or(text.len(), |end| at + end);
                prop_assert!(from == at || to - from > most, "{piece:?} is cut in a line of {}", to - from);
            }
        }
    }
}
