//! Where a plugin puts its candidates.

use mesh_plugin_abi::{MESH_DECISION_ID_BYTES, MESH_MAX_CANDIDATES};

/// What a token is that the plugin did not write: in no vocabulary.
const UNWRITTEN: i32 = -1;

/// Room for the output of one poll. It is allocated once and reused; every poll resets it first.
#[derive(Debug)]
pub struct CandidateBuffer {
    pub(crate) tokens: Box<[i32]>,
    pub(crate) decision_id: Box<[u8]>,
    pub(crate) token_count: u32,
    pub(crate) decision_id_length: u32,
    pub(crate) base_position: u64,
}

/// Why candidates cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Invalid {
    /// There are none, or more than were asked for or fit.
    #[error("the plugin gave no candidates or more than were asked for; it must give 1 to max_tokens")]
    TokenCount,
    /// One is not in the vocabulary.
    #[error("a candidate is not in the vocabulary; the plugin must give ids of the model's tokenizer")]
    TokenId,
    /// They are for another position.
    #[error("the candidates are for another position; base_position must be prompt_count + committed_count")]
    Position,
    /// The decision has no name, or one that does not fit.
    #[error("the decision id is empty or too long; it must have 1 to 64 bytes")]
    DecisionId,
}

impl CandidateBuffer {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            tokens: vec![UNWRITTEN; MESH_MAX_CANDIDATES].into_boxed_slice(),
            decision_id: vec![0; MESH_DECISION_ID_BYTES].into_boxed_slice(),
            token_count: 0,
            decision_id_length: 0,
            base_position: 0,
        }
    }

    /// The candidates, unchecked. None if there are none, or if the plugin says that there are more than fit.
    pub fn tokens(&self) -> Option<&[i32]> {
        let count = usize::try_from(self.token_count).ok()?;
        self.tokens.get(..count).filter(|tokens| !tokens.is_empty())
    }

    /// Candidates that there are in the plugin's words.
    pub fn token_count(&self) -> u32 {
        self.token_count
    }

    /// Name of the decision. None if it is empty, or if the plugin says that it is longer than fits.
    pub fn decision_id(&self) -> Option<&[u8]> {
        let length = usize::try_from(self.decision_id_length).ok()?;
        self.decision_id.get(..length).filter(|id| !id.is_empty())
    }

    /// Position of the first candidate in the plugin's words.
    pub fn base_position(&self) -> u64 {
        self.base_position
    }

    /// Nothing of an earlier poll, which may have been another generation's, stays in it.
    pub(crate) fn reset(&mut self) {
        self.tokens.fill(UNWRITTEN);
        self.decision_id.fill(0);
        self.token_count = 0;
        self.decision_id_length = 0;
        self.base_position = 0;
    }
}

impl Default for CandidateBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// The candidates for `base_position`, if there are 1 to `max_tokens`, all below `vocabulary`. Faults are looked for in
/// the order of [`Invalid`].
pub fn check(
    buffer: &CandidateBuffer,
    max_tokens: u32,
    vocabulary: u32,
    base_position: u64,
) -> Result<Vec<u32>, Invalid> {
    let tokens = buffer
        .tokens()
        .filter(|_| buffer.token_count <= max_tokens)
        .ok_or(Invalid::TokenCount)?;
    let tokens = tokens
        .iter()
        .map(|token| u32::try_from(*token).ok().filter(|id| *id < vocabulary))
        .collect::<Option<Vec<u32>>>()
        .ok_or(Invalid::TokenId)?;
    if buffer.base_position != base_position {
        return Err(Invalid::Position);
    }
    buffer.decision_id().ok_or(Invalid::DecisionId)?;
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(tokens: &[i32]) -> CandidateBuffer {
        let mut buffer = CandidateBuffer::new();
        buffer.tokens[..tokens.len()].copy_from_slice(tokens);
        buffer.token_count = u32::try_from(tokens.len()).unwrap();
        buffer.decision_id_length = 1;
        buffer.base_position = 7;
        buffer
    }

    #[test]
    fn good_candidates_are_taken() {
        assert_eq!(check(&ready(&[0, 9]), 2, 10, 7), Ok(vec![0, 9]));
        let full = vec![1; MESH_MAX_CANDIDATES];
        assert_eq!(check(&ready(&full), 4096, 10, 7).unwrap().len(), 4096);
    }

    #[test]
    fn none_too_many_and_more_than_fit_are_a_wrong_count() {
        assert_eq!(check(&ready(&[]), 2, 10, 7), Err(Invalid::TokenCount));
        assert_eq!(check(&ready(&[1, 2, 3]), 2, 10, 7), Err(Invalid::TokenCount));
        for count in [4097, u32::MAX] {
            let mut buffer = ready(&[1]);
            buffer.token_count = count;
            assert_eq!(buffer.tokens(), None);
            assert_eq!(check(&buffer, u32::MAX, 10, 7), Err(Invalid::TokenCount));
        }
    }

    #[test]
    fn tokens_outside_the_vocabulary_are_refused() {
        for token in [-1, 10, i32::MIN, i32::MAX] {
            assert_eq!(check(&ready(&[1, token]), 2, 10, 7), Err(Invalid::TokenId));
        }
    }

    #[test]
    fn another_position_is_refused() {
        assert_eq!(check(&ready(&[1]), 2, 10, 8), Err(Invalid::Position));
    }

    #[test]
    fn a_decision_id_has_1_to_64_bytes() {
        let with = |length| {
            let mut buffer = ready(&[1]);
            buffer.decision_id_length = length;
            check(&buffer, 1, 10, 7)
        };
        assert!(with(1).is_ok());
        assert!(with(64).is_ok());
        for length in [0, 65, u32::MAX] {
            assert_eq!(with(length), Err(Invalid::DecisionId));
        }
    }

    #[test]
    fn a_reset_leaves_nothing_of_an_earlier_poll() {
        let mut buffer = ready(&[1, 2, 3]);
        buffer.decision_id.fill(b'x');
        buffer.reset();
        assert_eq!((buffer.tokens(), buffer.decision_id()), (None, None));
        assert!(buffer.tokens.iter().all(|token| *token == UNWRITTEN));
        assert!(buffer.decision_id.iter().all(|byte| *byte == 0));
        assert_eq!(buffer.base_position(), 0);
    }
}
