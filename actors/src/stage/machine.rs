//! What a stage does next: which job its engine gets, which frame may go out, which credit goes back.
//!
//! Order is kept from end to end: jobs go to the engine in the order of arrival, what comes out goes to the outbox in
//! that order, and the outbox is sent in order as credits allow. So a lane's `Open`, rows and `Free` never overtake
//! each other on any stage.

use std::collections::VecDeque;

use mesh_proto::{LaneId, SessionId};

use super::batch::{BatchFormer, HeadJob};
use crate::ports::{
    engine::{Batch, BatchOutput, RowSpan},
    link::{LaneOpen, LinkFrame},
};

/// Jobs an engine holds: one running and one waiting, so that it does not idle while results travel. Stage 0 holds
/// one: what arrives meanwhile joins the next batch.
const ENGINE_DEPTH: usize = 2;

/// One job of the engine's thread.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineJob {
    /// Start a session.
    Open(LaneOpen),
    /// Compute.
    Forward {
        /// Rows.
        batch: Batch,
        /// Engine time of the stages before, nanoseconds.
        engine_ns: Vec<u64>,
    },
    /// End a session.
    Free {
        /// Lane.
        lane: LaneId,
        /// Occupation.
        session: SessionId,
    },
}

/// What became of a job.
#[derive(Debug)]
pub enum EngineDone {
    /// The session is open.
    Opened(LaneOpen),
    /// Rows were computed.
    Computed {
        /// Result.
        output: BatchOutput,
        /// Engine time of the stages up to this one, nanoseconds.
        engine_ns: Vec<u64>,
    },
    /// The session is over.
    Freed {
        /// Lane.
        lane: LaneId,
        /// Occupation.
        session: SessionId,
    },
    /// A session could not be opened.
    Failed {
        /// Lane.
        lane: LaneId,
        /// Occupation.
        session: SessionId,
        /// Why.
        error: mesh_proto::MeshError,
    },
}

/// What has to be done.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Give the engine a job.
    Run(EngineJob),
    /// Send a frame; a credit was taken for it.
    Send(LinkFrame),
    /// Give credits back to the stage before.
    Grant(u32),
}

#[derive(Debug)]
enum Source {
    Head(BatchFormer),
    Link(VecDeque<LinkFrame>),
}

/// One stage.
#[derive(Debug)]
pub struct StageMachine {
    source: Source,
    last: bool,
    depth: usize,
    in_engine: usize,
    outbox: VecDeque<LinkFrame>,
    credits: u32,
}

impl StageMachine {
    /// Stage 0 forms batches of at most `chunk` prompt rows; `last` if it is the only stage.
    pub fn head(chunk: usize, last: bool) -> Self {
        Self::new(Source::Head(BatchFormer::new(chunk)), last, 1)
    }

    /// A later stage takes frames as they come.
    pub fn link(last: bool) -> Self {
        Self::new(Source::Link(VecDeque::new()), last, ENGINE_DEPTH)
    }

    fn new(source: Source, last: bool, depth: usize) -> Self {
        Self {
            source,
            last,
            depth,
            in_engine: 0,
            outbox: VecDeque::new(),
            credits: 0,
        }
    }

    /// Frames that wait for the engine (metric).
    pub fn waiting(&self) -> usize {
        match &self.source {
            Source::Head(_) => 0,
            Source::Link(queue) => queue.len(),
        }
    }

    /// Stage 0: a session starts.
    pub fn open(&mut self, open: LaneOpen, effects: &mut Vec<Effect>) {
        if let Source::Head(former) = &mut self.source {
            former.open(open);
        }
        self.advance(effects);
    }

    /// Stage 0: rows to compute.
    pub fn rows(&mut self, span: RowSpan, effects: &mut Vec<Effect>) {
        if let Source::Head(former) = &mut self.source {
            former.rows(span);
        }
        self.advance(effects);
    }

