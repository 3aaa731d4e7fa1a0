//! The files of a stage, and the progress of getting them.

use std::{path::PathBuf, sync::Arc};

use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::ServeProgress,
    wire::{Artifact, HostEvent, StageSpec, host_event},
};
use tokio::sync::mpsc;

use super::actor::HostEnvironment;
use crate::ports::{deployment::Progress, vocabulary::Vocabulary};

/// What a stage is loaded from.
pub struct Files {
    /// Stage file.
    pub stage: PathBuf,
    /// At stage 0.
    pub vocabulary: Option<Arc<dyn Vocabulary>>,
}

/// Progress as the owner hears it.
pub fn progress_event(spec: &StageSpec, node: &str, step: &str, done: u64, total: u64) -> HostEvent {
    let progress = ServeProgress {
        step: step.to_owned(),
        stage: spec.stage,
        node: node.to_owned(),
        done,
        total,
    };
    HostEvent {
        event: Some(host_event::Event::Progress(progress)),
    }
}

/// Gets the files, from here or the source, and opens the vocabulary.
pub async fn obtain_files(
    spec: StageSpec,
    environment: Arc<HostEnvironment>,
    events: mpsc::Sender<HostEvent>,
) -> Result<Files, MeshError> {
    let source: NodeId = spec
        .source_node
        .parse()
        .map_err(|error| MeshError::new(ErrorCode::Protocol, format!("stage spec: {error}")))?;
    let name = environment.node_name.clone();
    let (shown, sender) = (spec.clone(), events.clone());
    let progress: Progress =
        Arc::new(move |done, total| drop(sender.try_send(progress_event(&shown, &name, "transfer", done, total))));
    let wanted = |artifact: &Option<Artifact>| {
        artifact
            .clone()
            .ok_or_else(|| MeshError::new(ErrorCode::Protocol, "the stage spec names no file"))
    };
    let store = &environment.store;
    let stage = store.obtain(&wanted(&spec.file)?, source, progress.clone()).await?;
    if spec.stage != 0 {
        return Ok(Files {
            stage,
            vocabulary: None,
        });
    }
    let path = store.obtain(&wanted(&spec.vocabulary)?, source, progress).await?;
    let vocabulary = environment.vocabularies.load(&path).await?;
    Ok(Files {
        stage,
        vocabulary: Some(vocabulary),
    })
}
