//! A lane's results do not depend on how its rows are cut, on other lanes, or on what happened before.

use std::{cell::Cell, path::PathBuf};

use mesh_actors::ports::engine::RowSpan;
use mesh_proto::{
    sampling::{default_sampling, greedy_sampling},
    v1::Sampling,
};

use crate::{
    chain::{Chain, bits, noise_tokens, span},
    models,
};

const VOCABULARY: u32 = 2048;

fn sampled(seed: u64) -> Sampling {
    Sampling {
        seed: Some(seed),
        top_p: 0.95,
        frequency_penalty: 0.3,
        repeat_penalty: 1.1,
        ..default_sampling()
    }
}

/// Tokens and logits of one sequence.
#[derive(Debug, PartialEq)]
struct Trace {
    tokens: Vec<u32>,
    logits: Vec<Vec<u32>>,
}

/// Prefill in chunks, then steps, in one lane.
fn alone(chain: &mut Chain, lane: u32, prompt: &[u32], chunk: usize, steps: usize, sampling: &Sampling) -> Trace {
    chain.open(lane, 1, &prompt_sampling(sampling, prompt));
    let mut position = 0;
    for part in prompt.chunks(chunk) {
        let done = position as usize + part.len() == prompt.len();
        let output = chain.forward(vec![span(lane, 1, position, part, u32::from(done))]);
        assert_eq!(output.failed, []);
        position += u32::try_from(part.len()).unwrap();
        if done {
            let mut tokens = output.spans[0].1.clone();
            for _ in 1..steps {
                tokens.push(chain.step(lane, 1, position, &tokens[tokens.len() - 1..]));
                position += 1;
            }
            chain.free(lane);
            let logits = chain.take_logits().iter().map(|row| bits(&row.values)).collect();
            return Trace { tokens, logits };
        }
    }
    unreachable!("a prompt has tokens")
}

fn prompt_sampling(sampling: &Sampling, prompt: &[u32]) -> Sampling {
    Sampling {
        prompt_tokens: u32::try_from(prompt.len()).unwrap(),
        ..sampling.clone()
    }
}

fn chain() -> Chain {
    Chain::new(&models::built_in(), &[0, 3, 5, 8], 4, 512)
}

#[test]
fn chunks_of_any_size_give_the_same_bits() {
    let mut chain = chain();
    let prompt = noise_tokens(5, 121, VOCABULARY);
    for sampling in [greedy_sampling(), sampled(3)] {
        let whole = alone(&mut chain, 0, &prompt, 121, 24, &sampling);
        assert_eq!(whole.logits.len(), 24);
        for chunk in [1, 2, 7, 8, 33, 60, 61, 120] {
            assert_eq!(
                alone(&mut chain, 0, &prompt, chunk, 24, &sampling),
                whole,
                "chunk {chunk}"
            );
        }
        assert_eq!(alone(&mut chain, 3, &prompt, 60, 24, &sampling), whole, "another lane");
    }
}

/// Behind 512 positions ggml has other attention kernels for lone rows and for many.
#[test]
fn rows_far_into_a_lane_depend_on_neither_calls_nor_threads() {
    let prompt = noise_tokens(9, 560, VOCABULARY);
    let trace = |threads, chunk| {
        let mut chain = Chain::with_threads(&models::built_in(), &[0, 3, 8], 1, 768, threads);
        alone(&mut chain, 0, &prompt, chunk, 8, &greedy_sampling())
    };
    let first = trace(1, 128);
    assert_eq!(first.logits.len(), 8);
    for (threads, chunk) in [(1, 60), (1, 33), (1, 7), (1, 1), (2, 128), (2, 1)] {
        assert!(trace(threads, chunk) == first, "{threads} threads, calls of {chunk}");
    }
}

