//! Handles around a request.

use std::sync::Arc;

use mesh_proto::{LaneId, MeshError, SessionId};
use ractor::{ActorCell, ActorRef};

use super::{actor::RequestMessage, machine::Input};
use crate::ports::{events::EventSink, vocabulary::Vocabulary};

/// What all requests of a deployment share.
#[derive(Clone)]
pub struct RequestOptions {
    /// Name of the deployment.
    pub deployment: Arc<str>,
    /// Tokenizer and template.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Positions per lane.
    pub context: u32,
    /// Where lifecycle events go.
    pub events: Arc<dyn EventSink>,
}

/// How the head talks to a request.
#[derive(Debug, Clone)]
pub struct RequestHandle {
    pub(super) actor: ActorRef<RequestMessage>,
}

impl RequestHandle {
    /// It has a lane.
    pub fn granted(&self, lane: LaneId, session: SessionId) {
        self.input(Input::Granted { lane, session });
    }

    /// Rows of it came back; `engine_ns` is the engine time of all stages for their batch.
    pub fn returned(&self, session: SessionId, pos_start: u32, rows: u32, tokens: Vec<u32>, engine_ns: u64) {
        let input = Input::Returned {
            session,
            pos_start,
            rows,
            tokens,
        };
        let _ = self.actor.cast(RequestMessage::Returned { input, engine_ns });
    }

    /// A stage could not compute it.
    pub fn lane_failed(&self, session: SessionId, error: MeshError) {
        self.input(Input::LaneFailed { session, error });
    }

    /// Somebody wants it cancelled.
    pub fn cancel(&self) {
        self.input(Input::Cancel);
    }

    /// The epoch is over.
    pub fn end(&self, error: MeshError) {
        self.input(Input::Break(error));
    }

    /// Whether `cell` is this request's actor.
    pub fn is(&self, cell: &ActorCell) -> bool {
        self.actor.get_id() == cell.get_id()
    }

    fn input(&self, input: Input) {
        let _ = self.actor.cast(RequestMessage::Input(input));
    }
}
