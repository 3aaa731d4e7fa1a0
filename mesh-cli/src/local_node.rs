//! The door to `mesh-node`: a node in this process, and what is known without one.

use std::path::Path;

use mesh_gguf::{Architecture, Gguf, GgufError, ModelDescription};
use mesh_node::{NodeConfig, NodeError, RunningNode};

use crate::{
    failure::{Exit, Failure},
    output,
};

pub(crate) use mesh_node::{
    BUILT_IN, ConfigOverrides, Node,
    child::ChildLimits,
    config::{FileDigest, PluginSetting, ProposalDeadline},
    default_data_dir, init_logging, llama_version, prepare_process,
    receipts::{self, ReceiptPolicy},
    run_prove, run_text, terminal,
};

/// A model file as it is: described, and judged.
#[derive(Debug)]
pub(crate) struct InspectedModel {
    pub(crate) description: ModelDescription,
    /// The rules of its architecture, or why it is refused.
    pub(crate) support: Result<Architecture, GgufError>,
}

/// Merges defaults, file, environment and flags.
pub(crate) fn load_config(overrides: ConfigOverrides) -> Result<NodeConfig, Failure> {
    Ok(NodeConfig::load(overrides)?)
}

/// The node that runs on a data directory.
pub(crate) fn running_node(data_dir: &Path) -> Result<RunningNode, Failure> {
    Ok(mesh_node::running_node(data_dir)?)
}

/// Reads the header of a model, or of the built-in one. Blocks on the disk.
pub(crate) fn inspect(path: &Path) -> Result<InspectedModel, Failure> {
    let gguf = if path.as_os_str() == BUILT_IN {
        Gguf::from_bytes(mesh_node::built_in_model())
    } else {
        Gguf::open(path)
    };
    let gguf = gguf.map_err(model_failure)?;
    let description = mesh_gguf::describe(&gguf).map_err(model_failure)?;
    Ok(InspectedModel {
        description,
        support: mesh_gguf::support(&gguf),
    })
}

fn model_failure(error: GgufError) -> Failure {
    Failure::new(Exit::ModelInvalid, output::sentence(&error.to_string()))
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        let exit = match error {
            NodeError::Mesh(error) => return error.into(),
            NodeError::Config(_) => Exit::Usage,
            NodeError::NotRunning(_) => Exit::Unreachable,
            NodeError::DataDir(_) | NodeError::Listen { .. } => Exit::Refused,
            NodeError::Interrupted => Exit::Interrupted,
            NodeError::File { .. } | NodeError::Server { .. } => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}
