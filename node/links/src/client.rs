//! What a node asks of others on control streams.

use std::sync::Arc;

use async_trait::async_trait;
use iroh::endpoint::{Connection, RecvStream, SendStream, VarInt};
use mesh_actors::{
    host::{HostEnvironment, StageOwner, spawn_host},
    ports::{
        deployment::{HOST_COMMANDS, HOST_EVENTS, HostSession, Hosts},
        inference::{Caller, Generation},
    },
    request::journal::{JournalWriter, journal},
};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{GenerateFailed, GenerateRequest, Lanes, Node, generate_response::Event},
    wire::{
        self, Artifact, FetchRequest, FetchResponse, GenerateCall, GenerateReply, HostEvent, HostStage, JoinRequest,
        JoinResponse, KeyInUse, KeyInUseResponse, LanesRequest, LanesResponse, LeaveRequest, LeaveResponse, MemberList,
        RemoveNode, RemoveNodeResponse, StageSpec, StopDeployment, StopDeploymentResponse, control_request::Request,
        fetch_response, generate_reply::Reply, join_response,
    },
};
use tokio::{
    io::{AsyncRead, AsyncWriteExt},
    sync::{OnceCell, mpsc},
    time::timeout,
};

use crate::{
    admission::{JOIN_LABEL, exporter},
    client_key::ClientKey,
    endpoint::NodeEndpoint,
    error::{protocol, too_late},
    message,
    peers::{Peers, connect, open},
    protocol::{ANSWER_LIMIT, CONTROL_ALPN, JOINED, MAX_MESSAGE},
    ticket::Ticket,
};

/// Waits for an answer that needs no work.
async fn answer<T>(what: &str, answer: impl Future<Output = Result<T, MeshError>>) -> Result<T, MeshError> {
    timeout(ANSWER_LIMIT, answer)
        .await
        .map_err(|_| too_late(what, ANSWER_LIMIT.as_secs()))?
}

/// Joins a mesh with a ticket; gives the member list.
///
/// # Errors
///
/// The issuer cannot be reached, does not answer in time, or refuses: each names itself.
pub async fn join(
    endpoint: &NodeEndpoint,
    ticket: &Ticket,
    own: Node,
    key: &ClientKey,
) -> Result<MemberList, MeshError> {
    let joined = async {
        let connection = connect_issuer(endpoint, ticket).await?;
        let proof = ticket.proof(&exporter(&connection, JOIN_LABEL)?);
        let request = JoinRequest {
            ticket_id: ticket.id.to_vec(),
            proof,
            node: Some(own),
        };
        let (_send, mut recv) = open(&connection, Request::Join(request), key).await?;
        let response: JoinResponse = message::expect(&mut recv, MAX_MESSAGE).await?;
        connection.close(VarInt::from_u32(0), JOINED);
        admitted(response)
    };
    answer("the node that issued the ticket", joined).await
}

/// Takes back a join that came to nothing after all: its name is free again.
///
/// # Errors
///
/// The issuer cannot be reached, or does not answer in time.
pub async fn take_back_join(endpoint: &NodeEndpoint, ticket: &Ticket) -> Result<(), MeshError> {
    let left = async {
        let connection = connect_issuer(endpoint, ticket).await?;
        let (_send, mut recv) = open(&connection, Request::Leave(LeaveRequest {}), &ClientKey::default()).await?;
        message::expect::<LeaveResponse>(&mut recv, MAX_MESSAGE).await?;
        connection.close(VarInt::from_u32(0), b"left");
        Ok(())
    };
    answer("the node that issued the ticket", left).await
}

async fn connect_issuer(endpoint: &NodeEndpoint, ticket: &Ticket) -> Result<Connection, MeshError> {
    let name = "that issued the ticket";
    connect(endpoint, ticket.issuer, name, &ticket.addresses, CONTROL_ALPN).await
}

/// The list in a response, or the refusal.
pub fn admitted(response: JoinResponse) -> Result<MemberList, MeshError> {
    match response.result {
        Some(join_response::Result::Admitted(list)) => Ok(list),
        Some(join_response::Result::Refused(refusal)) => Err(refusal.into()),
        None => Err(protocol("a join was answered with nothing")),
    }
}

impl Peers {
    /// Lanes of a deployment at its head; `None` if it is not the head any more.
    pub async fn lanes(&self, head: NodeId, deployment: &str, epoch: u64) -> Result<Option<Lanes>, MeshError> {
        let request = LanesRequest {
            deployment: deployment.to_owned(),
            epoch,
        };
        let asked = async {
            let (_send, mut recv) = self.request(head, Request::Lanes(request)).await?;
            Ok(message::expect::<LanesResponse>(&mut recv, MAX_MESSAGE).await?.lanes)
        };
        answer("the head", asked).await
    }

