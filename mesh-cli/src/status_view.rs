//! What `--output json` prints about nodes and deployments. Scripts rely on these fields: the tests pin them.

use mesh_proto::v1;
use serde::Serialize;

use crate::output::{self, Table, yes_no};

/// `mesh status`.
#[derive(Debug, Serialize)]
pub(crate) struct StatusView {
    /// Name of the node that answered.
    pub(crate) node: String,
    pub(crate) version: String,
    pub(crate) nodes: Vec<NodeView>,
    pub(crate) deployments: Vec<DeploymentView>,
}

/// One member of the mesh.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) id: String,
    /// `up` or `down`.
    pub(crate) state: &'static str,
    /// The node that answered.
    #[serde(rename = "self")]
    pub(crate) this: bool,
    /// The node that admits others.
    pub(crate) issuer: bool,
    pub(crate) addresses: Vec<String>,
    pub(crate) host_id: String,
    pub(crate) cores: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) exact: bool,
    pub(crate) version: String,
    /// Where another process tried to use the node's key.
    pub(crate) key_in_use_by: Option<String>,
}

/// One model that is served, or about to be.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DeploymentView {
    pub(crate) name: String,
    pub(crate) ready: bool,
    /// `preparing`, `ready`, `lost` or `stopping`.
    pub(crate) phase: &'static str,
    /// Why it is not ready.
    pub(crate) reason: Option<String>,
    pub(crate) epoch: u64,
    pub(crate) stages: Vec<StageView>,
    pub(crate) lanes: LanesView,
    pub(crate) model: String,
    pub(crate) architecture: String,
    pub(crate) layers: u32,
    /// Tokens per lane.
    pub(crate) context: u32,
    /// Tokens that the model was trained with, as its file says.
    pub(crate) trained_context: u32,
    /// What keeps the context below that, unless the user did.
    pub(crate) context_limit: Option<String>,
    pub(crate) exact: bool,
    pub(crate) chat_template: String,
    /// Name of the node that took `mesh serve`.
    pub(crate) owner: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
}

/// Layers on a node.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StageView {
    pub(crate) node: String,
    /// Half-open range such as `0-10`.
    pub(crate) layers: String,
    /// Size of the stage file.
    pub(crate) bytes: u64,
    /// Measured after loading.
    pub(crate) memory_bytes: u64,
    pub(crate) threads: u32,
}

/// Requests that can run at once.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LanesView {
    pub(crate) used: u32,
    pub(crate) total: u32,
    pub(crate) waiting: u32,
}

impl From<v1::GetStatusResponse> for StatusView {
    fn from(status: v1::GetStatusResponse) -> Self {
        Self {
            node: status.node,
            version: status.version,
            nodes: status.nodes.into_iter().map(NodeView::from).collect(),
            deployments: status.deployments.into_iter().map(DeploymentView::from).collect(),
        }
    }
}

impl From<v1::Node> for NodeView {
    fn from(node: v1::Node) -> Self {
        Self {
            state: match node.state() {
                v1::NodeState::Up => "up",
                v1::NodeState::Down => "down",
                v1::NodeState::Unspecified => "unknown",
            },
            name: node.name,
            id: node.id,
            this: node.self_,
            issuer: node.issuer,
            addresses: node.addresses,
            host_id: node.host_id,
            cores: node.cores,
            memory_bytes: node.memory_bytes,
            exact: node.exact,
            version: node.version,
            key_in_use_by: Some(node.key_in_use_by).filter(|place| !place.is_empty()),
        }
    }
}

impl From<v1::Deployment> for DeploymentView {
    fn from(deployment: v1::Deployment) -> Self {
        let lanes = deployment.lanes.unwrap_or_default();
        Self {
            phase: match deployment.phase() {
                v1::DeploymentPhase::Preparing => "preparing",
                v1::DeploymentPhase::Ready => "ready",
                v1::DeploymentPhase::Lost => "lost",
                v1::DeploymentPhase::Stopping => "stopping",
                v1::DeploymentPhase::Unspecified => "unknown",
            },
            name: deployment.name,
            ready: deployment.ready,
            reason: Some(deployment.reason).filter(|reason| !reason.is_empty()),
            epoch: deployment.epoch,
            stages: deployment.stages.into_iter().map(StageView::from).collect(),
            lanes: LanesView {
                used: lanes.used,
                total: lanes.total,
                waiting: lanes.waiting,
            },
            model: deployment.model,
            architecture: deployment.architecture,
            layers: deployment.layers,
            context: deployment.context,
            trained_context: deployment.trained_context,
            context_limit: output::some(deployment.context_limit),
            exact: deployment.exact,
            chat_template: deployment.chat_template,
            owner: deployment.owner,
            created: deployment.created,
        }
    }
}

impl From<v1::Stage> for StageView {
    fn from(stage: v1::Stage) -> Self {
        Self {
            node: stage.node,
            layers: stage.layers,
            bytes: stage.bytes,
            memory_bytes: stage.memory_bytes,
            threads: stage.threads,
        }
    }
}

