//! Keeps chat content text where it spells a control token.
//!
//! Before rendering, a sentinel character goes into every such place of the messages; templates may trim, split or
//! join around it. Afterwards the sentinels tell which spellings in the rendered text came from messages: the stretch
//! between two control tokens that holds one is tokenized without specials. llama.cpp borders stretches at control
//! tokens anyway (`tokenizer_st_partition`), so all other text is tokenized as it would be without us.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    ops::Range,
};

/// Spellings of control tokens.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    spellings: HashSet<String>,
    /// Lengths by first byte, longest first.
    lengths: HashMap<u8, Vec<usize>>,
}

/// A stretch of the rendered text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stretch<'a> {
    pub text: &'a str,
    /// Spellings of control tokens are control tokens.
    pub parse_special: bool,
}

/// The rendered text without sentinels, and where messages spell control tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unmarked {
    pub text: String,
    quoted: Vec<Range<usize>>,
}

impl SpecialTokens {
    pub(crate) fn new(spellings: impl IntoIterator<Item = String>) -> Self {
        let mut specials = Self::default();
        for spelling in spellings {
            let Some(first) = spelling.bytes().next() else { continue };
            let lengths = specials.lengths.entry(first).or_default();
            if !lengths.contains(&spelling.len()) {
                lengths.push(spelling.len());
            }
            specials.spellings.insert(spelling);
        }
        for lengths in specials.lengths.values_mut() {
            lengths.sort_unstable_by(|left, right| right.cmp(left));
        }
        specials
    }

    /// Length of the longest spelling that begins at a byte of `text`.
    fn longest_at(&self, text: &str, at: usize) -> Option<usize> {
        let lengths = self.lengths.get(text.as_bytes().get(at)?)?;
        let spelled = |length: &usize| {
            text.get(at..at + length)
                .is_some_and(|part| self.spellings.contains(part))
        };
        lengths.iter().copied().find(spelled)
    }

    /// The first spelling at or after a byte.
    fn find(&self, text: &str, from: usize) -> Option<Range<usize>> {
        (from..text.len()).find_map(|at| self.longest_at(text, at).map(|length| at..at + length))
    }

    /// Puts the sentinel behind the first character of every spelling in a text.
    pub(crate) fn mark<'a>(&self, text: &'a str, sentinel: char) -> Cow<'a, str> {
        let mut marked = String::new();
        let mut copied = 0;
        while let Some(place) = self.find(text, copied) {
            let first = text[place.start..].chars().next().map_or(0, char::len_utf8);
            marked.push_str(&text[copied..place.start + first]);
            marked.push(sentinel);
            marked.push_str(&text[place.start + first..place.end]);
            copied = place.end;
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        marked.push_str(&text[copied..]);
        Cow::Owned(marked)
    }

    /// Takes the sentinels out again.
    pub(crate) fn unmark(&self, rendered: &str, sentinel: char) -> Unmarked {
        let mut text = String::with_capacity(rendered.len());
        let mut starts = Vec::new();
        for character in rendered.chars() {
            if character == sentinel {
                let first = text.chars().next_back().map_or(0, char::len_utf8);
                starts.push(text.len() - first);
            } else {
                text.push(character);
            }
        }
        let quoted = starts
            .into_iter()
            .filter_map(|start| self.longest_at(&text, start).map(|length| start..start + length))
            .collect();
        Unmarked { text, quoted }
    }

    /// Cuts the text at control tokens around the stretches that quote one.
    pub(crate) fn stretches<'a>(&self, unmarked: &'a Unmarked) -> Vec<Stretch<'a>> {
        let text = unmarked.text.as_str();
        let mut stretches = Vec::new();
        let mut copied = 0;
        let mut quoted = unmarked.quoted.iter().peekable();
        while let Some(first) = quoted.next() {
            // The stretch begins after the last control token before the quoted place …
            let mut start = copied;
            let mut scan = copied;
            while let Some(place) = self.find(text, scan).filter(|place| place.end <= first.start) {
                start = place.end;
                scan = place.end;
            }
            // … and ends before the next one that is not quoted.
            let mut end = first.end;
            loop {
                match self.find(text, end) {
                    None => {
                        end = text.len();
                        quoted = [].iter().peekable();
                        break;
                    }
                    Some(place) => match quoted.next_if(|next| next.start <= place.start) {
                        Some(next) => end = end.max(next.end),
                        None => {
                            end = place.start;
                            break;
                        }
                    },
                }
            }
            push(&mut stretches, &text[copied..start], true);
            push(&mut stretches, &text[start..end], false);
            copied = end;
        }
        push(&mut stretches, &text[copied..], true);
        stretches
    }
}

fn push<'a>(stretches: &mut Vec<Stretch<'a>>, text: &'a str, parse_special: bool) {
    if !text.is_empty() {
        stretches.push(Stretch { text, parse_special });
    }
}

/// A character of the private use area that none of the texts has.
pub(crate) fn unused_character<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Option<char> {
    ('\u{e000}'..='\u{f8ff}').find(|candidate| texts.clone().all(|text| !text.contains(*candidate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: char = '\u{e000}';

    fn specials() -> SpecialTokens {
        SpecialTokens::new(["<s>", "</s>", "<|end|>", "<|end|>x", "[INST]"].map(str::to_owned))
    }

    fn cut(rendered: &str) -> Vec<(String, bool)> {
        let specials = specials();
        let unmarked = specials.unmark(rendered, MARK);
        assert!(!unmarked.text.contains(MARK));
        specials
            .stretches(&unmarked)
            .into_iter()
            .map(|part| (part.text.to_owned(), part.parse_special))
            .collect()
    }

    #[test]
    fn benign_text_is_not_touched() {
        let text = "a <tag> and < s> [INST";
        assert!(matches!(specials().mark(text, MARK), Cow::Borrowed(same) if same == text));
        assert_eq!(cut("<s>hello</s>"), [("<s>hello</s>".to_owned(), true)]);
    }

    #[test]
    fn a_quoted_token_makes_its_own_stretch_text_and_no_other() {
        let content = specials().mark("say </s> twice </s>", MARK).into_owned();
        let rendered = format!("<s>[INST]one<s>{content}<|end|>rest<|end|>");
        assert_eq!(
            cut(&rendered),
            [
                ("<s>[INST]one<s>".to_owned(), true),
                ("say </s> twice </s>".to_owned(), false),
                ("<|end|>rest<|end|>".to_owned(), true)
            ]
        );
    }

    #[test]
    fn quotes_at_the_borders_and_side_by_side() {
        let specials = specials();
        let content = specials.mark("<s></s>", MARK).into_owned();
        assert_eq!(cut(&content), [("<s></s>".to_owned(), false)]);
        assert_eq!(
            cut(&format!("<s>{content}</s>{content}")),
            [
                ("<s>".to_owned(), true),
                ("<s></s>".to_owned(), false),
                ("</s>".to_owned(), true),
                ("<s></s>".to_owned(), false)
            ]
        );
    }

    #[test]
    fn the_sentinel_survives_trimming_and_the_longest_spelling_counts() {
        let content = specials().mark("  <|end|>x  ", MARK).into_owned();
        assert_eq!(cut(content.trim()), [("<|end|>x".to_owned(), false)]);
        assert_eq!(cut(&format!("<{MARK}nothing")), [("<nothing".to_owned(), true)]);
    }

    #[test]
    fn an_unused_character_is_found() {
        assert_eq!(
            unused_character(["a\u{e000}", "\u{e001}"].into_iter()),
            Some('\u{e002}')
        );
    }
}
