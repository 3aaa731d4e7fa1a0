//! What the model drew becomes output, for as long as candidates agree with it.

use mesh_proto::{ErrorCode, MeshError, SessionId, v1::FinishReason};

use super::{Effect, RequestMachine, State, Step};
use crate::ports::plugin::{Disposition, Outcome};

/// What the rows of one step add to the output.
#[derive(Debug, Default)]
struct Accepted {
    tokens: Vec<u32>,
    text: String,
    end: Option<FinishReason>,
}

impl RequestMachine {
    /// `start` and `end` are the positions of the first row and after the last.
    pub(super) fn returned(
        &mut self,
        session: SessionId,
        start: u32,
        end: Option<u32>,
        tokens: &[u32],
        effects: &mut Vec<Effect>,
    ) {
        let first = self.generated.is_empty();
        let State::Running {
            session: held,
            step:
                Step::Computing {
                    start: first_row,
                    end: expected,
                    candidates,
                },
            ..
        } = &mut self.state
        else {
            return;
        };
        // A chunk of the prompt that is not its last, a late answer, or a repeated one: rows behind a wrong candidate
        // may end where those before it did. Only a prompt comes in chunks.
        if *held != session || end != Some(*expected) || !(first || start == *first_row) {
            return;
        }
        let (wanted, vocabulary) = (candidates.len() + 1, self.vocabulary.len());
        // Waiting on would be for ever, and the tokenizer may not survive a token that is none.
        if tokens.len() != wanted || tokens.iter().any(|token| *token as usize >= vocabulary) {
            return self.abort(not_drawn(tokens, wanted, vocabulary), effects);
        }
        let candidates = std::mem::take(candidates);
        let mut accepted = Accepted::default();
        let verified = self.verify(&candidates, tokens, &mut accepted);
        if !candidates.is_empty() {
            self.draft.came_out(candidates.len(), verified.accepted as usize);
            effects.push(Effect::Verified(verified));
        }
        if first {
            effects.push(Effect::Prefilled);
        }
        if !accepted.tokens.is_empty() {
            self.commit(accepted.tokens, accepted.text, effects);
        }
        match accepted.end {
            Some(reason) => self.finish(reason, effects),
            None => self.next_step(effects),
        }
    }

    /// Takes what the model drew at the last token and at each candidate for as long as the candidates agree, and the
    /// first that differs. A row behind a wrong candidate means nothing: its lane is rewound by the next rows.
    pub(super) fn verify(&mut self, candidates: &[u32], drawn: &[u32], accepted: &mut Accepted) -> Outcome {
        let base = self.position();
        let mut outcome = Outcome {
            disposition: Disposition::FullAccept,
            accepted: 0,
            predictions: Vec::new(),
            committed: 0,
            verified_position: u64::from(base) + candidates.len() as u64,
            canonical_position: 0,
        };
        for (row, token) in drawn.iter().enumerate() {
            outcome.predictions.push(*token);
            let agrees = candidates.get(row).map(|candidate| candidate == token);
            outcome.accepted += u64::from(agrees == Some(true));
            self.accept(*token, accepted);
            let ended = accepted.end.is_some();
            if ended || agrees == Some(false) {
                outcome.disposition = match agrees {
                    Some(true) => Disposition::Stopped,
                    Some(false) => Disposition::FirstMismatch,
                    None => Disposition::FullAccept,
                };
                break;
            }
        }
        outcome.committed = accepted.tokens.len() as u64;
        outcome.canonical_position = u64::from(self.position());
        outcome
    }

    /// Makes one token output, or says why generation ends with it.
    pub(super) fn accept(&mut self, token: u32, accepted: &mut Accepted) {
        if self.vocabulary.is_end_of_generation(token) {
            accepted.end = Some(FinishReason::Stop);
            return;
        }
        self.generated.push(token);
        self.piece.clear();
        self.vocabulary.piece(token, &mut self.piece);
        let released = self.text.push(&self.piece);
        accepted.tokens.push(token);
        accepted.text.push_str(&released.text);
        if released.stopped {
            accepted.end = Some(FinishReason::Stop);
        } else if self.completion_tokens() >= self.budget {
            accepted.end = Some(FinishReason::Length);
        }
    }
}

fn not_drawn(tokens: &[u32], rows: usize, vocabulary: usize) -> MeshError {
    let strange = tokens.iter().find(|token| **token as usize >= vocabulary);
    let message = match strange {
        Some(token) => format!("the output stage drew token {token}, the vocabulary has {vocabulary}"),
        None => format!("the output stage drew {} tokens for {rows} rows", tokens.len()),
    };
    MeshError::new(ErrorCode::Protocol, message)
}
