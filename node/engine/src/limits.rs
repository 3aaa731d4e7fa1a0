//! Sizes of contexts and calls, and why.

use mesh_actors::ports::engine::StageLoad;

use crate::calls::CallLimits;

/// Most rows of a call in exact mode: the most that the self-check compares.
pub const EXACT_CALL_ROWS: usize = 128;

/// Most rows of a call otherwise: llama.cpp's default for `n_ubatch`.
pub const FAST_CALL_ROWS: usize = 512;

/// llama.cpp pads the cells of a stream to this (`GGML_PAD(n_ctx_seq, 256)` in `llama-context.cpp`).
const CELL_STEP: u32 = 256;

/// Budget for the logits of one call at the output stage, bytes. Only sampled rows need them.
const SAMPLED_LOGITS_BUDGET: usize = 16 << 20;

/// Budget for the logits of one call at other stages, bytes: never read, but llama.cpp allocates them for every row.
const UNREAD_LOGITS_BUDGET: usize = 64 << 20;

/// Fewest sampled rows that a call must hold: those that the self-check compares.
const MIN_OUTPUTS: usize = 8;

/// Fewest rows of a call at other stages, whatever their unread logits take.
const MIN_ROWS: usize = 60;

/// KV cells that a lane of `context` positions takes: one more for the row that pads a lone row at the last position,
/// then rounded as llama.cpp does. Planners need it to foretell memory.
pub fn cells_per_lane(context: u32) -> u32 {
    context.saturating_add(1).div_ceil(CELL_STEP).saturating_mul(CELL_STEP)
}

/// Limits of the calls of a stage whose file has a vocabulary of `n_vocab`.
pub(crate) fn call_limits(load: &StageLoad, n_vocab: u32) -> CallLimits {
    let row_bytes = (n_vocab.max(1) as usize).saturating_mul(size_of::<f32>());
    let most = if load.exact { EXACT_CALL_ROWS } else { FAST_CALL_ROWS };
    let (rows, outputs) = if load.is_last() {
        (most, (SAMPLED_LOGITS_BUDGET / row_bytes).clamp(MIN_OUTPUTS, most))
    } else {
        let rows = (UNREAD_LOGITS_BUDGET / row_bytes).clamp(MIN_ROWS, most);
        (rows, rows)
    };
    CallLimits {
        rows,
        outputs,
        pads: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_room_for_the_padding_row() {
        assert_eq!(cells_per_lane(1), 256);
        assert_eq!(cells_per_lane(255), 256);
        assert_eq!(cells_per_lane(256), 512);
        assert_eq!(cells_per_lane(2048), 2304);
    }

    #[test]
    fn the_planner_counts_the_same_cells() {
        for context in (0..=1025).chain([8191, 8192, 131_072, u32::MAX - 256, u32::MAX]) {
            assert_eq!(
                mesh_actors::deployment::plan::cells_per_lane(context),
                cells_per_lane(context),
                "{context}"
            );
        }
    }
}
