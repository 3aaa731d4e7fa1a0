//! Bad files and bad batches: a clear error, and everybody else goes on.

use std::{ops::ControlFlow, path::Path};

use mesh_actors::ports::engine::{Batch, EngineError, StageEngine, StageLoad};
use mesh_engine::{LlamaLoader, RandomModel};
use mesh_proto::{LaneId, SessionId, sampling::greedy_sampling};

use crate::{
    chain::{Chain, cut, load, noise_tokens, prepare, span},
    models,
};

fn spec(directory: &Path) -> StageLoad {
    prepare();
    cut(&models::built_in(), &[0, 3, 8], directory).swap_remove(1)
}

fn reason(spec: &StageLoad) -> String {
    match load(spec) {
        Err(EngineError::Load { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it loads"),
    }
}

#[test]
fn missing_garbage_and_truncated_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let good = spec(directory.path());
    let bytes = std::fs::read(&good.path).unwrap();
    let bad = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        reason(&StageLoad { path, ..good.clone() })
    };
    let missing = reason(&StageLoad {
        path: directory.path().join("nothing.gguf"),
        ..good.clone()
    });
    for (what, reason) in [
        ("missing", missing),
        ("garbage", bad("garbage.gguf", &[7; 4096])),
        ("empty", bad("empty.gguf", &[])),
        ("half", bad("half.gguf", &bytes[..bytes.len() / 2])),
        ("header", bad("header.gguf", &bytes[..100])),
    ] {
        println!("{what}: {reason}");
        assert!(!reason.contains("gave no reason"), "{what}: {reason}");
        assert!(reason.len() < 1500 && !reason.ends_with('.'), "{what}: {reason}");
    }
}

#[test]
fn a_file_that_is_not_what_was_asked_for_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let good = spec(directory.path());
    let cases = [
        (
            StageLoad {
                n_embd: 64,
                ..good.clone()
            },
            "width of 128, the deployment 64",
        ),
        (
            StageLoad {
                n_vocab: 99,
                ..good.clone()
            },
            "vocabulary of 2048, the deployment 99",
        ),
        (
            StageLoad {
                layers: 4..8,
                ..good.clone()
            },
            "layer count of 5, the deployment 4",
        ),
        (
            StageLoad {
                layers: 5..5,
                ..good.clone()
            },
            "not a stage",
        ),
        (
            StageLoad {
                lanes: 0,
                ..good.clone()
            },
            "lanes",
        ),
        (
            StageLoad {
                lanes: 100_000,
                ..good.clone()
            },
            "lanes",
        ),
        (
            StageLoad {
                context: 0,
                ..good.clone()
            },
            "context",
        ),
        (
            StageLoad {
                context: u32::MAX,
                ..good.clone()
            },
            "too many",
        ),
        (
            StageLoad {
                threads: 0,
                ..good.clone()
            },
            "threads",
        ),
    ];
    for (spec, words) in cases {
        let reason = reason(&spec);
        assert!(reason.contains(words), "{reason}");
    }
    assert!(load(&good).is_ok());
}

#[test]
fn loading_reports_progress_and_can_be_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let good = spec(directory.path());
    let mut seen = Vec::new();
    let mut keep = |fraction| {
        seen.push(fraction);
        ControlFlow::Continue(())
    };
    assert!(LlamaLoader.load_stage(&good, &mut keep).is_ok());
    assert_eq!(seen.last(), Some(&1.0));
    assert!(seen.is_sorted());
    let given_up = LlamaLoader.load_stage(&good, &mut |_| ControlFlow::Break(()));
    assert_eq!(given_up.err(), Some(EngineError::Cancelled));
    let panics = LlamaLoader.load_stage(&good, &mut |_| panic!("progress"));
    assert_eq!(panics.err(), Some(EngineError::Cancelled));
}

#[test]
fn trouble_of_one_span_leaves_the_others_right() {
    let mut chain = Chain::new(&models::built_in(), &[0, 3, 8], 5, 128);
    let prompt = noise_tokens(30, 20, 2048);
    chain.open(0, 1, &greedy_sampling());
    let alone = chain.step(0, 1, 0, &prompt);
    for lane in 0..4 {
        chain.open(lane, 2, &greedy_sampling());
    }
    let output = chain.forward(vec![
        span(0, 2, 3, &prompt, 1),       // a gap
        span(1, 2, 0, &prompt, 1),       // right
        span(2, 2, 0, &[1, 9999, 2], 1), // no such token
        span(3, 77, 0, &prompt, 1),      // another session
        span(4, 2, 0, &prompt, 1),       // never opened
        span(9, 2, 0, &prompt, 1),       // no such lane
    ]);
    assert_eq!(output.spans.len(), 1);
    assert_eq!(output.spans[0].1, [alone]);
    let failed: Vec<u32> = output.failed.iter().map(|(span, _)| span.lane.0).collect();
    assert_eq!(failed, [0, 2, 3, 4, 9]);
    for (span, error) in &output.failed {
        println!("lane {}: {error}", span.lane);
    }
    assert!(matches!(&output.failed[1].1, EngineError::BadInput(words) if words.contains("token 9999")));
    // Lane 3 was not hurt by a stranger, and the others start again from 0.
    assert_eq!(chain.step(3, 2, 0, &prompt), alone);
    assert_eq!(chain.step(0, 2, 0, &prompt), alone);
    assert_eq!(chain.step(2, 2, 0, &prompt), alone);
}

