//! Receipts of the last requests that ended.

use std::{collections::VecDeque, sync::Arc};

use mesh_proto::RequestId;

use super::receipt::Receipt;

/// Receipts kept: an hour of a request every 3.5 seconds.
const MAX_RECEIPTS: usize = 1024;

/// Bytes of receipts kept: long answers take 12 bytes a token.
const MAX_BYTES: usize = 16 << 20;

/// Oldest first.
#[derive(Debug, Default)]
pub struct KeptReceipts {
    receipts: VecDeque<Arc<Receipt>>,
    bytes: usize,
}

impl KeptReceipts {
    /// Adds one and lets the oldest go that no longer fit.
    pub fn push(&mut self, receipt: Arc<Receipt>) {
        self.bytes += receipt.weight();
        self.receipts.push_back(receipt);
        while self.receipts.len() > MAX_RECEIPTS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.receipts.pop_front() else {
                return;
            };
            self.bytes -= oldest.weight();
        }
    }

    /// The newest of a request.
    pub fn find(&self, request: RequestId) -> Option<Arc<Receipt>> {
        let mut newest_first = self.receipts.iter().rev();
        newest_first.find(|receipt| receipt.request == request).cloned()
    }

    /// All, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Receipt>> {
        self.receipts.iter()
    }
}
