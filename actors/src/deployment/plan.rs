//! Which layers go to which node.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
};

use mesh_proto::{
    ErrorCode, MeshError,
    v1::{Node, NodeState},
};

use crate::ports::deployment::ModelFacts;

/// Lanes when none are asked for.
pub const DEFAULT_LANES: u32 = 4;

/// Most lanes: each is a KV stream, and llama.cpp takes at most 256 sequences.
pub const MAX_LANES: u32 = 256;

/// Rows of one prefill chunk in exact mode: a call never exceeds 60 rows there (DESIGN §1).
pub const EXACT_CHUNK: u32 = 60;

/// Rows of one prefill chunk otherwise: llama.cpp's default micro-batch.
pub const FAST_CHUNK: u32 = 512;

/// llama.cpp pads the KV cache of a lane to this many cells.
const CELL_STEP: u32 = 256;

/// Shorter contexts are only made when asked for: the longest that one step of cells holds.
const SHORTEST_CONTEXT: u32 = CELL_STEP - 1;

/// What a stage's process needs beside weights and KV cache: compute and logit buffers, and the process itself.
const STAGE_HEADROOM: u64 = 150 << 20;

/// What the user asked for.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// `auto`, a number, or a list; empty is `auto`.
    pub stages: String,
    /// Tokens per lane; 0 is the trained length or what memory allows.
    pub context: u32,
    /// 0 is [`DEFAULT_LANES`].
    pub lanes: u32,
    /// Only if every node runs exact mode.
    pub exact: bool,
    /// 0 is the default of the mode.
    pub prefill_chunk: u32,
}

/// One stage of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedStage {
    /// Where.
    pub node: Node,
    /// Which layers.
    pub layers: Range<u32>,
    /// Compute threads: the host's cores over the stages placed on it, at least 1.
    pub threads: u32,
}

/// A plan that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Stage 0 first.
    pub stages: Vec<PlannedStage>,
    /// Tokens per lane.
    pub context: u32,
    /// Lanes.
    pub lanes: u32,
    /// Exact mode is asked of the engines.
    pub exact: bool,
    /// Rows of one prefill chunk.
    pub prefill_chunk: u32,
}

/// Makes a plan. `nodes` are the members, the owner first.
///
/// # Errors
///
/// Gaps, overlaps, unknown nodes, illegal cuts, too little memory: each says what to change.
pub fn plan(model: &ModelFacts, nodes: &[Node], wishes: &Wishes) -> Result<Plan, MeshError> {
    let lanes = match wishes.lanes {
        0 => DEFAULT_LANES,
        lanes if lanes <= MAX_LANES => lanes,
        lanes => {
            return Err(MeshError::invalid(
                "lanes",
                format!("{lanes} lanes; use at most {MAX_LANES}"),
            ));
        }
    };
    let ranges = match wishes.stages.trim() {
        "" | "auto" => automatic(model, nodes, None)?,
        text => match text.parse::<u32>() {
            Ok(count) => automatic(model, nodes, Some(count))?,
            Err(_) => parse_stages(text, model, nodes)?,
        },
    };
    let exact = ranges.iter().all(|(node, _)| node.exact);
    if wishes.exact && !exact {
        let names: Vec<_> = ranges
            .iter()
            .filter(|(node, _)| !node.exact)
            .map(|(node, _)| node.name.as_str())
            .collect();
        let message = format!(
            "--exact, but {} runs with --no-exact; start it without",
            names.join(", ")
        );
        return Err(MeshError::invalid("exact", message));
    }
    let default_chunk = if exact { EXACT_CHUNK } else { FAST_CHUNK };
    let prefill_chunk = if wishes.prefill_chunk == 0 {
        default_chunk
    } else {
        wishes.prefill_chunk
    };
    if prefill_chunk > FAST_CHUNK {
        let message = format!("a prefill chunk of {prefill_chunk} rows; use at most {FAST_CHUNK}");
        return Err(MeshError::invalid("prefill_chunk", message));
    }
    let context = fit_context(model, &ranges, wishes.context, lanes)?;
    Ok(Plan {
        stages: with_threads(ranges),
        context,
        lanes,
        exact,
        prefill_chunk,
    })
}

