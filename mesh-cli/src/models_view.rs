//! What `mesh models` prints.

use mesh_gguf::{ModelDescription, SUPPORTED};
use serde::Serialize;

use crate::{
    local_node::InspectedModel,
    output::{self, Table, yes_no},
    status_view::DeploymentView,
};

/// `mesh models inspect`.
#[derive(Debug, Serialize)]
pub(crate) struct ModelView {
    #[serde(flatten)]
    description: ModelDescription,
    /// Whether Mesh can serve it.
    supported: bool,
    /// Why not.
    reason: Option<String>,
    /// Layers before which it may be cut; `None` if it is not supported.
    legal_cuts: Option<Vec<u32>>,
}

impl From<InspectedModel> for ModelView {
    fn from(model: InspectedModel) -> Self {
        Self {
            description: model.description,
            supported: model.support.is_ok(),
            legal_cuts: model.support.as_ref().ok().map(mesh_gguf::Architecture::legal_cuts),
            reason: model.support.err().map(|error| error.to_string()),
        }
    }
}

impl ModelView {
    /// For people.
    pub(crate) fn describe(&self) -> String {
        let model = &self.description;
        let mut table = Table::new(&[]);
        let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
        row("architecture", output::name(&model.architecture));
        row(
            "name",
            model.name.as_deref().map_or_else(|| "-".to_owned(), output::name),
        );
        row(
            "size",
            format!(
                "{} in {} file(s), {} weights",
                output::bytes(model.total_bytes),
                model.files.len(),
                model.parameters
            ),
        );
        row("quantizations", self.quantizations());
        row(
            "layers",
            format!("{}: {}", model.layers, layer_sizes(&model.layer_bytes)),
        );
        row(
            "embedding",
            format!(
                "{}, {} wide",
                output::bytes(model.token_embd_bytes),
                model.embedding_length
            ),
        );
        row(
            "output",
            if model.tied {
                "tied to the embedding".to_owned()
            } else {
                output::bytes(model.output_bytes)
            },
        );
        row("other tensors", output::bytes(model.global_bytes));
        row(
            "context",
            format!(
                "{} tokens, {} of KV cache each",
                model.context_length,
                output::bytes(self.kv_bytes())
            ),
        );
        row("tokenizer", self.tokenizer());
        if let Some(experts) = &model.experts {
            let text = format!(
                "{}, {} used per token, {} shared",
                experts.total, experts.used, experts.shared
            );
            row("experts", text);
        }
        row(
            "supported",
            self.reason
                .as_ref()
                .map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}")),
        );
        if let Some(cuts) = &self.legal_cuts {
            row("cuts", cuts_in_words(cuts, model.layers));
        }
        table.render(0).trim_start().to_owned()
    }

    fn kv_bytes(&self) -> u64 {
        self.description
            .kv_bytes_per_position
            .iter()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn quantizations(&self) -> String {
        let mut shares: Vec<_> = self.description.quantizations.iter().collect();
        shares.sort_by_key(|(_, share)| std::cmp::Reverse(share.bytes));
        let words = shares
            .iter()
            .map(|(name, share)| format!("{name} ({} tensors, {})", share.tensors, output::bytes(share.bytes)));
        words.collect::<Vec<_>>().join(", ")
    }

    fn tokenizer(&self) -> String {
        let Some(tokenizer) = &self.description.tokenizer else {
            return "none".to_owned();
        };
        let pre = tokenizer
            .pre
            .as_ref()
            .map_or_else(String::new, |pre| format!(" ({})", output::name(pre)));
        let template = yes_no(tokenizer.has_chat_template);
        format!(
            "{}{pre}, {} tokens, chat template: {template}",
            output::name(&tokenizer.model),
            tokenizer.tokens
        )
    }
}

/// Runs of layers of equal size: `0-28 3.2 MB each, 29 3.4 MB`.
fn layer_sizes(layers: &[u64]) -> String {
    let mut words = Vec::new();
    let mut start = 0;
    for run in layers.chunk_by(|a, b| a == b) {
        let end = start + run.len() - 1;
        let size = output::bytes(run[0]);
        words.push(if start == end {
            format!("{start} {size}")
        } else {
            format!("{start}-{end} {size} each")
        });
        start = end + 1;
    }
    words.join(", ")
}

