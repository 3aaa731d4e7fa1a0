//! The accepting end of a stage link.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use iroh::endpoint::Connection;
use mesh_actors::ports::link::{Accepted, CreditGrant, FrameSink, LinkAcceptor};
use mesh_proto::{
    ErrorCode, MeshError,
    frame::{MAX_PAYLOAD_BYTES, MAX_ROWS},
    wire::{Credit, LaneFailed, StageHello, StageWelcome, stage_header::Body},
};
use tokio::{sync::Notify, time::timeout};

use crate::{
    convert::{LinkShape, from_wire, hello_from_wire},
    endpoint::peer_of,
    error::{lost, protocol, too_late},
    protocol::ADMISSION_LIMIT,
    stage_io::{FrameReceiver, FrameSender},
};

/// Credits that wait to be sent; several become one frame.
#[derive(Default)]
struct Grants {
    given: AtomicU32,
    /// Frames that the peer may still send.
    outstanding: AtomicU32,
    wake: Notify,
}

impl CreditGrant for Grants {
    fn grant(&self, frames: u32) {
        self.outstanding.fetch_add(frames, Ordering::AcqRel);
        self.given.fetch_add(frames, Ordering::AcqRel);
        self.wake.notify_one();
    }
}

impl Grants {
    /// Takes one credit for a frame that arrived.
    fn spend(&self) -> Result<(), MeshError> {
        let spent = self
            .outstanding
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        spent
            .map(drop)
            .map_err(|_| protocol("a stage sent more frames than it has credit for"))
    }
}

/// Serves one link until it ends. The peer is a member.
pub async fn serve(connection: Connection, acceptor: Arc<dyn LinkAcceptor>) {
    if let Err(error) = run(&connection, acceptor.as_ref()).await {
        tracing::debug!(peer = %peer_of(&connection), %error, "stage link ended");
    }
}

async fn run(connection: &Connection, acceptor: &dyn LinkAcceptor) -> Result<(), MeshError> {
    let opening = async {
        let (send, recv) = connection
            .accept_bi()
            .await
            .map_err(|error| lost("a stage link", &error))?;
        let (sender, mut receiver) = (FrameSender::new(send), FrameReceiver::new(recv));
        match receiver.receive().await?.0 {
            Body::Hello(hello) => Ok((sender, receiver, hello)),
            _ => Err(protocol("a stage link did not start with a hello")),
        }
    };
    let (mut sender, mut receiver, hello) = timeout(ADMISSION_LIMIT, opening)
        .await
        .map_err(|_| too_late("a stage that connected", ADMISSION_LIMIT.as_secs()))??;
    let grants = Arc::new(Grants::default());
    let accepted = match acceptor.accept(peer_of(connection), &hello_from_wire(hello.clone()), grants.clone()) {
        Ok(accepted) => accepted,
        Err(error) => return refuse(connection, sender, error).await,
    };
    grants.outstanding.store(accepted.credits, Ordering::Release);
    sender
        .send(
            Body::Welcome(StageWelcome {
                credits: accepted.credits,
            }),
            &[],
        )
        .await?;
    receiver.allow_payload(payload_limit(&hello));
    let shape = LinkShape {
        n_embd: hello.n_embd as usize,
        is_return: hello.to_stage == 0,
    };
    let Accepted { sink, .. } = accepted;
    let error = tokio::select! {
        error = read_frames(&mut receiver, shape, &grants, sink.as_ref()) => error,
        error = write_credits(&mut sender, &grants) => error,
    };
    sink.lost(MeshError::new(
        ErrorCode::StageLost,
        format!("the link from stage {} ended: {error}", hello.from_stage),
    ));
    Ok(())
}

fn payload_limit(hello: &StageHello) -> usize {
    (hello.n_embd as usize)
        .saturating_mul(MAX_ROWS * 4)
        .min(MAX_PAYLOAD_BYTES)
}

async fn refuse(connection: &Connection, mut sender: FrameSender, error: MeshError) -> Result<(), MeshError> {
    let refusal = LaneFailed {
        code: error.code.name().to_owned(),
        message: error.message,
        ..LaneFailed::default()
    };
    sender.send(Body::Failed(refusal), &[]).await?;
    // The peer closes when it has read the refusal.
    let _ = timeout(ADMISSION_LIMIT, connection.closed()).await;
    Ok(())
}

async fn read_frames(
    receiver: &mut FrameReceiver,
    shape: LinkShape,
    grants: &Grants,
    sink: &dyn FrameSink,
) -> MeshError {
    loop {
        let frame = match receiver.receive().await {
            Ok((body, payload)) => grants.spend().and_then(|()| from_wire(body, payload, shape)),
            Err(error) => Err(error),
        };
        match frame {
            Ok(frame) => sink.frame(frame),
            Err(error) => return error,
        }
    }
}

async fn write_credits(sender: &mut FrameSender, grants: &Grants) -> MeshError {
    loop {
        grants.wake.notified().await;
        let frames = grants.given.swap(0, Ordering::AcqRel);
        if frames == 0 {
            continue;
        }
        if let Err(error) = sender.send(Body::Credit(Credit { frames }), &[]).await {
            return error;
        }
    }
}
