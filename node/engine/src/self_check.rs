//! Proves at load that results do not depend on the shape of a call, as exact mode promises.

use mesh_actors::ports::engine::EngineError;

use crate::stage::{LlamaStage, ProbeInput};

/// Rows of the check: enough for kernels that treat blocks of 4, 8 and 16 rows apart.
const ROWS: u32 = 18;

/// Whether the same rows, computed in several shapes, give the same bits. The lanes are cleared afterwards.
pub(crate) fn agrees(stage: &mut LlamaStage) -> bool {
    let verdict = compare(stage);
    for lane in 0..stage.lane_count() {
        stage.clear_cache(lane);
    }
    match verdict {
        Ok(same) => same,
        Err(error) => {
            tracing::warn!(%error, "self-check of exact mode failed");
            false
        }
    }
}

/// Computes a prompt of some rows, single rows of it, and rows of two lanes side by side, whatever comes out.
///
/// # Errors
///
/// llama.cpp refuses a call.
pub(crate) fn compute(stage: &mut LlamaStage) -> Result<(), EngineError> {
    let rows = ROWS.min(stage.positions());
    in_chunks(stage, 0, rows, &[rows - rows / 9, rows - 1, rows])?;
    if stage.lane_count() > 1 {
        side_by_side(stage, 1)?;
    }
    Ok(())
}

fn compare(stage: &mut LlamaStage) -> Result<bool, EngineError> {
    let rows = ROWS.min(stage.positions());
    let whole = in_chunks(stage, 0, rows, &[rows.div_ceil(2), rows])?;
    let uneven = in_chunks(stage, 0, rows, &[rows.min(3), rows.min(8), rows])?;
    let lone = in_chunks(stage, 0, rows.min(4), &[1, 2, 3, 4])?;
    let mut same = whole == uneven && lone[..] == whole[..lone.len()];
    if stage.lane_count() > 1 {
        same &= side_by_side(stage, rows.min(3))? == whole[..rows.min(3) as usize];
    }
    Ok(same)
}

/// Rows `0..rows` of a lane, in calls that end at `ends`.
fn in_chunks(stage: &mut LlamaStage, lane: u32, rows: u32, ends: &[u32]) -> Result<Vec<Vec<u32>>, EngineError> {
    stage.clear_cache(lane);
    let mut bits = Vec::new();
    let mut start = 0;
    for end in ends.iter().copied().filter(|end| *end <= rows) {
        if end > start {
            bits.extend(call(
                stage,
                &(start..end).map(|position| (lane, position)).collect::<Vec<_>>(),
            )?);
            start = end;
        }
    }
    Ok(bits)
}

/// Rows of lanes 0 and 1, one each per call; gives those of lane 1.
fn side_by_side(stage: &mut LlamaStage, rows: u32) -> Result<Vec<Vec<u32>>, EngineError> {
    stage.clear_cache(0);
    stage.clear_cache(1);
    (0..rows)
        .map(|position| Ok(call(stage, &[(0, position), (1, position)])?.swap_remove(1)))
        .collect()
}

fn call(stage: &mut LlamaStage, rows: &[(u32, u32)]) -> Result<Vec<Vec<u32>>, EngineError> {
    let (first, width, vocabulary) = (stage.is_first(), stage.n_embd(), stage.n_vocab());
    stage.probe(rows, &|position| {
        if first {
            ProbeInput::Token(noise(u64::from(position)) % vocabulary)
        } else {
            let values = (0..width as u64).map(|column| f64::from(noise(u64::from(position) << 32 | column)));
            ProbeInput::Activation(values.map(|value| (value / f64::from(u32::MAX) - 0.5) as f32).collect())
        }
    })
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), upper half.
fn noise(index: u64) -> u32 {
    let mut value = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((value ^ (value >> 31)) >> 32) as u32
}
