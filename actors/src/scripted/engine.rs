//! A stage of the scripted [`model`], which checks that it is called as the port's contract says.

use std::{
    collections::HashMap,
    fmt,
    ops::{ControlFlow, Range},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mesh_proto::{LaneId, SessionId, v1::Sampling};

use super::{
    Gate,
    model::{self, LayerCache, WIDTH},
};
use crate::ports::engine::{
    Batch, BatchOutput, EngineError, EngineLoader, ExactCalls, MemoryFigures, RowSpan, StageEngine, StageLoad,
};

/// One call of a stage's engine, as a script sees it. It runs on the engine's thread and may block there.
#[derive(Debug)]
pub struct Call<'a> {
    /// First layer of the stage.
    pub first_layer: u32,
    /// Layers of the model.
    pub layers: u32,
    /// What is to be computed.
    pub batch: &'a Batch,
}

impl Call<'_> {
    /// The first stage.
    pub fn is_first(&self) -> bool {
        self.first_layer == 0
    }
}

/// What a script makes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is computed.
    Compute,
    /// These lanes fail, the others are computed.
    FailLanes(Vec<LaneId>),
    /// The stage breaks.
    Break,
    /// The engine panics.
    Panic,
}

/// Decides about calls.
pub type Script = Arc<dyn Fn(&Call<'_>) -> Verdict + Send + Sync>;

/// Loads [`ScriptedEngine`]s, and knows what they all hold. Cheap to clone.
#[derive(Clone, Default)]
pub struct ScriptedLoader {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Loading waits here.
    loading: Gate,
    script: Mutex<Option<Script>>,
    /// Stages whose first layer is here refuse to open sessions.
    refuse_opens: Mutex<Option<u32>>,
    violations: Mutex<Vec<String>>,
    /// Sessions that are open, by first layer of the stage and lane.
    open: Mutex<HashMap<(u32, LaneId), SessionId>>,
    loaded: Mutex<usize>,
    most_loaded: Mutex<usize>,
}

impl fmt::Debug for ScriptedLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedLoader")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedLoader {
    /// Loading passes here.
    pub fn loading(&self) -> &Gate {
        &self.shared.loading
    }

    /// Decides about all calls from now on.
    pub fn script(&self, script: impl Fn(&Call<'_>) -> Verdict + Send + Sync + 'static) {
        *lock(&self.shared.script) = Some(Arc::new(script));
    }

    /// All calls are computed again.
    pub fn no_script(&self) {
        *lock(&self.shared.script) = None;
    }

    /// The stage that starts at this layer opens no sessions from now on.
    pub fn refuse_opens(&self, first_layer: Option<u32>) {
        *lock(&self.shared.refuse_opens) = first_layer;
    }

    /// What engines were asked that the contract forbids.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.shared.violations).clone()
    }

    /// Sessions that are open on all stages together.
    pub fn open_sessions(&self) -> usize {
        lock(&self.shared.open).len()
    }

    /// Engines that are alive.
    pub fn loaded(&self) -> usize {
        *lock(&self.shared.loaded)
    }

    /// Most engines that were alive at once.
    pub fn most_loaded(&self) -> usize {
        *lock(&self.shared.most_loaded)
    }

    fn violation(&self, what: String) {
        lock(&self.shared.violations).push(what);
    }
}

impl EngineLoader for ScriptedLoader {
    fn load(
        &self,
        spec: &StageLoad,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Box<dyn StageEngine>, EngineError> {
        if !self.shared.loading.pass_or(|| progress(0.5).is_break()) || progress(1.0).is_break() {
            return Err(EngineError::Cancelled);
        }
        let mut loaded = lock(&self.shared.loaded);
        *loaded += 1;
        let mut most = lock(&self.shared.most_loaded);
        *most = (*most).max(*loaded);
        drop((loaded, most));
        Ok(Box::new(ScriptedEngine {
            loader: self.clone(),
            layers: spec.layers.clone(),
            total_layers: spec.total_layers,
            context: spec.context,
            exact: spec.exact,
            lanes: (0..spec.lanes).map(|_| None).collect(),
        }))
    }
}

/// A stage of the scripted model.
pub struct ScriptedEngine {
    loader: ScriptedLoader,
    layers: Range<u32>,
    total_layers: u32,
    context: u32,
    exact: bool,
    lanes: Vec<Option<Lane>>,
}

struct Lane {
    session: SessionId,
    sampling: Sampling,
    caches: Vec<LayerCache>,
    length: usize,
    /// It failed, or was refused: rows may still come until it is freed.
    failed: bool,
}

impl ScriptedEngine {
    fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    fn is_last(&self) -> bool {
        self.layers.end == self.total_layers
    }

