//! What a gateway needs to tell of requests: subscriptions, lists, receipts, cancellation.

use async_trait::async_trait;
use futures::stream::BoxStream;
use mesh_proto::{
    MeshError,
    v1::{
        CancelRequestRequest, GetReceiptRequest, ListRequestsRequest, ListRequestsResponse, Receipt, SubscribeRequest,
        SubscribeResponse,
    },
};

/// Notices of one subscription, at the reader's pace. It ends when the node stops, or with an error when another node
/// tells this one nothing; dropping it unsubscribes.
pub type NoticeStream = BoxStream<'static, Result<SubscribeResponse, MeshError>>;

/// The requests of this node, and through it of the whole mesh. Who may see token ids and text was decided before.
#[async_trait]
pub trait Lifecycles: Send + Sync + 'static {
    /// Subscribes.
    ///
    /// # Errors
    ///
    /// Bad filters, a cursor that cannot be resumed, too many subscribers.
    async fn subscribe(&self, request: SubscribeRequest) -> Result<NoticeStream, MeshError>;
    /// Open requests and, if asked for, the last ended ones.
    async fn requests(&self, request: ListRequestsRequest) -> Result<ListRequestsResponse, MeshError>;
    /// The receipt of a request that ended on any node.
    async fn receipt(&self, request: GetReceiptRequest) -> Result<Receipt, MeshError>;
    /// Cancels a request on any node.
    async fn cancel(&self, request: CancelRequestRequest) -> Result<(), MeshError>;
    /// The node stops: requests that still run here, for clients of other nodes, end with an error, and subscriptions
    /// when they have told what there is.
    async fn close(&self);
}
