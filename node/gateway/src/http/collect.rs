//! An answer in one piece.

use axum::{
    Json,
    response::{IntoResponse as _, Response},
};
use mesh_actors::ports::inference::{GenerateEvent, Generation};
use mesh_proto::MeshError;

use super::answer::Answer;

/// Waits for the end of the generation. A failure is the response's status.
pub(super) async fn respond(answer: Answer, mut generation: Generation) -> Result<Response, MeshError> {
    let mut whole = String::new();
    while let Some(event) = generation.events.next().await {
        match event {
            GenerateEvent::Delta { text, .. } => whole.push_str(&text),
            GenerateEvent::Finished(finished) => return Ok(Json(answer.whole(&whole, &finished)).into_response()),
            GenerateEvent::Failed(error) => return Err(error),
        }
    }
    Err(MeshError::internal(
        "the generation ended without a result; see the node's log",
    ))
}
