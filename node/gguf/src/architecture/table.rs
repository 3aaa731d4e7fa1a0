//! The rows.

use super::{Rules, rules};
use crate::error::GgufError;
use crate::gguf::Gguf;

/// One supported architecture.
#[derive(Debug)]
pub struct SupportedArchitecture {
    /// As in `general.architecture`.
    pub name: &'static str,
    /// Which models these are and where they can be cut, for listings.
    pub note: &'static str,
    /// The loader refuses a file without `output.weight` (no fall-back to the token embedding), so a stage that does
    /// not need it gets a stub.
    pub(super) output_required: bool,
    /// What its graph demands of a file.
    pub(super) graph: Graph,
    /// Derives the rules from one file with this many layers.
    pub(super) rules: fn(&Gguf, u32) -> Result<Rules, GgufError>,
}

/// What the graph of an architecture demands, and llama.cpp asserts or takes for granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Graph {
    /// The key of the epsilon of its norms.
    pub(super) epsilon: &'static str,
    /// Queries are as wide as the model, so that heads × key length must be the width.
    pub(super) queries_have_the_width: bool,
    /// Rope may turn a part of each head only. Elsewhere: `GGML_ASSERT(n_embd_head == n_rot)`.
    pub(super) partial_rope: bool,
    /// It reads the size of the sliding window.
    pub(super) reads_window: bool,
    /// It has no layers without experts.
    pub(super) needs_experts: bool,
}

const PLAIN: Graph = Graph {
    epsilon: "attention.layer_norm_rms_epsilon",
    queries_have_the_width: false,
    partial_rope: false,
    reads_window: false,
    needs_experts: false,
};

impl SupportedArchitecture {
    const fn layer_norm(mut self) -> Self {
        self.graph.epsilon = "attention.layer_norm_epsilon";
        self
    }

    const fn wide_queries(mut self) -> Self {
        self.graph.queries_have_the_width = true;
        self
    }

    const fn partial_rope(mut self) -> Self {
        self.graph.partial_rope = true;
        self
    }

    const fn windowed(mut self) -> Self {
        self.graph.reads_window = true;
        self
    }

    const fn experts(mut self) -> Self {
        self.graph.needs_experts = true;
        self
    }
}

const fn row(
    name: &'static str,
    note: &'static str,
    output_required: bool,
    rules: fn(&Gguf, u32) -> Result<Rules, GgufError>,
) -> SupportedArchitecture {
    SupportedArchitecture {
        name,
        note,
        output_required,
        graph: PLAIN,
        rules,
    }
}

/// Every supported architecture, by name.
pub static SUPPORTED: &[SupportedArchitecture] = &[
    row("falcon", "Falcon 7B, 40B; any cut", false, rules::anywhere)
        .layer_norm()
        .wide_queries(),
    row(
        "gemma3",
        "Gemma 3; any cut, the 27B (62 layers) as one stage only",
        false,
        rules::gemma3,
    )
    .partial_rope()
    .windowed(),
    row("gpt-oss", "gpt-oss 20B, 120B; any cut", true, rules::gpt_oss)
        .windowed()
        .experts(),
    row(
        "llama",
        "Llama 1 to 3, Mistral, Mixtral, SmolLM2 and others, with and without experts; any cut",
        false,
        rules::anywhere,
    ),
    row(
        "llama4",
        "Llama 4 Scout, Maverick; cuts at multiples of 4",
        false,
        rules::llama4,
    )
    .experts(),
    row("mistral3", "Mistral 3, Ministral 3; any cut", false, rules::anywhere),
    row("olmo2", "OLMo 2 and 3; any cut", true, rules::olmo2)
        .wide_queries()
        .windowed(),
    row("phi3", "Phi-3, Phi-3.5, Phi-4; any cut", false, rules::anywhere)
        .wide_queries()
        .partial_rope(),
    row("qwen2", "Qwen 1.5, 2 and 2.5; any cut", false, rules::anywhere).wide_queries(),
    row(
        "qwen2moe",
        "Qwen 1.5 and 2 with experts; any cut",
        true,
        rules::anywhere,
    )
    .wide_queries()
    .experts(),
    row("qwen3", "Qwen 3; any cut", false, rules::anywhere),
    row("qwen3moe", "Qwen 3 with experts; any cut", false, rules::anywhere).experts(),
    row("smollm3", "SmolLM3; cuts at multiples of 4", false, rules::smollm3),
    row("starcoder2", "StarCoder2; any cut", false, rules::anywhere)
        .layer_norm()
        .wide_queries(),
];
