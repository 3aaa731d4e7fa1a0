//! One below, at and above each limit.

use mesh_actors::ports::engine::{Batch, EngineError, StageEngine, StageLoad};
use mesh_proto::{LaneId, SessionId, sampling::greedy_sampling};

use crate::{
    chain::{Chain, cut, load, noise_tokens, prepare, span},
    models,
    reference::Reference,
};

fn chain(context: u32) -> Chain {
    Chain::new(&models::built_in(), &[0, 5, 8], 2, context)
}

#[test]
fn batches_around_the_call_limit_are_right() {
    prepare();
    let tokens = noise_tokens(20, 256, 2048);
    let expected = Reference::load(&models::built_in(), 256).forward(&tokens);
    let mut chain = chain(256);
    for rows in [1usize, 2, 127, 128, 129, 255, 256] {
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
        assert_eq!(
            Some(chain.step(0, 2, 0, &tokens)),
            mesh_engine::greedy(&expected[context as usize - 1])
        );
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
    assert!(small.compute >= 128 * 2048 * 4 && small.compute < 64 << 20, "{small:?}");
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

#[test]
fn without_exact_mode_a_stage_works_and_says_so() {
    prepare();
    let directory = tempfile::tempdir().unwrap();
    let tokens = noise_tokens(23, 200, 2048);
    let mut batch = Batch {
        spans: vec![span(0, 1, 0, &tokens, 1)],
        activations: Vec::new(),
    };
    for spec in cut(&models::built_in(), &[0, 3, 5, 8], directory.path()) {
        let mut stage = load(&StageLoad { exact: false, ..spec }).unwrap();
        assert!(!stage.is_exact());
        stage.open(LaneId(0), SessionId(1), &greedy_sampling()).unwrap();
        let last = stage.forward(&batch, &|_, _| false).unwrap();
        assert_eq!(last.failed, []);
        assert_eq!(last.spans.len(), 1);
        // A lone row is computed as it is.
        let row = batch.activations.get(128..256).map(<[f32]>::to_vec).unwrap_or_default();
        let lone = Batch {
            spans: vec![span(0, 1, 1, &[3], 1)],
            activations: row,
        };
        assert_eq!(stage.forward(&lone, &|_, _| false).unwrap().failed, []);
        batch = Batch {
            spans: last.spans.into_iter().map(|(span, _)| span).collect(),
            activations: last.activations,
        };
    }
}

#[test]
fn a_process_that_was_not_prepared_is_not_exact() {
    // Each test has a process of its own under nextest; under `cargo test` another test may have prepared it.
    if !mesh_engine::is_process_exact() {
        let directory = tempfile::tempdir().unwrap();
        let spec = cut(&models::built_in(), &[0, 8], directory.path()).swap_remove(0);
        assert!(!load(&spec).unwrap().is_exact());
    }
}
