//! Tensor types: number, name, block length and block size.
//!
//! Source: `enum ggml_type` in `ggml/include/ggml.h`, `type_traits` in `ggml/src/ggml.c`, block structures in
//! `ggml/src/ggml-common.h`.

use std::fmt;

/// What a tensor's elements are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorType {
    id: u32,
    name: &'static str,
    block_elements: u64,
    block_bytes: u64,
}

const fn row(id: u32, name: &'static str, block_elements: u64, block_bytes: u64) -> TensorType {
    TensorType {
        id,
        name,
        block_elements,
        block_bytes,
    }
}

/// Every type this llama.cpp reads, by ascending number.
const TYPES: [TensorType; 35] = [
    row(0, "F32", 1, 4),
    row(1, "F16", 1, 2),
    row(2, "Q4_0", 32, 18),
    row(3, "Q4_1", 32, 20),
    row(6, "Q5_0", 32, 22),
    row(7, "Q5_1", 32, 24),
    row(8, "Q8_0", 32, 34),
    row(9, "Q8_1", 32, 36),
    row(10, "Q2_K", 256, 84),
    row(11, "Q3_K", 256, 110),
    row(12, "Q4_K", 256, 144),
    row(13, "Q5_K", 256, 176),
    row(14, "Q6_K", 256, 210),
    row(15, "Q8_K", 256, 292),
    row(16, "IQ2_XXS", 256, 66),
    row(17, "IQ2_XS", 256, 74),
    row(18, "IQ3_XXS", 256, 98),
    row(19, "IQ1_S", 256, 50),
    row(20, "IQ4_NL", 32, 18),
    row(21, "IQ3_S", 256, 110),
    row(22, "IQ2_S", 256, 82),
    row(23, "IQ4_XS", 256, 136),
    row(24, "I8", 1, 1),
    row(25, "I16", 1, 2),
    row(26, "I32", 1, 4),
    row(27, "I64", 1, 8),
    row(28, "F64", 1, 8),
    row(29, "IQ1_M", 256, 56),
    row(30, "BF16", 1, 2),
    row(34, "TQ1_0", 256, 54),
    row(35, "TQ2_0", 256, 66),
    row(39, "MXFP4", 32, 17),
    row(40, "NVFP4", 64, 36),
    row(41, "Q1_0", 128, 18),
    row(42, "Q2_0", 64, 18),
];

/// Types that a file may hold and nothing is computed with: no entry of `type_traits_cpu` in `ggml-cpu.c` has a dot
/// product for them, or no function dequantizes their rows.
const STORAGE_ONLY: [&str; 7] = ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"];

/// Types that older files may hold and that llama.cpp dropped.
const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl TensorType {
    /// 32-bit floats.
    pub const F32: Self = TYPES[0];
    /// 16-bit floats.
    pub const F16: Self = TYPES[1];
    /// Blocks of 32 four-bit weights with one scale, 18 bytes.
    pub const Q4_0: Self = TYPES[2];
    /// Blocks of 32 eight-bit weights with one scale, 34 bytes.
    pub const Q8_0: Self = TYPES[6];

    /// The type with this number in a file, or `None` if llama.cpp does not read it.
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES.iter().copied().find(|known| known.id == id)
    }

    /// The name of a type that llama.cpp once read and dropped.
    pub fn removed_name(id: u32) -> Option<&'static str> {
        REMOVED
            .iter()
            .find(|(removed, _)| *removed == id)
            .map(|(_, name)| *name)
    }

    /// Whether matrices of this type can be multiplied and rows of it looked up.
    pub fn is_computable(self) -> bool {
        !STORAGE_ONLY.contains(&self.name)
    }

    /// The number written in files.
    pub fn id(self) -> u32 {
        self.id
    }

    /// The usual upper-case name, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Elements per block; a row's length must be a multiple of it.
    pub fn block_elements(self) -> u64 {
        self.block_elements
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> u64 {
        self.block_bytes
    }

    /// Bytes of a tensor of this shape (first dimension is the row), or `None` if the row is not a whole number of
    /// blocks or the size does not fit 63 bits.
    pub fn bytes_for(self, dims: &[u64]) -> Option<u64> {
        let row = dims.first().copied().unwrap_or(1);
        if row % self.block_elements != 0 {
            return None;
        }
        let elements = dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
        let bytes = (elements / self.block_elements).checked_mul(self.block_bytes)?;
        (bytes <= i64::MAX as u64 && elements <= i64::MAX as u64).then_some(bytes)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_up_to_the_last_is_known_or_removed() {
        for id in 0..43 {
            assert!(
                TensorType::from_id(id).is_some() != TensorType::removed_name(id).is_some(),
                "type {id} must be exactly one of known and removed"
            );
        }
        assert!(TensorType::from_id(43).is_none());
    }

    #[test]
    fn sizes_follow_the_block_structure() {
        assert_eq!(TensorType::Q8_0.bytes_for(&[128, 2048]), Some(128 / 32 * 34 * 2048));
        assert_eq!(TensorType::Q4_0.bytes_for(&[31]), None);
        assert_eq!(TensorType::F32.bytes_for(&[u64::MAX, 2]), None);
        assert_eq!(TensorType::F32.bytes_for(&[]), Some(4));
    }
}
