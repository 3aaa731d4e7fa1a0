//! The context of a plan: the one asked for, or the longest that fits in the memory of every node.

use std::{collections::BTreeMap, ops::Range};

use mesh_proto::{ErrorCode, MeshError, v1::Node};

use super::Ranges;
use crate::ports::deployment::ModelFacts;

/// llama.cpp pads the KV cache of a lane to this many cells.
const CELL_STEP: u32 = 256;

/// Shorter contexts are only made when asked for: the longest that one step of cells holds.
const SHORTEST_CONTEXT: u32 = CELL_STEP - 1;

/// Longer contexts are only made when asked for, whatever a file claims: the longest that common models are trained with.
/// llama.cpp fills the whole cache when it makes it, so that a claim of millions costs gigabytes and minutes.
pub const LONGEST_DEFAULT: u32 = 131_072;

/// Cells of all lanes: llama.cpp counts them as a signed 32-bit number.
const MOST_CELLS: u64 = i32::MAX as u64;

/// What a stage's process needs beside weights and what grows with the context: compute and logit buffers, and the
/// process itself.
const STAGE_HEADROOM: u64 = 150 << 20;

/// Bytes of one cell of a lane beside its keys and values: llama.cpp's position, shift, extent and 256 bits of sequences,
/// and its entry in the ordered map of positions, once for each of the two caches of a model with sliding windows.
const CELL_RECORD: u64 = 2 * 96;

/// Bytes of one cell for each row of a call: the mask as f32 and as f16, once for each of the two caches.
const MASK_BYTES: u64 = 2 * (4 + 2);

/// How the stages of a plan will run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Lanes.
    pub(super) lanes: u32,
    /// Rows of the largest call.
    pub(super) rows: u32,
}

/// The context of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fitted {
    /// Positions of a lane.
    pub(super) context: u32,
    /// What keeps it below the trained one, unless the user did: such as `memory of a`.
    pub(super) limit: Option<String>,
}

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

/// Memory that the stages on one node take.
struct Budget<'a> {
    node: &'a Node,
    /// Beside what grows with the context.
    fixed: u64,
    /// For each cell of a lane, over all lanes.
    per_cell: u64,
}

impl Budget<'_> {
    /// Cells of a lane that fit.
    fn cells(&self) -> u64 {
        self.node.memory_bytes.saturating_sub(self.fixed) / self.per_cell.max(1)
    }

    fn needs(&self, cells: u64) -> u64 {
        self.fixed.saturating_add(self.per_cell.saturating_mul(cells))
    }
}

fn budgets<'a>(model: &ModelFacts, ranges: &'a Ranges, shape: Shape) -> Vec<Budget<'a>> {
    let mut budgets: BTreeMap<&str, Budget<'a>> = BTreeMap::new();
    for (node, layers) in ranges {
        let budget = budgets.entry(&node.id).or_insert(Budget {
            node,
            fixed: 0,
            per_cell: 0,
        });
        budget.fixed = budget.fixed.saturating_add(fixed_bytes(model, layers));
        budget.per_cell = budget.per_cell.saturating_add(cell_bytes(model, layers, shape));
    }
    budgets.into_values().collect()
}

/// Bytes of a cell of every lane in one stage: keys and values, llama.cpp's records, and the mask of a call.
fn cell_bytes(model: &ModelFacts, layers: &Range<u32>, shape: Shape) -> u64 {
    let own = &model.kv_bytes_per_position[layers.start as usize..layers.end as usize];
    let keys_and_values = own.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    keys_and_values
        .saturating_add(CELL_RECORD)
        .saturating_mul(u64::from(shape.lanes))
        .saturating_add(MASK_BYTES.saturating_mul(u64::from(shape.rows)))
}

