//! Tries a stage file out, in a process that may end over it.

use std::ops::ControlFlow;

use mesh_actors::ports::engine::{EngineError, ExactCalls, StageLoad};

use crate::{LlamaLoader, self_check};

/// Lanes of the trial: rows of two are computed side by side.
const LANES: u32 = 2;

/// Positions of a lane in the trial: as far into a lane as the self-check of exact mode looks.
const CONTEXT: u32 = 512;

/// Loads the stage as `load` says, but with a small cache, and computes rows in it: for exact mode its self-check, which
/// is given back, otherwise a prompt, a single row, and rows of two lanes. llama.cpp ends the process over a file that it
/// does not expect, and no check of ours knows all of those: call this where that does no harm. `progress` is called with
/// 1 after each call.
///
/// # Errors
///
/// As [`LlamaLoader::load_stage`], and where llama.cpp refuses to compute.
pub fn prove(
    load: &StageLoad,
    progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
) -> Result<Option<ExactCalls>, EngineError> {
    let small = StageLoad {
        lanes: load.lanes.min(LANES),
        context: load.context.min(CONTEXT),
        ..load.clone()
    };
    let mut stage = LlamaLoader.load_unchecked(&small, progress)?;
    if load.exact {
        self_check::find(&mut stage, load, &mut || {
            let _ = progress(1.0);
        })
    } else {
        self_check::compute(&mut stage).map(|()| None)
    }
}
