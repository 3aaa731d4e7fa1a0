//! Failures that only the inside can provoke.

use std::{ops::ControlFlow, path::Path};

use mesh_actors::ports::engine::{Batch, BatchOutput, EngineError, ExactCalls, RowSpan, StageEngine, StageLoad};
use mesh_proto::{LaneId, SessionId, sampling::greedy_sampling};

use super::LlamaStage;
use crate::{LlamaLoader, prepare_process, self_check};

fn spec() -> StageLoad {
    prepare_process(true);
    StageLoad {
        path: Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/psalm-2m-q8_0.gguf"),
        digest: String::new(),
        layers: 0..8,
        total_layers: 8,
        lanes: 4,
        context: 128,
        threads: 1,
        exact: true,
        gpu_layers: None,
        n_embd: 128,
        n_vocab: 2048,
        exact_calls: None,
    }
}

fn stage() -> LlamaStage {
    let mut stage = LlamaLoader
        .load_stage(&spec(), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    for lane in 0..4 {
        stage.open(LaneId(lane), SessionId(1), &greedy_sampling()).unwrap();
    }
    stage
}

fn forward(stage: &mut LlamaStage, lanes: &[u32], pos_start: u32, tokens: &[u32]) -> BatchOutput {
    let spans = lanes.iter().map(|lane| RowSpan {
        lane: LaneId(*lane),
        session: SessionId(1),
        pos_start,
        tokens: tokens.to_vec(),
        sampled_rows: 1,
    });
    let batch = Batch {
        spans: spans.collect(),
        activations: Vec::new(),
    };
    stage.forward(&batch, &|_, _| false).unwrap()
}

#[test]
fn a_call_that_llama_cpp_refuses_fails_only_the_lane_at_fault() {
    let mut stage = stage();
    let prompt: Vec<u32> = (100..120).collect();
    forward(&mut stage, &[0, 1, 2, 3], 0, &prompt);
    let right = forward(&mut stage, &[1], 20, &[7]).spans[0].1.clone();
    // Lane 1 loses cells behind the stage's back: llama.cpp finds a gap.
    assert!(stage.context.forget(1, 10));
    let output = forward(&mut stage, &[0, 2, 3], 20, &[7]);
    assert!(output.failed.is_empty());
    stage.lanes[1].truncate(20);
    let output = forward(&mut stage, &[0, 1, 2, 3], 20, &[7]);
    assert!(
        matches!(output.failed[..], [(_, EngineError::Decode { status: -1, .. })]),
        "{:?}",
        output.failed
    );
    assert_eq!(output.failed[0].0.lane, LaneId(1));
    let lanes: Vec<u32> = output.spans.iter().map(|(span, _)| span.lane.0).collect();
    assert_eq!(lanes, [0, 2, 3]);
    assert!(output.spans.iter().all(|(_, tokens)| *tokens == right));
    // The lane was cleared, and takes a prompt again.
    assert_eq!(stage.lanes[1].length, 0);
    forward(&mut stage, &[1], 0, &prompt);
    assert_eq!(forward(&mut stage, &[1], 20, &[7]).spans[0].1, right);
}

/// With keys and values of one type, ggml has kernels whose rounding depends on the call: the check must see them.
#[test]
fn the_self_check_finds_which_calls_agree() {
    let spec = StageLoad {
        context: 640,
        threads: 2,
        ..spec()
    };
    let find = |exact| {
        let load = StageLoad { exact, ..spec.clone() };
        let mut stage = LlamaLoader
            .load_unchecked(&load, &mut |_| ControlFlow::Continue(()))
            .unwrap();
        self_check::find(&mut stage, &load, &mut || {}).unwrap()
    };
    let all = ExactCalls { rows: 128, lone: true };
    assert_eq!(find(true), Some(all));
    let otherwise = find(false);
    assert!(
        otherwise.is_none_or(|found| found.rows < 128 && !found.lone),
        "{otherwise:?}"
    );
}
