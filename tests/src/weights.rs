//! The built-in weights with other metadata.

use mesh_gguf::{DEFAULT_ALIGNMENT, Gguf, NewTensor, Value, layout};

/// The built-in model as a file's bytes, with these keys set.
///
/// # Panics
///
/// The built-in model cannot be read.
pub fn built_in_with(settings: &[(&str, Value)]) -> Vec<u8> {
    let bytes = mesh_node::built_in_model();
    let gguf = match Gguf::from_bytes(bytes) {
        Ok(gguf) => gguf,
        Err(error) => panic!("the built-in model cannot be read: {error}"),
    };
    let kept = gguf
        .metadata()
        .filter(|(key, _)| settings.iter().all(|(set, _)| set != key))
        .map(|(key, value)| (key.to_owned(), value.clone()));
    let set = settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    let metadata: Vec<(String, Value)> = kept.chain(set).collect();
    let tensors: Vec<NewTensor> = gguf
        .tensors()
        .iter()
        .map(|tensor| NewTensor {
            name: tensor.name.clone(),
            dims: tensor.dims.clone(),
            tensor_type: tensor.tensor_type,
            bytes: tensor.bytes,
        })
        .collect();
    let layout = layout(&metadata, &tensors, DEFAULT_ALIGNMENT);
    let mut file = layout.header;
    file.resize(layout.file_bytes as usize, 0);
    for (tensor, offset) in gguf.tensors().iter().zip(layout.offsets) {
        let (from, to, size) = (tensor.offset as usize, offset as usize, tensor.bytes as usize);
        file[to..to + size].copy_from_slice(&bytes[from..from + size]);
    }
    file
}
