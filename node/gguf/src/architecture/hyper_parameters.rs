//! The numbers of a file that llama.cpp asserts on, divides by or sizes its graph with, each within its range.
//!
//! Sources: `llama_model_base::load_hparams` (llama-model.cpp), `load_arch_hparams` and the asserts of each graph
//! (models/*.cpp), `ggml_rope_impl` and `ggml_flash_attn_ext` (ggml.c), `ggml_compute_forward_rms_norm` (ops.cpp).

use std::ops::RangeInclusive;

use super::SupportedArchitecture;
use crate::array::Array;
use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::value::Value;

/// Widest activation row, elements: 64 times that of the largest published models.
const MAX_WIDTH: u64 = 1 << 20;

/// Widest hidden row of a feed-forward network, elements.
const MAX_FEED_FORWARD: u64 = 1 << 24;

/// Most heads of a layer. The largest published models have 128.
const MAX_HEADS: u64 = 4_096;

/// Longest key or value of one head, elements. The longest published are 576.
const MAX_HEAD_LENGTH: u64 = 8_192;

/// `LLAMA_MAX_EXPERTS`, llama-hparams.h.
const MAX_EXPERTS: u64 = 1_024;

/// Largest epsilon: that of real models is at most 1e-5.
const MAX_EPSILON: f32 = 0.1;

/// Widest sliding window, positions: llama.cpp reserves four bytes for each of them in every call.
pub(crate) const MAX_WINDOW: u32 = 1 << 20;

/// Floats of either sign.
const FINITE: [&str; 8] = [
    "attention.temperature_scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "rope.scaling.alpha",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// What llama.cpp knows (`LLAMA_ROPE_SCALING_TYPES`, llama-model.cpp); it ends the process over any other.
const ROPE_SCALINGS: [&str; 4] = ["none", "linear", "yarn", "longrope"];

/// Floats that scale something and must be above 0 where they are there.
const POSITIVE: [&str; 3] = ["rope.freq_base", "rope.freq_base_swa", "rope.scaling.attn_factor"];

/// Floats that may be 0, which stands for none.
const NOT_NEGATIVE: [&str; 6] = [
    "attention.scale",
    "rope.scaling.factor",
    "rope.scale_linear",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "expert_weights_scale",
];

/// Sizes of one file, as llama.cpp derives them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HyperParameters {
    /// Width of an activation row.
    pub(super) width: u64,
    /// Query heads.
    pub(super) heads: u64,
    /// Key and value heads.
    pub(super) kv_heads: u64,
    /// Length of a key, of a value and of a query, of one head.
    pub(super) head_length: u64,
    /// How much of it rope turns.
    pub(super) rope_dimensions: u64,
    /// Hidden row of a dense layer; `None` if the file does not say.
    pub(super) feed_forward: Option<u64>,
    /// Hidden row of one expert, if the file says.
    pub(super) expert_feed_forward: Option<u64>,
    /// Hidden row of the shared experts, if the file says.
    pub(super) shared_feed_forward: Option<u64>,
    /// Experts of a layer; 0 for none.
    pub(super) experts: u64,
    /// Experts that a row uses.
    pub(super) experts_used: u64,
}

/// Reads and checks them.
///
/// # Errors
/// [`GgufError::BadKey`] or [`GgufError::MissingKey`]: the key, what it has, and what is wanted.
pub(super) fn read(gguf: &Gguf, row: &SupportedArchitecture, layers: u32) -> Result<HyperParameters, GgufError> {
    let keys = Keys { gguf, row, layers };
    keys.floats()?;
    keys.rope_scaling()?;
    keys.window()?;
    keys.extra_precisions()?;
    keys.require("context_length", 1..=u64::from(u32::MAX))?;
    let width = keys.require("embedding_length", 1..=MAX_WIDTH)?;
    let (experts, experts_used) = keys.experts()?;
    let heads = keys.first_of("attention.head_count", 1..=MAX_HEADS)?;
    let heads = heads.ok_or_else(|| keys.missing("attention.head_count"))?;
    let kv_heads = keys
        .first_of("attention.head_count_kv", 1..=MAX_HEADS)?
        .unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(keys.bad(
            "attention.head_count_kv",
            format!("is {kv_heads}, which does not divide the {heads} heads of attention.head_count"),
        ));
    }
    let head_length = keys.head_length(width, heads)?;
    Ok(HyperParameters {
        width,
        heads,
        kv_heads,
        head_length,
        rope_dimensions: keys.rope_dimensions(head_length)?,
        feed_forward: keys.length_of("feed_forward_length")?,
        expert_feed_forward: keys.length_of("expert_feed_forward_length")?,
        shared_feed_forward: keys.length_of("expert_shared_feed_forward_length")?,
        experts,
        experts_used,
    })
}