    /// Stage 0: a session is over.
    pub fn free(&mut self, lane: LaneId, session: SessionId, effects: &mut Vec<Effect>) {
        if let Source::Head(former) = &mut self.source {
            former.free(lane, session);
        }
        self.advance(effects);
    }

    /// Later stages: a frame arrived.
    pub fn frame(&mut self, frame: LinkFrame, effects: &mut Vec<Effect>) {
        if let Source::Link(queue) = &mut self.source {
            queue.push_back(frame);
        }
        self.advance(effects);
    }

    /// The next stage takes more frames.
    pub fn credit(&mut self, frames: u32, effects: &mut Vec<Effect>) {
        self.credits = self.credits.saturating_add(frames);
        self.advance(effects);
    }

    /// The engine finished a job.
    pub fn done(&mut self, done: EngineDone, effects: &mut Vec<Effect>) {
        self.in_engine = self.in_engine.saturating_sub(1);
        match done {
            EngineDone::Opened(open) => {
                if !self.last {
                    self.outbox.push_back(LinkFrame::Open(open));
                }
            }
            EngineDone::Freed { lane, session } => {
                if !self.last {
                    self.outbox.push_back(LinkFrame::Free { lane, session });
                }
            }
            EngineDone::Failed { lane, session, error } => {
                self.outbox.push_back(LinkFrame::Failed { lane, session, error });
            }
            EngineDone::Computed { output, engine_ns } => self.computed(output, engine_ns),
        }
        self.advance(effects);
    }

    fn computed(&mut self, output: BatchOutput, engine_ns: Vec<u64>) {
        for (span, error) in output.failed {
            self.outbox.push_back(LinkFrame::Failed {
                lane: span.lane,
                session: span.session,
                error: error.into(),
            });
        }
        if output.spans.is_empty() {
            return;
        }
        self.outbox.push_back(if self.last {
            LinkFrame::Returned {
                spans: output.spans,
                engine_ns,
            }
        } else {
            let spans = output.spans.into_iter().map(|(span, _)| span).collect();
            LinkFrame::Forward {
                batch: Batch {
                    spans,
                    activations: output.activations,
                },
                engine_ns,
            }
        });
    }

    fn advance(&mut self, effects: &mut Vec<Effect>) {
        loop {
            while self.credits > 0
                && let Some(frame) = self.outbox.pop_front()
            {
                self.credits -= 1;
                effects.push(Effect::Send(frame));
            }
            // What cannot be sent is not computed either: the outbox stays as small as one job's output.
            if !self.outbox.is_empty() || self.in_engine >= self.depth {
                return;
            }
            if !self.start_one(effects) {
                return;
            }
        }
    }

    /// Takes one piece of work from the source; `false` when there is none.
    fn start_one(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mut granted = 0;
        let job = match &mut self.source {
            Source::Head(former) => match former.next_job() {
                None => return false,
                Some(HeadJob::Open(open)) => EngineJob::Open(open),
                Some(HeadJob::Free { lane, session }) => EngineJob::Free { lane, session },
                Some(HeadJob::Forward(batch)) => EngineJob::Forward {
                    batch,
                    engine_ns: Vec::new(),
                },
            },
            Source::Link(queue) => {
                let Some(frame) = queue.pop_front() else { return false };
                granted = 1;
                match frame {
                    LinkFrame::Open(open) => EngineJob::Open(open),
                    LinkFrame::Free { lane, session } => EngineJob::Free { lane, session },
                    LinkFrame::Forward { batch, engine_ns } => EngineJob::Forward { batch, engine_ns },
                    passed @ (LinkFrame::Failed { .. } | LinkFrame::Returned { .. }) => {
                        self.outbox.push_back(passed);
                        effects.push(Effect::Grant(1));
                        return true;
                    }
                }
            }
        };
        self.in_engine += 1;
        effects.push(Effect::Run(job));
        // The engine first: the credit can wait for a moment, the token cannot.
        if granted > 0 {
            effects.push(Effect::Grant(granted));
        }
        true
    }
}

#[cfg(test)]
mod tests;