type Ranges = Vec<(Node, Range<u32>)>;

fn is_up(node: &Node) -> bool {
    node.state == NodeState::Up as i32
}

fn automatic(model: &ModelFacts, nodes: &[Node], asked: Option<u32>) -> Result<Ranges, MeshError> {
    let up: Vec<&Node> = nodes.iter().filter(|node| is_up(node)).collect();
    let most = model.legal_cuts.len() + 1;
    let count = match asked {
        Some(0) => return Err(MeshError::invalid("stages", "0 stages; ask for at least one")),
        Some(count) if count as usize > up.len() => {
            let message = format!(
                "{count} stages, but {} node(s) are up; join more nodes, or name nodes more than once, such as \
                 \"a:0-10,a:10-20\"",
                up.len()
            );
            return Err(MeshError::new(ErrorCode::InsufficientResources, message).with_param("stages"));
        }
        Some(count) if count as usize > most => {
            let message = format!("{count} stages, but this model can be cut into {most} at most; ask for fewer");
            return Err(MeshError::invalid("stages", message));
        }
        Some(count) => count as usize,
        None => up.len().min(most),
    };
    if count == 0 {
        return Err(MeshError::new(
            ErrorCode::InsufficientResources,
            "no node is up; see `mesh node list`",
        ));
    }
    let cuts = match asked {
        Some(_) => choose_cuts(model, &up[..count]).ok_or_else(|| {
            let message = format!(
                "no {count} stages of this {} model are all possible{}",
                model.architecture,
                why_not(model)
            );
            MeshError::invalid("stages", message)
        })?,
        // One stage is always possible.
        None => (1..=count)
            .rev()
            .find_map(|count| choose_cuts(model, &up[..count]))
            .unwrap_or_default(),
    };
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain(std::iter::once(model.layers));
    Ok(up
        .into_iter()
        .cloned()
        .zip(starts.zip(ends).map(|(start, end)| start..end))
        .collect())
}

fn why_not(model: &ModelFacts) -> String {
    let first = model.illegal_ranges.first();
    first.map_or_else(String::new, |(range, reason)| {
        format!(
            ": layers {}-{} cannot be one, because {reason}; ask for another number",
            range.start, range.end
        )
    })
}

/// Legal cuts, one stage per node, that bring each node's share of the layers' bytes closest to its share of the memory:
/// the least sum of distances, found stage by stage. `None` if no such cuts exist.
fn choose_cuts(model: &ModelFacts, nodes: &[&Node]) -> Option<Vec<u32>> {
    let illegal: HashSet<&Range<u32>> = model.illegal_ranges.iter().map(|(range, _)| range).collect();
    let bytes_before = bytes_before(model);
    let goals = memory_shares(nodes, bytes_before[model.layers as usize]);
    let ends: Vec<u32> = model.legal_cuts.iter().copied().chain([model.layers]).collect();
    // For each end of the stages so far: the distance in all, and the cuts before that end.
    let mut best: BTreeMap<u32, (f64, Vec<u32>)> = BTreeMap::from([(0, (0.0, Vec::new()))]);
    for (index, goal) in goals.into_iter().enumerate() {
        let is_last = index + 1 == nodes.len();
        let mut next = BTreeMap::new();
        for end in ends.iter().copied().filter(|end| (*end == model.layers) == is_last) {
            let before = best
                .iter()
                .filter(|(start, _)| **start < end && !illegal.contains(&(**start..end)));
            // The first of equals: the lowest cut.
            let Some((start, (distance, cuts))) = before.min_by(|a, b| a.1.0.total_cmp(&b.1.0)) else {
                continue;
            };
            let cuts = cuts.iter().copied().chain((*start > 0).then_some(*start)).collect();
            next.insert(end, (distance + (bytes_before[end as usize] - goal).abs(), cuts));
        }
        best = next;
    }
    best.remove(&model.layers).map(|(_, cuts)| cuts)
}

