//! Judges a stage file before llama.cpp sees it: damage is named by place, and what llama.cpp would end the process
//! over is refused.

use std::path::Path;

use mesh_gguf::{Array, Gguf, check_stage};

/// Reads the header of a stage file.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    let gguf = Gguf::open(path).map_err(|error| error.to_string())?;
    check_stage(&gguf).map_err(|error| error.to_string())?;
    let architecture = gguf.architecture().map_err(|error| error.to_string())?;
    let window = gguf.get_u32(&format!("{architecture}.attention.sliding_window"));
    let pattern = gguf.get_array(&format!("{architecture}.attention.sliding_window_pattern"));
    // `GGML_ASSERT(hparams.is_swa_any())`, llama-model.cpp.
    if let (Some(1..), Some(Array::Bool(layers))) = (window, pattern)
        && !layers.contains(&true)
    {
        return Err(
            "none of its layers has the model's sliding window, which llama.cpp cannot hold; cut it so that \
                    each stage has a layer with it"
                .to_owned(),
        );
    }
    Ok(())
}
