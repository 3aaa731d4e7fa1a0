//! Small seeded models of any architecture, for tests: llama.cpp says which tensors an architecture needs and in
//! which shape, we only fill them.

use std::path::Path;

use crate::raw::synthesis::{Entry, Metadata, copy_without};

/// Width of the models.
const WIDTH: u32 = 128;

/// A model to make. The same description gives the same file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RandomModel {
    /// `general.architecture`.
    pub architecture: String,
    /// Layers.
    pub layers: u32,
    /// Seed of the weights.
    pub seed: u64,
    /// The output matrix is the token embedding.
    pub tied: bool,
    /// Experts per layer; 0 for a dense model.
    pub experts: u32,
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// Sliding window in positions, where the architecture has one.
    pub window: u32,
    /// Factor by which YaRN stretches rope; 1 for none.
    pub rope_factor: u32,
}

impl RandomModel {
    /// A model of eight layers with its own output matrix, and experts where the architecture is known to have them.
    /// Where layers differ by the sliding window, rope is stretched, so that no two kinds of layers have the same.
    pub fn new(architecture: &str) -> Self {
        let with_experts = architecture.ends_with("moe") || ["gpt-oss", "llama4"].contains(&architecture);
        let with_windows = ["gemma3", "gpt-oss", "olmo2"].contains(&architecture);
        Self {
            architecture: architecture.to_owned(),
            layers: 8,
            seed: 0x9e37_79b9_7f4a_7c15,
            tied: false,
            experts: if with_experts { 4 } else { 0 },
            vocabulary: 128,
            window: 16,
            rope_factor: if with_windows { 4 } else { 1 },
        }
    }

    /// Writes the model as a GGUF file without tokenizer.
    ///
    /// # Errors
    ///
    /// The last words of llama.cpp, where the architecture wants other metadata.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let mut metadata = Metadata::new();
        for (key, value) in self.entries() {
            metadata.set(&key.replace("%", &self.architecture), &value)?;
        }
        let seed = self.seed;
        let mut fill = |name: &str, values: &mut [f32]| fill_tensor(seed, name, values);
        if !self.tied {
            return metadata.write_model(path, &mut fill);
        }
        let untied = path.with_extension("untied");
        metadata.write_model(&untied, &mut fill)?;
        let copied = copy_without(&untied, path, "output.weight");
        let _ = std::fs::remove_file(&untied);
        copied
    }

    /// Metadata; `%` in a key stands for the architecture.
    fn entries(&self) -> Vec<(&'static str, Entry)> {
        let text = |value: &str| Entry::Text(value.to_owned());
        let mut entries = vec![
            ("general.architecture", text(&self.architecture)),
            ("tokenizer.ggml.model", text("none")),
            ("%.vocab_size", Entry::U32(self.vocabulary)),
            ("%.context_length", Entry::U32(2048)),
            ("%.embedding_length", Entry::U32(WIDTH)),
            ("%.block_count", Entry::U32(self.layers)),
            ("%.feed_forward_length", Entry::U32(192)),
            ("%.attention.head_count", Entry::U32(4)),
            ("%.attention.head_count_kv", Entry::U32(2)),
            ("%.attention.key_length", Entry::U32(32)),
            ("%.attention.value_length", Entry::U32(32)),
            ("%.attention.layer_norm_epsilon", Entry::F32(1e-5)),
            ("%.attention.layer_norm_rms_epsilon", Entry::F32(1e-5)),
            ("%.rope.dimension_count", Entry::U32(32)),
            ("%.rope.freq_base", Entry::F32(10_000.0)),
            ("%.rope.scaling.original_context_length", Entry::U32(2048)),
        ];
        if self.window > 0 {
            entries.push(("%.attention.sliding_window", Entry::U32(self.window)));
            entries.push(("%.rope.freq_base_swa", Entry::F32(5_000.0)));
        }
        if self.rope_factor > 1 {
            entries.push(("%.rope.scaling.type", text("yarn")));
            entries.push(("%.rope.scaling.factor", Entry::F32(self.rope_factor as f32)));
        }
        if self.experts > 0 {
            entries.extend([
                ("%.expert_count", Entry::U32(self.experts)),
                ("%.expert_used_count", Entry::U32(2)),
                ("%.expert_feed_forward_length", Entry::U32(64)),
                ("%.expert_shared_feed_forward_length", Entry::U32(64)),
                ("%.interleave_moe_layer_step", Entry::U32(2)),
            ]);
        }
        entries
    }
}

/// Values of a tensor: norms around 1, frequency factors from 1 to 2, all else small and around 0. They depend on seed
/// and name only.
fn fill_tensor(seed: u64, name: &str, values: &mut [f32]) {
    let mut state = name.bytes().fold(seed | 1, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let is_norm = name.contains("norm") && name.ends_with("weight");
    let is_factor = name.starts_with("rope_f");
    for value in values {
        let noise = next(&mut state);
        *value = if is_norm {
            1.0 + 0.2 * noise
        } else if is_factor {
            1.0 + noise.abs()
        } else {
            0.12 * noise
        };
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014), as a number from -1 to 1.
fn next(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^= value >> 31;
    (value >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}
