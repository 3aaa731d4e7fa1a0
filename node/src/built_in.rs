//! The built-in model: Psalm 2M, embedded in the binary.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use mesh_gguf::open_regular;

use crate::NodeError;

/// What `mesh serve` calls it.
pub const BUILT_IN: &str = "built-in";

/// Modification time of the file: it belongs to a source's identity, and whenever it is written it is the same model.
const WRITTEN: SystemTime = SystemTime::UNIX_EPOCH;

static MODEL: &[u8] = include_bytes!("../models/psalm-2m-q8_0.gguf");

/// The model's GGUF.
pub fn built_in_model() -> &'static [u8] {
    MODEL
}

/// The model as a file in `directory`, written when it is not there or is another.
pub(crate) fn built_in_file(directory: &Path) -> Result<PathBuf, NodeError> {
    let path = directory.join("built-in.gguf");
    if is_there(&path) {
        return Ok(path);
    }
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(directory)?;
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(MODEL)?;
        file.as_file().set_modified(WRITTEN)?;
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(NodeError::file("write", &path))?;
    Ok(path)
}

/// Two megabytes: read in less time than a directory is listed.
fn is_there(path: &Path) -> bool {
    let Ok((file, facts)) = open_regular(path) else {
        return false;
    };
    let mut found = Vec::new();
    facts.len() == MODEL.len() as u64 && file.take(facts.len()).read_to_end(&mut found).is_ok() && found == MODEL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_another_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = built_in_file(dir.path()).unwrap();
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        built_in_file(dir.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        for change in [0, MODEL.len() / 2] {
            let mut other = MODEL.to_vec();
            other[change] ^= 1;
            fs::write(&path, other).unwrap();
            assert_eq!(fs::read(built_in_file(dir.path()).unwrap()).unwrap(), MODEL);
            assert_eq!(
                fs::metadata(&path).unwrap().modified().unwrap(),
                written,
                "the same source"
            );
        }
    }
}