#[test]
fn a_session_that_does_not_hold_the_lane_cannot_clear_it() {
    let mut chain = Chain::new(&models::built_in(), &[0, 8], 1, 128);
    let prompt = noise_tokens(31, 20, 2048);
    chain.open(0, 1, &greedy_sampling());
    let first = chain.step(0, 1, 0, &prompt);
    let next = chain.step(0, 1, 20, &[first]);
    let late = chain.forward(vec![span(0, 99, 0, &prompt, 1)]);
    assert_eq!(late.failed.len(), 1);
    assert_eq!(chain.step(0, 1, 20, &[first]), next);
}

#[test]
fn malformed_batches_fail_by_span_and_the_stage_lives() {
    let mut chain = Chain::new(&models::built_in(), &[0, 3, 8], 3, 128);
    let prompt = noise_tokens(32, 10, 2048);
    for lane in 0..3 {
        chain.open(lane, 1, &greedy_sampling());
    }
    let alone = chain.step(0, 1, 0, &prompt);
    // Lanes that do not ascend, or twice.
    let output = chain.forward(vec![
        span(1, 1, 0, &prompt, 1),
        span(1, 1, 0, &prompt, 1),
        span(0, 1, 0, &prompt, 1),
    ]);
    assert_eq!(output.spans.len(), 1);
    assert_eq!(output.spans[0].1, [alone]);
    assert_eq!(output.failed.len(), 2);
    // More sampled rows than rows, and no rows at all.
    let output = chain.forward(vec![span(0, 1, 0, &prompt, 11), span(1, 1, 10, &[], 0)]);
    assert_eq!(output.failed.len(), 1);
    assert_eq!(output.spans.len(), 1);
    // Too few activations.
    let batch = Batch {
        spans: vec![span(2, 1, 0, &prompt, 1)],
        activations: vec![0.0; 5],
    };
    let output = chain.stages[1].forward(&batch, &|_, _| false).unwrap();
    assert!(
        matches!(&output.failed[..], [(_, EngineError::BadInput(words))] if words.contains("not 1280")),
        "{:?}",
        output.failed
    );
    // An empty batch.
    let output = chain.stages[0].forward(&Batch::default(), &|_, _| false).unwrap();
    assert_eq!(output, mesh_actors::ports::engine::BatchOutput::default());
    assert_eq!(chain.step(2, 1, 0, &prompt), alone);
    assert!(
        chain.stages[0]
            .open(LaneId(3), SessionId(1), &greedy_sampling())
            .is_err()
    );
}

#[test]
fn activations_that_are_not_numbers_fail_their_own_lane() {
    let directory = tempfile::tempdir().unwrap();
    let mut stage = load(&StageLoad {
        lanes: 2,
        ..spec(directory.path())
    })
    .unwrap();
    for lane in 0..2 {
        stage.open(LaneId(lane), SessionId(1), &greedy_sampling()).unwrap();
    }
    let mut activations = vec![0.5; 4 * 128];
    activations[..256].fill(f32::NAN);
    let batch = Batch {
        spans: vec![span(0, 1, 0, &[1, 2], 1), span(1, 1, 0, &[1, 2], 1)],
        activations,
    };
    let output = stage.forward(&batch, &|_, _| false).unwrap();
    assert_eq!(output.spans.len(), 1);
    assert!(
        matches!(output.failed[..], [(_, EngineError::Sampling(_))]),
        "{:?}",
        output.failed
    );
}

#[test]
fn a_file_with_a_window_that_no_layer_uses_is_refused_and_does_not_end_the_process() {
    prepare();
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("gemma3.gguf");
    RandomModel::new("gemma3").write(&source).unwrap();
    let spec = cut(&source, &[0, 4, 8], directory.path()).swap_remove(0);
    // As cutters before ours left it: the pattern sliced, the window kept.
    let mut bytes = std::fs::read(&spec.path).unwrap();
    let key = b"gemma3.attention.sliding_window_pattern";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    // Behind the key: type and element type (u32 each), length (u64), and a byte for each layer.
    let values = at + key.len() + 16;
    assert_eq!(bytes[values..values + 4], [1; 4]);
    bytes[values..values + 4].fill(0);
    std::fs::write(&spec.path, bytes).unwrap();
    let reason = reason(&spec);
    assert!(reason.contains("sliding window"), "{reason}");
}