/// The context asked for, or the longest up to the trained one that fits on every node.
pub(super) fn fit_context(model: &ModelFacts, ranges: &Ranges, asked: u32, shape: Shape) -> Result<Fitted, MeshError> {
    if asked > model.context && model.context > 0 {
        let message = format!(
            "a context of {asked}, but the model was trained with {}; ask for less",
            model.context
        );
        return Err(MeshError::invalid("context", message));
    }
    // A file that does not say what it was trained with gets the least.
    let trained = if model.context == 0 {
        SHORTEST_CONTEXT
    } else {
        model.context
    };
    let countable = context_within(MOST_CELLS / u64::from(shape.lanes.max(1)));
    let budgets = budgets(model, ranges, shape);
    let fits = |budget: &Budget<'_>| context_within(budget.cells());
    if asked > 0 {
        if asked > countable {
            let lanes = shape.lanes;
            let message =
                format!("a context of {asked} in {lanes} lanes; llama.cpp counts to {countable} there: ask for less");
            return Err(MeshError::invalid("context", message));
        }
        if budgets.iter().all(|budget| fits(budget) >= asked) {
            return Ok(Fitted {
                context: asked,
                limit: None,
            });
        }
        return Err(too_little(&budgets, shape, asked));
    }
    // The first of equals: what the file says, then what is usual, then what a node has.
    let mut fitted = Fitted {
        context: trained,
        limit: None,
    };
    if fitted.context > LONGEST_DEFAULT.min(countable) {
        fitted.context = LONGEST_DEFAULT.min(countable);
        fitted.limit = Some("the longest that is made without --context".to_owned());
    }
    for budget in &budgets {
        if fits(budget) < fitted.context {
            fitted.context = fits(budget);
            fitted.limit = Some(format!("memory of {}", budget.node.name));
        }
    }
    let least = trained.min(SHORTEST_CONTEXT);
    if fitted.context >= least {
        Ok(fitted)
    } else {
        Err(too_little(&budgets, shape, least))
    }
}

fn too_little(budgets: &[Budget<'_>], shape: Shape, context: u32) -> MeshError {
    let cells = u64::from(cells_per_lane(context));
    let short: Vec<String> = budgets
        .iter()
        .filter(|budget| budget.cells() < cells)
        .map(|budget| {
            let (needs, has) = (budget.needs(cells), budget.node.memory_bytes);
            format!(
                "{} needs {}, has {}",
                budget.node.name,
                mebibytes(needs),
                mebibytes(has)
            )
        })
        .collect();
    let message = format!(
        "not enough memory for {} lanes of {context} tokens: {}; use fewer lanes, a smaller --context, other stages, or \
         more nodes",
        shape.lanes,
        short.join("; ")
    );
    MeshError::new(ErrorCode::InsufficientResources, message)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    const SHAPE: Shape = Shape {
        lanes: DEFAULT_LANES,
        rows: super::super::EXACT_CHUNK,
    };

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
            fixed_bytes(&facts, &(0..30)) + u64::from(cells_per_lane(context)) * cell_bytes(&facts, &(0..30), SHAPE)
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
    fn a_cell_is_counted_with_its_mask_and_records() {
        let facts = model(30, (1..30).collect());
        let keys_and_values = 30 * 1024 * u64::from(DEFAULT_LANES);
        let counted = cell_bytes(&facts, &(0..30), SHAPE);
        assert_eq!(counted - keys_and_values, 4 * CELL_RECORD + 128 * MASK_BYTES);
        let wide = Shape { rows: 512, ..SHAPE };
        assert_eq!(cell_bytes(&facts, &(0..30), wide) - counted, 384 * MASK_BYTES);
    }

    #[test]
    fn claims_beyond_what_is_usual_are_not_believed_unasked() {
        for claimed in [1 << 22, 1 << 31, u32::MAX] {
            let facts = ModelFacts {
                context: claimed,
                ..model(8, Vec::new())
            };
            let ask = |context, mebibytes| {
                let wishes = Wishes {
                    context,
                    ..wish("auto")
                };
                plan(&facts, &[node("a", mebibytes)], &wishes)
            };
            let rich = ask(0, 1 << 20).unwrap();
            assert_eq!(rich.context, LONGEST_DEFAULT);
            assert_eq!(
                rich.context_limit.as_deref(),
                Some("the longest that is made without --context")
            );
            let poor = ask(0, 400).unwrap();
            assert!((SHORTEST_CONTEXT..8192).contains(&poor.context), "{}", poor.context);
            assert_eq!(poor.context_limit.as_deref(), Some("memory of a"));
            let refused = ask(1 << 21, 400).expect_err("it does not fit");
            assert_eq!(refused.code, ErrorCode::InsufficientResources);
            assert!(refused.message.contains("a needs ") && refused.message.contains("has 400 MiB"));
            assert_eq!(ask(1 << 20, 1 << 20).unwrap().context, 1 << 20);
        }
    }

    #[test]
    fn llama_cpp_counts_cells_as_signed_numbers() {
        let facts = ModelFacts {
            context: u32::MAX,
            ..model(8, Vec::new())
        };
        let wishes = Wishes {
            context: 1 << 29,
            ..wish("auto")
        };
        let refused = plan(&facts, &[node("a", u64::MAX >> 20)], &wishes).expect_err("too many cells");
        assert!(
            refused.message.contains("in 4 lanes; llama.cpp counts to 536870655"),
            "{}",
            refused.message
        );
    }

    #[test]
    fn the_padding_row_counts_at_the_edge_of_memory() {
        let facts = model(30, (1..30).collect());
        let cell_bytes = cell_bytes(&facts, &(0..30), SHAPE);
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
