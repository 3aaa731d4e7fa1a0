//! One batch on its way through a stage: admitted, computed call by call, put together.

use std::ops::Range;

use mesh_actors::ports::engine::{Batch, BatchOutput, EngineError, RowSpan};

use super::{LlamaStage, RecordedLogits};
use crate::{
    calls::{Piece, SpanProgress},
    raw::{context::RowInput, log},
};

/// A batch on its way.
pub(super) struct Run<'a> {
    batch: &'a Batch,
    pub(super) spans: Vec<SpanProgress>,
    /// First row of each span in the batch.
    offsets: Vec<usize>,
    sampled: Vec<Vec<u32>>,
    activations: Vec<f32>,
    failures: Vec<Option<EngineError>>,
}

impl Run<'_> {
    pub(super) fn fail(&mut self, span: usize, error: EngineError) {
        self.spans[span].live = false;
        self.failures[span] = Some(error);
    }

    pub(super) fn finish(mut self, n_embd: usize) -> BatchOutput {
        let mut output = BatchOutput::default();
        let mut kept = 0;
        for (index, span) in self.batch.spans.iter().enumerate() {
            if let Some(error) = self.failures[index].take() {
                output.failed.push((span.clone(), error));
            }
            if !self.spans[index].live {
                continue;
            }
            output
                .spans
                .push((span.clone(), std::mem::take(&mut self.sampled[index])));
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
    pub(super) fn start<'a>(&mut self, batch: &'a Batch) -> Run<'a> {
        let count = batch.spans.len();
        let mut run = Run {
            batch,
            spans: Vec::with_capacity(count),
            offsets: Vec::with_capacity(count),
            sampled: vec![Vec::new(); count],
            activations: if self.last {
                Vec::new()
            } else {
                vec![0.0; batch.rows() * self.n_embd]
            },
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
                run.fail(
                    index,
                    EngineError::Position {
                        lane: span.lane,
                        position: span.pos_start,
                        reason,
                    },
                );
                continue;
            }
            above = Some(span.lane);
            let admitted = if batch.activations.len() == values {
                self.admit(span)
            } else {
                Err(EngineError::BadInput(format!(
                    "{} activation values came with the batch, not {values}; all stages must be of one model",
                    batch.activations.len()
                )))
            };
            if let Err(error) = admitted {
                self.clear_after_failure(span);
                run.fail(index, error);
            }
        }
        run
    }

    /// Computes the rows in `self.call`, all of which ascend by position in each lane, and counts none of them.
    pub(super) fn decode(&mut self) -> Result<(), EngineError> {
        let rows = self.call.rows();
        self.context
            .decode(&mut self.call)
            .map_err(|status| EngineError::Decode {
                rows,
                status,
                reason: log::last_words(),
            })?;
        if self.last {
            return Ok(());
        }
        match self.context.captured() {
            Some(values) if values.len() == rows * self.n_embd => Ok(()),
            other => {
                let found = other.map_or(0, <[f32]>::len);
                let reason = format!("the last layer gave {found} values, not {rows} rows of {}", self.n_embd);
                Err(EngineError::Decode {
                    rows,
                    status: 0,
                    reason,
                })
            }
        }
    }

    /// Gives a lone row company where it would come out otherwise without: a second row of its own lane, and a second
    /// row with logits. Returns the lone row's place.
    fn pad(&mut self) -> Option<(u32, u32)> {
        if !self.limits.pads {
            return None;
        }
        let lone = self.call.pad_lone_row();
        if self.last {
            self.call.flag_two_outputs();
        }
        lone
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
    pub(super) fn compute(&mut self, run: &mut Run<'_>, pieces: &[Piece]) -> Result<(), EngineError> {
        self.fill_call(run, pieces);
        let lone = self.pad();
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

    /// Keeps a failed call to the lanes that are at fault: lanes that shared it are computed again, each alone, which
    /// gives them the same bits.
    pub(super) fn contain(&mut self, run: &mut Run<'_>, pieces: &[Piece], error: EngineError) {
        if let [piece] = pieces {
            self.clear_after_failure(&run.batch.spans[piece.span]);
            run.fail(piece.span, error);
            return;
        }
        for piece in pieces {
            let lane = run.spans[piece.span].lane;
            let length = self.lanes[lane as usize].length;
            let again = self
                .trim_cache(lane, length)
                .and_then(|()| self.compute(run, &[*piece]));
            if let Err(error) = again {
                self.contain(run, &[*piece], error);
            }
        }
    }

    fn sample_rows(
        &mut self,
        span: &RowSpan,
        rows: Range<usize>,
        first_in_call: usize,
    ) -> Result<Vec<u32>, EngineError> {
        let lane = &mut self.lanes[span.lane.0 as usize];
        let mut tokens = Vec::with_capacity(rows.len());
        for (index, row) in rows.enumerate() {
            let missing = || EngineError::Sampling("a flagged row has no logits".to_owned());
            let logits = self.context.logits(first_in_call + index).ok_or_else(missing)?;
            let position = span.pos_start as usize + row;
            let sampler = lane
                .sampler
                .as_mut()
                .ok_or_else(|| EngineError::Sampling("the lane was not opened".to_owned()))?;
            tokens.push(sampler.sample(&mut self.scratch, logits, &lane.history[..=position])?);
            if let Some(recorded) = &mut self.recorded {
                let position = u32::try_from(position).unwrap_or(u32::MAX);
                recorded.push(RecordedLogits {
                    lane: span.lane,
                    position,
                    values: logits.to_vec(),
                });
            }
        }
        Ok(tokens)
    }
}