/// Lane 1 is watched; the others are opened, filled, decoded, freed and used again around it.
fn in_company(chain: &mut Chain, prompt: &[u32], chunk: usize, steps: usize, sampling: &Sampling) -> Trace {
    let others = [0u32, 2, 3];
    let mut lengths = [None::<u32>; 4];
    let mut session = 100;
    chain.open(1, 1, &prompt_sampling(sampling, prompt));
    let mut parts = prompt.chunks(chunk).peekable();
    let (mut tokens, mut logits, mut position) = (Vec::new(), Vec::new(), 0u32);
    let mut round = 0usize;
    while tokens.len() < steps {
        let mut spans: Vec<RowSpan> = Vec::new();
        for lane in others {
            // Each lane lives for a while, dies, and comes back with another text.
            let busy = !(round + lane as usize * 3).is_multiple_of(7);
            match lengths[lane as usize] {
                Some(length) if busy && length < 400 => {
                    let text = noise_tokens(round as u64 + u64::from(lane), 1, VOCABULARY);
                    spans.push(span(lane, session + u64::from(lane), length, &text, 1));
                    lengths[lane as usize] = Some(length + 1);
                }
                Some(_) => {
                    chain.free(lane);
                    lengths[lane as usize] = None;
                }
                None => {
                    session += 10;
                    for other in others.into_iter().filter(|other| *other != lane) {
                        // Sessions are per chain here, so that they stay simple: open all lanes anew.
                        if lengths[other as usize].take().is_some() {
                            chain.free(other);
                            spans.retain(|span| span.lane.0 != other);
                        }
                    }
                    chain.open(lane, session + u64::from(lane), &sampled(session));
                    let rows = 1 + (round * 13 + lane as usize) % 70;
                    let text = noise_tokens(session, rows, VOCABULARY);
                    spans.push(span(lane, session + u64::from(lane), 0, &text, 1));
                    lengths[lane as usize] = Some(u32::try_from(rows).unwrap());
                }
            }
        }
        let rows = match parts.next() {
            Some(part) => part.to_vec(),
            None => tokens[tokens.len() - 1..].to_vec(),
        };
        let wants = parts.peek().is_none();
        spans.push(span(1, 1, position, &rows, u32::from(wants)));
        spans.sort_by_key(|span| span.lane);
        position += u32::try_from(rows.len()).unwrap();
        let output = chain.forward(spans);
        assert_eq!(output.failed, []);
        let (_, drawn) = output.spans.iter().find(|(span, _)| span.lane.0 == 1).unwrap();
        tokens.extend(drawn);
        logits.extend(
            chain
                .take_logits()
                .iter()
                .filter(|row| row.lane.0 == 1)
                .map(|row| bits(&row.values)),
        );
        round += 1;
    }
    for lane in 0..4 {
        chain.free(lane);
    }
    Trace { tokens, logits }
}

#[test]
fn company_that_comes_and_goes_changes_nothing() {
    let mut chain = chain();
    let prompt = noise_tokens(6, 90, VOCABULARY);
    for sampling in [greedy_sampling(), sampled(11)] {
        let quiet = alone(&mut chain, 1, &prompt, 60, 60, &sampling);
        for chunk in [7, 8, 60] {
            let busy = in_company(&mut chain, &prompt, chunk, 60, &sampling);
            assert_eq!(busy.tokens, quiet.tokens, "chunk {chunk}");
            assert_eq!(busy.logits, quiet.logits, "chunk {chunk}");
        }
    }
}

#[test]
fn eight_lanes_side_by_side_equal_each_alone() {
    let mut chain = Chain::new(&models::built_in(), &[0, 1, 8], 8, 128);
    let prompts: Vec<Vec<u32>> = (0..8)
        .map(|lane| noise_tokens(40 + lane, 20 + lane as usize, VOCABULARY))
        .collect();
    let quiet: Vec<Trace> = prompts
        .iter()
        .map(|prompt| alone(&mut chain, 0, prompt, 60, 16, &greedy_sampling()))
        .collect();
    let lanes = 0..8u32;
    for lane in lanes.clone() {
        chain.open(lane, 1, &greedy_sampling());
    }
    let spans = lanes
        .clone()
        .map(|lane| span(lane, 1, 0, &prompts[lane as usize], 1))
        .collect();
    let mut tokens: Vec<Vec<u32>> = chain.forward(spans).spans.into_iter().map(|(_, drawn)| drawn).collect();
    for step in 0..15u32 {
        let spans = lanes.clone().map(|lane| {
            let lane_tokens = &tokens[lane as usize];
            let position = u32::try_from(prompts[lane as usize].len()).unwrap() + step;
            span(lane, 1, position, &lane_tokens[lane_tokens.len() - 1..], 1)
        });
        for (span, drawn) in chain.forward(spans.collect()).spans {
            tokens[span.lane.0 as usize].extend(drawn);
        }
    }
    let logits = chain.take_logits();
    for lane in lanes {
        assert_eq!(tokens[lane as usize], quiet[lane as usize].tokens);
        let ours: Vec<_> = logits
            .iter()
            .filter(|row| row.lane.0 == lane)
            .map(|row| bits(&row.values))
            .collect();
        assert_eq!(ours, quiet[lane as usize].logits);
    }
}

