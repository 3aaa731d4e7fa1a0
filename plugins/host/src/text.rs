//! Text that a plugin gave, made fit to print.

/// Replaces what is not UTF-8, and writes control characters as escapes: a plugin's text goes to logs and terminals.
pub(crate) fn visible(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(visible(b"a\nb\x1b[31m\0"), "a\\nb\\u{1b}[31m\\u{0}");
    }

    #[test]
    fn what_is_no_text_is_replaced() {
        assert_eq!(visible(b"ok \xff\xfe"), "ok \u{fffd}\u{fffd}");
    }

    #[test]
    fn other_text_stays_as_it_is() {
        assert_eq!(visible("Ünïcode 中文".as_bytes()), "Ünïcode 中文");
    }
}