    /// Tells the issuer that this node leaves.
    pub async fn leave(&self, issuer: NodeId) -> Result<(), MeshError> {
        let asked = async {
            let (_send, mut recv) = self.request(issuer, Request::Leave(LeaveRequest {})).await?;
            message::expect::<LeaveResponse>(&mut recv, MAX_MESSAGE).await.map(drop)
        };
        answer("the issuer", asked).await
    }

    /// Has the issuer take a node out of the mesh.
    pub async fn remove_node(&self, issuer: NodeId, name: &str) -> Result<(), MeshError> {
        let asked = async {
            let request = Request::Remove(RemoveNode { name: name.to_owned() });
            let (_send, mut recv) = self.request(issuer, request).await?;
            let response: RemoveNodeResponse = message::expect(&mut recv, MAX_MESSAGE).await?;
            response.refused.map_or(Ok(()), |refusal| Err(refusal.into()))
        };
        answer("the issuer", asked).await
    }

    /// Tells a node that another process tried to use its key.
    pub(crate) async fn key_in_use(&self, node: NodeId, other: String) -> Result<(), MeshError> {
        let told = async {
            let (_send, mut recv) = self.request(node, Request::KeyInUse(KeyInUse { other })).await?;
            message::expect::<KeyInUseResponse>(&mut recv, MAX_MESSAGE)
                .await
                .map(drop)
        };
        answer("the node whose key it is", told).await
    }

    /// Stops a deployment at its owner.
    pub async fn stop_deployment(&self, owner: NodeId, name: &str) -> Result<(), MeshError> {
        let (_send, mut recv) = self
            .request(owner, Request::Stop(StopDeployment { name: name.to_owned() }))
            .await?;
        let response: StopDeploymentResponse = message::expect(&mut recv, MAX_MESSAGE).await?;
        response.refused.map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// Asks for a file from an offset on; the reader gives its bytes.
    pub async fn fetch(
        &self,
        source: NodeId,
        artifact: &Artifact,
        offset: u64,
    ) -> Result<impl AsyncRead + Unpin + Send + use<>, MeshError> {
        let request = FetchRequest {
            digest: artifact.digest.clone(),
            offset,
        };
        let asked = async {
            let (_send, mut recv) = self.request(source, Request::Fetch(request)).await?;
            match message::expect::<FetchResponse>(&mut recv, MAX_MESSAGE).await?.result {
                Some(fetch_response::Result::Found(found)) if found.digest == artifact.digest => Ok(recv),
                Some(fetch_response::Result::Refused(refusal)) => Err(refusal.into()),
                _ => Err(protocol("a fetch was answered with another file")),
            }
        };
        answer("the node that has the model", asked).await
    }

    /// Generates on the head of a deployment on another node.
    pub async fn generate(
        &self,
        head: NodeId,
        request: GenerateRequest,
        caller: Caller,
    ) -> Result<Generation, MeshError> {
        let call = GenerateCall {
            request: Some(request),
            agent_session: caller
                .agent_session
                .map(|session| session.to_string())
                .unwrap_or_default(),
            traceparent: caller.trace.map(|trace| trace.to_string()).unwrap_or_default(),
        };
        let (mut send, mut recv) = self.request(head, Request::Generate(call)).await?;
        let started = match message::expect::<GenerateReply>(&mut recv, MAX_MESSAGE).await?.reply {
            Some(Reply::Event(event)) => match event.event {
                Some(Event::Started(started)) => started,
                _ => return Err(protocol("a generation did not start with its start")),
            },
            Some(Reply::Refused(refusal)) => return Err(refusal.into()),
            None => return Err(protocol("a generation was answered with nothing")),
        };
        let (writer, events) = journal();
        let (head, _) = self.lookup(head)?;
        tokio::spawn(async move {
            let cancelled = writer.cancelled();
            tokio::select! {
                () = copy_events(&mut recv, &writer, &head) => {}
                // Ends the stream: the head cancels the request.
                () = cancelled.cancelled() => {}
            }
            let _ = send.finish();
        });
        Ok(Generation { started, events })
    }
}

/// Copies events into the journal until a terminal; a lost stream is one.
async fn copy_events(recv: &mut RecvStream, writer: &JournalWriter, head: &str) {
    loop {
        let reply = message::read::<GenerateReply>(recv, MAX_MESSAGE).await;
        let event = match reply {
            Ok(Some(GenerateReply {
                reply: Some(Reply::Event(event)),
            })) => event.event,
            Ok(_) => None,
            Err(error) => {
                let message = format!("node {head}, the head of this request, was lost: {error}");
                return writer.fail(MeshError::new(ErrorCode::StageLost, message));
            }
        };
        match event {
            Some(Event::Delta(delta)) => writer.commit(&delta.text, delta.completion_tokens),
            Some(Event::Finished(finished)) => return writer.finish(finished),
            Some(Event::Failed(failed)) => return writer.fail(from_wire(failed)),
            Some(Event::Started(_)) | None => return writer.fail(protocol("a generation stream ended early")),
        }
    }
}

fn from_wire(failed: GenerateFailed) -> MeshError {
    let param = Some(failed.param).filter(|param| !param.is_empty());
    MeshError {
        code: ErrorCode::from_name(&failed.code),
        message: failed.message,
        param,
    }
}

/// Hosts on this node and on others.
pub struct MeshHosts {
    peers: Peers,
    node: NodeId,
    local: OnceCell<Arc<HostEnvironment>>,
}

impl MeshHosts {
    /// The environment of this node's own hosts comes with [`Self::set_local`], since it needs links itself.
    pub fn new(peers: Peers, node: NodeId) -> Self {
        Self {
            peers,
            node,
            local: OnceCell::new(),
        }
    }