/// The keys of one file.
struct Keys<'a> {
    gguf: &'a Gguf,
    row: &'a SupportedArchitecture,
    layers: u32,
}

impl Keys<'_> {
    fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.row.name)
    }

    fn bad(&self, suffix: &str, problem: String) -> GgufError {
        self.gguf
            .bad_key(&self.name(suffix), format!("{problem}: convert the model again"))
    }

    fn missing(&self, suffix: &str) -> GgufError {
        self.gguf.missing(&self.name(suffix))
    }

    fn within(&self, suffix: &str, value: u64, range: &RangeInclusive<u64>) -> Result<u64, GgufError> {
        if range.contains(&value) {
            return Ok(value);
        }
        let (least, most) = (range.start(), range.end());
        Err(self.bad(suffix, format!("is {value}, not {least} to {most}")))
    }

    fn optional(&self, suffix: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, GgufError> {
        let Some(value) = self.gguf.arch_value(suffix) else {
            return Ok(None);
        };
        let number = value
            .as_u64()
            .ok_or_else(|| self.bad(suffix, format!("is {}, not a whole number from 0 up", shown(value))))?;
        self.within(suffix, number, &range).map(Some)
    }

    fn require(&self, suffix: &str, range: RangeInclusive<u64>) -> Result<u64, GgufError> {
        self.optional(suffix, range)?.ok_or_else(|| self.missing(suffix))
    }

    /// A number per layer, or one for all: the graph takes the first layer's, and all are the same (`traps.rs`).
    fn first_of(&self, suffix: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, GgufError> {
        let Some(values) = self.gguf.per_layer(suffix, self.layers)? else {
            return Ok(None);
        };
        for value in &values {
            self.within(suffix, *value, &range)?;
        }
        Ok(values.first().copied())
    }

    /// The length of a hidden row; 0 stands for none, and llama.cpp writes it so.
    fn length_of(&self, suffix: &str) -> Result<Option<u64>, GgufError> {
        let length = self.first_of(suffix, 0..=MAX_FEED_FORWARD)?;
        Ok(length.filter(|length| *length > 0))
    }

    /// The floats that a graph reads are numbers; those that scale something are above 0. Keys that none reads may hold
    /// anything: llama.cpp itself writes -inf for some.
    fn floats(&self) -> Result<(), GgufError> {
        for suffix in FINITE {
            self.float(suffix, |_| true, "a finite number")?;
        }
        for suffix in POSITIVE {
            self.float(suffix, |float| float > 0.0, "a number above 0")?;
        }
        for suffix in NOT_NEGATIVE {
            self.float(suffix, |float| float >= 0.0, "a number from 0 up")?;
        }
        let epsilon = self.row.graph.epsilon;
        let wanted = format!("a number above 0 and at most {MAX_EPSILON}");
        self.float(epsilon, |float| float > 0.0 && float <= MAX_EPSILON, &wanted)?;
        match self.gguf.arch_value(epsilon) {
            Some(_) => Ok(()),
            None => Err(self.missing(epsilon)),
        }
    }

    fn float(&self, suffix: &str, accepts: impl Fn(f32) -> bool, wanted: &str) -> Result<(), GgufError> {
        let Some(value) = self.gguf.arch_value(suffix) else {
            return Ok(());
        };
        match value.as_f32() {
            Some(float) if float.is_finite() && accepts(float) => Ok(()),
            _ => Err(self.bad(suffix, format!("is {}, not {wanted}", shown(value)))),
        }
    }

    fn rope_scaling(&self) -> Result<(), GgufError> {
        let suffix = "rope.scaling.type";
        let Some(value) = self.gguf.arch_value(suffix) else {
            return Ok(());
        };
        if value.as_str().is_some_and(|text| ROPE_SCALINGS.contains(&text)) {
            return Ok(());
        }
        let known = ROPE_SCALINGS.join(", ");
        Err(self.bad(suffix, format!("is {}, and llama.cpp knows {known}", shown(value))))
    }

    fn window(&self) -> Result<(), GgufError> {
        if self.row.graph.reads_window {
            self.optional("attention.sliding_window", 0..=u64::from(MAX_WINDOW))?;
        }
        Ok(())
    }

    fn head_length(&self, width: u64, heads: u64) -> Result<u64, GgufError> {
        let range = 1..=MAX_HEAD_LENGTH;
        let length = |suffix| Ok(self.optional(suffix, range.clone())?.unwrap_or(width / heads));
        let (key, value) = (length("attention.key_length")?, length("attention.value_length")?);
        if key != value {
            return Err(self.bad(
                "attention.value_length",
                format!("is {value} and attention.key_length {key}, which must be the same"),
            ));
        }
        self.within("attention.key_length", key, &range)?;
        if self.row.graph.queries_have_the_width && key * heads != width {
            return Err(self.bad(
                "attention.head_count",
                format!("is {heads}, and {heads} heads of {key} are not the width of {width}"),
            ));
        }
        Ok(key)
    }

    fn rope_dimensions(&self, head_length: u64) -> Result<u64, GgufError> {
        let suffix = "rope.dimension_count";
        let dimensions = self.optional(suffix, 1..=MAX_HEAD_LENGTH)?.unwrap_or(head_length);
        let (fits, wanted) = if self.row.graph.partial_rope {
            (dimensions <= head_length, "at most")
        } else {
            (dimensions == head_length, "exactly")
        };
        if !fits {
            return Err(self.bad(
                suffix,
                format!("is {dimensions}, and must be {wanted} the head length, {head_length}"),
            ));
        }
        if !dimensions.is_multiple_of(2) {
            return Err(self.bad(
                suffix,
                format!("is {dimensions}, and rope turns pairs: it must be even"),
            ));
        }
        Ok(dimensions)
    }

    /// All, and those that a row uses.
    fn experts(&self) -> Result<(u64, u64), GgufError> {
        let all = self.optional("expert_count", 0..=MAX_EXPERTS)?.unwrap_or(0);
        let used = self.first_of("expert_used_count", 0..=MAX_EXPERTS)?.unwrap_or(0);
        if all == 0 && self.row.graph.needs_experts {
            return Err(self.bad(
                "expert_count",
                format!("is missing or 0, and {} has experts", self.row.name),
            ));
        }
        if used > all || (all > 0 && used == 0) {
            let wanted = if all == 0 {
                "without an expert_count it must be 0".to_owned()
            } else {
                format!("it must be 1 to {all}, the expert_count")
            };
            return Err(self.bad("expert_used_count", format!("is {used}, and {wanted}")));
        }
        self.expert_groups(all)?;
        Ok((all, used))
    }

    fn expert_groups(&self, experts: u64) -> Result<(), GgufError> {
        let groups = self.optional("expert_group_count", 0..=MAX_EXPERTS)?.unwrap_or(0);
        let used = self.optional("expert_group_used_count", 0..=MAX_EXPERTS)?.unwrap_or(0);
        if groups == 0 || (groups == 1 && experts > 1) {
            return Ok(());
        }
        // The two best experts of a group stand for it.
        if !experts.is_multiple_of(groups) || experts / groups < 2 {
            return Err(self.bad(
                "expert_group_count",
                format!("is {groups}, which does not part {experts} experts into groups of two or more"),
            ));
        }
        if used == 0 || used >= groups {
            return Err(self.bad(
                "expert_group_used_count",
                format!("is {used}, and must be at least 1 and below {groups}, the expert_group_count"),
            ));
        }
        Ok(())
    }

    /// `llama_prec_policy::load`: as many values as names.
    fn extra_precisions(&self) -> Result<(), GgufError> {
        let (names, values) = ("general.tensor_extra.name", "general.tensor_extra.prec_a4");
        let Some(value) = self.gguf.get(names) else {
            return Ok(());
        };
        match (value.as_array(), self.gguf.get_array(values)) {
            (Some(Array::String(all)), Some(Array::Bool(flags))) if all.len() == flags.len() => Ok(()),
            _ => Err(self.gguf.bad_key(
                names,
                format!(
                    "and `{values}` must be arrays of strings and booleans, of one length: convert the model again"
                ),
            )),
        }
    }
}

/// A value as messages show it; text and arrays can be long.
fn shown(value: &Value) -> String {
    /// Most characters of a text.
    const SHOWN: usize = 40;
    match value {
        Value::F32(float) => float.to_string(),
        Value::F64(float) => float.to_string(),
        Value::I8(number) => number.to_string(),
        Value::I16(number) => number.to_string(),
        Value::I32(number) => number.to_string(),
        Value::I64(number) => number.to_string(),
        Value::String(bytes) => {
            let text: String = String::from_utf8_lossy(bytes).chars().take(SHOWN).collect();
            format!("{text:?}")
        }
        other => format!("of type {}", other.value_type()),
    }
}
