//! A loaded stage: batches in, activations or sampled tokens out.
//!
//! Owned by one OS thread. A batch is checked span by span, cut into calls by [`calls`](crate::calls), and each
//! call's rows are put where they belong; trouble stays with the lanes of the call that had it.

use mesh_actors::ports::engine::{Batch, BatchOutput, EngineError, MemoryFigures, RowSpan, StageEngine, StageLoad};
use mesh_proto::{LaneId, SessionId, v1::Sampling};

use crate::{
    calls::{CallLimits, Piece, SpanProgress, next_call},
    lane::Lane,
    raw::{
        context::{Call, Context, RowInput},
        log,
    },
    sampling::{Sampler, SamplerScratch},
};

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
    asked_exact: bool,
    exact: bool,
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

/// A batch on its way.
struct Run<'a> {
    batch: &'a Batch,
    spans: Vec<SpanProgress>,
    /// First row of each span in the batch.
    offsets: Vec<usize>,
    sampled: Vec<Vec<u32>>,
    activations: Vec<f32>,
    failures: Vec<Option<EngineError>>,
}

impl Run<'_> {
    fn fail(&mut self, span: usize, error: EngineError) {
        self.spans[span].live = false;
        self.failures[span] = Some(error);
    }

    fn finish(mut self, n_embd: usize) -> BatchOutput {
        let mut output = BatchOutput::default();
        let mut kept = 0;
        for (index, span) in self.batch.spans.iter().enumerate() {
            if let Some(error) = self.failures[index].take() {
                output.failed.push((span.clone(), error));
            }
            if !self.spans[index].live {
                continue;
            }
            output.spans.push((span.clone(), std::mem::take(&mut self.sampled[index])));
            if !self.activations.is_empty() {
                let from = self.offsets[index] * n_embd;
                let values = span.rows() * n_embd;
                self.activations.copy_within(from..from + values, kept);
                kept += values;
            }
        }
        self.activations.truncate(kept);
        output.activations = self.activations;
        output
    }
}

