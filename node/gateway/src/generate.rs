//! Starting a generation: the one place where HTTP and gRPC meet, so that both check the same.

use mesh_actors::ports::inference::{Caller, Generation, Inference, ServedModel};
use mesh_proto::{ErrorCode, MeshError, v1::GenerateRequest};

mod check;

pub(crate) use check::MAX_STOP_STRINGS;

/// A model name from a client is echoed up to here.
const ECHOED_NAME: usize = 100;

/// Checks the request, finds its deployment and starts it. Dropping the future or the generation cancels.
pub(crate) async fn start(
    inference: &dyn Inference,
    mut request: GenerateRequest,
    caller: Caller,
) -> Result<Generation, MeshError> {
    find_model(inference, &request.model)?;
    check::normalize(&mut request);
    check::check(&request)?;
    inference.generate(request, caller).await
}

/// The deployment of this name, ready or not.
///
/// # Errors
///
/// `model_not_found`, naming what is served.
pub(crate) fn find_model(inference: &dyn Inference, name: &str) -> Result<ServedModel, MeshError> {
    let mut models = inference.models();
    if let Some(found) = models.iter().position(|model| model.name == name) {
        return Ok(models.swap_remove(found));
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    let served = models
        .iter()
        .filter(|model| model.ready)
        .map(|model| format!("`{}`", model.name));
    let served = served.collect::<Vec<_>>().join(", ");
    let advice = if served.is_empty() {
        "nothing is served now; start a model with `mesh serve`".to_owned()
    } else {
        format!("use one that is served: {served}")
    };
    let name = shorten(name, ECHOED_NAME);
    let error = MeshError::new(
        ErrorCode::ModelNotFound,
        format!("the model `{name}` does not exist; {advice}"),
    );
    Err(error.with_param("model"))
}

/// At most `limit` characters of text that came from a client.
pub(crate) fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
