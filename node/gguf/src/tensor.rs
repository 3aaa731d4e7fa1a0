//! One tensor of a file.

use crate::tensor_type::TensorType;

/// Where a tensor is and what it looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, such as `blk.3.attn_q.weight`.
    pub name: String,
    /// Shape, one to four dimensions (none for a scalar); the first is the row length.
    pub dims: Vec<u64>,
    /// Element type.
    pub tensor_type: TensorType,
    /// Which part of a split file holds it; 0 for a single file.
    pub file: usize,
    /// Offset from the start of that file, bytes.
    pub offset: u64,
    /// Size, bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Number of rows: the product of all dimensions but the first.
    pub fn rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }

    /// The layer of a block tensor and the rest of its name: `blk.3.attn_q.weight` gives `(3, "attn_q.weight")`.
    pub fn layer(&self) -> Option<(u32, &str)> {
        split_layer(&self.name)
    }
}

/// See [`TensorInfo::layer`].
pub(crate) fn split_layer(name: &str) -> Option<(u32, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    // `u32::from_str` takes "+3"; the loader does not.
    if !layer.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((layer.parse().ok()?, rest))
}
