//! What a node needs of a vocabulary at each token: its bytes, and whether it ends generation.

use super::wire::Ready;

/// Bytes of all tokens. The child that says them may have been misled by the file: nothing is believed unchecked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
    ends_generation: Vec<bool>,
}

impl Pieces {
    /// `None` if what the child says does not fit together.
    pub fn new(ready: &mut Ready) -> Option<Self> {
        let bytes = std::mem::take(&mut ready.pieces);
        let mut end = 0_usize;
        let ends: Vec<usize> = ready
            .lengths
            .iter()
            .map(|length| {
                end = end.saturating_add(*length as usize);
                end
            })
            .collect();
        let mut ends_generation = vec![false; ends.len()];
        for token in &ready.ends {
            *ends_generation.get_mut(*token as usize)? = true;
        }
        (end == bytes.len() && !ends.is_empty()).then_some(Self {
            bytes,
            ends,
            ends_generation,
        })
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Nothing for a token that does not exist.
    pub fn piece(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let Some(end) = self.ends.get(token) else {
            return &[];
        };
        let start = token.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..*end]
    }

    pub fn ends_generation(&self, token: u32) -> bool {
        self.ends_generation.get(token as usize).is_some_and(|ends| *ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(pieces: &[u8], lengths: &[u32], ends: &[u32]) -> Ready {
        Ready {
            pieces: pieces.to_vec(),
            lengths: lengths.to_vec(),
            ends: ends.to_vec(),
            template: String::new(),
        }
    }

    #[test]
    fn each_token_has_its_bytes_and_others_have_none() {
        let pieces = Pieces::new(&mut ready(b"abcd", &[1, 0, 3], &[1])).unwrap();
        let all: Vec<&[u8]> = (0..4).map(|token| pieces.piece(token)).collect();
        assert_eq!(all, [&b"a"[..], b"", b"bcd", b""]);
        let ends: Vec<bool> = (0..4).map(|token| pieces.ends_generation(token)).collect();
        assert_eq!(ends, [false, true, false, false]);
        assert_eq!((pieces.len(), pieces.piece(u32::MAX)), (3, &b""[..]));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        for mut wrong in [
            ready(b"", &[], &[]),
            ready(b"ab", &[1], &[]),
            ready(b"ab", &[3], &[]),
            ready(b"ab", &[2], &[1]),
            ready(b"ab", &[u32::MAX, u32::MAX], &[]),
        ] {
            assert_eq!(Pieces::new(&mut wrong), None);
        }
    }
}
