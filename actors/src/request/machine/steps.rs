//! Steps behind the prompt: candidates are asked for where they can help, then rows are computed.

use std::sync::Arc;

use super::{Effect, RequestMachine, State, Step};
use crate::ports::{
    engine::RowSpan,
    plugin::{DiscardReason, ProposalQuery},
};

/// Most tokens of a query's tail: enough for a proposer that keeps nothing itself.
const MAX_TAIL: usize = 1024;

impl RequestMachine {
    /// Asks for candidates where they can help, else computes the last token's row.
    pub(super) fn next_step(&mut self, effects: &mut Vec<Effect>) {
        // The last token of the budget needs no candidates behind it.
        let room = self.budget - self.completion_tokens() - 1;
        let max_tokens = room.min(self.draft.wanted());
        if !self.plan.speculates || max_tokens == 0 || self.draft.rests() {
            return self.compute(Vec::new(), effects);
        }
        self.queries += 1;
        if let State::Running { step, .. } = &mut self.state {
            *step = Step::Asking { most: max_tokens };
        }
        effects.push(Effect::Ask(Arc::new(ProposalQuery {
            prompt_count: u64::from(self.prompt_tokens()),
            committed_count: u64::from(self.completion_tokens()),
            step: self.queries,
            max_tokens,
            vocabulary: self.vocabulary.len() as u32,
            tail: self.tail(),
        })));
    }

    /// The end of prompt and output together.
    fn tail(&self) -> Arc<[u32]> {
        let of_output = self.generated.len().min(MAX_TAIL);
        let of_prompt = self.prompt.len().min(MAX_TAIL - of_output);
        let prompt = &self.prompt[self.prompt.len() - of_prompt..];
        let output = &self.generated[self.generated.len() - of_output..];
        [prompt, output].concat().into()
    }

    pub(super) fn candidates(&mut self, step: u64, tokens: Vec<u32>, effects: &mut Vec<Effect>) {
        let State::Running {
            step: Step::Asking { most },
            ..
        } = self.state
        else {
            return;
        };
        if step != self.queries {
            return;
        }
        match self.flaw(&tokens, most) {
            Some(reason) => {
                effects.push(Effect::Unverified(reason));
                self.compute(Vec::new(), effects);
            }
            None => self.compute(tokens, effects),
        }
    }

    /// Proposers check what they give. Here it is what the lane has room for, and what the engine can take.
    fn flaw(&self, candidates: &[u32], most: u32) -> Option<DiscardReason> {
        let is_known = |token: &u32| (*token as usize) < self.vocabulary.len();
        if candidates.len() > most as usize {
            Some(DiscardReason::InvalidTokenCount)
        } else if !candidates.iter().all(is_known) {
            Some(DiscardReason::InvalidTokenId)
        } else {
            None
        }
    }

    /// The last token's row, and those of candidates behind it.
    fn compute(&mut self, candidates: Vec<u32>, effects: &mut Vec<Effect>) {
        let pos_start = self.position() - 1;
        let State::Running { lane, session, step } = &mut self.state else {
            return;
        };
        let tokens: Vec<u32> = self
            .generated
            .last()
            .copied()
            .into_iter()
            .chain(candidates.iter().copied())
            .collect();
        let rows = tokens.len() as u32;
        *step = Step::Computing {
            start: pos_start,
            end: pos_start + rows,
            candidates,
        };
        effects.push(Effect::Rows(RowSpan {
            lane: *lane,
            session: *session,
            pos_start,
            tokens,
            sampled_rows: rows,
        }));
    }
}
