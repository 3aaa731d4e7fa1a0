//! What comes before the first epoch: the plan, and the files that it needs.

use std::sync::Arc;

use mesh_proto::{
    MeshError,
    v1::{ServeProgress, ServeRequest},
    wire::Artifact,
};

use super::{
    actor::DeploymentEnvironment,
    caller::ProgressSender,
    plan::{Plan, Wishes, plan},
};
use crate::ports::deployment::{ModelFacts, Piece, Progress};

/// A plan and its files.
#[derive(Debug)]
pub struct Prepared {
    pub plan: Plan,
    pub files: Vec<Artifact>,
    pub vocabulary: Artifact,
}

impl Prepared {
    /// Where its stages are, as in `ServeRequest.stages`.
    pub fn placed(&self) -> String {
        let stages = self.plan.stages.iter();
        let stages = stages.map(|stage| format!("{}:{}-{}", stage.node.name, stage.layers.start, stage.layers.end));
        stages.collect::<Vec<_>>().join(",")
    }
}

/// Plans, then cuts every stage and the vocabulary.
pub async fn prepare(
    request: ServeRequest,
    facts: ModelFacts,
    environment: Arc<DeploymentEnvironment>,
    sender: Option<ProgressSender>,
) -> Result<Prepared, MeshError> {
    let wishes = Wishes {
        stages: request.stages,
        context: request.context,
        lanes: request.lanes,
        exact: request.exact,
        prefill_chunk: request.prefill_chunk,
    };
    let own = environment.node.to_string();
    let mut nodes = environment.members.borrow().clone();
    nodes.sort_by_key(|node| (node.id != own, node.name.clone()));
    let plan = plan(&facts, &nodes, &wishes)?;
    let mut files = Vec::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        let piece = Piece::Stage {
            start: stage.layers.start,
            end: stage.layers.end,
        };
        let progress = cut_progress(index as u32, &environment.node_name, &sender);
        files.push(environment.store.cut(&request.model, piece, progress).await?);
    }
    let progress = cut_progress(0, &environment.node_name, &sender);
    let vocabulary = environment
        .store
        .cut(&request.model, Piece::Vocabulary, progress)
        .await?;
    Ok(Prepared {
        plan,
        files,
        vocabulary,
    })
}

fn cut_progress(stage: u32, node: &str, sender: &Option<ProgressSender>) -> Progress {
    let (node, sender) = (node.to_owned(), sender.clone());
    Arc::new(move |done, total| {
        let Some(sender) = &sender else { return };
        sender.show(ServeProgress {
            step: "cut".to_owned(),
            stage,
            node: node.clone(),
            done,
            total,
        });
    })
}
