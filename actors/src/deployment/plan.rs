//! Which layers go to which node.

mod context;

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
};

use mesh_proto::{
    ErrorCode, MeshError,
    v1::{Node, NodeState},
};

pub use context::{LONGEST_DEFAULT, cells_per_lane};
use context::{Shape, fit_context};

use crate::ports::deployment::ModelFacts;

/// Lanes when none are asked for.
pub const DEFAULT_LANES: u32 = 4;

/// Most lanes: each is a KV stream, and llama.cpp takes at most 256 sequences.
pub const MAX_LANES: u32 = 256;

/// Rows of one prefill chunk in exact mode: the most rows of a call there.
pub const EXACT_CHUNK: u32 = 128;

/// Rows of one prefill chunk otherwise: llama.cpp's default micro-batch.
pub const FAST_CHUNK: u32 = 512;

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
    /// What keeps the context below the trained one, unless the user did: such as `memory of a`.
    pub context_limit: Option<String>,
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
    // The engine makes its calls as long as the mode allows, whatever the chunk.
    let shape = Shape {
        lanes,
        rows: default_chunk.max(lanes),
    };
    let fitted = fit_context(model, &ranges, wishes.context, shape)?;
    Ok(Plan {
        stages: with_threads(ranges),
        context: fitted.context,
        context_limit: fitted.limit,
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
mod tests;
