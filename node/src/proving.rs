//! Stage files that this node has not loaded before are loaded by a child process first.
//!
//! llama.cpp ends the process over a file that it does not expect. What a header shows is refused before (`mesh-gguf`);
//! this is the net under that. A child loads the file with a small cache, computes some rows and says so; then the node
//! loads it itself, and remembers its digest, so that every later load goes straight on. The child maps the same file, so
//! that weights are read from the disk once.
//!
//! ```text
//! engine thread ── ProvingLoader ─┬─ digest known ──────────────────────────────▶ LlamaLoader
//!                                 └─ else: mesh internal prove ── "proven" ── Proofs ─▲
//!                                                └── refused, dead, stuck ──▶ EngineError::Load
//! ```

mod proofs;
mod trial;

use std::{ops::ControlFlow, path::Path};

use mesh_actors::ports::engine::{EngineError, EngineLoader, ExactCalls, StageEngine, StageLoad};
use mesh_engine::LlamaLoader;
use tokio::runtime::Handle;

use crate::child::ChildProgram;

pub use trial::run_prove;

use proofs::Proofs;

/// Loads stages, after a child has.
pub(crate) struct ProvingLoader {
    proofs: Proofs,
    program: ChildProgram,
    /// Where the child's pipes are read; the engine's thread waits for that.
    runtime: Handle,
}

impl ProvingLoader {
    /// Remembers what was proven in a file of the data directory. Call it in the runtime.
    pub(crate) fn new(file: &Path, program: ChildProgram) -> Self {
        Self {
            proofs: Proofs::open(file),
            program,
            runtime: Handle::current(),
        }
    }

    /// What the self-check of exact mode found, in this trial or in an earlier one.
    fn prove(
        &self,
        spec: &StageLoad,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Option<ExactCalls>, EngineError> {
        if let Some(found) = self.proofs.of(spec) {
            return Ok(found);
        }
        let found = self.runtime.block_on(trial::run(&self.program, spec, progress))?;
        self.proofs.add(spec, found);
        Ok(found)
    }
}

impl EngineLoader for ProvingLoader {
    fn load(
        &self,
        spec: &StageLoad,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Box<dyn StageEngine>, EngineError> {
        let spec = StageLoad {
            exact_calls: self.prove(spec, progress)?,
            ..spec.clone()
        };
        LlamaLoader.load(&spec, progress)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

    use super::*;

    fn spec(path: PathBuf) -> StageLoad {
        StageLoad {
            path,
            digest: "d1".to_owned(),
            layers: 0..8,
            total_layers: 8,
            lanes: 4,
            context: 512,
            threads: 1,
            exact: true,
            exact_calls: None,
            gpu_layers: None,
            n_embd: 128,
            n_vocab: 2048,
        }
    }

    /// A loader whose children are this script, and a stage file that is a good one.
    fn loader(directory: &Path, script: &str) -> (ProvingLoader, StageLoad) {
        let program = directory.join("child");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let stage = directory.join("stage.gguf");
        fs::write(&stage, crate::built_in_model()).unwrap();
        let proofs = directory.join("proven.json");
        (ProvingLoader::new(&proofs, ChildProgram::at(program)), spec(stage))
    }

    async fn load(
        loader: ProvingLoader,
        spec: StageLoad,
        flow: ControlFlow<()>,
    ) -> (ProvingLoader, Result<(), EngineError>) {
        let work = move || {
            let result = loader.load(&spec, &mut |_| flow).map(drop);
            (loader, result)
        };
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_that_ends_the_child_is_refused_with_its_last_words_and_not_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let script = "head -c 4 > /dev/null; echo 'ggml.c:1: GGML_ASSERT(eps >= 0) failed' >&2; kill -ABRT $$";
        let (loader, spec) = loader(directory.path(), script);
        let (loader, refused) = load(loader, spec.clone(), ControlFlow::Continue(())).await;
        let reason = refused.expect_err("the child died").to_string();
        assert!(
            reason.contains("it was ended by SIGABRT: ggml.c:1: GGML_ASSERT(eps >= 0) failed")
                && reason.ends_with("fetch or convert the model again"),
            "{reason}"
        );
        assert_eq!(loader.proofs.of(&spec), None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_trial_can_be_given_up_while_the_child_is_stuck() {
        let directory = tempfile::tempdir().unwrap();
        let (loader, spec) = loader(directory.path(), "exec sleep 1000");
        let (_, given_up) = load(loader, spec, ControlFlow::Break(())).await;
        assert_eq!(given_up, Err(EngineError::Cancelled));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_that_is_known_needs_no_child() {
        let directory = tempfile::tempdir().unwrap();
        let (loader, spec) = loader(directory.path(), "kill -SEGV $$");
        loader.proofs.add(&spec, None);
        let (_, loaded) = load(loader, spec, ControlFlow::Continue(())).await;
        assert_eq!(loaded, Ok(()));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_child_that_says_what_is_no_answer_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (loader, spec) = loader(directory.path(), "printf '\\004\\000\\000\\000what'; exec sleep 1000");
        let (_, refused) = load(loader, spec, ControlFlow::Continue(())).await;
        assert!(refused.is_err());
    }
}
