//! Links in memory: between two stages on one node, from the output stage to a head on the same node, and in tests.

use std::sync::Arc;

use async_trait::async_trait;
use mesh_proto::MeshError;

use crate::ports::link::{CreditGrant, FrameSink, FrameWriter, LinkEvents, LinkFrame};

/// Writes straight into the receiving stage.
pub struct MemoryWriter {
    sink: Arc<dyn FrameSink>,
}

impl MemoryWriter {
    /// A link into `sink`.
    pub fn new(sink: Arc<dyn FrameSink>) -> Self {
        Self { sink }
    }
}

impl std::fmt::Debug for MemoryWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryWriter")
    }
}

#[async_trait]
impl FrameWriter for MemoryWriter {
    async fn write(&mut self, frame: LinkFrame) -> Result<(), MeshError> {
        self.sink.frame(frame);
        Ok(())
    }
}

impl Drop for MemoryWriter {
    fn drop(&mut self) {
        self.sink.lost(MeshError::new(
            mesh_proto::ErrorCode::StageLost,
            "the stage before has ended",
        ));
    }
}

/// Gives credits straight back to the sending stage.
pub struct MemoryGrant {
    events: Arc<dyn LinkEvents>,
}

impl MemoryGrant {
    /// Credits for `events`.
    pub fn new(events: Arc<dyn LinkEvents>) -> Self {
        Self { events }
    }
}

impl CreditGrant for MemoryGrant {
    fn grant(&self, frames: u32) {
        self.events.credit(frames);
    }

    fn close(&self) {
        self.events.lost(MeshError::new(
            mesh_proto::ErrorCode::StageLost,
            "the stage behind has ended",
        ));
    }
}
