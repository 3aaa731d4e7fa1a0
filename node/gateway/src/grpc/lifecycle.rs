//! `LifecycleService`: what happens to requests, for subscribers.

use std::sync::Arc;

use futures::{StreamExt as _, stream::BoxStream};
use mesh_proto::v1::{
    CancelRequestRequest, CancelRequestResponse, GetReceiptRequest, GetReceiptResponse, ListRequestsRequest,
    ListRequestsResponse, SubscribeRequest, SubscribeResponse, lifecycle_service_server::LifecycleService,
};
use tonic::{Request, Response, Status};

use super::Call;
use crate::{admission::at_work, gateway::Shared};

pub(super) struct Lifecycle(pub(super) Arc<Shared>);

impl Lifecycle {
    /// Token ids and text are more than the key of a user opens.
    fn may_read<T>(&self, call: &Call, request: &Request<T>, content: bool) -> Result<(), Status> {
        if !content {
            return Ok(());
        }
        let allowed = self.0.access.content(request.metadata().as_ref());
        allowed.map_err(|error| call.refuse(error))
    }
}

#[tonic::async_trait]
impl LifecycleService for Lifecycle {
    type SubscribeStream = BoxStream<'static, Result<SubscribeResponse, Status>>;

    /// Ends with the node. A subscriber that stops reading fills its HTTP/2 window; its place in the events then falls
    /// behind, which it is told when it reads again.
    async fn subscribe(&self, request: Request<SubscribeRequest>) -> Result<Response<Self::SubscribeStream>, Status> {
        let call = Call::of_user(&self.0, &request)?;
        let content = request.get_ref().include_token_ids || request.get_ref().include_text;
        self.may_read(&call, &request, content)?;
        // The number of subscribers is bounded where events are kept.
        let connection = at_work(request.extensions());
        let notices = self.0.lifecycles.subscribe(request.into_inner()).await;
        let notices = notices.map_err(|error| call.refuse(error))?;
        let notices = notices.map(move |notice| {
            let _connection = &connection;
            notice.map_err(Status::from)
        });
        Ok(call.answer(notices.boxed()))
    }

    async fn get_receipt(&self, request: Request<GetReceiptRequest>) -> Result<Response<GetReceiptResponse>, Status> {
        let call = Call::of_user(&self.0, &request)?;
        self.may_read(&call, &request, request.get_ref().include_token_ids)?;
        let receipt = self.0.lifecycles.receipt(request.into_inner()).await;
        let receipt = receipt.map_err(|error| call.refuse(error))?;
        Ok(call.answer(GetReceiptResponse { receipt: Some(receipt) }))
    }

    async fn list_requests(
        &self,
        request: Request<ListRequestsRequest>,
    ) -> Result<Response<ListRequestsResponse>, Status> {
        let call = Call::of_user(&self.0, &request)?;
        let list = self.0.lifecycles.requests(request.into_inner()).await;
        Ok(call.answer(list.map_err(|error| call.refuse(error))?))
    }

    async fn cancel_request(
        &self,
        request: Request<CancelRequestRequest>,
    ) -> Result<Response<CancelRequestResponse>, Status> {
        let call = Call::of_admin(&self.0, &request)?;
        let cancelled = self.0.lifecycles.cancel(request.into_inner()).await;
        cancelled.map_err(|error| call.refuse(error))?;
        Ok(call.answer(CancelRequestResponse {}))
    }
}
