//! The tokenizer that plugins get to see.

/// A model's tokenizer. Ids are below 2^31.
pub trait Tokenizer: Send + Sync {
    /// Tokens of the vocabulary: ids are `0..len`.
    fn len(&self) -> usize;

    /// Whether there are no tokens.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes of a token, or returns false if there is no such token.
    fn piece(&self, token: u32, out: &mut Vec<u8>) -> bool;

    /// Ids of a text, without beginning-of-text and without looking for special tokens. None if their pieces would not
    /// give the text back.
    fn encode(&self, text: &str) -> Option<Vec<u32>>;
}
