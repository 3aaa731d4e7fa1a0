//! The accepting end of a stage link.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use iroh::endpoint::{Connection, VarInt};
use mesh_actors::{
    link::LINK_CREDITS,
    ports::link::{Accepted, CreditGrant, FrameSink, LinkAcceptor},
};
use mesh_proto::{
    ErrorCode, MeshError,
    frame::{MAX_PAYLOAD_BYTES, MAX_ROWS},
    wire::{Credit, LaneFailed, StageHello, StageWelcome, stage_header::Body},
};
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    convert::{LinkShape, from_wire, hello_from_wire},
    endpoint::peer_of,
    error::{lost, protocol, too_late},
    protocol::ADMISSION_LIMIT,
    stage_io::{FrameReceiver, FrameSender},
};

/// Credits are sent in lots: a frame for each would be one packet more on every hop, in the way of the activations.
/// Two of the four that a link has: the sender never waits for a lot to fill.
const CREDIT_LOT: u32 = LINK_CREDITS / 2;

/// Credits that wait to be sent.
#[derive(Default)]
struct Grants {
    given: AtomicU32,
    /// Frames that the peer may still send.
    outstanding: AtomicU32,
    wake: Notify,
    /// The stage has ended.
    closed: CancellationToken,
}

impl CreditGrant for Grants {
    fn grant(&self, frames: u32) {
        self.outstanding.fetch_add(frames, Ordering::AcqRel);
        let given = self.given.fetch_add(frames, Ordering::AcqRel).saturating_add(frames);
        if given >= CREDIT_LOT {
            self.wake.notify_one();
        }
    }

    fn close(&self) {
        self.closed.cancel();
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
    connection.close(VarInt::from_u32(0), b"link closed");
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
        () = grants.closed.cancelled() => {
            connection.close(VarInt::from_u32(0), b"the stage has ended");
            return Ok(());
        }
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mesh_actors::ports::link::{LinkEvents, LinkFrame, LinkHello, StageLinks};
    use mesh_proto::{Epoch, NodeId, v1::Node};
    use tokio::sync::{mpsc, oneshot, watch};

    use super::*;
    use crate::{ClientKey, LinkOptions, NodeEndpoint, Peers, protocol::IDLE_LIMIT};

    /// Takes one link and hands its grant to the test.
    struct Stage(mpsc::UnboundedSender<Arc<dyn CreditGrant>>);

    impl LinkAcceptor for Stage {
        fn accept(&self, _: NodeId, _: &LinkHello, grant: Arc<dyn CreditGrant>) -> Result<Accepted, MeshError> {
            let _ = self.0.send(grant);
            Ok(Accepted {
                sink: Arc::new(Nowhere),
                credits: 1,
            })
        }
    }

    struct Nowhere;

    impl FrameSink for Nowhere {
        fn frame(&self, _: LinkFrame) {}
        fn lost(&self, _: MeshError) {}
    }

    /// Hears of the end of the link.
    struct Sender(std::sync::Mutex<Option<oneshot::Sender<MeshError>>>);

    impl LinkEvents for Sender {
        fn credit(&self, _: u32) {}
        fn lost(&self, error: MeshError) {
            if let Some(lost) = self.0.lock().unwrap().take() {
                let _ = lost.send(error);
            }
        }
    }

    async fn endpoint(key: u8) -> NodeEndpoint {
        let options = LinkOptions {
            secret: [key; 32],
            listen: "127.0.0.1:0".parse().unwrap(),
        };
        NodeEndpoint::bind(&options).await.unwrap()
    }

    #[tokio::test]
    async fn a_stage_that_ends_closes_the_link_that_came_in() {
        let (sending, receiving) = (endpoint(1).await, endpoint(2).await);
        let (grants, mut granted) = mpsc::unbounded_channel();
        let accepting = receiving.clone();
        tokio::spawn(async move {
            let connection = accepting.iroh.accept().await.unwrap().await.unwrap();
            serve(connection, Arc::new(Stage(grants))).await;
        });
        let member = Node {
            id: receiving.id().to_string(),
            name: "b".to_owned(),
            addresses: receiving.addresses().iter().map(ToString::to_string).collect(),
            ..Node::default()
        };
        let (_members, members) = watch::channel(vec![member]);
        let hello = LinkHello {
            deployment: "x".to_owned(),
            epoch: Epoch(1),
            from_stage: 0,
            to_stage: 1,
            n_embd: 4,
            source_id: "source".to_owned(),
            layer: 2,
        };
        let (lost, on_lost) = oneshot::channel();
        let events = Arc::new(Sender(Some(lost).into()));
        let peers = Peers::new(sending.clone(), members, ClientKey::default());
        let _writer = StageLinks::connect(&peers, receiving.id(), hello, events)
            .await
            .unwrap();
        let grant = granted.recv().await.unwrap();
        let closed = Instant::now();
        grant.close();
        let error = timeout(Duration::from_secs(20), on_lost).await.unwrap().unwrap();
        assert_eq!(error.code, ErrorCode::StageLost);
        assert!(closed.elapsed() < IDLE_LIMIT / 2, "{:?}: {error}", closed.elapsed());
    }
}
