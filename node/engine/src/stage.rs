//! A loaded stage: batches in, activations or sampled tokens out.
//!
//! Owned by one OS thread. A batch is checked span by span, cut into calls by [`calls`](crate::calls), and each
//! call's rows are put where they belong; trouble stays with the lanes of the call that had it.

use mesh_actors::ports::engine::{
    Batch, BatchOutput, EngineError, ExactCalls, MemoryFigures, RowSpan, StageEngine, StageLoad,
};
use mesh_proto::{LaneId, SessionId, v1::Sampling};

use crate::{
    calls::{CallLimits, next_call},
    lane::Lane,
    raw::{
        context::{Call, Context},
        log,
    },
    sampling::{Sampler, SamplerScratch},
};

mod probe;
mod run;

pub(crate) use probe::ProbeInput;

/// A stage on llama.cpp.
pub struct LlamaStage {
    context: Context,
    call: Call,
    lanes: Vec<Lane>,
    scratch: SamplerScratch,
    limits: CallLimits,
    positions: u32,
    first: bool,
    last: bool,
    threads: u32,
    exact: Option<ExactCalls>,
    rewinds: bool,
    n_embd: usize,
    n_vocab: u32,
    figures: MemoryFigures,
    recorded: Option<Vec<RecordedLogits>>,
}

/// Logits of one sampled row, for tests.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedLogits {
    /// Lane of the row.
    pub lane: LaneId,
    /// Position of the row.
    pub position: u32,
    /// One value per token of the vocabulary.
    pub values: Vec<f32>,
}

impl LlamaStage {
    pub(crate) fn new(context: Context, load: &StageLoad, limits: CallLimits) -> Self {
        let model = context.model();
        let (n_embd, n_vocab) = (model.n_embd() as usize, model.n_vocab());
        let rewinds = !model.is_recurrent();
        let logits = limits.outputs as u64 * u64::from(n_vocab) * size_of::<f32>() as u64;
        let figures = MemoryFigures {
            weights: model.tensor_bytes(),
            kv: log::sum_of_sizes("KV buffer size"),
            compute: log::sum_of_sizes("compute buffer size").saturating_add(logits),
        };
        Self {
            context,
            call: Call::default(),
            lanes: (0..load.lanes).map(|_| Lane::default()).collect(),
            scratch: SamplerScratch::default(),
            limits,
            positions: load.context,
            first: load.is_first(),
            last: load.is_last(),
            threads: load.threads,
            exact: None,
            rewinds,
            n_embd,
            n_vocab,
            figures,
            recorded: None,
        }
    }

    /// Keeps to calls that agree; to what was asked for where none do.
    pub(crate) fn keep_to(&mut self, exact: Option<ExactCalls>) {
        if let Some(found) = exact {
            self.limits.rows = self.limits.rows.min(found.rows as usize);
            self.limits.outputs = self.limits.outputs.min(self.limits.rows);
            self.limits.pads = !found.lone;
        }
        self.exact = exact;
    }

    /// Most rows of a call.
    pub(crate) fn call_rows(&self) -> u32 {
        u32::try_from(self.limits.rows).unwrap_or(u32::MAX)
    }

    pub(crate) fn threads(&self) -> u32 {
        self.threads
    }

    pub(crate) fn set_threads(&mut self, threads: u32) {
        self.context.set_threads(threads);
        self.threads = threads;
    }

