//! Tries a stage file out, in a process that may end over it.

use std::ops::ControlFlow;

use mesh_actors::ports::engine::{EngineError, StageLoad};

use crate::{LlamaLoader, self_check};

/// Lanes of the trial: rows of two are computed side by side.
const LANES: u32 = 2;

/// Positions of a lane in the trial: one step of cells.
const CONTEXT: u32 = 255;

/// Loads the stage as `load` says, but with a small cache, and computes rows in it: a prompt, single rows, rows of two
/// lanes. llama.cpp ends the process over a file that it does not expect, and no check of ours knows all of those: call
/// this where that does no harm.
///
/// # Errors
///
/// As [`LlamaLoader::load_stage`], and where llama.cpp refuses to compute.
pub fn prove(load: &StageLoad, progress: &mut dyn FnMut(f32) -> ControlFlow<()>) -> Result<(), EngineError> {
    let small = StageLoad {
        lanes: load.lanes.min(LANES),
        context: load.context.min(CONTEXT),
        ..load.clone()
    };
    let mut stage = LlamaLoader.load_unchecked(&small, progress)?;
    self_check::compute(&mut stage)
}
