//! A model that is a pure function, proposers that are good at it or not, and a lane between.

use proptest::prelude::*;

use super::*;
use crate::scripted::model::mix;

/// What the model draws behind these tokens: a pure function of them.
pub(super) fn drawn(seed: u64, tokens: &[u32]) -> u32 {
    const SOME: [u8; 8] = [b'a', b'a', b'b', b'b', b'c', b' ', 0xC3, 0xA9];
    let noise = tokens.iter().fold(seed, |sum, token| mix(sum, u64::from(*token)));
    match noise % 40 {
        0 => END,
        _ => u32::from(SOME[(noise >> 8) as usize % SOME.len()]) + 1,
    }
}

/// How good a proposer is at one query.
#[derive(Debug, Clone, Copy)]
pub(super) enum Guess {
    None,
    /// So many tokens of the model, then so many of another.
    Right(usize, usize),
    /// More than were asked for.
    TooMany,
}

pub(super) fn guess() -> impl Strategy<Value = Guess> {
    prop_oneof![
        2 => Just(Guess::None),
        8 => (0usize..30, 0usize..4).prop_map(|(right, wrong)| Guess::Right(right, wrong)),
        1 => Just(Guess::TooMany),
    ]
}

impl Guess {
    pub(super) fn candidates(self, seed: u64, query: &ProposalQuery) -> Vec<u32> {
        let most = query.max_tokens as usize;
        let (right, tokens) = match self {
            Self::None => (0, 0),
            Self::Right(right, wrong) => (right, (right + wrong).min(most)),
            Self::TooMany => (most + 1, most + 1),
        };
        let mut all = query.tail.to_vec();
        for place in 0..tokens {
            // Now and then a token of another model is the right one.
            let seed = if place < right { seed } else { seed ^ 1 };
            all.push(drawn(seed, &all));
        }
        all.split_off(query.tail.len())
    }
}

/// What a request came to.
#[derive(Debug, PartialEq)]
pub(super) struct Came {
    pub(super) tokens: Vec<u32>,
    pub(super) text: String,
    pub(super) reason: Option<FinishReason>,
}

/// One verified decision: where it began, its candidates, how it came out.
pub(super) type Decided = (usize, Vec<u32>, Outcome);

/// Runs a request to its end over a lane that computes rows as an engine does.
pub(super) fn run(seed: u64, plan: RequestPlan, prompt: &[u32], guesses: &[Guess]) -> (Came, Vec<Decided>) {
    let mut machine = machine_of(plan);
    let mut effects = handle(&mut machine, Input::Prepared(Ok(prompt.to_vec())));
    effects.extend(handle(
        &mut machine,
        Input::Granted {
            lane: LaneId(0),
            session: SessionId(1),
        },
    ));
    let (mut lane, mut decided, mut owed) = (Vec::new(), Vec::new(), Vec::new());
    let mut came = Came {
        tokens: Vec::new(),
        text: String::new(),
        reason: None,
    };
    let mut guesses = guesses.iter().cycle();
    while !effects.is_empty() {
        let mut input = None;
        for effect in effects {
            match effect {
                Effect::Ask(query) => {
                    let guess = guesses.next().copied().unwrap_or(Guess::None);
                    owed = guess.candidates(seed, &query);
                    input = Some(candidates(query.step, &owed));
                }
                Effect::Rows(span) => {
                    let start = span.pos_start as usize;
                    assert!(start <= lane.len(), "a gap in the lane");
                    lane.truncate(start);
                    lane.extend(&span.tokens);
                    let sampled = lane.len() + 1 - span.sampled_rows as usize..=lane.len();
                    let tokens = sampled.map(|end| drawn(seed, &lane[..end])).collect();
                    input = Some(returned(span.pos_start, span.rows() as u32, tokens));
                }
                Effect::Verified(outcome) => decided.push((came.tokens.len(), std::mem::take(&mut owed), outcome)),
                Effect::Unverified(reason) => {
                    assert_eq!(reason, DiscardReason::InvalidTokenCount);
                    owed.clear();
                }
                Effect::Commit { tokens, text, .. } => {
                    came.tokens.extend(tokens);
                    came.text.push_str(&text);
                }
                Effect::Finish(reason) => came.reason = Some(reason),
                Effect::Fail(error) => panic!("{error}"),
                _ => {}
            }
        }
        effects = input.map(|input| handle(&mut machine, input)).unwrap_or_default();
    }
    (came, decided)
}

/// What a decision has to come to, from what the model draws without it.
pub(super) fn outcome_of(prompt: usize, base: usize, candidates: &[u32], came: &Came, ended_itself: bool) -> Outcome {
    let output = &came.tokens[base..];
    let end = ended_itself.then_some(END);
    let stream: Vec<u32> = output.iter().copied().chain(end).collect();
    let accepted = stream.iter().zip(candidates).take_while(|(a, b)| a == b).count();
    let (disposition, predictions) = if accepted == stream.len() {
        (Disposition::Stopped, accepted)
    } else if accepted == candidates.len() {
        (Disposition::FullAccept, accepted + 1)
    } else {
        (Disposition::FirstMismatch, accepted + 1)
    };
    let committed = predictions.min(output.len());
    Outcome {
        disposition,
        accepted: accepted as u64,
        predictions: stream[..predictions].to_vec(),
        committed: committed as u64,
        verified_position: (prompt + base + candidates.len()) as u64,
        canonical_position: (prompt + base + committed) as u64,
    }
}

/// A stop string is cut off, so that the text is shorter than its tokens.
pub(super) fn stopped_by_string(came: &Came) -> bool {
    let bytes: Vec<u8> = came.tokens.iter().map(|token| (token - 1) as u8).collect();
    String::from_utf8_lossy(&bytes) != came.text
}
