//! A stage's process needs its weights, KV cache and buffers, and little more.
//!
//! Each stage is loaded by a process of its own: this test binary again, with the stage's layers in its environment.

use std::{path::Path, process::Command};

use mesh_actors::ports::engine::{Batch, StageEngine, StageLoad};
use mesh_engine::EXACT_CALL_ROWS;
use mesh_proto::{LaneId, SessionId, sampling::greedy_sampling};

use crate::{
    chain::{cut, load, noise_tokens, prepare, span},
    models,
};

/// What a stage's process may take beside what its engine tells.
const ALLOWANCE: u64 = 150 << 20;

/// Set for the process that holds the stage: model, directory of the stage file, first layer, layer after the last.
const STAGE: &str = "MESH_TEST_MEMORY_STAGE";

const LANES: u32 = 4;
const CONTEXT: u32 = 2048;

/// A line of `/proc/self/status`, bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', '\t', ' ', 'k', 'B']).parse::<u64>().unwrap() * 1024
}

fn signed_mib(bytes: u64, less: u64) -> f64 {
    (bytes as f64 - less as f64) / f64::from(1 << 20)
}

fn hold(model: &Path, cuts: &[u32], stage: usize) {
    let directory = tempfile::tempdir().unwrap();
    cut(model, cuts, directory.path());
    let joined: Vec<String> = cuts.iter().map(u32::to_string).collect();
    let value = [
        model.to_str().unwrap(),
        directory.path().to_str().unwrap(),
        &joined.join("-"),
        &stage.to_string(),
    ]
    .join("\n");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::the_process_of_a_stage", "--nocapture"])
        .env(STAGE, value)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let told = told.lines().filter(|line| line.contains("MiB"));
    told.for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Loads the stage, uses all its lanes, and measures; nothing unless asked to.
#[test]
fn the_process_of_a_stage() {
    let Ok(value) = std::env::var(STAGE) else { return };
    let [model, directory, cuts, stage] = value.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let cuts: Vec<u32> = cuts.split('-').map(|cut| cut.parse().unwrap()).collect();
    prepare();
    // They are there already: this only finds them.
    let spec = cut(Path::new(model), &cuts, Path::new(directory)).swap_remove(stage.parse().unwrap());
    let before = status("VmRSS");
    let spec = StageLoad {
        lanes: LANES,
        context: CONTEXT,
        ..spec
    };
    let mut engine = load(&spec).unwrap();
    let loaded = status("VmRSS");
    exercise(&mut engine, &spec);
    let (memory, used, peak) = (engine.memory(), status("VmRSS"), status("VmHWM"));
    println!(
        "layers {:?} of {}: weights {:.1} + KV {:.1} + buffers {:.1} MiB; beside these {:.1} MiB resident, {:.1} at the \
         peak (process {:.1} MiB before, {:.1} loaded, {:.1} in use, {:.1} at the peak)",
        spec.layers,
        spec.total_layers,
        signed_mib(memory.weights, 0),
        signed_mib(memory.kv, 0),
        signed_mib(memory.compute, 0),
        signed_mib(used, memory.total()),
        signed_mib(peak, memory.total()),
        signed_mib(before, 0),
        signed_mib(loaded, 0),
        signed_mib(used, 0),
        signed_mib(peak, 0),
    );
    assert!(used.saturating_sub(memory.total()) <= ALLOWANCE);
    assert!(peak.saturating_sub(memory.total()) <= ALLOWANCE);
    // The figures are not simply too high: all of the weights and of the cache were touched.
    assert!(peak >= memory.weights + memory.kv);
}

/// Two full calls in every lane and a single row, so that all weights and buffers are in use. (llama.cpp touches the
/// whole cache at load.)
fn exercise(engine: &mut impl StageEngine, spec: &StageLoad) {
    let tokens = noise_tokens(5, 2 * EXACT_CALL_ROWS + 1, spec.n_vocab);
    let width = if spec.is_first() { 0 } else { spec.n_embd as usize };
    for lane in 0..LANES {
        engine.open(LaneId(lane), SessionId(1), &greedy_sampling()).unwrap();
        let mut position = 0;
        for chunk in tokens.chunks(EXACT_CALL_ROWS) {
            let batch = Batch {
                spans: vec![span(lane, 1, position, chunk, 1)],
                activations: vec![0.5; chunk.len() * width],
            };
            assert_eq!(engine.forward(&batch, &|_, _| false).unwrap().failed, []);
            position += u32::try_from(chunk.len()).unwrap();
        }
    }
}

#[test]
fn stages_of_the_built_in_model_need_what_they_tell() {
    for stage in 0..3 {
        hold(&models::built_in(), &[0, 3, 6, 8], stage);
    }
}

#[test]
fn stages_of_smollm2_need_what_they_tell() {
    if let Some(model) = models::real(models::SMOLLM2) {
        for stage in 0..3 {
            hold(&model, &[0, 10, 20, 30], stage);
        }
    }
}