impl LlamaStage {
    pub(crate) fn new(context: Context, load: &StageLoad, limits: CallLimits) -> Self {
        let model = context.model();
        let (n_embd, n_vocab) = (model.n_embd() as usize, model.n_vocab());
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
            asked_exact: load.exact,
            exact: false,
            n_embd,
            n_vocab,
            figures,
            recorded: None,
        }
    }

    pub(crate) fn set_exact(&mut self, exact: bool) {
        self.exact = exact;
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

    /// Computes the rows in `self.call`, all of which ascend by position in each lane, and counts none of them.
    fn decode(&mut self) -> Result<(), EngineError> {
        let rows = self.call.rows();
        self.context
            .decode(&mut self.call)
            .map_err(|status| EngineError::Decode { rows, status, reason: log::last_words() })?;
        if self.last {
            return Ok(());
        }
        match self.context.captured() {
            Some(values) if values.len() == rows * self.n_embd => Ok(()),
            other => {
                let found = other.map_or(0, <[f32]>::len);
                let reason = format!("the last layer gave {found} values, not {rows} rows of {}", self.n_embd);
                Err(EngineError::Decode { rows, status: 0, reason })
            }
        }
    }

    /// Bits of rows computed in a lane that the self-check has for itself: logits or activations of each row.
    pub(crate) fn probe(
        &mut self,
        rows: &[(u32, u32)],
        input: &dyn Fn(u32) -> ProbeInput,
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        self.call.clear();
        let inputs: Vec<ProbeInput> = rows.iter().map(|(_, position)| input(*position)).collect();
        for ((lane, position), input) in rows.iter().zip(&inputs) {
            self.call.push(*lane, *position, input.as_row(), true);
        }
        let lone = self.pad_lone_row();
        self.decode()?;
        if let Some((lane, position)) = lone {
            self.trim_cache(lane, position + 1)?;
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        let missing = || EngineError::Sampling("a flagged row has no logits".to_owned());
        (0..rows.len())
            .map(|row| {
                let values = if self.last {
                    self.context.logits(row)
                } else {
                    self.context.captured().and_then(|values| values.get(row * self.n_embd..(row + 1) * self.n_embd))
                };
                values.map(bits).ok_or_else(missing)
            })
            .collect()
    }

    /// Clears the cache of a lane, whatever it holds.
    pub(crate) fn clear_cache(&mut self, lane: u32) {
        if !self.context.forget(lane, 0) {
            tracing::warn!(lane, "llama.cpp did not clear a lane");
        }
    }

    fn trim_cache(&mut self, lane: u32, position: u32) -> Result<(), EngineError> {
        if self.context.forget(lane, position) {
            return Ok(());
        }
        let reason = "this model's memory cannot go back; free the lane and start again".to_owned();
        Err(EngineError::Position { lane: LaneId(lane), position, reason })
    }

    /// In exact mode, gives a lone row company: a second row of its own lane. Returns the lone row's place.
    fn pad_lone_row(&mut self) -> Option<(u32, u32)> {
        if self.asked_exact { self.call.pad_lone_row() } else { None }
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
            return Err(EngineError::Sampling(format!("{sampled} rows are to be sampled, and only {rows} sent")));
        }
        if self.first
            && let Some(token) = span.tokens.iter().find(|token| **token >= self.n_vocab)
        {
            let reason = format!("token {token} is outside the vocabulary of {}; check the prompt", self.n_vocab);
            return Err(EngineError::Decode { rows: span.rows(), status: -1, reason });
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
        if self.lanes.get(index).is_some_and(|lane| lane.session == Some(span.session)) {
            self.clear_cache(span.lane.0);
            self.lanes[index].truncate(0);
        }
    }

    fn start<'a>(&mut self, batch: &'a Batch) -> Run<'a> {
        let count = batch.spans.len();
        let mut run = Run {
            batch,
            spans: Vec::with_capacity(count),
            offsets: Vec::with_capacity(count),
            sampled: vec![Vec::new(); count],
            activations: if self.last { Vec::new() } else { vec![0.0; batch.rows() * self.n_embd] },
            failures: vec![None; count],
        };
        let mut offset = 0;
        let mut above = None;
        let values = if self.first { 0 } else { batch.rows() * self.n_embd };
        for (index, span) in batch.spans.iter().enumerate() {
            let wanted = if self.last { span.sampled_rows as usize } else { 0 };
            run.offsets.push(offset);
            offset += span.rows();
            run.spans.push(SpanProgress {
                lane: span.lane.0,
                done: 0,
                rows: span.rows(),
                outputs_from: span.rows().saturating_sub(wanted),
                live: true,
            });
            if above.is_some_and(|lane| lane >= span.lane) {
                // The lane stays as it is: another span of this batch is about to use it.
                let reason = "lanes of a batch must ascend, one span each".to_owned();
                run.fail(index, EngineError::Position { lane: span.lane, position: span.pos_start, reason });
                continue;
            }
            above = Some(span.lane);
            let admitted = if batch.activations.len() == values {
                self.admit(span)
            } else {
                let reason = format!("{} activation values came with the batch, not {values}", batch.activations.len());
                Err(EngineError::Decode { rows: batch.rows(), status: -1, reason })
            };
            if let Err(error) = admitted {
                self.clear_after_failure(span);
                run.fail(index, error);
            }
        }
        run
    }

    fn fill_call(&mut self, run: &Run<'_>, pieces: &[Piece]) {
        self.call.clear();
        for piece in pieces {
            let (span, progress) = (&run.batch.spans[piece.span], &run.spans[piece.span]);
            for row in progress.done..progress.done + piece.rows {
                let input = if self.first {
                    RowInput::Token(span.tokens[row])
                } else {
                    let from = (run.offsets[piece.span] + row) * self.n_embd;
                    RowInput::Activation(&run.batch.activations[from..from + self.n_embd])
                };
                let output = !self.last || row >= progress.outputs_from;
                let position = span.pos_start + u32::try_from(row).unwrap_or(u32::MAX);
                self.call.push(span.lane.0, position, input, output);
            }
        }
    }

    /// Computes a call and puts its rows where they belong. An error means all its lanes.
    fn compute(&mut self, run: &mut Run<'_>, pieces: &[Piece]) -> Result<(), EngineError> {
        self.fill_call(run, pieces);
        let lone = self.pad_lone_row();
        if self.last && self.asked_exact {
            self.call.flag_two_outputs();
        }
        self.decode()?;
        if let Some((lane, position)) = lone {
            self.trim_cache(lane, position + 1)?;
        }
        let mut row_in_call = 0;
        for piece in pieces {
            let progress = &run.spans[piece.span];
            let (from, to) = (progress.done, progress.done + piece.rows);
            let span = &run.batch.spans[piece.span];
            self.lanes[span.lane.0 as usize].length = span.pos_start + u32::try_from(to).unwrap_or(u32::MAX);
            if self.last {
                let first = progress.outputs_from.max(from);
                match self.sample_rows(span, first..to, row_in_call + first.saturating_sub(from)) {
                    Ok(tokens) => run.sampled[piece.span].extend(tokens),
                    Err(error) => {
                        self.clear_after_failure(span);
                        run.fail(piece.span, error);
                    }
                }
            } else if let Some(values) = self.context.captured() {
                let target = (run.offsets[piece.span] + from) * self.n_embd;
                let source = row_in_call * self.n_embd;
                let count = piece.rows * self.n_embd;
                run.activations[target..target + count].copy_from_slice(&values[source..source + count]);
            }
            run.spans[piece.span].done = to;
            row_in_call += piece.rows;
        }
        Ok(())
    }

    fn sample_rows(
        &mut self,
        span: &RowSpan,
        rows: std::ops::Range<usize>,
        first_in_call: usize,
    ) -> Result<Vec<u32>, EngineError> {
        let lane = &mut self.lanes[span.lane.0 as usize];
        let mut tokens = Vec::with_capacity(rows.len());
        for (index, row) in rows.enumerate() {
            let missing = || EngineError::Sampling("a flagged row has no logits".to_owned());
            let logits = self.context.logits(first_in_call + index).ok_or_else(missing)?;
            let position = span.pos_start as usize + row;
            let sampler =
                lane.sampler.as_mut().ok_or_else(|| EngineError::Sampling("the lane was not opened".to_owned()))?;
            tokens.push(sampler.sample(&mut self.scratch, logits, &lane.history[..=position])?);
            if let Some(recorded) = &mut self.recorded {
                let position = u32::try_from(position).unwrap_or(u32::MAX);
                recorded.push(RecordedLogits { lane: span.lane, position, values: logits.to_vec() });
            }
        }
        Ok(tokens)
    }
}

