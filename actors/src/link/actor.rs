//! The actor that owns a [`FrameWriter`].

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};

use mesh_proto::MeshError;

use crate::{
    ports::link::{FrameWriter, LinkEvents, LinkFrame},
    stage::StageMeter,
};

/// How often the round trip is looked at: the transport takes a lock for it.
const RTT_INTERVAL: Duration = Duration::from_secs(1);

/// Sends frames in order. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LinkHandle {
    actor: ActorRef<LinkFrame>,
}

impl LinkHandle {
    /// Queues a frame; the caller holds a credit for it.
    pub fn send(&self, frame: LinkFrame) {
        let _ = self.actor.cast(frame);
    }

    /// Closes the link.
    pub fn stop(&self) {
        self.actor.stop(None);
    }
}

/// Starts the actor of a link under the stage's host.
///
/// # Errors
///
/// The actor does not start.
pub async fn spawn_link(
    writer: Box<dyn FrameWriter>,
    events: Arc<dyn LinkEvents>,
    meter: Arc<StageMeter>,
    host: ActorCell,
) -> Result<LinkHandle, MeshError> {
    let (actor, _) = Actor::spawn_linked(
        None,
        LinkActor,
        State {
            writer: Some(writer),
            events,
            meter,
            rtt_due: Instant::now(),
        },
        host,
    )
    .await
    .map_err(|error| MeshError::internal(format!("the link's actor did not start: {error}")))?;
    Ok(LinkHandle { actor })
}

struct State {
    /// `None` once the link is lost or the actor has stopped.
    writer: Option<Box<dyn FrameWriter>>,
    events: Arc<dyn LinkEvents>,
    meter: Arc<StageMeter>,
    /// When the round trip is looked at next.
    rtt_due: Instant,
}

impl State {
    /// The round trip, when it is due.
    fn rtt(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if now < self.rtt_due {
            return None;
        }
        self.rtt_due = now + RTT_INTERVAL;
        self.writer.as_ref().and_then(|writer| writer.rtt())
    }
}

struct LinkActor;

impl Actor for LinkActor {
    type Msg = LinkFrame;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, _: ActorRef<LinkFrame>, state: State) -> Result<State, ActorProcessingErr> {
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<LinkFrame>,
        frame: LinkFrame,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let Some(writer) = &mut state.writer else { return Ok(()) };
        let outgoing = state.meter.sends(&frame);
        if let Err(error) = writer.write(frame).await {
            state.writer = None;
            state.events.lost(error);
        } else if let Some(outgoing) = outgoing {
            let rtt = state.rtt();
            state.meter.sent(&outgoing, rtt);
        }
        Ok(())
    }

    /// Closes the link now: ractor hands the state to the supervisor, which may keep it.
    async fn post_stop(&self, _: ActorRef<LinkFrame>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.writer = None;
        Ok(())
    }
}