#[test]
fn rejected_speculation_leaves_no_trace() {
    let mut chain = chain();
    let prompt = noise_tokens(7, 40, VOCABULARY);
    let sampling = sampled(5);
    let plain = alone(&mut chain, 2, &prompt, 60, 30, &sampling);
    chain.open(2, 1, &prompt_sampling(&sampling, &prompt));
    let mut tokens = vec![chain.step(2, 1, 0, &prompt)];
    let mut position = u32::try_from(prompt.len()).unwrap();
    while tokens.len() < 30 {
        // Two drafts are right, the third is wrong, now and then all are.
        let mut rows = tokens[tokens.len() - 1..].to_vec();
        let known = plain.tokens.iter().skip(tokens.len()).take(2);
        rows.extend(known.map(|token| if tokens.len() % 5 == 0 { token ^ 1 } else { *token }));
        rows.push(9);
        let output = chain.forward(vec![span(2, 1, position, &rows, u32::try_from(rows.len()).unwrap())]);
        let verified = &output.spans[0].1;
        let agreed = rows[1..]
            .iter()
            .zip(verified)
            .take_while(|(draft, token)| draft == token)
            .count();
        tokens.extend(&verified[..=agreed]);
        position += u32::try_from(agreed).unwrap() + 1;
    }
    assert_eq!(tokens[..30], plain.tokens[..]);
}

#[test]
fn a_rewound_lane_continues_as_if_it_had_never_been_further() {
    let mut chain = chain();
    let prompt = noise_tokens(8, 60, VOCABULARY);
    let plain = alone(&mut chain, 0, &prompt, 60, 10, &greedy_sampling());
    chain.open(0, 1, &greedy_sampling());
    chain.step(0, 1, 0, &noise_tokens(9, 100, VOCABULARY));
    chain.take_logits();
    let mut tokens = vec![chain.step(0, 1, 0, &prompt)];
    for step in 0..9 {
        tokens.push(chain.step(0, 1, 60 + step, &tokens[tokens.len() - 1..]));
    }
    assert_eq!(tokens, plain.tokens);
    let logits: Vec<_> = chain.take_logits().iter().map(|row| bits(&row.values)).collect();
    assert_eq!(logits, plain.logits);
}

#[test]
fn a_span_cancelled_between_calls_is_left_out_and_disturbs_nobody() {
    let mut chain = chain();
    let long = noise_tokens(10, 200, VOCABULARY);
    let short = noise_tokens(11, 30, VOCABULARY);
    let quiet = alone(&mut chain, 1, &short, 60, 1, &greedy_sampling());
    for lane in 0..3 {
        chain.open(lane, 1, &greedy_sampling());
    }
    let asked = Cell::new(0);
    let cancelled = |lane: mesh_proto::LaneId, _| {
        asked.set(asked.get() + u32::from(lane.0 == 0));
        lane.0 == 0 && asked.get() > 2
    };
    let spans = vec![
        span(0, 1, 0, &long, 1),
        span(1, 1, 0, &short, 1),
        span(2, 1, 0, &short[..1], 1),
    ];
    let output = chain.forward_unless(spans, &cancelled);
    assert_eq!(output.failed, []);
    let lanes: Vec<u32> = output.spans.iter().map(|(span, _)| span.lane.0).collect();
    assert_eq!(lanes, [1, 2]);
    let logits = chain.take_logits();
    assert_eq!(bits(&logits[0].values), quiet.logits[0]);
    // The cancelled lane is usable at once.
    let again = alone(&mut chain, 0, &short, 60, 1, &greedy_sampling());
    assert_eq!(again, quiet);
}

#[test]
fn real_models_are_exact_in_company() {
    let real: Vec<(PathBuf, Vec<u32>)> = [(models::SMOLLM2, vec![0, 10, 30]), (models::GEMMA_3, vec![0, 7, 18])]
        .into_iter()
        .filter_map(|(name, cuts)| Some((models::real(name)?, cuts)))
        .collect();
    for (path, cuts) in real {
        let mut chain = Chain::new(&path, &cuts, 4, 512);
        let prompt = noise_tokens(12, 61, VOCABULARY);
        for sampling in [greedy_sampling(), sampled(4)] {
            let quiet = alone(&mut chain, 1, &prompt, 60, 8, &sampling);
            assert_eq!(
                in_company(&mut chain, &prompt, 20, 8, &sampling),
                quiet,
                "{}",
                path.display()
            );
        }
    }
}
