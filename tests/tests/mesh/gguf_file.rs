//! A GGUF taken apart, to be changed and put together again.

use anyhow::Result;
use mesh_gguf::{DEFAULT_ALIGNMENT, Gguf, NewTensor, TensorType, Value, layout};

/// Keys, and tensors with their bytes.
#[derive(Debug, Clone)]
pub struct GgufFile {
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub tensor_type: TensorType,
    pub content: Vec<u8>,
}

impl GgufFile {
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let gguf = Gguf::from_bytes(bytes)?;
        let tensors = gguf.tensors().iter().map(|tensor| {
            let start = tensor.offset as usize;
            Tensor {
                name: tensor.name.clone(),
                dims: tensor.dims.clone(),
                tensor_type: tensor.tensor_type,
                content: bytes[start..start + tensor.bytes as usize].to_vec(),
            }
        });
        Ok(Self {
            metadata: gguf
                .metadata()
                .map(|(key, value)| (key.to_owned(), value.clone()))
                .collect(),
            tensors: tensors.collect(),
        })
    }

    /// The file. Tensors whose type has changed keep as much of their bytes as there is room for, and zeros behind them.
    pub fn bytes(&self) -> Vec<u8> {
        let new = self.tensors.iter().map(|tensor| NewTensor {
            name: tensor.name.clone(),
            dims: tensor.dims.clone(),
            tensor_type: tensor.tensor_type,
            bytes: tensor.tensor_type.bytes_for(&tensor.dims).unwrap_or(0),
        });
        let new: Vec<NewTensor> = new.collect();
        let plan = layout(&self.metadata, &new, DEFAULT_ALIGNMENT);
        let mut bytes = plan.header.clone();
        bytes.resize(plan.file_bytes as usize, 0);
        for ((tensor, new), offset) in self.tensors.iter().zip(&new).zip(&plan.offsets) {
            let kept = tensor.content.len().min(new.bytes as usize);
            bytes[*offset as usize..*offset as usize + kept].copy_from_slice(&tensor.content[..kept]);
        }
        bytes
    }
}
