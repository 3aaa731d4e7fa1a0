//! One below, at and above each limit.

use mesh_actors::ports::engine::{EngineError, StageEngine};
use mesh_proto::{LaneId, sampling::greedy_sampling};

use crate::{
    chain::{Chain, noise_tokens, prepare, span},
    models,
    reference::Reference,
};

fn chain(context: u32) -> Chain {
    Chain::new(&models::built_in(), &[0, 5, 8], 2, context)
}

#[test]
fn batches_around_the_call_limit_are_right() {
    prepare();
    let tokens = noise_tokens(20, 121, 2048);
    let expected = Reference::load(&models::built_in(), 256).forward(&tokens);
    let mut chain = chain(256);
    for rows in [1usize, 2, 59, 60, 61, 120, 121] {
        chain.open(0, 1, &greedy_sampling());
        let token = chain.step(0, 1, 0, &tokens[..rows]);
        assert_eq!(Some(token), mesh_engine::greedy(&expected[rows - 1]), "{rows} rows");
        let logits = chain.take_logits();
        assert_eq!(logits[0].values, expected[rows - 1], "{rows} rows");
    }
}

#[test]
fn the_last_position_of_a_context_is_computed_and_the_next_refused() {
    for context in [255u32, 256, 257] {
        prepare();
        let tokens = noise_tokens(21, context as usize, 2048);
        let expected = Reference::load(&models::built_in(), 512).forward(&tokens);
        let mut chain = chain(context);
        // All but one, then a lone row at the last position.
        for lane in 0..2 {
            chain.open(lane, 1, &greedy_sampling());
            let before = context as usize - 1;
            chain.step(lane, 1, 0, &tokens[..before]);
            chain.step(lane, 1, context - 1, &tokens[before..]);
            assert_eq!(chain.take_logits()[1].values, expected[before]);
            let output = chain.forward(vec![span(lane, 1, context, &[5], 1)]);
            assert!(matches!(output.failed[0].1, EngineError::Position { position, .. } if position == context));
        }
        // The whole context in one batch, and one row more.
        chain.open(0, 2, &greedy_sampling());
        assert_eq!(Some(chain.step(0, 2, 0, &tokens)), mesh_engine::greedy(&expected[context as usize - 1]));
        let more: Vec<u32> = tokens.iter().copied().chain([1]).collect();
        let output = chain.forward(vec![span(0, 2, 0, &more, 1)]);
        assert!(output.spans.is_empty());
        assert!(matches!(output.failed[0].1, EngineError::Position { .. }));
    }
}

#[test]
fn memory_is_counted_and_grows_with_lanes_and_context() {
    let small = Chain::new(&models::built_in(), &[0, 8], 1, 255);
    let large = Chain::new(&models::built_in(), &[0, 8], 4, 511);
    let (small, large) = (small.stages[0].memory(), large.stages[0].memory());
    assert!(small.weights > 1_900_000 && small.weights < 2_100_000, "{small:?}");
    // 8 layers × (K and V) × 2 heads × 32 × 2 bytes × 256 cells.
    assert_eq!(small.kv, 8 * 2 * 2 * 32 * 2 * 256);
    assert_eq!(large.kv, small.kv * 8);
    assert!(small.compute >= 60 * 2048 * 4 && small.compute < 64 << 20, "{small:?}");
}

#[test]
fn trimming_forgets_and_keeps() {
    let mut chain = chain(256);
    let tokens = noise_tokens(22, 50, 2048);
    chain.open(0, 1, &greedy_sampling());
    let first = chain.step(0, 1, 0, &tokens);
    for stage in &mut chain.stages {
        stage.trim(LaneId(0), 49).unwrap();
        stage.trim(LaneId(0), 90).unwrap();
        assert!(stage.trim(LaneId(2), 0).is_err());
    }
    let gap = chain.forward(vec![span(0, 1, 50, &[1], 1)]);
    assert!(matches!(gap.failed[0].1, EngineError::Position { .. }));
    // The lane was cleared by that.
    chain.open(0, 2, &greedy_sampling());
    chain.step(0, 2, 0, &tokens);
    assert_eq!(chain.step(0, 2, 49, &tokens[49..]), first);
}