/// Bytes of all layers before each layer, and at last of all.
fn bytes_before(model: &ModelFacts) -> Vec<f64> {
    let sums = model.layer_bytes.iter().scan(0.0, |sum, bytes| {
        *sum += *bytes as f64;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}

/// Where each node's stage would end if bytes could be split anywhere.
fn memory_shares(nodes: &[&Node], total: f64) -> Vec<f64> {
    let memory: f64 = nodes.iter().map(|node| node.memory_bytes.max(1) as f64).sum();
    let shares = nodes.iter().scan(0.0, |share, node| {
        *share += node.memory_bytes.max(1) as f64 / memory;
        Some(*share * total)
    });
    shares.collect()
}

fn parse_stages(text: &str, model: &ModelFacts, nodes: &[Node]) -> Result<Ranges, MeshError> {
    let refuse = |message: String| MeshError::invalid("stages", message);
    let example = "write stages as NODE:START-END, such as \"a:0-10,b:10-30\"";
    let mut stages = Ranges::new();
    for part in text.split(',').map(str::trim) {
        let (name, range) = part
            .rsplit_once(':')
            .ok_or_else(|| refuse(format!("{part:?} is not a stage; {example}")))?;
        let (start, end) = range
            .split_once('-')
            .and_then(|(start, end)| Some((start.trim().parse::<u32>().ok()?, end.trim().parse::<u32>().ok()?)))
            .ok_or_else(|| refuse(format!("{range:?} is not a range of layers; {example}")))?;
        let expected = stages.last().map_or(0, |(_, range): &(Node, Range<u32>)| range.end);
        if start > expected {
            let message = format!("layers {expected}-{start} are in no stage; let {part:?} start at {expected}");
            return Err(refuse(message));
        }
        if start < expected {
            let message = format!("layers {start}-{expected} are in two stages; let {part:?} start at {expected}");
            return Err(refuse(message));
        }
        if end <= start || end > model.layers {
            let message = format!(
                "{part:?}: the model has layers 0-{}; end after {start} and within",
                model.layers
            );
            return Err(refuse(message));
        }
        if end != model.layers && !model.legal_cuts.contains(&end) {
            return Err(refuse(illegal_cut(model, end)));
        }
        if let Some((_, reason)) = model.illegal_ranges.iter().find(|(range, _)| *range == (start..end)) {
            return Err(refuse(format!(
                "layers {start}-{end} cannot be a stage, because {reason}"
            )));
        }
        stages.push((find_node(name.trim(), nodes)?.clone(), start..end));
    }
    let end = stages.last().map_or(0, |(_, range)| range.end);
    if end != model.layers {
        let message = format!("layers {end}-{} are in no stage; add a stage for them", model.layers);
        return Err(refuse(message));
    }
    Ok(stages)
}

fn illegal_cut(model: &ModelFacts, at: u32) -> String {
    let near = |cuts: Option<&u32>| cuts.map(u32::to_string);
    let below = near(model.legal_cuts.iter().rfind(|cut| **cut < at));
    let above = near(model.legal_cuts.iter().find(|cut| **cut > at));
    let nearest: Vec<String> = below.into_iter().chain(above).collect();
    let advice = if nearest.is_empty() {
        "keep it whole".to_owned()
    } else {
        format!("cut at {}", nearest.join(" or "))
    };
    format!(
        "this {} model cannot be cut before layer {at}, its layers follow a pattern; {advice}",
        model.architecture
    )
}

fn find_node<'a>(name: &str, nodes: &'a [Node]) -> Result<&'a Node, MeshError> {
    let Some(node) = nodes.iter().find(|node| node.name == name) else {
        let known: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
        let message = format!("no node is named {name:?}; this mesh has {}", known.join(", "));
        return Err(MeshError::invalid("stages", message));
    };
    if is_up(node) {
        return Ok(node);
    }
    let message = format!("node {name} is down; start it again, or use another");
    Err(MeshError::new(ErrorCode::Unreachable, message).with_param("stages"))
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

/// The context asked for, or the longest up to the trained one that fits on every node.
fn fit_context(model: &ModelFacts, ranges: &Ranges, asked: u32, lanes: u32) -> Result<u32, MeshError> {
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

/// Stages on one host share its cores: llama.cpp's threads spin, and more of them than cores is many times slower.
fn with_threads(ranges: Ranges) -> Vec<PlannedStage> {
    let mut on_host: BTreeMap<String, u32> = BTreeMap::new();
    for (node, _) in &ranges {
        *on_host.entry(node.host_id.clone()).or_default() += 1;
    }
    ranges
        .into_iter()
        .map(|(node, layers)| {
            let threads = (node.cores / on_host[&node.host_id]).max(1);
            PlannedStage { node, layers, threads }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, memory_mib: u64) -> Node {
        Node {
            id: name.to_owned(),
            name: name.to_owned(),
            host_id: "host".to_owned(),
            state: NodeState::Up as i32,
            cores: 8,
            memory_bytes: memory_mib << 20,
            exact: true,
            ..Node::default()
        }
    }

    fn model(layers: u32, legal_cuts: Vec<u32>) -> ModelFacts {
        ModelFacts {
            architecture: "llama".to_owned(),
            layers,
            context: 8192,
            layer_bytes: vec![10 << 20; layers as usize],
            token_embd_bytes: 30 << 20,
            output_bytes: 30 << 20,
            kv_bytes_per_position: vec![1024; layers as usize],
            legal_cuts,
            ..ModelFacts::default()
        }
    }

    fn wish(stages: &str) -> Wishes {
        Wishes {
            stages: stages.to_owned(),
            ..Wishes::default()
        }
    }

    fn error(stages: &str) -> String {
        let nodes = [
            node("a", 4096),
            node("b", 4096),
            Node {
                state: NodeState::Down as i32,
                ..node("c", 4096)
            },
        ];
        plan(&model(30, (1..30).collect()), &nodes, &wish(stages))
            .expect_err(stages)
            .message
    }

    #[test]
    fn faults_of_a_stage_list_are_named_with_the_remedy() {
        for (stages, words) in [
            ("a:0-10,b:12-30", "layers 10-12 are in no stage"),
            ("a:0-10,b:8-30", "layers 8-10 are in two stages"),
            ("a:0-10,b:10-20", "layers 20-30 are in no stage"),
            ("a:0-10,x:10-30", "no node is named \"x\"; this mesh has a, b, c"),
            ("a:0-10,c:10-30", "node c is down"),
            ("a:0-31", "the model has layers 0-30"),
            ("a:10", "not a range of layers"),
            ("a", "is not a stage"),
            ("0", "0 stages"),
            ("3", "2 node(s) are up"),
        ] {
            let message = error(stages);
            assert!(message.contains(words), "{stages}: {message}");
        }
    }

    #[test]
    fn an_illegal_cut_names_the_nearest_legal_ones() {
        let facts = model(12, vec![4, 8]);
        let nodes = [node("a", 4096), node("b", 4096)];
        let message = plan(&facts, &nodes, &wish("a:0-5,b:5-12"))
            .expect_err("illegal")
            .message;
        assert!(message.contains("cut at 4 or 8"), "{message}");
    }

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

    /// Twelve layers of which a stage must hold one of the first eight.
    fn with_illegal_ranges() -> ModelFacts {
        let starts = 8..12;
        let illegal =
            starts.flat_map(|start| (start + 1..=12).map(move |end| (start..end, "of the pattern".to_owned())));
        ModelFacts {
            illegal_ranges: illegal.collect(),
            ..model(12, (1..12).collect())
        }
    }

    #[test]
    fn an_illegal_range_is_refused_with_the_reason() {
        let facts = with_illegal_ranges();
        let nodes = [node("a", 4096), node("b", 4096)];
        let message = plan(&facts, &nodes, &wish("a:0-9,b:9-12"))
            .expect_err("illegal")
            .message;
        assert!(
            message.contains("layers 9-12 cannot be a stage, because of the pattern"),
            "{message}"
        );
        plan(&facts, &nodes, &wish("a:0-7,b:7-12")).expect("legal");
    }

    #[test]
    fn automatic_plans_avoid_illegal_ranges() {
        let facts = with_illegal_ranges();
        // By memory alone the last stage would be layers 11-12.
        let planned = plan(&facts, &[node("a", 11_000), node("b", 1_000)], &wish("2")).expect("legal");
        let layers: Vec<_> = planned.stages.iter().map(|stage| stage.layers.clone()).collect();
        assert_eq!(layers, [0..7, 7..12]);
        // Only the whole and one layer each are left.
        let nodes = [node("a", 4096), node("b", 4096), node("c", 4096)];
        let ranges = [0..1, 0..2, 1..2, 1..3, 2..3].map(|range| (range, "it is odd".to_owned()));
        let facts = ModelFacts {
            illegal_ranges: ranges.to_vec(),
            ..model(3, vec![1, 2])
        };
        let message = plan(&facts, &nodes, &wish("2")).expect_err("impossible").message;
        assert!(
            message.contains("no 2 stages") && message.contains("it is odd"),
            "{message}"
        );
        assert_eq!(plan(&facts, &nodes, &wish("auto")).expect("whole").stages.len(), 1);
    }

    #[test]
    fn stages_of_one_host_share_its_cores() {
        let facts = model(30, (1..30).collect());
        let elsewhere = Node {
            host_id: "other".to_owned(),
            ..node("c", 4096)
        };
        let planned = plan(&facts, &[node("a", 4096), node("b", 4096), elsewhere], &wish("")).unwrap();
        assert_eq!(
            planned.stages.iter().map(|stage| stage.threads).collect::<Vec<_>>(),
            [4, 4, 8]
        );
    }

    proptest! {
        /// Automatic plans cover every layer once, cut legally, and survive absurd memory figures.
        #[test]
        fn automatic_plans_cover_all_layers(
            layers in 1u32..80,
            keep in proptest::collection::vec(any::<bool>(), 80),
            refused in proptest::collection::vec((0u32..80, 1u32..80), 0..40),
            memory in proptest::collection::vec(prop_oneof![Just(0u64), Just(u64::MAX), 0u64..1 << 40], 1..8),
        ) {
            let cuts: Vec<u32> = (1..layers).filter(|cut| keep[*cut as usize]).collect();
            let illegal: Vec<Range<u32>> = refused
                .into_iter()
                .map(|(start, length)| start..start + length)
                .filter(|range| *range != (0..layers))
                .collect();
            let reasons = illegal.iter().map(|range| (range.clone(), String::new()));
            let facts = ModelFacts { illegal_ranges: reasons.collect(), ..model(layers, cuts.clone()) };
            let nodes: Vec<Node> = memory
                .iter()
                .enumerate()
                .map(|(index, bytes)| Node { memory_bytes: *bytes, ..node(&format!("n{index}"), 0) })
                .collect();
            let ranges = automatic(&facts, &nodes, None).unwrap();
            let mut end = 0;
            for (_, range) in &ranges {
                prop_assert_eq!(range.start, end);
                prop_assert!(range.end > range.start);
                prop_assert!(range.end == layers || cuts.contains(&range.end));
                prop_assert!(!illegal.contains(range));
                end = range.end;
            }
            prop_assert_eq!(end, layers);
            let _ = fit_context(&facts, &ranges, 0, 256);
        }
    }
}
