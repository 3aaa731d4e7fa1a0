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
        if !self.awaits(session, start, end) {
            return;
        }
        let State::Running {
            step: Step::Computing { candidates, .. },
            ..
        } = &mut self.state
        else {
            return;
        };
        let (wanted, vocabulary) = (candidates.len() + 1, self.vocabulary.len());
        // Waiting on would be for ever, and the tokenizer may not survive a token that is none.
        if tokens.len() != wanted || tokens.iter().any(|token| *token as usize >= vocabulary) {
            return self.abort(not_drawn(tokens, wanted, vocabulary), effects);
        }
        let candidates = std::mem::take(candidates);
        self.output(&candidates, tokens, effects);
    }

    /// These are the last rows that are under way. What is not: a chunk of the prompt before its last, a late answer,
    /// or a repeated one, since rows behind a wrong candidate may end where those before it did. Only a prompt comes in
    /// chunks.
    fn awaits(&self, session: SessionId, first_row: u32, after_last: Option<u32>) -> bool {
        let State::Running {
            session: held,
            step: Step::Computing { start, end, .. },
            ..
        } = &self.state
        else {
            return false;
        };
        *held == session && after_last == Some(*end) && (self.generated.is_empty() || first_row == *start)
    }

    /// What was drawn, one token for each sampled row.
    fn output(&mut self, candidates: &[u32], drawn: &[u32], effects: &mut Vec<Effect>) {
        let first = self.generated.is_empty();
        let mut accepted = Accepted::default();
        let verified = self.verify(candidates, drawn, &mut accepted);
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
    fn verify(&mut self, candidates: &[u32], drawn: &[u32], accepted: &mut Accepted) -> Outcome {
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
    fn accept(&mut self, token: u32, accepted: &mut Accepted) {
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
