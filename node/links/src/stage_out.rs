//! The sending end of a stage link.
//!
//! ```text
//! LinkActor ── write ──▶ IrohWriter ──▶ stream ──▶ the next stage
//!                          │ owns
//! StageActor ◀── credit, lost ── reader task ◀── stream ◀──
//! ```

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use iroh::endpoint::{Connection, VarInt};
use mesh_actors::ports::link::{FrameWriter, LinkEvents, LinkFrame, LinkHello, StageLinks};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    wire::{LaneFailed, stage_header::Body},
};
use tokio::{task::AbortHandle, time::timeout};

use crate::{
    convert::{hello_to_wire, to_wire},
    error::{lost, protocol, too_late},
    peers::Peers,
    protocol::{ANSWER_LIMIT, STAGE_ALPN},
    stage_io::{FrameReceiver, FrameSender},
};

#[async_trait]
impl StageLinks for Peers {
    async fn connect(
        &self,
        to: NodeId,
        hello: LinkHello,
        events: Arc<dyn LinkEvents>,
    ) -> Result<Box<dyn FrameWriter>, MeshError> {
        let (name, _) = self.lookup(to)?;
        let connection = Peers::connect(self, to, STAGE_ALPN).await?;
        let shake = handshake(&connection, hello);
        let (sender, receiver, credits) = timeout(ANSWER_LIMIT, shake)
            .await
            .map_err(|_| too_late(&format!("node {name}"), ANSWER_LIMIT.as_secs()))??;
        events.credit(credits);
        let reader = tokio::spawn(read_credits(receiver, events, name)).abort_handle();
        Ok(Box::new(IrohWriter {
            sender,
            connection,
            reader,
        }))
    }
}

async fn handshake(connection: &Connection, hello: LinkHello) -> Result<(FrameSender, FrameReceiver, u32), MeshError> {
    let (send, recv) = connection
        .open_bi()
        .await
        .map_err(|error| lost("a stage link", &error))?;
    let (mut sender, mut receiver) = (FrameSender::new(send), FrameReceiver::new(recv));
    sender.send(Body::Hello(hello_to_wire(hello)), &[]).await?;
    match receiver.receive().await?.0 {
        Body::Welcome(welcome) => Ok((sender, receiver, welcome.credits)),
        Body::Failed(LaneFailed { code, message, .. }) => Err(MeshError::new(ErrorCode::from_name(&code), message)),
        _ => Err(protocol("a stage answered a hello with something else")),
    }
}

async fn read_credits(mut receiver: FrameReceiver, events: Arc<dyn LinkEvents>, peer: String) {
    let error = loop {
        match receiver.receive().await {
            Ok((Body::Credit(credit), _)) => events.credit(credit.frames),
            Ok(_) => break protocol("a stage link sent something else than credit backwards"),
            Err(error) => break error,
        }
    };
    events.lost(MeshError::new(
        ErrorCode::StageLost,
        format!("the link to node {peer} ended: {error}"),
    ));
}

/// Owns the connection of one link; dropping it closes the link.
#[derive(Debug)]
struct IrohWriter {
    sender: FrameSender,
    connection: Connection,
    reader: AbortHandle,
}

#[async_trait]
impl FrameWriter for IrohWriter {
    async fn write(&mut self, frame: LinkFrame) -> Result<(), MeshError> {
        let (body, payload) = to_wire(frame);
        self.sender.send(body, &payload).await
    }

    fn rtt(&self) -> Option<Duration> {
        let paths = self.connection.paths();
        paths.iter().find(|path| path.is_selected()).map(|path| path.rtt())
    }
}

impl Drop for IrohWriter {
    fn drop(&mut self) {
        self.reader.abort();
        self.connection.close(VarInt::from_u32(0), b"link closed");
    }
}
