//! Whether a stage's file has products whose lone rows come out otherwise.
//!
//! ggml's kernels of llamafile multiply matrices of floats, two rows of input and more, and add in another order than the
//! kernel for one row (`llamafile_sgemm` in ggml-cpu). The self-check sees that in most models; where such a product adds
//! little to a large sum, only now and then.

use std::path::Path;

use mesh_gguf::Gguf;

/// Types of floats that these kernels know.
const FLOATS: [&str; 3] = ["F32", "F16", "BF16"];

/// Whether any matrix of the file is of floats. `last`: its embeddings are multiplied too, if it ties them.
pub(crate) fn differ(path: &Path, last: bool) -> bool {
    let Ok(gguf) = Gguf::open(path) else { return true };
    gguf.tensors().iter().any(|tensor| {
        let rows: u64 = tensor.dims.iter().skip(1).product();
        let is_matrix = tensor.dims.len() > 1 && rows > 1;
        is_matrix && FLOATS.contains(&tensor.tensor_type.name()) && (last || tensor.name != "token_embd.weight")
    })
}
