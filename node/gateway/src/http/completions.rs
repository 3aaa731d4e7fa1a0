//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    http::HeaderValue,
    response::Response,
};
use mesh_actors::ports::inference::{Caller, Generation};
use mesh_proto::{
    MeshError, RequestId,
    v1::{ChatPrompt, GenerateRequest, generate_request::Prompt},
};

use super::{
    answer::{Answer, Style},
    body, collect,
    error::HttpError,
    json, layers,
    parameters::{Parameters, Streaming},
    stream,
};
use crate::{admission::draining, gateway::Shared, generate, identity};

/// Answers a chat.
pub(super) async fn chat(
    State(shared): State<Arc<Shared>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, HttpError> {
    complete(shared, id, request, Style::Chat).await
}

/// Continues a text.
pub(super) async fn text(
    State(shared): State<Arc<Shared>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, HttpError> {
    complete(shared, id, request, Style::Text).await
}

/// The status line goes out when this returns: after admission, and for an answer in one piece after its end. Until
/// then the client's going away drops this future, and the generation in it.
async fn complete(
    shared: Arc<Shared>,
    id: RequestId,
    mut request: Request,
    style: Style,
) -> Result<Response, HttpError> {
    if shared.admission.is_draining() {
        body::discard(request).await;
        return Err(draining().into());
    }
    let caller = identity::caller(shared.options.session_header.as_ref(), request.headers());
    let extensions = std::mem::take(request.extensions_mut());
    let body = body::read(request, &shared.options).await?;
    let caller = caller?;
    let work = shared.admission.admit(&extensions)?;
    let started = work.run(start(&shared, id, &body, caller, style)).await?;
    drop(body);
    let Started {
        answer,
        streaming,
        generation,
    } = started;
    let seed = HeaderValue::from(generation.started.seed);
    let mut response = match streaming {
        Streaming::On { include_usage } => {
            let ping = shared.options.ping_interval;
            stream::respond(stream::Source {
                answer,
                include_usage,
                generation,
                work,
                ping,
            })
        }
        Streaming::Off => {
            let whole = work.run(collect::respond(answer, generation)).await;
            whole.unwrap_or_else(HttpError::after_admission)
        }
    };
    response.headers_mut().insert(layers::SEED_HEADER, seed);
    Ok(response)
}

struct Started {
    answer: Answer,
    streaming: Streaming,
    generation: Generation,
}

async fn start(
    shared: &Shared,
    id: RequestId,
    body: &[u8],
    caller: Caller,
    style: Style,
) -> Result<Started, MeshError> {
    let parameters = json::decode::<Parameters>(body)?;
    let streaming = parameters.streaming()?;
    let mut request = parse(parameters, style)?;
    request.request_id = id.to_string();
    let model = request.model.clone();
    let generation = generate::start(&*shared.inference, request, caller).await?;
    let answer = Answer::new(style, model, &generation.started);
    Ok(Started {
        answer,
        streaming,
        generation,
    })
}

fn parse(mut parameters: Parameters, style: Style) -> Result<GenerateRequest, MeshError> {
    parameters.refuse_unsupported()?;
    let prompt = match style {
        Style::Chat => chat_prompt(&mut parameters)?,
        Style::Text => text_prompt(&mut parameters)?,
    };
    parameters.into_request(prompt)
}

fn chat_prompt(parameters: &mut Parameters) -> Result<Prompt, MeshError> {
    if parameters.prompt.is_some() {
        return Err(MeshError::invalid(
            "prompt",
            "a chat has messages, not a prompt; use `/v1/completions` for a prompt",
        ));
    }
    let messages = parameters
        .messages
        .take()
        .ok_or_else(|| MeshError::invalid("messages", "messages is missing; send at least one message"))?;
    let messages = messages
        .0
        .into_iter()
        .enumerate()
        .map(|(index, message)| message.0.into_chat(index));
    Ok(Prompt::Chat(ChatPrompt {
        messages: messages.collect::<Result<_, _>>()?,
    }))
}

fn text_prompt(parameters: &mut Parameters) -> Result<Prompt, MeshError> {
    if parameters.messages.is_some() {
        let message = "a completion has a prompt, not messages; use `/v1/chat/completions` for messages";
        return Err(MeshError::invalid("messages", message));
    }
    let missing = || MeshError::invalid("prompt", "the prompt is missing; send a string or token ids");
    parameters.prompt.take().ok_or_else(missing)?.into_request()
}