    /// Of a session that is over, rows may be missing: those of an earlier batch were skipped.
    fn check(&self, batch: &Batch, cancelled: &dyn Fn(LaneId, SessionId) -> bool) -> Result<(), String> {
        if batch.spans.is_empty() || batch.spans.iter().any(|span| span.rows() == 0) {
            return Err("an empty batch or span".to_owned());
        }
        if batch.spans.windows(2).any(|pair| pair[0].lane >= pair[1].lane) {
            return Err("lanes do not ascend".to_owned());
        }
        let values = if self.is_first() { 0 } else { batch.rows() * WIDTH };
        if batch.activations.len() != values {
            return Err(format!("{} activations instead of {values}", batch.activations.len()));
        }
        let mut live = batch.spans.iter().filter(|span| !cancelled(span.lane, span.session));
        live.try_for_each(|span| self.check_span(span))
    }

    fn check_span(&self, span: &RowSpan) -> Result<(), String> {
        let place = self
            .lanes
            .get(span.lane.0 as usize)
            .ok_or_else(|| format!("there is no lane {}", span.lane))?;
        let lane = place
            .as_ref()
            .ok_or_else(|| format!("rows for lane {}, which is free", span.lane))?;
        if lane.session != span.session {
            return Err(format!(
                "rows of session {} in lane {} of {}",
                span.session, span.lane, lane.session
            ));
        }
        if lane.failed {
            return Ok(());
        }
        if span.pos_start as usize > lane.length {
            return Err(format!(
                "lane {} is at {}, rows start at {}",
                span.lane, lane.length, span.pos_start
            ));
        }
        if span.pos_start as usize + span.rows() > self.context as usize {
            return Err(format!("lane {} is full", span.lane));
        }
        if span.sampled_rows as usize > span.rows() {
            return Err("more sampled rows than rows".to_owned());
        }
        Ok(())
    }

    /// Computes a span; `input` gives its rows.
    fn compute(&mut self, span: &RowSpan, input: &[u64]) -> (Vec<u64>, Vec<u32>) {
        let (first_layer, last) = (self.layers.start, self.is_last());
        let Some(lane) = self.lanes[span.lane.0 as usize].as_mut() else {
            return Default::default();
        };
        let start = span.pos_start as usize;
        lane.caches.iter_mut().for_each(|cache| cache.trim(start));
        lane.length = start + input.len();
        let mut rows = Vec::new();
        let mut tokens = Vec::new();
        for (at, value) in input.iter().enumerate() {
            let layers = lane.caches.iter_mut().zip(first_layer..);
            let row = layers.fold(*value, |row, (cache, layer)| cache.row(layer, row));
            if last && at + span.sampled_rows as usize >= input.len() {
                tokens.push(model::draw(row, &lane.sampling, (start + at + 1) as u32));
            }
            rows.push(row);
        }
        (rows, tokens)
    }

    fn input(&self, batch: &Batch) -> Option<Vec<u64>> {
        if self.is_first() {
            return Some(
                batch
                    .spans
                    .iter()
                    .flat_map(|span| &span.tokens)
                    .map(|token| model::embed(*token))
                    .collect(),
            );
        }
        batch.activations.chunks(WIDTH).map(model::from_activations).collect()
    }