    /// Keeps the logits of sampled rows from now on, for [`take_logits`](Self::take_logits).
    pub fn record_logits(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// Logits recorded since the last time, in the order of computing.
    pub fn take_logits(&mut self) -> Vec<RecordedLogits> {
        self.recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn is_first(&self) -> bool {
        self.first
    }

    pub(crate) fn n_embd(&self) -> usize {
        self.n_embd
    }

    pub(crate) fn n_vocab(&self) -> u32 {
        self.n_vocab
    }

    pub(crate) fn positions(&self) -> u32 {
        self.positions
    }

    pub(crate) fn lane_count(&self) -> u32 {
        u32::try_from(self.lanes.len()).unwrap_or(u32::MAX)
    }

    /// Clears the cache of a lane, whatever it holds.
    pub(crate) fn clear_cache(&mut self, lane: u32) {
        if !self.context.forget(lane, 0) {
            tracing::warn!(lane, "llama.cpp did not clear a lane");
        }
    }

    pub(crate) fn trim_cache(&mut self, lane: u32, position: u32) -> Result<(), EngineError> {
        if self.context.forget(lane, position) {
            return Ok(());
        }
        let reason = "this model's memory cannot go back; free the lane and start again".to_owned();
        Err(EngineError::Position {
            lane: LaneId(lane),
            position,
            reason,
        })
    }

    /// Checks a span and rewinds its lane to where the span starts.
    fn admit(&mut self, span: &RowSpan) -> Result<(), EngineError> {
        let unknown = || EngineError::Position {
            lane: span.lane,
            position: span.pos_start,
            reason: format!("the stage has lanes 0..{}", self.lanes.len()),
        };
        let lane = self.lanes.get(span.lane.0 as usize).ok_or_else(unknown)?;
        lane.check(span.lane, span.session, span.pos_start, span.rows(), self.positions)?;
        if span.sampled_rows as usize > span.rows() {
            let (sampled, rows) = (span.sampled_rows, span.rows());
            return Err(EngineError::Sampling(format!(
                "{sampled} rows are to be sampled, and only {rows} sent"
            )));
        }
        if self.first
            && let Some(token) = span.tokens.iter().find(|token| **token >= self.n_vocab)
        {
            return Err(EngineError::BadInput(format!(
                "token {token} is outside the vocabulary of {}; check the prompt",
                self.n_vocab
            )));
        }
        self.rewind(span.lane.0, span.pos_start)?;
        if self.last {
            self.lanes[span.lane.0 as usize].history.extend_from_slice(&span.tokens);
        }
        Ok(())
    }

    fn rewind(&mut self, lane: u32, position: u32) -> Result<(), EngineError> {
        if position < self.lanes[lane as usize].length {
            self.trim_cache(lane, position)?;
        }
        // The history may be ahead of the cache where a span was cancelled half-way.
        self.lanes[lane as usize].truncate(position);
        Ok(())
    }

    /// Clears a lane after trouble; a session that does not hold it cannot clear it.
    fn clear_after_failure(&mut self, span: &RowSpan) {
        let index = span.lane.0 as usize;
        if self
            .lanes
            .get(index)
            .is_some_and(|lane| lane.session == Some(span.session))
        {
            self.clear_cache(span.lane.0);
            self.lanes[index].truncate(0);
        }
    }
}

impl StageEngine for LlamaStage {
    fn open(&mut self, lane: LaneId, session: SessionId, sampling: &Sampling) -> Result<(), EngineError> {
        let lanes = self.lanes.len();
        if lane.0 as usize >= lanes {
            let reason = format!("the stage has lanes 0..{lanes}");
            return Err(EngineError::Position {
                lane,
                position: 0,
                reason,
            });
        }
        let sampler = if self.last {
            Some(Sampler::new(sampling, self.n_vocab)?)
        } else {
            None
        };
        self.clear_cache(lane.0);
        self.lanes[lane.0 as usize] = Lane {
            session: Some(session),
            sampler,
            ..Lane::default()
        };
        Ok(())
    }

    fn forward(
        &mut self,
        batch: &Batch,
        cancelled: &dyn Fn(LaneId, SessionId) -> bool,
    ) -> Result<BatchOutput, EngineError> {
        let mut run = self.start(batch);
        loop {
            let pieces = next_call(&run.spans, self.limits);
            if pieces.is_empty() {
                return Ok(run.finish(self.n_embd));
            }
            let mut dropped = false;
            for piece in &pieces {
                let span = &batch.spans[piece.span];
                if cancelled(span.lane, span.session) {
                    run.spans[piece.span].live = false;
                    dropped = true;
                }
            }
            if dropped {
                continue;
            }
            if let Err(error) = self.compute(&mut run, &pieces) {
                self.contain(&mut run, &pieces, error);
            }
        }
    }

    fn trim(&mut self, lane: LaneId, position: u32) -> Result<(), EngineError> {
        if (lane.0 as usize) < self.lanes.len() {
            return self.rewind(lane.0, position);
        }
        Err(EngineError::Position {
            lane,
            position,
            reason: format!("the stage has lanes 0..{}", self.lanes.len()),
        })
    }

    fn free(&mut self, lane: LaneId) {
        if let Some(held) = self.lanes.get_mut(lane.0 as usize) {
            *held = Lane::default();
            self.clear_cache(lane.0);
        }
    }

    fn memory(&self) -> MemoryFigures {
        self.figures
    }

    fn exact_calls(&self) -> Option<ExactCalls> {
        self.exact
    }

    fn can_rewind(&self) -> bool {
        self.rewinds
    }
}

#[cfg(test)]
mod tests;
