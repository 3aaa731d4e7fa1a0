//! Queries, candidates, and what became of them.

use std::time::Duration;

use mesh_plugin_abi::MESH_DECISION_ID_BYTES;

use crate::{DiscardReason, Disposition, Error, Ids, Tokens};

/// The node wants candidates for what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Query<'a> {
    /// Names of the generation.
    pub ids: Ids<'a>,
    /// Most candidates that it takes, at least 1.
    pub max_tokens: u32,
    /// Tokens of the prompt.
    pub prompt_count: u64,
    /// Tokens generated; the candidates come after them.
    pub committed_count: u64,
    /// Grows with every query of the generation.
    pub step: u64,
    /// On the [`crate::Clock`] of the activation; an answer at or after it is late.
    pub deadline: Duration,
    /// The end of prompt and output together.
    pub tail: Tokens<'a>,
}

impl Query<'_> {
    /// Where the first candidate goes: [`Candidates::base_position`].
    pub fn position(&self) -> u64 {
        self.prompt_count.saturating_add(self.committed_count)
    }
}

/// The plugin's number of a proposal that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation(pub u64);

/// How far an operation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Poll {
    /// Nothing yet: [`crate::Waker::wake`] when that changes.
    Pending,
    /// The operation is over. A report or a discard of the decision follows.
    Ready(Candidates),
    /// No candidates this time; the operation is over.
    Abstain,
    /// It failed. [`crate::Plugin::cancel_proposal`] follows, and this generation asks no more.
    Failed(Error),
}

/// Tokens that may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates {
    /// The decision's name in its report or discard.
    pub decision: DecisionId,
    /// [`Query::position`].
    pub base_position: u64,
    /// 1 to [`Query::max_tokens`]; the node discards a decision of any other length.
    pub tokens: Vec<i32>,
}

/// Name of a decision: 1 to 64 bytes, unique in its generation. Made from a number it is that number's decimal text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DecisionId {
    length: u8,
    bytes: [u8; MESH_DECISION_ID_BYTES],
}

impl DecisionId {
    /// `None` unless there are 1 to 64 bytes.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; MESH_DECISION_ID_BYTES];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        let length = u8::try_from(id.len()).ok().filter(|length| *length > 0)?;
        Some(Self { length, bytes })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl From<u64> for DecisionId {
    fn from(number: u64) -> Self {
        let mut bytes = [0; MESH_DECISION_ID_BYTES];
        let text = number.to_string();
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Self {
            length: text.len() as u8,
            bytes,
        }
    }
}

/// A decision was verified. Positions count from the beginning of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome<'a> {
    /// Names of the generation.
    pub ids: Ids<'a>,
    /// How it came out.
    pub disposition: Disposition,
    /// The decision, as the plugin named it.
    pub decision: &'a [u8],
    /// Step of the query.
    pub step: u64,
    /// Candidates there were.
    pub proposed_count: u64,
    /// Candidates that the model produced too.
    pub accepted_count: u64,
    /// What became output: the accepted ones and, unless it stopped, one more.
    pub committed: Tokens<'a>,
    /// What the model produced from [`Self::base_position`] to the decision, it included.
    pub predictions: Tokens<'a>,
    /// Of the first candidate.
    pub base_position: u64,
    /// Behind the last candidate that was computed.
    pub verified_position: u64,
    /// Behind the last token that became output.
    pub canonical_position: u64,
}

/// A decision was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Discard<'a> {
    /// Names of the generation.
    pub ids: Ids<'a>,
    /// Why.
    pub reason: DiscardReason,
    /// The decision, as the plugin named it.
    pub decision: &'a [u8],
    /// Step of the query.
    pub step: u64,
    /// Candidates there were.
    pub proposed_count: u64,
    /// Of the first candidate.
    pub base_position: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_id_has_one_to_sixty_four_bytes() {
        assert_eq!(DecisionId::new(b""), None);
        assert_eq!(DecisionId::new(&[7; 65]), None);
        assert_eq!(DecisionId::new(&[7; 64]).unwrap().as_bytes(), [7; 64]);
        assert_eq!(DecisionId::from(u64::MAX).as_bytes(), u64::MAX.to_string().as_bytes());
    }
}
