//! Finds at load which calls give the same bits, as exact mode promises: results must not depend on how many rows a
//! call holds, on the lanes beside it, or on the number of threads.
//!
//! Rows at fixed positions are computed in calls of several sizes, at the start of a lane and behind
//! [`DEPTH`] other rows, where ggml's attention has other kernels.

use std::collections::BTreeMap;

use mesh_actors::ports::engine::{EngineError, ExactCalls, StageLoad};

use crate::{
    lone_rows,
    raw::backend,
    stage::{LlamaStage, ProbeInput},
};

/// Sizes of calls that are tried at the start of a lane, rows. Kernels treat blocks of 4, 8, 16, 32 and 64 rows apart.
const SIZES: [u32; 6] = [2, 7, 1, 33, 60, 128];

/// Sizes that are tried behind [`DEPTH`] rows: attention tells one row, few, and 64 or more apart.
const DEEP_SIZES: [u32; 3] = [7, 1, 128];

/// Sizes that are tried with other numbers of threads.
const THREADED: [u32; 2] = [1, 33];

/// Rows of a call whose bits are compared, where the call has them: the first, and the last of most sizes.
const COMPARED: [u32; 8] = [0, 1, 5, 6, 31, 32, 58, 59];

/// Rows that are compared at least: where only a small product differs, few values do.
const FEWEST: u32 = 7;

/// Size of injected activations: small, so that adding what a layer gives does not round away how it differs.
const AMPLITUDE: f32 = 0.1;

/// Rows before the deep ones: with 128 more, attention runs over 512 cells, from where ggml may cut the cells of a lone
/// row by the number of threads.
const DEPTH: u32 = 384;

/// Bits of rows, by their place behind the start.
type Rows = BTreeMap<u32, Vec<u32>>;

/// The calls that an exact stage keeps to: those that an earlier check of its file found, if they still agree, else
/// those that are found now. Nothing where none do.
pub(crate) fn exact_calls(stage: &mut LlamaStage, load: &StageLoad) -> Option<ExactCalls> {
    let checked = match load.exact_calls {
        Some(found) => confirm(stage, found),
        None => find(stage, load, &mut || {}),
    };
    checked.unwrap_or_else(|error| {
        tracing::warn!(%error, "the self-check of exact mode failed");
        None
    })
}

/// The widest calls that agree; nothing where not even two rows give what seven do. `tick` is called after each call.
/// The lanes are cleared afterwards.
///
/// # Errors
///
/// llama.cpp refuses a call.
pub(crate) fn find(
    stage: &mut LlamaStage,
    load: &StageLoad,
    tick: &mut dyn FnMut(),
) -> Result<Option<ExactCalls>, EngineError> {
    if !backend::is_process_exact() {
        return Ok(None);
    }
    let widest = ExactCalls {
        rows: stage.call_rows(),
        lone: !lone_rows::differ(&load.path, load.is_last()),
    };
    let mut probe = Probe { stage, tick };
    let found = probe.widest(widest);
    probe.clear();
    found
}

/// What an earlier check found, if a few rows still agree.
fn confirm(stage: &mut LlamaStage, found: ExactCalls) -> Result<Option<ExactCalls>, EngineError> {
    if !backend::is_process_exact() {
        return Ok(None);
    }
    let mut probe = Probe {
        stage,
        tick: &mut || {},
    };
    let same = probe.still_agree(found);
    probe.clear();
    Ok(same?.then_some(found))
}

/// Computes a prompt of some rows, a single row, and rows of two lanes side by side, whatever comes out.
///
/// # Errors
///
/// llama.cpp refuses a call.
pub(crate) fn compute(stage: &mut LlamaStage) -> Result<(), EngineError> {
    let mut probe = Probe {
        stage,
        tick: &mut || {},
    };
    let rows = FEWEST.min(probe.stage.positions());
    probe.call(&rows_of(0, 0..rows), &[0])?;
    probe.side_by_side().map(drop)
}

/// A stage under check.
struct Probe<'a> {
    stage: &'a mut LlamaStage,
    tick: &'a mut dyn FnMut(),
}

