//! What each row's source derives from the layer index or the number of layers, and the rule that follows.
//!
//! Common to all: `switch (hparams.n_layer())` sets the model type, which is only printed unless noted here;
//! `il == n_layer - 1` drops rows that are not outputs, and stages flag all rows; `create_memory` depends on
//! `swa_type`, which comes from keys, never from the pattern.

use super::Rules;
use super::window::{UnusedWindow, Window, window_pattern};
use crate::error::GgufError;
use crate::gguf::Gguf;

/// llama.cpp, models/llama.cpp (the type by layer count and `vocab_size` is only printed; `use_kq_norm` stays false;
/// rope factors are global tensors), qwen2.cpp, qwen2moe.cpp, qwen3.cpp, qwen3moe.cpp, falcon.cpp, starcoder2.cpp
/// (rope, no learned positions), mistral3.cpp (attention temperature depends on positions only), phi3.cpp (its sliding
/// window is switched off: `set_swa_pattern(1)`): nothing depends on the layer index.
pub(super) fn anywhere(_: &Gguf, _: u32) -> Result<Rules, GgufError> {
    Ok(Rules::default())
}

/// gemma3.cpp: `load_swa_pattern(ml, 6)`; and 62 layers make it type 27B, which takes the attention scale
/// 1/sqrt(n_embd / n_head) instead of 1/sqrt(key_length). The embedding scale sqrt(n_embd) is applied to token rows
/// only (`build_inp_embd(tok_embd, scale)`), so injected rows need nothing. Without a window, `graph<false>` gives each
/// layer the rope and the mask that `graph<true>` gives layers without one.
pub(super) fn gemma3(gguf: &Gguf, layers: u32) -> Result<Rules, GgufError> {
    const LAYERS_27B: u32 = 62;
    let mut rules = Rules {
        window: window(gguf, layers, 6, UnusedWindow::LeftOut)?,
        ..Rules::default()
    };
    if !gemma3_scales_differ(gguf, layers)? {
        return Ok(rules);
    }
    if layers == LAYERS_27B {
        rules.whole_only = Some(
            "llama.cpp takes another attention scale for exactly 62 layers (the 27B), which no part of it has"
                .to_owned(),
        );
    } else {
        let reason = "llama.cpp takes a stage of 62 layers for the 27B and gives it another attention scale";
        rules.forbidden_length = Some((LAYERS_27B, reason.to_owned()));
    }
    Ok(rules)
}

/// Whether the two scales of gemma3.cpp are different numbers for this file (integer division as there).
fn gemma3_scales_differ(gguf: &Gguf, layers: u32) -> Result<bool, GgufError> {
    let embedding = u64::from(gguf.require_arch_u32("embedding_length")?);
    let heads = gguf
        .per_layer("attention.head_count", layers)?
        .and_then(|heads| heads.first().copied())
        .unwrap_or(0);
    let by_heads = embedding.checked_div(heads).unwrap_or(0);
    let key_length = gguf
        .arch_value("attention.key_length")
        .and_then(|value| value.as_u64())
        .unwrap_or(by_heads);
    Ok(by_heads != key_length)
}

/// openai-moe.cpp: `load_swa_pattern(ml, 2)`, always with a window; nothing else by index. The window decides the mask,
/// the cache and the rope base (`rope.freq_base_swa`; the scale is the same).
pub(super) fn gpt_oss(gguf: &Gguf, layers: u32) -> Result<Rules, GgufError> {
    Ok(Rules {
        window: window(gguf, layers, 2, UnusedWindow::Widened)?,
        ..Rules::default()
    })
}

/// olmo2.cpp: `load_swa_pattern(ml, 4)` if there is a window (OLMo 3), and the rope scale by `is_swa(il)`, which is
/// false for all layers of a file without.
pub(super) fn olmo2(gguf: &Gguf, layers: u32) -> Result<Rules, GgufError> {
    Ok(Rules {
        window: window(gguf, layers, 4, UnusedWindow::LeftOut)?,
        ..Rules::default()
    })
}

/// smollm3.cpp: `use_rope = (il + 1) % 4 != 0`, a constant no key can change.
pub(super) fn smollm3(_: &Gguf, _: u32) -> Result<Rules, GgufError> {
    Ok(Rules {
        period: 4,
        period_reason: "every fourth layer has no rope, counted from the stage's first",
        ..Rules::default()
    })
}

/// llama4.cpp: `use_rope = (il + 1) % n_no_rope_layer_step != 0` with step 4; experts in layers with
/// `(i + 1) % interleave_moe_layer_step == 0`; `load_swa_pattern(ml, 4)`. With `sliding_window` = 0 (MobileLLM) the
/// step becomes the number of layers, so the *last* layer of any file has no rope: true of the whole's last layer
/// only, so nothing can be cut; and so the window cannot be left out of a stage, nor widened: it is 8192 whatever the
/// file says. (Of each four layers three use it, unless the file brings a pattern of its own.) `use_kq_norm` comes from the number of experts. No experts at all: the loader throws.
pub(super) fn llama4(gguf: &Gguf, layers: u32) -> Result<Rules, GgufError> {
    const ROPE_STEP: u32 = 4;
    if gguf
        .arch_value("expert_count")
        .and_then(|value| value.as_u64())
        .unwrap_or(0)
        == 0
    {
        let reason = "llama.cpp refuses this architecture without experts".to_owned();
        return Err(GgufError::Unsupported {
            architecture: gguf.architecture()?.to_owned(),
            reason,
        });
    }
    let expert_step = gguf.require_arch_u32("interleave_moe_layer_step")?.max(1);
    let mut rules = Rules {
        period: least_common_multiple(ROPE_STEP, expert_step),
        period_reason: "rope and experts alternate by layer number, counted from the stage's first",
        window: window(gguf, layers, 4, UnusedWindow::Refused)?,
        ..Rules::default()
    };
    if gguf
        .arch_value("attention.sliding_window")
        .and_then(|value| value.as_u64())
        == Some(0)
    {
        rules.window = None;
        rules.whole_only = Some("without a sliding window llama.cpp leaves rope out of a file's last layer".to_owned());
    }
    Ok(rules)
}

fn window(gguf: &Gguf, layers: u32, period: u32, unused: UnusedWindow) -> Result<Option<Window>, GgufError> {
    let optional = unused == UnusedWindow::LeftOut;
    let pattern = window_pattern(gguf, layers, period, optional)?;
    Ok(pattern.map(|layers| Window { layers, unused }))
}

fn least_common_multiple(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}