/// Input of the self-check, owned.
pub(crate) enum ProbeInput {
    Token(u32),
    Activation(Vec<f32>),
}

impl ProbeInput {
    fn as_row(&self) -> RowInput<'_> {
        match self {
            Self::Token(token) => RowInput::Token(*token),
            Self::Activation(values) => RowInput::Activation(values),
        }
    }
}

impl StageEngine for LlamaStage {
    fn open(&mut self, lane: LaneId, session: SessionId, sampling: &Sampling) -> Result<(), EngineError> {
        let lanes = self.lanes.len();
        if lane.0 as usize >= lanes {
            let reason = format!("the stage has lanes 0..{lanes}");
            return Err(EngineError::Position { lane, position: 0, reason });
        }
        let sampler = if self.last { Some(Sampler::new(sampling, self.n_vocab)?) } else { None };
        self.clear_cache(lane.0);
        self.lanes[lane.0 as usize] = Lane { session: Some(session), sampler, ..Lane::default() };
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
                for piece in &pieces {
                    self.clear_after_failure(&batch.spans[piece.span]);
                    run.fail(piece.span, error.clone());
                }
            }
        }
    }

    fn trim(&mut self, lane: LaneId, position: u32) -> Result<(), EngineError> {
        if (lane.0 as usize) < self.lanes.len() {
            return self.rewind(lane.0, position);
        }
        Err(EngineError::Position { lane, position, reason: format!("the stage has lanes 0..{}", self.lanes.len()) })
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

    fn is_exact(&self) -> bool {
        self.exact
    }
}
