//! Which layers go to which node.

use std::{collections::BTreeMap, ops::Range};

use mesh_proto::{ErrorCode, MeshError, v1::{Node, NodeState}};

use crate::ports::deployment::ModelFacts;

/// Lanes when none are asked for.
pub const DEFAULT_LANES: u32 = 4;

/// Most lanes: each is a KV stream, and llama.cpp takes at most 256 sequences.
pub const MAX_LANES: u32 = 256;

/// Rows of one prefill chunk in exact mode: a call never exceeds 60 rows there (DESIGN §1).
pub const EXACT_CHUNK: u32 = 60;

/// Rows of one prefill chunk otherwise: llama.cpp's default micro-batch.
pub const FAST_CHUNK: u32 = 512;

/// Contexts shrink in this step when memory is short: llama.cpp pads the KV cache of a lane to it.
const CONTEXT_STEP: u32 = 256;

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
        lanes => return Err(MeshError::invalid("lanes", format!("{lanes} lanes; use at most {MAX_LANES}"))),
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
        let names: Vec<_> = ranges.iter().filter(|(node, _)| !node.exact).map(|(node, _)| node.name.as_str()).collect();
        let message = format!("--exact, but {} runs with --no-exact; start it without", names.join(", "));
        return Err(MeshError::invalid("exact", message));
    }
    let default_chunk = if exact { EXACT_CHUNK } else { FAST_CHUNK };
    let prefill_chunk = if wishes.prefill_chunk == 0 { default_chunk } else { wishes.prefill_chunk };
    if prefill_chunk > FAST_CHUNK {
        let message = format!("a prefill chunk of {prefill_chunk} rows; use at most {FAST_CHUNK}");
        return Err(MeshError::invalid("prefill_chunk", message));
    }
    let context = fit_context(model, &ranges, wishes.context, lanes)?;
    Ok(Plan { stages: with_threads(ranges), context, lanes, exact, prefill_chunk })
}

type Ranges = Vec<(Node, Range<u32>)>;

fn is_up(node: &Node) -> bool {
    node.state == NodeState::Up as i32
}

fn automatic(model: &ModelFacts, nodes: &[Node], count: Option<u32>) -> Result<Ranges, MeshError> {
    let up: Vec<&Node> = nodes.iter().filter(|node| is_up(node)).collect();
    let most = model.legal_cuts.len() + 1;
    let count = match count {
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
        return Err(MeshError::new(ErrorCode::InsufficientResources, "no node is up; see `mesh node list`"));
    }
    let cuts = choose_cuts(model, &up[..count]);
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain(std::iter::once(model.layers));
    Ok(up.into_iter().cloned().zip(starts.zip(ends).map(|(start, end)| start..end)).collect())
}

/// Legal cuts that bring each node's share of the layers' bytes closest to its share of the memory.
fn choose_cuts(model: &ModelFacts, nodes: &[&Node]) -> Vec<u32> {
    let memory: f64 = nodes.iter().map(|node| node.memory_bytes.max(1) as f64).sum();
    let bytes_before = |layer: u32| model.layer_bytes[..layer as usize].iter().sum::<u64>() as f64;
    let total = bytes_before(model.layers);
    let mut cuts: Vec<u32> = Vec::new();
    let mut share = 0.0;
    for (index, node) in nodes.iter().enumerate().take(nodes.len() - 1) {
        share += node.memory_bytes.max(1) as f64 / memory;
        let goal = share * total;
        let first = cuts.last().map_or(0, |cut| model.legal_cuts.iter().position(|legal| legal == cut).map_or(0, |at| at + 1));
        // Leave one legal cut for each stage still to come.
        let last = model.legal_cuts.len() - (nodes.len() - 2 - index);
        let distance = |cut: &u32| (bytes_before(*cut) - goal).abs();
        let best = model.legal_cuts[first..last].iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        cuts.extend(best);
    }
    cuts
}

