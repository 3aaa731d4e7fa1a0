//! Lifecycle events of this node for subscribers on other nodes, and what is asked about its requests.

use iroh::endpoint::{RecvStream, SendStream};
use mesh_actors::events::{EventBus, Subscription};
use mesh_proto::{
    ErrorCode, MeshError, RequestId,
    v1::{
        CancelRequestRequest, CancelRequestResponse, GetReceiptRequest, ListRequestsRequest, ListRequestsResponse,
        SubscribeRequest,
    },
    wire::{LifecycleReply, SubscribeReply, lifecycle_reply::Reply, subscribe_reply},
};

use super::ControlServices;
use crate::message;

/// The subscriber says nothing more after its request: the end of its side ends the subscription.
const NOTHING_MORE: usize = 0;

/// Sends notices until either side ends. The stream's flow control is the subscriber's pace: what it does not take
/// makes the subscription lag, and nothing else.
pub async fn subscribe(
    mut send: SendStream,
    mut recv: RecvStream,
    request: SubscribeRequest,
    events: &EventBus,
) -> Result<(), MeshError> {
    let subscription = match events.subscribe(&request) {
        Ok(subscription) => subscription,
        Err(error) => {
            let reply = Some(subscribe_reply::Reply::Refused(error.into()));
            return message::write(&mut send, &SubscribeReply { reply }).await;
        }
    };
    tokio::select! {
        sent = push(&mut send, subscription) => {
            let _ = send.finish();
            sent
        }
        gone = message::read::<SubscribeReply>(&mut recv, NOTHING_MORE) => gone.map(drop),
    }
}

async fn push(send: &mut SendStream, mut subscription: Subscription) -> Result<(), MeshError> {
    while let Some(response) = subscription.next_message().await {
        let reply = Some(subscribe_reply::Reply::Response(response));
        message::write(send, &SubscribeReply { reply }).await?;
    }
    Ok(())
}

/// Requests whose head is here.
pub fn requests(asked: &ListRequestsRequest, events: &EventBus) -> LifecycleReply {
    reply(Ok(Reply::Requests(ListRequestsResponse {
        requests: events.requests(asked),
        missing: Vec::new(),
    })))
}

/// The receipt of a request, if its head was here.
pub fn receipt(asked: &GetReceiptRequest, events: &EventBus) -> LifecycleReply {
    let found = RequestId::asked(&asked.request_id).and_then(|id| events.receipt(id).ok_or_else(|| not_here(id)));
    reply(found.map(|receipt| Reply::Receipt(receipt.to_message(events.node(), asked.include_token_ids))))
}

/// Cancels a request whose head is here.
pub fn cancel(asked: &CancelRequestRequest, services: &ControlServices) -> LifecycleReply {
    let cancelled = RequestId::asked(&asked.request_id).and_then(|id| {
        let deployment = services.events.deployment_of(id).ok_or_else(|| not_here(id))?;
        let head = services.registry.head(&deployment).ok_or_else(|| not_here(id))?;
        head.cancel(id);
        Ok(Reply::Cancelled(CancelRequestResponse {}))
    });
    reply(cancelled)
}

fn reply(result: Result<Reply, MeshError>) -> LifecycleReply {
    LifecycleReply {
        reply: Some(result.unwrap_or_else(|error| Reply::Refused(error.into()))),
    }
}

fn not_here(id: RequestId) -> MeshError {
    MeshError::new(ErrorCode::NotFound, format!("request {id} is not known here"))
}
