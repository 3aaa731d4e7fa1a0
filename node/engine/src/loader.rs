//! Loads a stage file and checks that it is what was asked for.

use std::ops::ControlFlow;

use mesh_actors::ports::engine::{EngineError, EngineLoader, StageEngine, StageLoad};

use crate::{
    file_check,
    limits::{call_limits, cells_per_lane},
    raw::{
        backend,
        context::{Context, ContextShape},
        log,
        model::{Model, ModelError},
    },
    self_check,
    stage::LlamaStage,
};

/// Loads stages on llama.cpp.
#[derive(Debug, Clone, Copy, Default)]
pub struct LlamaLoader;

impl LlamaLoader {
    /// Loads a stage, as [`EngineLoader::load`] does.
    ///
    /// # Errors
    ///
    /// [`EngineError::Load`] where llama.cpp refuses the file or it does not match `load`; [`EngineError::Cancelled`].
    pub fn load_stage(
        &self,
        load: &StageLoad,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<LlamaStage, EngineError> {
        let mut stage = self.load_unchecked(load, progress)?;
        if load.exact {
            let found = self_check::exact_calls(&mut stage, load);
            stage.keep_to(found);
            if !stage.is_exact() {
                tracing::warn!(path = %load.path.display(), prepared = backend::is_process_exact(), "stage is not exact");
            }
        }
        tracing::info!(path = %load.path.display(), layers = ?load.layers, exact = ?stage.exact_calls(), "stage loaded");
        Ok(stage)
    }

    /// Loads a stage that has not computed anything yet.
    pub(crate) fn load_unchecked(
        &self,
        load: &StageLoad,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<LlamaStage, EngineError> {
        let shown = load.path.display().to_string();
        let refused = |reason: String| EngineError::Load {
            path: shown.clone(),
            reason,
        };
        let cells = check_request(load).map_err(refused)?;
        let path = load
            .path
            .to_str()
            .ok_or_else(|| refused("the path is not UTF-8; move the file".to_owned()))?;
        file_check::check(&load.path).map_err(refused)?;
        let gpu_layers = load.gpu_layers.map_or(-1, |layers| i32::try_from(layers).unwrap_or(-1));
        let model = Model::load(path, gpu_layers, !load.exact, progress).map_err(|error| match error {
            ModelError::Cancelled => EngineError::Cancelled,
            ModelError::Refused(words) => refused(format!("{words}; fetch or cut the file anew")),
        })?;
        check_model(load, &model).map_err(refused)?;
        let limits = call_limits(load, model.n_vocab());
        let shape = ContextShape {
            lanes: load.lanes,
            cells,
            rows: u32::try_from(limits.rows).unwrap_or(u32::MAX),
            outputs: u32::try_from(limits.outputs).unwrap_or(u32::MAX),
            threads: i32::try_from(load.threads).unwrap_or(i32::MAX),
            captures: !load.is_last(),
            mixed_kv: load.exact,
        };
        log::clear();
        let context = Context::new(model, shape)
            .map_err(|words| refused(format!("{words}; use a shorter --context or fewer --lanes")))?;
        if context.cells() < cells {
            return Err(refused(format!(
                "llama.cpp gave {} cells per lane, not {cells}",
                context.cells()
            )));
        }
        Ok(LlamaStage::new(context, load, limits))
    }
}

impl EngineLoader for LlamaLoader {
    fn load(
        &self,
        spec: &StageLoad,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Box<dyn StageEngine>, EngineError> {
        Ok(Box::new(self.load_stage(spec, progress)?))
    }
}

/// The request makes sense by itself; gives the cells of a lane.
fn check_request(load: &StageLoad) -> Result<u32, String> {
    if load.layers.is_empty() || load.layers.end > load.total_layers {
        return Err(format!(
            "layers {:?} of {} are not a stage",
            load.layers, load.total_layers
        ));
    }
    if load.threads == 0 || load.context == 0 {
        return Err("threads and context must be at least 1".to_owned());
    }
    let most = backend::max_lanes();
    if load.lanes == 0 || load.lanes as usize > most {
        return Err(format!("{} lanes asked for; use 1 to {most}", load.lanes));
    }
    let cells = cells_per_lane(load.context);
    let fits = cells
        .checked_mul(load.lanes)
        .is_some_and(|all| all <= i32::MAX.cast_unsigned());
    if fits {
        Ok(cells)
    } else {
        Err(format!(
            "{} lanes of {} positions are too many; use a shorter --context",
            load.lanes, load.context
        ))
    }
}

/// The file is the one that the request describes.
fn check_model(load: &StageLoad, model: &Model) -> Result<(), String> {
    let differs = |what: &str, file: u32, asked: u32| {
        Err(format!(
            "the file has {what} {file}, the deployment {asked}; cut it again from the right source"
        ))
    };
    let layers = load.layers.end - load.layers.start;
    if model.n_layer() != layers {
        return differs("a layer count of", model.n_layer(), layers);
    }
    if model.n_embd() != load.n_embd {
        return differs("a width of", model.n_embd(), load.n_embd);
    }
    if load.is_last() && model.n_vocab() != load.n_vocab {
        return differs("a vocabulary of", model.n_vocab(), load.n_vocab);
    }
    if model.is_recurrent() {
        return Err("recurrent memory cannot rewind, so this architecture cannot be served yet".to_owned());
    }
    Ok(())
}
