//! `InferenceService`: the gRPC twin of the OpenAI API.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt as _};
use mesh_actors::ports::inference::{GenerateEvent, Generation};
use mesh_proto::{
    MeshError, RequestId,
    v1::{
        GenerateDelta, GenerateFailed, GenerateRequest, GenerateResponse, generate_response::Event,
        inference_service_server::InferenceService,
    },
};
use tonic::{Request, Response, Status};

use super::Call;
use crate::{
    admission::{Work, draining},
    gateway::Shared,
    generate, identity,
};

pub(super) struct Inference(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl InferenceService for Inference {
    type GenerateStream = BoxStream<'static, Result<GenerateResponse, Status>>;

    /// The response begins when the request is admitted; dropping it, or the call before that, cancels.
    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let mut call = Call::of_user(&self.0, &request)?;
        let caller = identity::caller(self.0.options.session_header.as_ref(), request.metadata().as_ref());
        let caller = caller.map_err(|error| call.refuse(error))?;
        let (_, connection, mut request) = request.into_parts();
        call.id = own_id(&request, call.id).map_err(|error| call.refuse(error))?;
        request.request_id = call.id.to_string();
        let work = self
            .0
            .admission
            .admit(&connection)
            .map_err(|error| call.refuse(error))?;
        let generation = work.run(generate::start(&*self.0.inference, request, caller)).await;
        let generation = generation.map_err(|error| call.refuse(error))?;
        Ok(call.answer(events(generation, work)))
    }
}

/// The field, which must be a UUID if it is there, else the id of the call.
fn own_id(request: &GenerateRequest, call: RequestId) -> Result<RequestId, MeshError> {
    if request.request_id.is_empty() {
        return Ok(call);
    }
    let invalid = |_| MeshError::invalid("request_id", "request_id is not a UUID; send one, or leave it empty");
    request.request_id.parse().map_err(invalid)
}

enum State {
    Opening(Generation, Work),
    Running(Generation, Work),
    Ended,
}

fn events(generation: Generation, work: Work) -> BoxStream<'static, Result<GenerateResponse, Status>> {
    let next = |state| async {
        let (event, state) = match state {
            State::Opening(mut generation, work) => {
                let started = std::mem::take(&mut generation.started);
                (Event::Started(started), State::Running(generation, work))
            }
            State::Running(generation, work) => running(generation, work).await,
            State::Ended => return None,
        };
        Some((Ok(GenerateResponse { event: Some(event) }), state))
    };
    stream::unfold(State::Opening(generation, work), next).boxed()
}

async fn running(mut generation: Generation, work: Work) -> (Event, State) {
    let next = tokio::select! {
        biased;
        () = work.expired() => Some(GenerateEvent::Failed(draining())),
        next = generation.events.next() => next,
    };
    match next {
        Some(GenerateEvent::Delta {
            text,
            completion_tokens,
        }) => (
            Event::Delta(GenerateDelta {
                text,
                completion_tokens,
            }),
            State::Running(generation, work),
        ),
        Some(GenerateEvent::Finished(finished)) => (Event::Finished(finished), State::Ended),
        Some(GenerateEvent::Failed(error)) => (failed(error), State::Ended),
        None => {
            let error = MeshError::internal("the generation ended without a result; see the node's log");
            (failed(error), State::Ended)
        }
    }
}

fn failed(error: MeshError) -> Event {
    Event::Failed(GenerateFailed {
        code: error.code.name().to_owned(),
        message: error.message,
        param: error.param.unwrap_or_default(),
    })
}
