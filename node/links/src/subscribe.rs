//! What a node asks others about their requests.

use std::time::Duration;

use iroh::endpoint::{RecvStream, SendStream};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{
        CancelRequestRequest, Cursor, Gap, GetReceiptRequest, ListRequestsRequest, NodePosition, Receipt,
        RequestSummary, SubscribeRequest, SubscribeResponse, subscribe_response::Response,
    },
    wire::{LifecycleReply, SubscribeReply, control_request::Request, lifecycle_reply::Reply, subscribe_reply},
};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::timeout,
};

use crate::{
    error::{protocol, too_late},
    message,
    pause::Pause,
    peers::Peers,
    protocol::MAX_MESSAGE,
};

/// How long another node may take to answer from its memory: whoever lists requests waits for the slowest.
const LOOKUP_LIMIT: Duration = Duration::from_secs(2);

/// What a subscriber hears of another node; after an error nothing more.
type Notice = Result<SubscribeResponse, MeshError>;

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
    pub async fn follow_requests(&self, node: NodeId, mut request: SubscribeRequest, notices: &mpsc::Sender<Notice>) {
        let (mut pause, mut told) = (Pause::new(), false);
        loop {
            let ended = self.copy_notices(node, &mut request, notices, &mut pause).await;
            match ended {
                Ok(Copied::Behind) => continue,
                Ok(Copied::Ended) => told = false,
                Err(error) if error.code == ErrorCode::InvalidRequest && request.cursor.is_some() => {
                    // The filters were found good: it is the cursor. What lies between it and now is unknown.
                    for gap in request.cursor.take().into_iter().flat_map(gaps) {
                        let _ = notices.send(Ok(gap)).await;
                    }
                    continue;
                }
                // Waiting does not help: this node's gateway has not the key of that node.
                Err(error) if error.code == ErrorCode::PermissionDenied => {
                    let _ = notices.send(Err(error)).await;
                    return;
                }
                Err(error) if !std::mem::replace(&mut told, true) => {
                    tracing::warn!(%node, %error, "a subscriber does not hear of the requests of a node");
                }
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
        notices: &mpsc::Sender<Notice>,
        pause: &mut Pause,
    ) -> Result<Copied, MeshError> {
        let mut remote = self.subscribe(node, request.clone()).await?;
        while let Some(response) = remote.next().await? {
            pause.reset();
            advance(&mut request.cursor, &response);
            match notices.try_send(Ok(response)) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => return Ok(Copied::Ended),
                Err(TrySendError::Full(response)) => {
                    // What is not read stays charged to the connection that generations share: give it back, and come
                    // again from here when the subscriber reads.
                    drop(remote);
                    return Ok(match notices.send(response).await {
                        Ok(()) => Copied::Behind,
                        Err(_) => Copied::Ended,
                    });
                }
            }
        }
        Ok(Copied::Ended)
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

/// Why copying stopped.
enum Copied {
    /// The subscriber does not read fast enough.
    Behind,
    /// The node stops, or the subscriber has gone.
    Ended,
}

/// Moves the cursor behind a notice.
fn advance(cursor: &mut Option<Cursor>, response: &SubscribeResponse) {
    let known = || cursor.as_ref()?.positions.first().cloned();
    let position = match &response.response {
        Some(Response::Event(event)) => Some(NodePosition {
            node: event.node.clone(),
            run: event.node_run,
            sequence: event.node_sequence,
        }),
        Some(Response::Snapshot(snapshot)) => snapshot.position.clone(),
        Some(Response::Heartbeat(heartbeat)) => {
            let told = heartbeat.cursor.as_ref();
            told.and_then(|cursor| cursor.positions.first().cloned())
        }
        Some(Response::Gap(gap)) if gap.to > 0 => Some(NodePosition {
            node: gap.node.clone(),
            run: gap.run,
            sequence: gap.to,
        }),
        Some(Response::Lagged(lagged)) => known().map(|known| NodePosition {
            sequence: known.sequence.saturating_add(lagged.dropped),
            ..known
        }),
        Some(Response::Gap(_)) | None => None,
    };
    if let Some(position) = position {
        *cursor = Some(Cursor {
            positions: vec![position],
        });
    }
}

/// Everything after a cursor is missing.
fn gaps(cursor: Cursor) -> impl Iterator<Item = SubscribeResponse> {
    cursor.positions.into_iter().map(|position| SubscribeResponse {
        response: Some(Response::Gap(Gap {
            node: position.node,
            run: position.run,
            from: position.sequence.saturating_add(1),
            to: 0,
        })),
    })
}
