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

use mesh_actors::ports::engine::{EngineError, EngineLoader, StageEngine, StageLoad};
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

    fn prove(&self, spec: &StageLoad, progress: &mut dyn FnMut(f32) -> ControlFlow<()>) -> Result<(), EngineError> {
        if self.proofs.has(spec) {
            return Ok(());
        }
        self.runtime.block_on(trial::run(&self.program, spec, progress))?;
        self.proofs.add(spec);
        Ok(())
    }
}

impl EngineLoader for ProvingLoader {
    fn load(
        &self,
        spec: &StageLoad,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Box<dyn StageEngine>, EngineError> {
        self.prove(spec, progress)?;
        LlamaLoader.load(spec, progress)
    }
}
