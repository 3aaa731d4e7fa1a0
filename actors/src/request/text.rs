//! From token bytes to text that may be shown: whole characters only, and never part of a stop string.

/// What a piece of output led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// Text that can be shown now; may be empty.
    pub text: String,
    /// A stop string was completed: `text` ends before it and nothing comes after.
    pub stopped: bool,
}

/// Holds back bytes of unfinished characters and text that may turn out to be a stop string.
#[derive(Debug, Clone, Default)]
pub struct TextAssembler {
    stops: Vec<String>,
    bytes: Vec<u8>,
    held: String,
    stopped: bool,
}

impl TextAssembler {
    /// Stop strings must not be empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            ..Self::default()
        }
    }

    /// Takes the bytes of the next token. After a stop, everything is swallowed.
    pub fn push(&mut self, piece: &[u8]) -> Released {
        if self.stopped {
            return Released {
                text: String::new(),
                stopped: true,
            };
        }
        self.bytes.extend_from_slice(piece);
        let whole = whole_characters(&mut self.bytes);
        self.held.push_str(&whole);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            self.held.truncate(at);
            return Released {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        Released {
            text: std::mem::replace(&mut self.held, tail),
            stopped: false,
        }
    }

    /// The generation ended otherwise: gives what was held back. An unfinished character becomes U+FFFD.
    pub fn flush(&mut self) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.bytes)));
        text
    }
}

/// Takes all whole characters out of `bytes`; bytes that can never become one turn into U+FFFD.
fn whole_characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = bytes.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
            }
            Err(error) => {
                let (valid, bad) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                rest = bad;
                if let Some(length) = error.error_len() {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[length..];
                    continue;
                }
            }
        }
        break;
    }
    *bytes = rest.to_vec();
    text
}

/// Length in bytes of the longest end of `text` that is a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|length| text.as_bytes().ends_with(&stop.as_bytes()[..*length]))
        .map_or(0, |length| {
            // Both are valid UTF-8, so a match that starts inside a character cannot happen: `stop` starts with one.
            debug_assert!(text.is_char_boundary(text.len() - length));
            length
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut assembler = TextAssembler::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut chunks = Vec::new();
        for piece in pieces {
            let released = assembler.push(piece);
            chunks.push(released.text);
            if released.stopped {
                return (chunks, true);
            }
        }
        chunks.push(assembler.flush());
        (chunks, false)
    }

    #[test]
    fn a_character_split_over_tokens_comes_whole() {
        let (chunks, _) = run(&[], &[&[0xF0, 0x9F], &[0x98], &[0x80, b'!']]);
        assert_eq!(chunks, ["", "", "😀!", ""]);
    }

    #[test]
    fn bytes_that_are_no_character_are_replaced() {
        let (chunks, _) = run(&[], &[&[b'a', 0xFF, b'b'], &[0xE2, 0x82]]);
        assert_eq!(chunks.concat(), "a\u{FFFD}b\u{FFFD}");
    }

    #[test]
    fn a_stop_string_over_chunk_borders_is_never_shown() {
        let (chunks, stopped) = run(&["END"], &[b"the E", b"N", b"D of it"]);
        assert!(stopped);
        assert_eq!(chunks.concat(), "the ");
    }

    #[test]
    fn a_stop_string_never_completed_is_shown_at_the_end() {
        let (chunks, stopped) = run(&["END"], &[b"the EN"]);
        assert!(!stopped);
        assert_eq!(chunks, ["the ", "EN"]);
    }

    #[test]
    fn the_earliest_of_overlapping_stop_strings_wins() {
        let (chunks, stopped) = run(&["bcd", "abc"], &[b"xab", b"cd"]);
        assert!(stopped);
        assert_eq!(chunks.concat(), "x");
        assert_eq!(run(&["aab"], &[b"a", b"a", b"a", b"b"]).0.concat(), "a");
    }

    proptest! {
        /// Chunking does not matter: the text is that of the whole, cut at the first stop string.
        #[test]
        fn any_chunking_gives_the_same_text(
            text in "[abé😀]{0,40}",
            stops in proptest::collection::vec("[abé]{1,3}", 0..3),
            cuts in proptest::collection::vec(0usize..200, 0..12),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let first_end = (0..=text.len()).filter(|end| text.is_char_boundary(*end)).find_map(|end| {
                stops.iter().filter_map(|stop| text[..end].find(stop)).min()
            });
            let expected = first_end.map_or(text.as_str(), |at| &text[..at]);
            let (chunks, _) = run(&stops, &pieces);
            let joined = chunks.concat();
            // A later, longer chunk may complete two stop strings at once; the earlier start wins then.
            prop_assert!(joined == expected || stops.iter().filter_map(|stop| text.find(stop)).min() == Some(joined.len()),
                "{joined:?} {expected:?}");
        }
    }
}