    fn broken(&self, what: String) -> EngineError {
        let what = format!("stage from layer {}: {what}", self.layers.start);
        self.loader.violation(what.clone());
        EngineError::Gone(what)
    }
}

impl StageEngine for ScriptedEngine {
    fn open(&mut self, lane: LaneId, session: SessionId, sampling: &Sampling) -> Result<(), EngineError> {
        let refused = *lock(&self.loader.shared.refuse_opens) == Some(self.layers.start);
        let layers = self.layers.len();
        let place = self.lanes.get_mut(lane.0 as usize);
        if !matches!(place, Some(None)) {
            return Err(self.broken(format!("lane {lane} is opened and not free")));
        }
        let caches = vec![LayerCache::default(); layers];
        self.lanes[lane.0 as usize] = Some(Lane {
            session,
            sampling: sampling.clone(),
            caches,
            length: 0,
            failed: refused,
        });
        lock(&self.loader.shared.open).insert((self.layers.start, lane), session);
        if refused {
            return Err(EngineError::Sampling("the script refuses".to_owned()));
        }
        Ok(())
    }

    fn forward(
        &mut self,
        batch: &Batch,
        cancelled: &dyn Fn(LaneId, SessionId) -> bool,
    ) -> Result<BatchOutput, EngineError> {
        self.check(batch, cancelled).map_err(|what| self.broken(what))?;
        let input = self
            .input(batch)
            .ok_or_else(|| self.broken("activations of another model".to_owned()))?;
        let script = lock(&self.loader.shared.script).clone();
        let call = Call {
            first_layer: self.layers.start,
            layers: self.total_layers,
            batch,
        };
        let failing = match script.map_or(Verdict::Compute, |script| script(&call)) {
            Verdict::Compute => Vec::new(),
            Verdict::FailLanes(lanes) => lanes,
            Verdict::Break => return Err(EngineError::Gone("the script breaks the stage".to_owned())),
            Verdict::Panic => panic!("the script lets the engine panic"),
        };
        let mut output = BatchOutput::default();
        let mut rest = input.as_slice();
        for span in &batch.spans {
            let (input, after) = rest.split_at(span.rows());
            rest = after;
            if cancelled(span.lane, span.session) {
                continue;
            }
            let failed = self.lanes[span.lane.0 as usize].as_ref().is_none_or(|lane| lane.failed);
            if failed || failing.contains(&span.lane) {
                if let Some(lane) = self.lanes[span.lane.0 as usize].as_mut() {
                    lane.failed = true;
                }
                let reason = "the script fails the lane".to_owned();
                let error = EngineError::Position {
                    lane: span.lane,
                    position: span.pos_start,
                    reason,
                };
                output.failed.push((span.clone(), error));
                continue;
            }
            let (rows, tokens) = self.compute(span, input);
            if !self.is_last() {
                output
                    .activations
                    .extend(rows.into_iter().flat_map(model::to_activations));
            }
            output.spans.push((span.clone(), tokens));
        }
        Ok(output)
    }

    fn trim(&mut self, lane: LaneId, position: u32) -> Result<(), EngineError> {
        if let Some(Some(lane)) = self.lanes.get_mut(lane.0 as usize) {
            lane.caches.iter_mut().for_each(|cache| cache.trim(position as usize));
            lane.length = lane.length.min(position as usize);
        }
        Ok(())
    }

    fn free(&mut self, lane: LaneId) {
        match self.lanes.get_mut(lane.0 as usize) {
            Some(place) => *place = None,
            None => self
                .loader
                .violation(format!("lane {lane} is freed and does not exist")),
        }
        lock(&self.loader.shared.open).remove(&(self.layers.start, lane));
    }

    fn memory(&self) -> MemoryFigures {
        MemoryFigures {
            weights: 1,
            kv: 2,
            compute: 3,
        }
    }

    fn exact_calls(&self) -> Option<ExactCalls> {
        self.exact.then_some(ExactCalls { rows: 60, lone: true })
    }

    fn can_rewind(&self) -> bool {
        true
    }
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        *lock(&self.loader.shared.loaded) -= 1;
        let first = self.layers.start;
        lock(&self.loader.shared.open).retain(|(layer, _), _| *layer != first);
    }
}
