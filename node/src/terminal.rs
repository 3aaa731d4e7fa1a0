//! Text that comes from files and peers, made fit for a terminal and for a log: nothing in it moves the cursor, turns
//! the direction of writing, looks like a line of its own, or goes on for ever. Machines get JSON instead, which is faithful.

use std::fmt::Write as _;

/// Most characters of a name: a model's, a node's, a key's.
pub const LONGEST_NAME: usize = 120;

/// Most characters of a sentence or a list: room for the longest message of ours, with names in it.
pub const LONGEST_TEXT: usize = 4_096;

/// The text on one line of at most `longest` characters (and a note if it is cut): line ends, control characters and
/// whatever changes the direction of writing or is invisible are written as escapes, such as `\n` and `\u{1b}`.
pub fn one_line(text: &str, longest: usize) -> String {
    let mut line = String::with_capacity(text.len().min(longest));
    for (index, c) in text.chars().enumerate() {
        if index == longest {
            let _ = write!(line, "… ({} characters)", text.chars().count());
            break;
        }
        if is_treacherous(c) {
            line.extend(c.escape_debug());
        } else {
            line.push(c);
        }
    }
    line
}

/// The text with its line ends and tabs; everything else that [`one_line`] escapes becomes U+FFFD.
pub fn lines(text: &str) -> String {
    let replace = |c: char| {
        if is_treacherous(c) && !matches!(c, '\n' | '\t') {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    text.chars().map(replace).collect()
}

/// Controls, and the characters of Unicode that are invisible or reorder their neighbours: marks, embeddings, overrides
/// and isolates of direction, line and paragraph separators, zero-width characters, tags.
fn is_treacherous(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_no_control_characters_no_line_ends_and_no_overrides() {
        assert_eq!(
            one_line("a\u{1b}[2J\r\n\tb\u{9b}\u{202e}c\u{2066}\u{0}", LONGEST_NAME),
            "a\\u{1b}[2J\\r\\n\\tb\\u{9b}\\u{202e}c\\u{2066}\\0"
        );
        assert_eq!(one_line("größe 日本 🙂 \\ \"", LONGEST_NAME), "größe 日本 🙂 \\ \"");
    }

    #[test]
    fn a_long_text_is_cut_and_says_how_long_it_was() {
        let long = "é".repeat(65_536);
        let shown = one_line(&long, LONGEST_NAME);
        assert_eq!(shown, format!("{}… (65536 characters)", "é".repeat(LONGEST_NAME)));
        assert_eq!(
            one_line(&long[..2 * LONGEST_NAME], LONGEST_NAME),
            "é".repeat(LONGEST_NAME)
        );
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(
            lines("a\x1b[2Jb\n\tc\u{9b}\u{202e}\r"),
            "a\u{fffd}[2Jb\n\tc\u{fffd}\u{fffd}\u{fffd}"
        );
    }
}
