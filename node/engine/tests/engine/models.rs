//! Where models for tests are.

use std::path::{Path, PathBuf};

/// The built-in model.
pub fn built_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/psalm-2m-q8_0.gguf")
}

/// A real model from the directory that `MESH_TEST_MODELS` names; says so where it is not there.
pub fn real(name: &str) -> Option<PathBuf> {
    let Some(directory) = std::env::var_os("MESH_TEST_MODELS") else {
        eprintln!("skipped: set MESH_TEST_MODELS to a directory with {name} (tests/models.sh fetches it)");
        return None;
    };
    let path = Path::new(&directory).join(name);
    assert!(path.is_file(), "{} is missing; run tests/models.sh", path.display());
    Some(path)
}

pub const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";
pub const GEMMA_3: &str = "gemma-3-270m-q4_k_m.gguf";
