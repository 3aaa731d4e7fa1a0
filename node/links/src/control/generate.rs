//! Generation for a gateway on another node.

use iroh::endpoint::{RecvStream, SendStream};
use mesh_actors::ports::inference::GenerateEvent;
use mesh_proto::{
    ErrorCode, MeshError,
    v1::{GenerateDelta, GenerateFailed, GenerateRequest, GenerateResponse, generate_response::Event},
    wire::{GenerateReply, generate_reply::Reply},
};

use super::ControlServices;
use crate::message;

/// The gateway says nothing more after its request: the end of its side is the client's end.
const NOTHING_MORE: usize = 0;

pub async fn generate(
    mut send: SendStream,
    mut recv: RecvStream,
    request: GenerateRequest,
    services: &ControlServices,
) -> Result<(), MeshError> {
    tokio::select! {
        // Dropping the other branch drops the generation, which cancels it on all stages.
        done = stream(&mut send, request, services) => {
            let _ = send.finish();
            done
        }
        gone = message::read::<GenerateReply>(&mut recv, NOTHING_MORE) => gone.map(drop),
    }
}

async fn stream(send: &mut SendStream, request: GenerateRequest, services: &ControlServices) -> Result<(), MeshError> {
    let admitted = match services.registry.head(&request.model) {
        Some(head) => head.generate(request).await,
        None => Err(MeshError::new(
            ErrorCode::NotReady,
            format!("{} is not ready; try again", request.model),
        )),
    };
    let mut generation = match admitted {
        Ok(generation) => generation,
        Err(error) => {
            return message::write(
                send,
                &GenerateReply {
                    reply: Some(Reply::Refused(error.into())),
                },
            )
            .await;
        }
    };
    write(send, Event::Started(generation.started)).await?;
    while let Some(event) = generation.events.next().await {
        write(send, to_wire(event)).await?;
    }
    Ok(())
}

async fn write(send: &mut SendStream, event: Event) -> Result<(), MeshError> {
    let reply = Reply::Event(GenerateResponse { event: Some(event) });
    message::write(send, &GenerateReply { reply: Some(reply) }).await
}

fn to_wire(event: GenerateEvent) -> Event {
    match event {
        GenerateEvent::Delta {
            text,
            completion_tokens,
        } => Event::Delta(GenerateDelta {
            text,
            completion_tokens,
        }),
        GenerateEvent::Finished(finished) => Event::Finished(finished),
        GenerateEvent::Failed(error) => Event::Failed(GenerateFailed {
            code: error.code.name().to_owned(),
            message: error.message,
            param: error.param.unwrap_or_default(),
        }),
    }
}
