//! The built-in model: Psalm 2M, embedded in the binary.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use crate::NodeError;

/// What `mesh serve` calls it.
pub const BUILT_IN: &str = "built-in";

static MODEL: &[u8] = include_bytes!("../models/psalm-2m-q8_0.gguf");

/// The model's GGUF.
pub fn built_in_model() -> &'static [u8] {
    MODEL
}

/// The model as a file in `directory`, written when it is not there yet.
pub(crate) fn built_in_file(directory: &Path) -> Result<PathBuf, NodeError> {
    let path = directory.join("built-in.gguf");
    if fs::metadata(&path).is_ok_and(|found| found.len() == MODEL.len() as u64) {
        return Ok(path);
    }
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(directory)?;
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(MODEL)?;
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(NodeError::file("write", &path))?;
    Ok(path)
}