fn cuts_in_words(cuts: &[u32], layers: u32) -> String {
    if cuts.is_empty() {
        return "none: one stage only".to_owned();
    }
    if cuts.len() as u32 == layers - 1 {
        return "before any layer".to_owned();
    }
    let numbers: Vec<String> = cuts.iter().map(u32::to_string).collect();
    format!("before layers {}", numbers.join(", "))
}

/// `mesh models list`.
#[derive(Debug, Serialize)]
pub(crate) struct ModelsView {
    /// What is in this binary.
    pub(crate) built_in: BuiltInView,
    /// What the mesh serves; `None` without a running node.
    pub(crate) served: Option<Vec<DeploymentView>>,
    /// What files can be served.
    pub(crate) architectures: Vec<ArchitectureView>,
}

/// The model that is in this binary.
#[derive(Debug, Serialize)]
pub(crate) struct BuiltInView {
    pub(crate) name: String,
    pub(crate) architecture: String,
    pub(crate) layers: u32,
    pub(crate) bytes: u64,
}

/// A row of the table of supported architectures.
#[derive(Debug, Serialize)]
pub(crate) struct ArchitectureView {
    name: &'static str,
    note: &'static str,
}

/// Every supported architecture.
pub(crate) fn architectures() -> Vec<ArchitectureView> {
    SUPPORTED
        .iter()
        .map(|row| ArchitectureView {
            name: row.name,
            note: row.note,
        })
        .collect()
}

impl ModelsView {
    /// For people.
    pub(crate) fn describe(&self) -> String {
        let built_in = &self.built_in;
        let mut text = format!(
            "in this binary:\n  {} ({}, {} layers, {})\n",
            built_in.name,
            built_in.architecture,
            built_in.layers,
            output::bytes(built_in.bytes)
        );
        text += "\nserved by the mesh:\n";
        text += &match &self.served {
            None => "  no node runs here; start one with `mesh node start`\n".to_owned(),
            Some(served) if served.is_empty() => "  nothing; try `mesh serve built-in`\n".to_owned(),
            Some(served) => served_table(served),
        };
        let mut table = Table::new(&["ARCHITECTURE", "MODELS"]);
        for row in &self.architectures {
            table.row([row.name.to_owned(), row.note.to_owned()]);
        }
        text + "\nfiles that can be served, by `general.architecture`:\n" + &table.render(2)
    }
}

fn served_table(served: &[DeploymentView]) -> String {
    let mut table = Table::new(&["NAME", "STATE", "ARCHITECTURE", "LAYERS", "STAGES", "CONTEXT", "MODEL"]);
    for deployment in served {
        table.row([
            deployment.name.clone(),
            deployment.phase.to_owned(),
            deployment.architecture.clone(),
            deployment.layers.to_string(),
            deployment.stages.len().to_string(),
            deployment.context.to_string(),
            output::name(&deployment.model),
        ]);
    }
    table.render(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_one_size_are_told_together() {
        assert_eq!(layer_sizes(&[1000, 1000, 1000, 2000]), "0-2 1.0 kB each, 3 2.0 kB");
        assert_eq!(layer_sizes(&[]), "");
    }

    #[test]
    fn the_readme_has_the_table_of_supported_architectures() {
        let readme = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md"));
        let table = readme
            .split_once("| architecture |")
            .unwrap()
            .1
            .split_once("\n\n")
            .unwrap()
            .0;
        let expected: Vec<String> = SUPPORTED
            .iter()
            .map(|row| format!("| `{}` | {} |", row.name, row.note))
            .collect();
        assert_eq!(table.lines().skip(2).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn cuts_are_told_in_words() {
        assert_eq!(cuts_in_words(&[1, 2, 3], 4), "before any layer");
        assert_eq!(cuts_in_words(&[4, 8], 12), "before layers 4, 8");
        assert_eq!(cuts_in_words(&[], 1), "none: one stage only");
    }
}
