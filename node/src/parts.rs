//! The parts of a node that outlive the call that made them, and their end.
//!
//! ```text
//! start: data directory ─▶ endpoint ─▶ actors ─▶ admission by the issuer ─▶ telemetry ─▶ server ─▶ followers ─▶ the node runs
//! end:   data directory ◀─ telemetry ◀─ endpoint ◀─ actors ◀─ admission, given back ◀─── server ◀─ followers
//! ```
//!
//! There is one way down, whether the node ran, its start failed, or nobody waits for it any more. What differs is the
//! last: a node that never ran gives its admission back and leaves no new data directory behind.

use std::{sync::Arc, time::Duration};

use mesh_actors::root::RootHandle;
use mesh_links::{Followers, NodeEndpoint, Server, Ticket, take_back_join};
use mesh_telemetry::NodeTelemetry;
use tokio::{runtime::Handle, time::timeout};

use crate::{data_dir::DataDir, members::MemberFile, plugins::Plugins, receipts::ReceiptSink};

/// How long the endpoint may wait for peers to hear that it closes.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// How long a start that failed tries to give its admission back: the user waits for it.
const TAKE_BACK_LIMIT: Duration = Duration::from_secs(3);

/// An admission that counts only if the node comes to run.
pub(crate) struct Joined {
    pub endpoint: NodeEndpoint,
    pub ticket: Ticket,
    pub members: Arc<MemberFile>,
}

impl Joined {
    async fn take_back(self) {
        if let Err(error) = self.members.remove() {
            tracing::warn!(%error, "the member list of a join that came to nothing stays behind");
        }
        let left = take_back_join(&self.endpoint, &self.ticket);
        match timeout(TAKE_BACK_LIMIT, left).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the issuer still lists this node; `mesh node leave` takes it out")
            }
            Err(_) => tracing::warn!("the issuer did not hear that this node does not join after all"),
        }
    }
}

/// What has been started so far. Dropping it ends it too, behind the back of whoever does not wait.
#[derive(Default)]
pub(crate) struct Parts {
    data: Option<Arc<DataDir>>,
    pub endpoint: Option<NodeEndpoint>,
    pub root: Option<RootHandle>,
    pub joined: Option<Joined>,
    pub server: Option<Server>,
    pub followers: Option<Followers>,
    /// Ended last of what runs: it tells of the end of the others.
    pub telemetry: Option<NodeTelemetry>,
    pub receipts: Option<ReceiptSink>,
    /// They outlive the requests that they follow.
    pub plugins: Plugins,
    runs: bool,
    dropped: bool,
}

impl Parts {
    /// Nothing but the directory is open.
    pub fn new(data: Arc<DataDir>) -> Self {
        Self {
            data: Some(data),
            endpoint: None,
            root: None,
            joined: None,
            server: None,
            followers: None,
            telemetry: None,
            receipts: None,
            plugins: Plugins::default(),
            runs: false,
            dropped: false,
        }
    }

    /// The start is complete: admission and directory are kept.
    pub fn run(&mut self) -> Self {
        self.joined = None;
        self.runs = true;
        std::mem::take(self)
    }

    /// Ends everything, in order.
    pub async fn end(mut self) {
        drop(self.followers.take());
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        if let Some(joined) = self.joined.take() {
            joined.take_back().await;
        }
        // Their requests have ended with their deployments.
        self.plugins.close().await;
        if let Some(root) = self.root.take() {
            root.stop().await;
        }
        // No request is left that could end.
        if let Some(receipts) = self.receipts.take() {
            receipts.close().await;
        }
        if let Some(endpoint) = self.endpoint.take()
            && timeout(CLOSE_LIMIT, endpoint.close()).await.is_err()
        {
            tracing::info!("closed without the last words of peers that have gone");
        }
        if let Some(telemetry) = self.telemetry.take() {
            telemetry.stop().await;
        }
        self.close_directory();
    }

    fn close_directory(&mut self) {
        if let Some(data) = self.data.take() {
            data.withdraw();
            if !self.runs {
                data.discard_if_new();
            }
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if self.data.is_none() {
            return;
        }
        match Handle::try_current() {
            // Once: a runtime that goes down drops what is spawned on it.
            Ok(runtime) if !self.dropped => {
                let mut parts = std::mem::take(self);
                parts.dropped = true;
                drop(runtime.spawn(parts.end()));
            }
            _ => self.close_directory(),
        }
    }
}
