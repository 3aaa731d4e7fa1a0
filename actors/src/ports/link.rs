//! Links between stages: frames one way, credits the other. iroh carries them in `mesh-links`; between two stages of
//! one node, and in tests, they pass in memory ([`crate::link::memory`]).

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use mesh_proto::{Epoch, LaneId, MeshError, NodeId, SessionId, TraceContext, v1::Sampling};

use super::engine::{Batch, RowSpan};

/// A session that starts on a lane.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneOpen {
    /// Lane.
    pub lane: LaneId,
    /// Occupation.
    pub session: SessionId,
    /// For the output stage.
    pub sampling: Box<Sampling>,
    /// The request's span, if it is traced.
    pub trace: Option<TraceContext>,
}

/// What travels on a link.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkFrame {
    /// A session starts on a lane.
    Open(LaneOpen),
    /// Rows to compute.
    Forward {
        /// Spans, with their activations.
        batch: Batch,
        /// Nanoseconds of engine time of each stage so far.
        engine_ns: Vec<u64>,
    },
    /// A session is over.
    Free {
        /// Lane.
        lane: LaneId,
        /// Occupation.
        session: SessionId,
    },
    /// A stage could not compute a session's rows; on its way to the head.
    Failed {
        /// Lane.
        lane: LaneId,
        /// Occupation.
        session: SessionId,
        /// Why.
        error: MeshError,
    },
    /// Output stage to head: what one `Forward` came to.
    Returned {
        /// Spans and the tokens drawn for them.
        spans: Vec<(RowSpan, Vec<u32>)>,
        /// Nanoseconds of engine time of all stages.
        engine_ns: Vec<u64>,
    },
}

/// Where a link belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkHello {
    /// Deployment.
    pub deployment: String,
    /// Its epoch.
    pub epoch: Epoch,
    /// Stage that connects.
    pub from_stage: u32,
    /// Stage that accepts; 0 is the return link of the output stage.
    pub to_stage: u32,
    /// Width of the model.
    pub n_embd: u32,
    /// Both ends must hold parts of the same source.
    pub source_id: String,
    /// First layer that the accepting stage must hold; 0 on a return link.
    pub layer: u32,
}

/// The sending end of a link, owned by the link's actor. Dropping it closes the link.
#[async_trait]
pub trait FrameWriter: Send + fmt::Debug + 'static {
    /// Sends one frame. The caller holds a credit for it.
    ///
    /// # Errors
    ///
    /// The link is lost; nothing can be sent on it any more.
    async fn write(&mut self, frame: LinkFrame) -> Result<(), MeshError>;

    /// Round trip to the receiver, as the transport measures it.
    fn rtt(&self) -> Option<Duration> {
        None
    }
}

/// What the sending stage hears from its link.
pub trait LinkEvents: Send + Sync + 'static {
    /// The receiver takes this many more frames.
    fn credit(&self, frames: u32);
    /// The link is gone. Said at most once.
    fn lost(&self, error: MeshError);
}

/// What the receiving stage hears from a link.
pub trait FrameSink: Send + Sync + 'static {
    /// A frame, in order. Never more than credits were granted.
    fn frame(&self, frame: LinkFrame);
    /// The link is gone: its sessions die with it. Said at most once.
    fn lost(&self, error: MeshError);
}

/// The accepting end of a link, in the hands of its stage: credits go back to the sender.
pub trait CreditGrant: Send + Sync + 'static {
    /// This many frames left the queue.
    fn grant(&self, frames: u32);
    /// The stage has ended: the link closes, and its sender hears so at once.
    fn close(&self);
}

/// The accepting end, chosen by the node's registry of stages.
pub struct Accepted {
    /// Takes the frames.
    pub sink: Arc<dyn FrameSink>,
    /// Frames that may be under way at first.
    pub credits: u32,
}

/// Finds the stage that a link asks for.
pub trait LinkAcceptor: Send + Sync + 'static {
    /// Checks a hello and takes the link; `grant` goes to the stage.
    ///
    /// # Errors
    ///
    /// Unknown deployment, epoch or stage, or parts of different models.
    fn accept(&self, from: NodeId, hello: &LinkHello, grant: Arc<dyn CreditGrant>) -> Result<Accepted, MeshError>;
}

/// Opens links.
#[async_trait]
pub trait StageLinks: Send + Sync + 'static {
    /// Connects to a stage on another node; the credits granted at first are reported through `events`.
    async fn connect(
        &self,
        to: NodeId,
        hello: LinkHello,
        events: Arc<dyn LinkEvents>,
    ) -> Result<Box<dyn FrameWriter>, MeshError>;
}
