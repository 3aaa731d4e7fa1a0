//! Handles around a request.

use std::sync::{Arc, atomic::AtomicBool};

use mesh_proto::{LaneId, MeshError, SessionId};
use ractor::{ActorCell, ActorRef};

use super::{actor::RequestMessage, machine::Input};
use crate::{
    events::EventBus,
    plugin::ModelPlugins,
    ports::{telemetry::Telemetry, vocabulary::Vocabulary},
};

/// What all requests of a deployment share.
#[derive(Clone)]
pub struct RequestOptions {
    /// Name of the deployment.
    pub deployment: Arc<str>,
    /// Tokenizer and template.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Positions per lane.
    pub context: u32,
    /// BLAKE3 identity of the model, for receipts.
    pub model_id: Arc<str>,
    /// Where lifecycle events go.
    pub events: EventBus,
    /// Whether requests are traced.
    pub telemetry: Arc<dyn Telemetry>,
    /// Plugins that follow its requests.
    pub plugins: ModelPlugins,
    /// Lanes can be rewound, so that candidates can be verified.
    pub rewinds: bool,
    /// Every stage is exact: known when the deployment is activated.
    pub exact: Arc<AtomicBool>,
    /// Lanes that share the stages.
    pub lanes: u32,
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

    /// Rows of it came back; `engine_ns` is the engine time of each stage for their batch.
    pub fn returned(&self, session: SessionId, pos_start: u32, rows: u32, tokens: Vec<u32>, engine_ns: Arc<[u64]>) {
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