/// Members, a line each.
pub(crate) fn nodes_table(nodes: &[NodeView]) -> String {
    let mut table = Table::new(&["NODE", "STATE", "CORES", "MEMORY", "EXACT", "VERSION", "ADDRESS"]);
    for node in nodes {
        let name = if node.this {
            format!("{} *", node.name)
        } else {
            node.name.clone()
        };
        table.row([
            name,
            node.state.to_owned(),
            node.cores.to_string(),
            output::bytes(node.memory_bytes),
            yes_no(node.exact).to_owned(),
            node.version.clone(),
            node.addresses.first().cloned().unwrap_or_default(),
        ]);
    }
    let mut text = table.render(0);
    for node in nodes {
        if let Some(place) = &node.key_in_use_by {
            text += &format!(
                "the key of node {} was used by another process, at {place}\n",
                node.name
            );
        }
    }
    text
}

impl DeploymentView {
    /// A paragraph: the state, then who holds which layers.
    pub(crate) fn describe(&self) -> String {
        let lanes = &self.lanes;
        let mut text = format!(
            "{}: {}, epoch {}, lanes {} of {} in use, {} waiting, context {}; exact {}\n  model {} ({}, {} layers), chat \
             template {}\n",
            output::name(&self.name),
            self.phase,
            self.epoch,
            lanes.used,
            lanes.total,
            lanes.waiting,
            self.context_in_words(),
            yes_no(self.exact),
            output::name(&self.model),
            output::name(&self.architecture),
            self.layers,
            output::name(&self.chat_template),
        );
        if let Some(reason) = &self.reason {
            text += &format!("  not ready: {}\n", output::sentence(reason));
        }
        text + &self.stages_table(2)
    }

    /// `8192`, or how it came to be less than the model was trained with: `8191 of 131072 trained: memory of a`.
    pub(crate) fn context_in_words(&self) -> String {
        let (context, trained) = (self.context, self.trained_context);
        match &self.context_limit {
            Some(limit) => format!("{context} of {trained} trained: {}", output::sentence(limit)),
            None if context < trained => format!("{context} of {trained} trained"),
            None => context.to_string(),
        }
    }

    /// Who holds which layers.
    pub(crate) fn stages_table(&self, indent: usize) -> String {
        let mut table = Table::new(&["STAGE", "NODE", "LAYERS", "FILE", "MEMORY", "THREADS"]);
        for (index, stage) in self.stages.iter().enumerate() {
            table.row([
                index.to_string(),
                stage.node.clone(),
                stage.layers.clone(),
                output::bytes(stage.bytes),
                output::bytes(stage.memory_bytes),
                stage.threads.to_string(),
            ]);
        }
        table.render(indent)
    }
}

impl StatusView {
    /// For people.
    pub(crate) fn describe(&self) -> String {
        let mut text = nodes_table(&self.nodes) + "\n";
        if self.deployments.is_empty() {
            text += "nothing is served; try `mesh serve built-in`\n";
        }
        for deployment in &self.deployments {
            text += &deployment.describe();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> StatusView {
        let stage = v1::Stage {
            node: "a".into(),
            layers: "0-8".into(),
            bytes: 7,
            memory_bytes: 9,
            threads: 1,
        };
        let deployment = v1::Deployment {
            name: "smol".into(),
            ready: true,
            epoch: 3,
            phase: v1::DeploymentPhase::Ready.into(),
            stages: vec![stage],
            lanes: Some(v1::Lanes {
                used: 1,
                total: 4,
                waiting: 0,
            }),
            ..v1::Deployment::default()
        };
        let node = v1::Node {
            name: "a".into(),
            state: v1::NodeState::Up.into(),
            self_: true,
            ..v1::Node::default()
        };
        v1::GetStatusResponse {
            node: "a".into(),
            version: "1".into(),
            nodes: vec![node],
            deployments: vec![deployment],
        }
        .into()
    }

    #[test]
    fn the_json_of_status_has_the_fields_that_scripts_rely_on() {
        let json = serde_json::to_value(status()).unwrap();
        assert_eq!(json["nodes"][0]["name"], "a");
        let deployment = &json["deployments"][0];
        assert_eq!(deployment["name"], "smol");
        assert_eq!(deployment["ready"], true);
        assert_eq!(deployment["epoch"], 3);
        assert_eq!(deployment["reason"], serde_json::Value::Null);
        let stage = &deployment["stages"][0];
        assert_eq!(
            (&stage["node"], &stage["layers"], &stage["bytes"]),
            (&"a".into(), &"0-8".into(), &7.into())
        );
        assert_eq!(
            (&deployment["lanes"]["used"], &deployment["lanes"]["total"]),
            (&1.into(), &4.into())
        );
    }

    #[test]
    fn a_key_that_is_used_twice_is_told_below_the_nodes() {
        let node = v1::Node {
            name: "b".to_owned(),
            key_in_use_by: "10.0.0.9:4 (machine 12, run 3)".to_owned(),
            ..v1::Node::default()
        };
        let text = nodes_table(&[NodeView::from(node)]);
        assert!(
            text.contains("key of node b was used by another process, at 10.0.0.9:4"),
            "{text}"
        );
    }

    #[test]
    fn a_deployment_that_is_not_ready_says_why() {
        let mut status = status();
        status.deployments[0].reason = Some("stage 1 was lost".to_owned());
        assert!(status.describe().contains("not ready: stage 1 was lost"));
    }
}
