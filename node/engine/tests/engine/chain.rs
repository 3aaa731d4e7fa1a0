//! All stages of a model in one process, joined by hand.

use std::{
    ops::{ControlFlow, Range},
    path::Path,
    sync::Once,
};

use mesh_actors::ports::engine::{Batch, BatchOutput, EngineError, RowSpan, StageEngine, StageLoad};
use mesh_engine::{LlamaLoader, LlamaStage, RecordedLogits, prepare_process};
use mesh_gguf::{Gguf, StageCut, support};
use mesh_proto::{LaneId, SessionId, v1::Sampling};
use tempfile::TempDir;

/// Exact arithmetic, before anything of llama.cpp runs.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| prepare_process(true));
}

pub struct Chain {
    pub stages: Vec<LlamaStage>,
    _directory: TempDir,
}

/// Cuts a model at `cuts` (0 and the number of layers included) and gives what loading each stage needs.
pub fn cut(model: &Path, cuts: &[u32], directory: &Path) -> Vec<StageLoad> {
    let gguf = Gguf::open(model).unwrap();
    let architecture = support(&gguf).unwrap();
    let ranges = cuts.windows(2).map(|pair| pair[0]..pair[1]);
    ranges
        .map(|layers: Range<u32>| {
            let plan = StageCut::plan(&gguf, &architecture, layers.clone()).unwrap();
            let artifact = plan.write(directory, &mut |_| ControlFlow::Continue(())).unwrap();
            StageLoad {
                path: artifact.path,
                digest: artifact.manifest.blake3,
                layers,
                total_layers: architecture.layers(),
                lanes: 1,
                context: 256,
                threads: 1,
                exact: true,
                exact_calls: None,
                gpu_layers: None,
                n_embd: architecture.embedding_length(),
                n_vocab: architecture.vocab_size(),
            }
        })
        .collect()
}

pub fn load(spec: &StageLoad) -> Result<LlamaStage, EngineError> {
    LlamaLoader.load_stage(spec, &mut |_| ControlFlow::Continue(()))
}

pub fn span(lane: u32, session: u64, pos_start: u32, tokens: &[u32], sampled_rows: u32) -> RowSpan {
    RowSpan {
        lane: LaneId(lane),
        session: SessionId(session),
        pos_start,
        tokens: tokens.to_vec(),
        sampled_rows,
    }
}

impl Chain {
    pub fn new(model: &Path, cuts: &[u32], lanes: u32, context: u32) -> Self {
        Self::with_threads(model, cuts, lanes, context, 1)
    }

    pub fn with_threads(model: &Path, cuts: &[u32], lanes: u32, context: u32, threads: u32) -> Self {
        prepare();
        let directory = TempDir::new().unwrap();
        let stages = cut(model, cuts, directory.path())
            .into_iter()
            .map(|spec| {
                let spec = StageLoad {
                    lanes,
                    context,
                    threads,
                    ..spec
                };
                let mut stage = load(&spec).unwrap();
                assert!(
                    stage.is_exact(),
                    "the self-check failed for {:?}",
                    spec_name(model, cuts)
                );
                stage.record_logits();
                stage
            })
            .collect();
        Self {
            stages,
            _directory: directory,
        }
    }

    /// Some stage computes lone rows with a second one.
    pub fn pads(&self) -> bool {
        self.stages
            .iter()
            .any(|stage| stage.exact_calls().is_some_and(|calls| !calls.lone))
    }

    pub fn open(&mut self, lane: u32, session: u64, sampling: &Sampling) {
        for stage in &mut self.stages {
            stage.open(LaneId(lane), SessionId(session), sampling).unwrap();
        }
    }

    pub fn free(&mut self, lane: u32) {
        for stage in &mut self.stages {
            stage.free(LaneId(lane));
        }
    }

    /// One pass through all stages.
    pub fn forward(&mut self, spans: Vec<RowSpan>) -> BatchOutput {
        self.forward_unless(spans, &|_, _| false)
    }

    /// The same, with spans cancelled at the first stage.
    pub fn forward_unless(
        &mut self,
        spans: Vec<RowSpan>,
        cancelled: &dyn Fn(LaneId, SessionId) -> bool,
    ) -> BatchOutput {
        let mut batch = Batch {
            spans,
            activations: Vec::new(),
        };
        let mut failed = Vec::new();
        let last = self.stages.len() - 1;
        for (index, stage) in self.stages.iter_mut().enumerate() {
            let mut output = stage.forward(&batch, cancelled).unwrap();
            failed.append(&mut output.failed);
            if index == last {
                return BatchOutput { failed, ..output };
            }
            batch = Batch {
                spans: output.spans.into_iter().map(|(span, _)| span).collect(),
                activations: output.activations,
            };
        }
        unreachable!("a chain has stages")
    }

    /// Token sampled after the last row, nothing else in company.
    pub fn step(&mut self, lane: u32, session: u64, pos_start: u32, tokens: &[u32]) -> u32 {
        let output = self.forward(vec![span(lane, session, pos_start, tokens, 1)]);
        assert_eq!(output.failed, []);
        output.spans[0].1[0]
    }

    pub fn take_logits(&mut self) -> Vec<RecordedLogits> {
        self.stages.last_mut().unwrap().take_logits()
    }
}

fn spec_name(model: &Path, cuts: &[u32]) -> String {
    format!("{} {cuts:?}", model.display())
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Deterministic tokens below `vocabulary`.
pub fn noise_tokens(seed: u64, count: usize, vocabulary: u32) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as u32 % vocabulary
        })
        .collect()
}
