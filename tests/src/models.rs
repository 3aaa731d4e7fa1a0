//! Real models, fetched by `tests/models.sh` into a cache outside the repository.

use std::path::PathBuf;

/// Path of a real model, or `None` with a line that says how to get it.
pub fn real_model(file: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from);
    let path = directory
        .map(|directory| directory.join(file))
        .filter(|path| path.is_file());
    if path.is_none() {
        eprintln!("skipped: no {file}; run tests/models.sh and set MESH_TEST_MODELS to what it prints");
    }
    path
}

/// SmolLM2-135M-Instruct, Q4_1.
pub const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";

/// Gemma-3-270M, Q4_K_M.
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