    /// Completes it; a second call changes nothing.
    pub fn set_local(&self, environment: Arc<HostEnvironment>) {
        let _ = self.local.set(environment);
    }

    async fn host_here(&self, spec: StageSpec) -> Result<HostSession, MeshError> {
        let environment = self
            .local
            .get()
            .ok_or_else(|| MeshError::internal("the node is still starting"))?
            .clone();
        let (commands, mut inbox) = mpsc::channel(HOST_COMMANDS);
        let (sender, events) = mpsc::channel(HOST_EVENTS);
        let owner = StageOwner {
            node: environment.node,
            name: environment.node_name.clone(),
        };
        let host = spawn_host(owner, spec, environment, sender).await?;
        // Ends when the owner drops its end.
        tokio::spawn(async move {
            while let Some(command) = inbox.recv().await {
                host.command(command);
            }
            host.stop().await;
        });
        Ok(HostSession { commands, events })
    }

    async fn host_there(&self, node: NodeId, spec: StageSpec) -> Result<HostSession, MeshError> {
        let request = Request::HostStage(HostStage { spec: Some(spec) });
        let (send, recv) = self.peers.request(node, request).await?;
        let (commands, inbox) = mpsc::channel(HOST_COMMANDS);
        let (sender, events) = mpsc::channel(HOST_EVENTS);
        tokio::spawn(async move {
            tokio::select! {
                () = send_commands(send, inbox) => {}
                () = receive_events(recv, sender) => {}
            }
        });
        Ok(HostSession { commands, events })
    }
}

#[async_trait]
impl Hosts for MeshHosts {
    async fn host(&self, node: NodeId, spec: StageSpec) -> Result<HostSession, MeshError> {
        if node == self.node {
            self.host_here(spec).await
        } else {
            self.host_there(node, spec).await
        }
    }
}

/// Until the owner drops its end; then the stream ends, and the host with it.
async fn send_commands(mut send: SendStream, mut inbox: mpsc::Receiver<wire::HostCommand>) {
    while let Some(command) = inbox.recv().await {
        if message::write(&mut send, &command).await.is_err() {
            return;
        }
    }
    let _ = send.finish();
    // The host's node closes its side when the stage is down.
    let _ = timeout(ANSWER_LIMIT, send.stopped()).await;
}

async fn receive_events(mut recv: RecvStream, sender: mpsc::Sender<HostEvent>) {
    while let Ok(Some(event)) = message::read::<HostEvent>(&mut recv, MAX_MESSAGE).await {
        if sender.send(event).await.is_err() {
            return;
        }
    }
}

/// Writes what a fetch gives to a file, calling `progress` with the bytes so far.
pub async fn copy_to_file(
    reader: &mut (impl AsyncRead + Unpin),
    file: &mut tokio::fs::File,
    mut progress: impl FnMut(u64),
) -> std::io::Result<u64> {
    use tokio::io::AsyncReadExt;
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        let read = reader.read(&mut buffer).await?;
        if read == 0 {
            file.flush().await?;
            return Ok(total);
        }
        file.write_all(&buffer[..read]).await?;
        total += read as u64;
        progress(total);
    }
}
