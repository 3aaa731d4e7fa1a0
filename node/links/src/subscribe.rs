//! What a node asks others about their requests.

use std::time::Duration;

use iroh::endpoint::{RecvStream, SendStream};
use mesh_proto::{
    MeshError, NodeId,
    v1::{
        CancelRequestRequest, Cursor, GetReceiptRequest, ListRequestsRequest, NodePosition, Receipt, RequestSummary,
        SubscribeRequest, SubscribeResponse, subscribe_response::Response,
    },
    wire::{LifecycleReply, SubscribeReply, control_request::Request, lifecycle_reply::Reply, subscribe_reply},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    error::{protocol, too_late},
    message,
    pause::Pause,
    peers::Peers,
    protocol::MAX_MESSAGE,
};

/// How long another node may take to answer from its memory: whoever lists requests waits for the slowest.
const LOOKUP_LIMIT: Duration = Duration::from_secs(2);

/// Notices from another node. Dropping it unsubscribes there.
#[derive(Debug)]
struct RemoteNotices {
    /// Its end is the subscriber's end.
    _send: SendStream,
    recv: RecvStream,
}

impl RemoteNotices {
    /// The next notice; `None` when that node stops.
    async fn next(&mut self) -> Result<Option<SubscribeResponse>, MeshError> {
        let reply = message::read::<SubscribeReply>(&mut self.recv, MAX_MESSAGE).await?;
        match reply.map(|reply| reply.reply) {
            Some(Some(subscribe_reply::Reply::Response(response))) => Ok(Some(response)),
            Some(Some(subscribe_reply::Reply::Refused(refusal))) => Err(refusal.into()),
            Some(None) => Err(protocol("a subscription was answered with nothing")),
            None => Ok(None),
        }
    }
}

impl Peers {
    /// Copies the notices of another node for as long as they are taken: after a lost connection from where it broke
    /// off, with a gap where that is not possible any more.
    pub async fn follow_requests(
        &self,
        node: NodeId,
        mut request: SubscribeRequest,
        notices: &mpsc::Sender<SubscribeResponse>,
    ) {
        let mut pause = Pause::new();
        loop {
            match self.copy_notices(node, &mut request, notices, &mut pause).await {
                Ok(()) => {}
                Err(error) => tracing::debug!(%node, %error, "requests of a node cannot be followed"),
            }
            if notices.is_closed() {
                return;
            }
            pause.wait().await;
        }
    }

    async fn copy_notices(
        &self,
        node: NodeId,
        request: &mut SubscribeRequest,
        notices: &mpsc::Sender<SubscribeResponse>,
        pause: &mut Pause,
    ) -> Result<(), MeshError> {
        let mut remote = self.subscribe(node, request.clone()).await?;
        while let Some(response) = remote.next().await? {
            pause.reset();
            let seen = position(&response);
            if notices.send(response).await.is_err() {
                return Ok(());
            }
            if let Some(seen) = seen {
                request.cursor = Some(Cursor { positions: vec![seen] });
            }
        }
        Ok(())
    }

    async fn subscribe(&self, node: NodeId, request: SubscribeRequest) -> Result<RemoteNotices, MeshError> {
        let (send, recv) = self.request(node, Request::Subscribe(request)).await?;
        Ok(RemoteNotices { _send: send, recv })
    }

    /// Requests whose head is another node.
    pub async fn list_requests(
        &self,
        node: NodeId,
        request: ListRequestsRequest,
    ) -> Result<Vec<RequestSummary>, MeshError> {
        match self.look_up(node, Request::ListRequests(request)).await? {
            Reply::Requests(list) => Ok(list.requests),
            _ => Err(protocol("a list of requests was answered with something else")),
        }
    }

    /// The receipt of a request whose head was another node.
    pub async fn receipt(&self, node: NodeId, request: GetReceiptRequest) -> Result<Receipt, MeshError> {
        match self.look_up(node, Request::GetReceipt(request)).await? {
            Reply::Receipt(receipt) => Ok(receipt),
            _ => Err(protocol("a receipt was answered with something else")),
        }
    }

    /// Cancels a request whose head is another node.
    pub async fn cancel_request(&self, node: NodeId, request: CancelRequestRequest) -> Result<(), MeshError> {
        match self.look_up(node, Request::Cancel(request)).await? {
            Reply::Cancelled(_) => Ok(()),
            _ => Err(protocol("a cancellation was answered with something else")),
        }
    }

    async fn look_up(&self, node: NodeId, request: Request) -> Result<Reply, MeshError> {
        let asked = async {
            let (_send, mut recv) = self.request(node, request).await?;
            let reply: LifecycleReply = message::expect(&mut recv, MAX_MESSAGE).await?;
            match reply.reply {
                Some(Reply::Refused(refusal)) => Err(refusal.into()),
                Some(reply) => Ok(reply),
                None => Err(protocol("a question was answered with nothing")),
            }
        };
        let answered = timeout(LOOKUP_LIMIT, asked).await;
        answered.map_err(|_| too_late("another node", LOOKUP_LIMIT.as_secs()))?
    }
}

/// How far the subscriber of a node is with this notice.
fn position(response: &SubscribeResponse) -> Option<NodePosition> {
    match response.response.as_ref()? {
        Response::Event(event) => Some(NodePosition {
            node: event.node.clone(),
            run: event.node_run,
            sequence: event.node_sequence,
        }),
        Response::Snapshot(snapshot) => snapshot.position.clone(),
        Response::Heartbeat(heartbeat) => heartbeat.cursor.as_ref()?.positions.first().cloned(),
        Response::Gap(_) | Response::Lagged(_) => None,
    }
}