impl Probe<'_> {
    fn widest(&mut self, mut found: ExactCalls) -> Result<Option<ExactCalls>, EngineError> {
        for (depth, sizes) in depths(self.stage) {
            self.fill(depth, found.rows)?;
            let mut known = Rows::new();
            for rows in sizes.iter().copied() {
                if rows > found.rows || (rows == 1 && !found.lone) || self.agrees_at(depth, rows, &mut known)? {
                    continue;
                }
                match rows {
                    1 => found.lone = false,
                    33.. => found.rows = largest_below(rows),
                    _ => return Ok(None),
                }
            }
            if !self.threads_agree(depth, found, &mut known)? {
                return Ok(None);
            }
        }
        Ok(self.side_by_side()?.then_some(found))
    }

    fn still_agree(&mut self, found: ExactCalls) -> Result<bool, EngineError> {
        let mut known = Rows::new();
        for rows in [2, 7, 1] {
            if (rows > 1 || found.lone) && !self.agrees_at(0, rows, &mut known)? {
                return Ok(false);
            }
        }
        self.side_by_side()
    }

    /// Computes rows `0..depth` of lane 0.
    fn fill(&mut self, depth: u32, most: u32) -> Result<(), EngineError> {
        self.stage.clear_cache(0);
        let mut start = 0;
        while start < depth {
            let end = depth.min(start + most);
            self.call(&rows_of(0, start..end), &[])?;
            start = end;
        }
        Ok(())
    }

    /// Rows behind `depth` others in calls of `rows`, as many as seven rows need. Rows that other calls had must come out
    /// as they did there.
    fn agrees_at(&mut self, depth: u32, rows: u32, known: &mut Rows) -> Result<bool, EngineError> {
        let mut same = true;
        self.stage.trim_cache(0, depth)?;
        for start in (0..FEWEST).step_by(rows as usize) {
            let compared = COMPARED.into_iter().filter(|row| (start..start + rows).contains(row));
            let compared: Vec<u32> = compared.collect();
            let places: Vec<u32> = compared.iter().map(|row| row - start).collect();
            let first = depth + start;
            let bits = self.call(&rows_of(0, first..first + rows), &places)?;
            for (row, bits) in compared.into_iter().zip(bits) {
                same &= *known.entry(row).or_insert_with(|| bits.clone()) == bits;
            }
        }
        tracing::debug!(depth, rows, same, "self-check");
        Ok(same)
    }

    /// The same with one thread and with two: stages on other nodes have other numbers of them.
    fn threads_agree(&mut self, depth: u32, found: ExactCalls, known: &mut Rows) -> Result<bool, EngineError> {
        let own = self.stage.threads();
        let mut same = true;
        for threads in [1, 2].into_iter().filter(|threads| *threads < own) {
            self.stage.set_threads(threads);
            for rows in THREADED {
                if rows <= found.rows && (rows > 1 || found.lone) {
                    same &= self.agrees_at(depth, rows, known)?;
                }
            }
        }
        self.stage.set_threads(own);
        Ok(same)
    }

    /// Rows of lanes 0 and 1, one each per call, are those of lane 0 alone.
    fn side_by_side(&mut self) -> Result<bool, EngineError> {
        if self.stage.lane_count() < 2 {
            return Ok(true);
        }
        self.stage.clear_cache(0);
        let alone = self.call(&rows_of(0, 0..3), &[0, 1, 2])?;
        self.clear();
        let mut same = true;
        for (position, alone) in (0..).zip(&alone) {
            let both = self.call(&[(0, position), (1, position)], &[0, 1])?;
            same &= both.iter().all(|row| row == alone);
        }
        Ok(same)
    }

    fn clear(&mut self) {
        for lane in 0..self.stage.lane_count() {
            self.stage.clear_cache(lane);
        }
    }

    /// Bits of the rows at `places` of a call.
    fn call(&mut self, rows: &[(u32, u32)], places: &[u32]) -> Result<Vec<Vec<u32>>, EngineError> {
        let (first, width, vocabulary) = (self.stage.is_first(), self.stage.n_embd(), self.stage.n_vocab());
        let bits = self.stage.probe(rows, places, &|position| {
            if first {
                ProbeInput::Token(noise(u64::from(position)) % vocabulary)
            } else {
                let noise = (0..width as u64).map(|column| noise(u64::from(position) << 32 | column));
                let values = noise.map(|value| AMPLITUDE * (f64::from(value) / f64::from(u32::MAX) - 0.5) as f32);
                ProbeInput::Activation(values.collect())
            }
        });
        (self.tick)();
        bits
    }
}

/// Where rows are compared, and in calls of which sizes: at the start, and behind [`DEPTH`] rows if a lane is that long.
fn depths(stage: &LlamaStage) -> Vec<(u32, &'static [u32])> {
    let widest = DEEP_SIZES.into_iter().max().unwrap_or_default();
    let reached = stage.positions() >= DEPTH + widest;
    let deep = reached.then_some((DEPTH, &DEEP_SIZES[..]));
    [Some((0, &SIZES[..])), deep].into_iter().flatten().collect()
}

fn largest_below(rows: u32) -> u32 {
    SIZES.into_iter().filter(|size| *size < rows).max().unwrap_or(2)
}

fn rows_of(lane: u32, positions: std::ops::Range<u32>) -> Vec<(u32, u32)> {
    positions.map(|position| (lane, position)).collect()
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), upper half.
fn noise(index: u64) -> u32 {
    let mut value = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((value ^ (value >> 31)) >> 32) as u32
}
