//! The handle to a stage.

use std::sync::Arc;

use mesh_proto::{LaneId, MeshError, SessionId};
use ractor::ActorRef;

use super::{actor::StageMessage, thread::CancelBoard};
use crate::{
    link::LinkHandle,
    ports::{
        engine::RowSpan,
        link::{CreditGrant, FrameSink, LaneOpen, LinkEvents, LinkFrame},
    },
};

/// Cheap to clone. Messages to a stage that has ended are dropped: its host reports the end.
#[derive(Debug, Clone)]
pub struct StageHandle {
    pub(super) actor: ActorRef<StageMessage>,
    pub(super) board: Arc<CancelBoard>,
}

impl StageHandle {
    /// Stage 0: a session starts.
    pub fn open(&self, open: LaneOpen) {
        self.cast(StageMessage::Open(open));
    }

    /// Stage 0: rows to compute.
    pub fn rows(&self, span: RowSpan) {
        self.cast(StageMessage::Rows(span));
    }

    /// Stage 0: a session is over. Its rows are skipped from now on, also those in the engine.
    pub fn free(&self, lane: LaneId, session: SessionId) {
        self.board.cancel(lane, session);
        self.cast(StageMessage::Free { lane, session });
    }

    /// Frames of this stage go out on this link from now on.
    pub fn attach(&self, link: LinkHandle) {
        self.cast(StageMessage::Attach(link));
    }

    /// Credits for the frames of the stage before go back this way.
    pub fn accept(&self, grant: Arc<dyn CreditGrant>) {
        self.cast(StageMessage::Accept(grant));
    }

    /// Ends the stage; its engine's memory is free when the host's `ended` resolves.
    pub fn stop(&self) {
        self.actor.stop(None);
    }

    fn cast(&self, message: StageMessage) {
        let _ = self.actor.cast(message);
    }
}

impl FrameSink for StageHandle {
    fn frame(&self, frame: LinkFrame) {
        if let LinkFrame::Free { lane, session } = &frame {
            self.board.cancel(*lane, *session);
        }
        self.cast(StageMessage::Frame(frame));
    }

    fn lost(&self, error: MeshError) {
        self.cast(StageMessage::Lost(error));
    }
}

impl LinkEvents for StageHandle {
    fn credit(&self, frames: u32) {
        self.cast(StageMessage::Credit(frames));
    }

    fn lost(&self, error: MeshError) {
        self.cast(StageMessage::Lost(error));
    }
}