fn parse_stages(text: &str, model: &ModelFacts, nodes: &[Node]) -> Result<Ranges, MeshError> {
    let refuse = |message: String| MeshError::invalid("stages", message);
    let example = "write stages as NODE:START-END, such as \"a:0-10,b:10-30\"";
    let mut stages = Ranges::new();
    for part in text.split(',').map(str::trim) {
        let (name, range) =
            part.rsplit_once(':').ok_or_else(|| refuse(format!("{part:?} is not a stage; {example}")))?;
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
            let message = format!("{part:?}: the model has layers 0-{}; end after {start} and within", model.layers);
            return Err(refuse(message));
        }
        if end != model.layers && !model.legal_cuts.contains(&end) {
            return Err(refuse(illegal_cut(model, end)));
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
    let advice = if nearest.is_empty() { "keep it whole".to_owned() } else { format!("cut at {}", nearest.join(" or ")) };
    format!("this {} model cannot be cut before layer {at}, its layers follow a pattern; {advice}", model.architecture)
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

/// The context asked for, or the longest up to the trained one that fits on every node.
fn fit_context(model: &ModelFacts, ranges: &Ranges, asked: u32, lanes: u32) -> Result<u32, MeshError> {
    if asked > model.context && model.context > 0 {
        let message = format!("a context of {asked}, but the model was trained with {}; ask for less", model.context);
        return Err(MeshError::invalid("context", message));
    }
    let wanted = if asked == 0 { model.context.max(CONTEXT_STEP) } else { asked };
    let mut budgets: BTreeMap<&str, (u64, u64, u64, &Node)> = BTreeMap::new();
    for (node, layers) in ranges {
        let per_position: u64 = model.kv_bytes_per_position[layers.start as usize..layers.end as usize].iter().sum();
        let (fixed, kv, ..) = budgets.entry(&node.id).or_insert((0, 0, node.memory_bytes, node));
        *fixed = fixed.saturating_add(fixed_bytes(model, layers));
        *kv = kv.saturating_add(per_position.saturating_mul(u64::from(lanes)));
    }
    let room = |(fixed, kv, memory, _): &(u64, u64, u64, &Node)| memory.saturating_sub(*fixed) / (*kv).max(1);
    let fits = budgets.values().map(room).min().unwrap_or(0).min(u64::from(u32::MAX)) as u32;
    if fits >= wanted {
        return Ok(wanted);
    }
    let shrunk = fits / CONTEXT_STEP * CONTEXT_STEP;
    if asked == 0 && shrunk >= CONTEXT_STEP {
        return Ok(shrunk);
    }
    let smallest = if asked == 0 { CONTEXT_STEP } else { asked };
    let short: Vec<String> = budgets
        .values()
        .filter(|budget| room(budget) < u64::from(smallest))
        .map(|(fixed, kv, memory, node)| {
            let needs = fixed.saturating_add(kv.saturating_mul(u64::from(smallest)));
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
        Wishes { stages: stages.to_owned(), ..Wishes::default() }
    }

    fn error(stages: &str) -> String {
        let nodes = [node("a", 4096), node("b", 4096), Node { state: NodeState::Down as i32, ..node("c", 4096) }];
        plan(&model(30, (1..30).collect()), &nodes, &wish(stages)).expect_err(stages).message
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
        let message = plan(&facts, &nodes, &wish("a:0-5,b:5-12")).expect_err("illegal").message;
        assert!(message.contains("cut at 4 or 8"), "{message}");
    }

    #[test]
    fn memory_that_is_short_is_told_per_node() {
        let facts = model(30, (1..30).collect());
        let nodes = [node("a", 4096), node("b", 100)];
        let asked = Wishes { context: 8192, ..wish("a:0-15,b:15-30") };
        let message = plan(&facts, &nodes, &asked).expect_err("too small").message;
        assert!(message.contains("b needs ") && message.contains("has 100 MiB") && !message.contains("a needs"));
    }

    #[test]
    fn without_a_wish_the_context_shrinks_to_what_fits() {
        let facts = model(30, (1..30).collect());
        let planned = plan(&facts, &[node("a", 700)], &wish("auto")).unwrap();
        assert!(planned.context < 8192 && planned.context.is_multiple_of(256) && planned.context > 0);
    }

    #[test]
    fn stages_of_one_host_share_its_cores() {
        let facts = model(30, (1..30).collect());
        let elsewhere = Node { host_id: "other".to_owned(), ..node("c", 4096) };
        let planned = plan(&facts, &[node("a", 4096), node("b", 4096), elsewhere], &wish("")).unwrap();
        assert_eq!(planned.stages.iter().map(|stage| stage.threads).collect::<Vec<_>>(), [4, 4, 8]);
    }

    proptest! {
        /// Automatic plans cover every layer once, cut legally, and survive absurd memory figures.
        #[test]
        fn automatic_plans_cover_all_layers(
            layers in 1u32..80,
            keep in proptest::collection::vec(any::<bool>(), 80),
            memory in proptest::collection::vec(prop_oneof![Just(0u64), Just(u64::MAX), 0u64..1 << 40], 1..8),
        ) {
            let cuts: Vec<u32> = (1..layers).filter(|cut| keep[*cut as usize]).collect();
            let facts = model(layers, cuts.clone());
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
                end = range.end;
            }
            prop_assert_eq!(end, layers);
            let _ = fit_context(&facts, &ranges, 0, 256);
        }
    }
}
