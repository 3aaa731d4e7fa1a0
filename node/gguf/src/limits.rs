//! Hard limits of the reader: what a file may claim before it is refused.
//!
//! Each is far above what real models use and far below what could hurt a node. Independently of them nothing is
//! allocated on a claimed length before it was compared with the bytes that are really left in the file.

/// Keys in one file. Real models have 20 to 100.
pub const MAX_KEYS: u64 = 65_536;

/// Tensors in one file. The largest mixture-of-experts models stay under 3,000.
pub const MAX_TENSORS: u64 = 262_144;

/// Bytes of one key. The format itself says 65,535; nobody uses more than about 80.
pub const MAX_KEY_BYTES: u64 = 65_535;

/// Bytes of a tensor name, the terminating zero that llama.cpp adds not counted (`GGML_MAX_NAME` is 64 there).
pub const MAX_TENSOR_NAME_BYTES: u64 = 63;

/// Bytes of one string value. The longest seen are embedded `tokenizer.json` files of about 20 MB.
pub const MAX_STRING_BYTES: u64 = 64 << 20;

/// Elements of one array. The largest vocabularies have about 300,000 tokens and as many merges.
pub const MAX_ARRAY_ELEMENTS: u64 = 16 << 20;

/// Dimensions of a tensor (`GGML_MAX_DIMS`).
pub const MAX_DIMENSIONS: u32 = 4;

/// Bytes of everything before the tensor data, so that reading a header costs a bounded amount of memory.
pub const MAX_METADATA_BYTES: u64 = 256 << 20;

/// Alignment of tensor data, bytes. Files use 32; a page is the most that makes sense for mapping, with room to spare.
pub const MAX_ALIGNMENT: u32 = 1 << 20;

/// Parts of a split file. The key is 16 bits wide; published models stay under 100.
pub const MAX_PARTS: u32 = 4_096;

/// Layers of a model (`LLAMA_MAX_LAYERS`; the loader aborts the process above it).
pub const MAX_LAYERS: u32 = 512;
