//! The tokens of a generation, and where each n-gram was last followed by something.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Most tokens of a generation that are kept, which bounds its memory: with three lengths about 10 MB. A longer
/// generation gets no more proposals.
const MAX_TOKENS: usize = 131_072;

/// An n-gram is known by the hash of its length and tokens; a match is compared token by token before it is used.
#[derive(Debug)]
pub(crate) struct History {
    min: usize,
    max: usize,
    tokens: Vec<i32>,
    /// Position of the token behind the latest occurrence. The n-grams at the very end are not in it yet: nothing
    /// follows them, and a query must find an earlier occurrence, not itself.
    followed: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
}

impl History {
    /// Looks for n-grams of `min` to `max` tokens.
    pub(crate) fn new(min: usize, max: usize) -> Self {
        Self {
            min,
            max,
            tokens: Vec::new(),
            followed: HashMap::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// `false` if there are too many tokens; then nothing was added.
    pub(crate) fn extend(&mut self, tokens: &[i32]) -> bool {
        if tokens.len() > MAX_TOKENS - self.tokens.len() {
            return false;
        }
        self.tokens.reserve(tokens.len());
        for token in tokens {
            self.index();
            self.tokens.push(*token);
        }
        true
    }

    /// What followed the longest known n-gram at the end, at most `most` tokens. If it reaches the end it goes on with
    /// itself: what repeats is expected to repeat further.
    pub(crate) fn candidates(&self, most: usize) -> Option<Vec<i32>> {
        let follower = self.follower()?;
        let mut candidates: Vec<i32> = self.tokens[follower..].iter().take(most).copied().collect();
        for known in 0..most.saturating_sub(candidates.len()) {
            candidates.push(candidates[known]);
        }
        Some(candidates).filter(|candidates| !candidates.is_empty())
    }

    /// The n-grams at the end are about to be followed.
    fn index(&mut self) {
        let follower = self.tokens.len() as u32;
        let Self { tokens, followed, .. } = self;
        for (_, key) in keys(tokens, self.min, self.max) {
            followed.insert(key, follower);
        }
    }

    fn follower(&self) -> Option<usize> {
        let mut longest = None;
        for (length, key) in keys(&self.tokens, self.min, self.max) {
            let Some(follower) = self.followed.get(&key) else {
                continue;
            };
            let follower = *follower as usize;
            let occurrence = &self.tokens[follower.saturating_sub(length)..follower];
            if occurrence == &self.tokens[self.tokens.len() - length..] {
                longest = Some(follower);
            }
        }
        longest
    }
}

/// Length and key of each n-gram at the end, the shortest first. One pass backwards; nothing if even the shortest is
/// longer than all there is.
fn keys(tokens: &[i32], min: usize, max: usize) -> impl Iterator<Item = (usize, u64)> {
    let usable = if tokens.len() < min { 0 } else { max.min(tokens.len()) };
    tokens
        .iter()
        .rev()
        .take(usable)
        .scan(0_u64, |hash, token| {
            *hash = mix(hash.wrapping_add(u64::from(token.cast_unsigned()) + 1));
            Some(*hash)
        })
        .zip(1..)
        .skip(min - 1)
        .map(|(hash, length)| (length, hash.wrapping_add(length as u64)))
}

/// Spreads every bit over all others (the finalizer of SplitMix64).
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Keys are hashes already.
#[derive(Debug, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(tokens: &[i32]) -> History {
        let mut history = History::new(2, 4);
        assert!(history.extend(tokens));
        history
    }

    #[test]
    fn what_followed_before_is_proposed() {
        assert_eq!(history(&[1, 2, 3, 4, 5, 1, 2]).candidates(2), Some(vec![3, 4]));
    }

    #[test]
    fn the_longest_match_wins_over_a_later_one() {
        assert_eq!(
            history(&[1, 2, 3, 70, 9, 2, 3, 80, 1, 2, 3]).candidates(1),
            Some(vec![70])
        );
    }

    #[test]
    fn of_equal_matches_the_latest_wins() {
        assert_eq!(history(&[1, 2, 7, 1, 2, 8, 1, 2]).candidates(1), Some(vec![8]));
    }

    #[test]
    fn an_end_that_never_came_before_has_no_candidates() {
        assert_eq!(history(&[1, 2, 3, 4]).candidates(4), None);
        assert_eq!(history(&[1, 2, 1]).candidates(4), None);
        assert_eq!(history(&[]).candidates(4), None);
    }

    #[test]
    fn a_repetition_goes_on() {
        assert_eq!(history(&[5, 5, 5]).candidates(4), Some(vec![5, 5, 5, 5]));
        assert_eq!(history(&[1, 2, 1, 2]).candidates(5), Some(vec![1, 2, 1, 2, 1]));
    }

    #[test]
    fn nobody_wants_no_candidates() {
        assert_eq!(history(&[5, 5, 5]).candidates(0), None);
    }

    #[test]
    fn a_large_minimum_finds_nothing() {
        let mut history = History::new(1_000_000, 1_000_000);
        assert!(history.extend(&[5; 1000]));
        assert_eq!(history.candidates(4), None);
        assert!(history.followed.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let mut history = history(&[0; 10]);
        assert!(!history.extend(&vec![1; MAX_TOKENS]));
        assert_eq!(history.len(), 10);
        assert!(history.extend(&vec![1; MAX_TOKENS - 10]));
        assert!(!history.extend(&[1]));
    }

    /// The same by looking at everything.
    fn slow(tokens: &[i32], most: usize) -> Option<Vec<i32>> {
        for length in (2..=4.min(tokens.len())).rev() {
            let end = &tokens[tokens.len() - length..];
            for follower in (length..tokens.len()).rev() {
                if &tokens[follower - length..follower] == end {
                    let mut all = tokens.to_vec();
                    for index in 0..most {
                        all.push(all[follower + index]);
                    }
                    return Some(all[tokens.len()..].to_vec());
                }
            }
        }
        None
    }

    #[test]
    fn the_index_finds_what_a_scan_finds() {
        let mut state = 7;
        for alphabet in [2, 3, 10] {
            let mut history = History::new(2, 4);
            let mut tokens = Vec::new();
            for _ in 0..500 {
                state = mix(state);
                let token = (state % alphabet) as i32;
                tokens.push(token);
                assert!(history.extend(&[token]));
                assert_eq!(history.candidates(6), slow(&tokens, 6), "{tokens:?}");
            }
        }
    }
}
