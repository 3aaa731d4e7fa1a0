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
    /// Derives the rules from one file with this many layers.
    pub(super) rules: fn(&Gguf, u32) -> Result<Rules, GgufError>,
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
        rules,
    }
}

/// Every supported architecture, by name.
pub static SUPPORTED: &[SupportedArchitecture] = &[
    row("falcon", "Falcon 7B, 40B; any cut", false, rules::anywhere),
    row(
        "gemma3",
        "Gemma 3; any cut, the 27B (62 layers) as one stage only",
        false,
        rules::gemma3,
    ),
    row("gpt-oss", "gpt-oss 20B, 120B; any cut", true, rules::gpt_oss),
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
    ),
    row("mistral3", "Mistral 3, Ministral 3; any cut", false, rules::anywhere),
    row("olmo2", "OLMo 2 and 3; any cut", true, rules::olmo2),
    row("phi3", "Phi-3, Phi-3.5, Phi-4; any cut", false, rules::anywhere),
    row("qwen2", "Qwen 1.5, 2 and 2.5; any cut", false, rules::anywhere),
    row(
        "qwen2moe",
        "Qwen 1.5 and 2 with experts; any cut",
        true,
        rules::anywhere,
    ),
    row("qwen3", "Qwen 3; any cut", false, rules::anywhere),
    row("qwen3moe", "Qwen 3 with experts; any cut", false, rules::anywhere),
    row("smollm3", "SmolLM3; cuts at multiples of 4", false, rules::smollm3),
    row("starcoder2", "StarCoder2; any cut", false, rules::anywhere),
];
