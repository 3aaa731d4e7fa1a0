//! Which tensors a stage holds, and where their bytes come from.

use std::ops::Range;

use crate::architecture::{Architecture, UNUSED_GLOBAL};
use crate::gguf::Gguf;
use crate::tensor::TensorInfo;
use crate::tensor_type::TensorType;
use crate::writer::NewTensor;

/// Rows of the embedding in stages that never use it: `vocab_size` must match, and llama.cpp wants some.
pub(super) const STUB_VOCAB: u32 = 32;

/// One tensor of a stage.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) tensor: NewTensor,
    pub(super) content: Content,
    /// Number of its layer in the whole model; `None` for global tensors.
    pub(super) layer: Option<u32>,
}

/// Where a tensor's bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Copied from this part of the source, from this offset.
    Copy { file: usize, offset: u64 },
    /// A hole in the file, read as zeros; the loader insists on the tensor, the graph never reads it.
    Hole,
}

/// All tensors of layers `range`: globals, then layer after layer, each in the source's order.
pub(super) fn pieces(gguf: &Gguf, architecture: &Architecture, range: &Range<u32>) -> Vec<Piece> {
    let first = range.start == 0;
    let last = range.end == architecture.layers();
    let tied = architecture.tied();
    let mut pieces = Vec::new();
    for tensor in gguf.tensors().iter().filter(|tensor| tensor.layer().is_none()) {
        match tensor.name.as_str() {
            "token_embd.weight" if first || (last && tied) => pieces.push(copy(tensor, tensor.name.clone(), None)),
            "token_embd.weight" => pieces.push(stub(tensor, architecture, last)),
            "output.weight" if last => pieces.push(copy(tensor, tensor.name.clone(), None)),
            "output.weight" if architecture.output_required() => pieces.push(stub(tensor, architecture, first)),
            UNUSED_GLOBAL => {}
            // Bias and scales of the output, which the loader takes for optional.
            name if name.starts_with("output.") && !last => {}
            _ => pieces.push(copy(tensor, tensor.name.clone(), None)),
        }
    }
    let mut layers: Vec<Piece> = gguf
        .tensors()
        .iter()
        .filter_map(|tensor| {
            let (layer, rest) = tensor.layer().filter(|(layer, _)| range.contains(layer))?;
            Some(copy(tensor, format!("blk.{}.{rest}", layer - range.start), Some(layer)))
        })
        .collect();
    // Stable: the source's order stays within a layer, so that a layer's bytes are the same in every stage.
    layers.sort_by_key(|piece| piece.layer);
    pieces.append(&mut layers);
    pieces
}

fn copy(tensor: &TensorInfo, name: String, layer: Option<u32>) -> Piece {
    Piece {
        tensor: NewTensor {
            name,
            dims: tensor.dims.clone(),
            tensor_type: tensor.tensor_type,
            bytes: tensor.bytes,
        },
        content: Content::Copy {
            file: tensor.file,
            offset: tensor.offset,
        },
        layer,
    }
}

/// A zero tensor in place of `tensor`. In a stage with the real vocabulary it needs all rows, of the smallest proven
/// type (the hole takes no disk, but without memory mapping it would take memory); elsewhere a few rows do.
fn stub(tensor: &TensorInfo, architecture: &Architecture, real_vocabulary: bool) -> Piece {
    let row = u64::from(architecture.embedding_length());
    let rows = if real_vocabulary {
        architecture.vocab_size()
    } else {
        STUB_VOCAB
    };
    let tensor_type = match real_vocabulary {
        true if row.is_multiple_of(TensorType::Q4_0.block_elements()) => TensorType::Q4_0,
        true => TensorType::F16,
        false => TensorType::F32,
    };
    let dims = vec![row, u64::from(rows)];
    // Both factors are 32 bits and the types whole bytes, so the size exists.
    let bytes = tensor_type.bytes_for(&dims).unwrap_or(0);
    Piece {
        tensor: NewTensor {
            name: tensor.name.clone(),
            dims,
            tensor_type,
            bytes,
        },
        content: Content::Hole,
        layer: None,
    }
}
