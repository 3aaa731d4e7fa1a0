//! The context of a plan: the one asked for, or the longest that fits in the memory of every node.

use std::{collections::BTreeMap, ops::Range};

use mesh_proto::{ErrorCode, MeshError, v1::Node};

use super::Ranges;
use crate::ports::deployment::ModelFacts;

/// llama.cpp pads the KV cache of a lane to this many cells.
const CELL_STEP: u32 = 256;

/// Shorter contexts are only made when asked for: the longest that one step of cells holds.
const SHORTEST_CONTEXT: u32 = CELL_STEP - 1;

/// What a stage's process needs beside weights and KV cache: compute and logit buffers, and the process itself.
const STAGE_HEADROOM: u64 = 150 << 20;

/// Bytes that a stage needs beside its KV cache.
fn fixed_bytes(model: &ModelFacts, layers: &Range<u32>) -> u64 {
    let own = &model.layer_bytes[layers.start as usize..layers.end as usize];
    let mut bytes = own.iter().fold(STAGE_HEADROOM, |sum, bytes| sum.saturating_add(*bytes));
    if layers.start == 0 {
        bytes = bytes.saturating_add(model.token_embd_bytes);
    }
    if layers.end == model.layers {
        bytes = bytes.saturating_add(model.output_bytes);
    }
    bytes
}

/// KV cells that a lane of `context` positions takes in the engine: one more for the row that pads a lone row at the last
/// position, then rounded as llama.cpp does. The engine's own `cells_per_lane` must agree; a test there holds that.
pub fn cells_per_lane(context: u32) -> u32 {
    context.saturating_add(1).div_ceil(CELL_STEP).saturating_mul(CELL_STEP)
}

/// The longest context whose cells are no more than these: the inverse of [`cells_per_lane`].
fn context_within(cells: u64) -> u32 {
    let whole_steps = cells / u64::from(CELL_STEP) * u64::from(CELL_STEP);
    u32::try_from(whole_steps).unwrap_or(u32::MAX).saturating_sub(1)
}

/// The context asked for, or the longest up to the trained one that fits on every node.
pub(super) fn fit_context(model: &ModelFacts, ranges: &Ranges, asked: u32, lanes: u32) -> Result<u32, MeshError> {
    if asked > model.context && model.context > 0 {
        let message = format!(
            "a context of {asked}, but the model was trained with {}; ask for less",
            model.context
        );
        return Err(MeshError::invalid("context", message));
    }
    // A file that does not say what it was trained with gets the least.
    let longest = if model.context == 0 {
        SHORTEST_CONTEXT
    } else {
        model.context
    };
    let wanted = if asked == 0 { longest } else { asked };
    let mut budgets: BTreeMap<&str, (u64, u64, u64, &Node)> = BTreeMap::new();
    for (node, layers) in ranges {
        let per_position: u64 = model.kv_bytes_per_position[layers.start as usize..layers.end as usize]
            .iter()
            .sum();
        let (fixed, kv, ..) = budgets.entry(&node.id).or_insert((0, 0, node.memory_bytes, node));
        *fixed = fixed.saturating_add(fixed_bytes(model, layers));
        *kv = kv.saturating_add(per_position.saturating_mul(u64::from(lanes)));
    }
    let room = |(fixed, kv, memory, _): &(u64, u64, u64, &Node)| memory.saturating_sub(*fixed) / (*kv).max(1);
    let fits = context_within(budgets.values().map(room).min().unwrap_or(0));
    if fits >= wanted {
        return Ok(wanted);
    }
    if asked == 0 && fits >= SHORTEST_CONTEXT {
        return Ok(fits);
    }
    let smallest = if asked == 0 {
        wanted.min(SHORTEST_CONTEXT)
    } else {
        asked
    };
    let cells = u64::from(cells_per_lane(smallest));
    let short: Vec<String> = budgets
        .values()
        .filter(|budget| room(budget) < cells)
        .map(|(fixed, kv, memory, node)| {
            let needs = fixed.saturating_add(kv.saturating_mul(cells));
            format!("{} needs {}, has {}", node.name, mebibytes(needs), mebibytes(*memory))
        })
        .collect();
    let message = format!(
        "not enough memory for {lanes} lanes of {smallest} tokens: {}; use fewer lanes, a smaller --context, other \
         stages, or more nodes",
        short.join("; ")
    );
    Err(MeshError::new(ErrorCode::InsufficientResources, message))
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            DEFAULT_LANES, Wishes, plan,
            tests::{model, node, wish},
        },
        *,
    };

    #[test]
    fn memory_that_is_short_is_told_per_node() {
        let facts = model(30, (1..30).collect());
        let nodes = [node("a", 4096), node("b", 100)];
        let asked = Wishes {
            context: 8192,
            ..wish("a:0-15,b:15-30")
        };
        let message = plan(&facts, &nodes, &asked).expect_err("too small").message;
        assert!(message.contains("b needs ") && message.contains("has 100 MiB") && !message.contains("a needs"));
    }

    #[test]
    fn without_a_wish_the_context_shrinks_to_what_fits() {
        let facts = model(30, (1..30).collect());
        let planned = plan(&facts, &[node("a", 700)], &wish("auto")).unwrap();
        assert!(planned.context < 8192 && planned.context > 0);
        let needs = |context: u32| {
            fixed_bytes(&facts, &(0..30)) + u64::from(cells_per_lane(context)) * 30 * 1024 * u64::from(DEFAULT_LANES)
        };
        assert!(needs(planned.context) <= 700 << 20 && needs(planned.context + 1) > 700 << 20);
    }

    #[test]
    fn cells_and_contexts_are_inverse() {
        for context in [1, 254, 255, 256, 257, 511, 512, 8191, 8192] {
            let cells = u64::from(cells_per_lane(context));
            assert!(
                context_within(cells) >= context && context_within(cells - 1) < context,
                "{context}"
            );
        }
        assert_eq!(
            (context_within(0), context_within(255), context_within(256)),
            (0, 0, 255)
        );
        assert_eq!(context_within(u64::MAX), u32::MAX - 1);
    }

    #[test]
    fn the_padding_row_counts_at_the_edge_of_memory() {
        let facts = model(30, (1..30).collect());
        let cell_bytes = 30 * 1024 * u64::from(DEFAULT_LANES);
        let memory = |cells: u64| Node {
            memory_bytes: fixed_bytes(&facts, &(0..30)) + cells * cell_bytes,
            ..node("a", 0)
        };
        let ask = |context: u32, node: Node| {
            plan(
                &facts,
                &[node],
                &Wishes {
                    context,
                    ..wish("auto")
                },
            )
        };
        assert_eq!(ask(0, memory(8192 + 256)).unwrap().context, 8192);
        assert_eq!(ask(0, memory(8192)).unwrap().context, 8191);
        assert_eq!(ask(4096, memory(4096 + 256)).unwrap().context, 4096);
        assert!(ask(4096, memory(4096)).is_err());
        assert_eq!(ask(100, memory(256)).unwrap().context, 100);
        assert!(ask(0, memory(255)).is_err());
    }
}
