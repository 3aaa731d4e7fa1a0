//! `/v1/models`: the deployments that can be asked now.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
};
use mesh_actors::ports::inference::ServedModel;
use mesh_proto::{ErrorCode, MeshError};
use serde::Serialize;

use super::error::HttpError;
use crate::{gateway::Shared, generate::find_model};

#[derive(Debug, Serialize)]
pub(super) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

/// OpenAI's model object, and the context that vLLM's clients look for.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    max_model_len: u32,
}

impl From<ServedModel> for Model {
    fn from(model: ServedModel) -> Self {
        Self {
            id: model.name,
            object: "model",
            created: model.created,
            owned_by: "mesh",
            max_model_len: model.context,
        }
    }
}

/// The deployments that are ready.
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Json<ModelList> {
    let ready = shared.inference.models().into_iter().filter(|model| model.ready);
    Json(ModelList {
        object: "list",
        data: ready.map(Model::from).collect(),
    })
}

/// One deployment; its name may hold `/` and `:`.
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, HttpError> {
    let Path(id) = id.map_err(|_| {
        MeshError::new(
            ErrorCode::InvalidRequest,
            "the model id is not UTF-8; encode it as UTF-8 and percent signs",
        )
    })?;
    let found = find_model(&*shared.inference, id.strip_suffix('/').unwrap_or(&id))?;
    if !found.ready {
        let message = format!(
            "the model `{}` is not ready; see `mesh status` and try again later",
            found.name
        );
        return Err(MeshError::new(ErrorCode::NotReady, message).with_param("model").into());
    }
    Ok(Json(found.into()))
}
