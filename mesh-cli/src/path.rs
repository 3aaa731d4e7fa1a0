//! Paths as the user typed them, made absolute.

use std::path::{Path, PathBuf};

use crate::{failure::Failure, local_node};

/// The path from the root on: another process has another working directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let wrong = |error| {
        Failure::usage(format!(
            "{:?} cannot be made absolute ({error}); give the whole path",
            path
        ))
    };
    std::path::absolute(path).map_err(wrong)
}

/// A model as the node that serves it must be told: its absolute path, or `built-in` as it is.
pub(crate) fn model(model: &Path) -> Result<String, Failure> {
    if model.as_os_str() == local_node::BUILT_IN {
        return Ok(local_node::BUILT_IN.to_owned());
    }
    let path = absolute(model)?.into_os_string().into_string();
    path.map_err(|path| Failure::usage(format!("{path:?} is not UTF-8; rename the file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_models_become_absolute_and_the_built_in_one_stays() {
        assert_eq!(model(Path::new("built-in")).unwrap(), "built-in");
        assert_eq!(model(Path::new("/models/a b.gguf")).unwrap(), "/models/a b.gguf");
        let here = std::env::current_dir().unwrap();
        assert_eq!(Path::new(&model(Path::new("a.gguf")).unwrap()), here.join("a.gguf"));
        assert_eq!(
            Path::new(&model(Path::new("./built-in")).unwrap()),
            here.join("built-in")
        );
    }
}
