//! Generation for a gateway on another node.

use iroh::endpoint::{RecvStream, SendStream};
use mesh_actors::ports::inference::{Caller, GenerateEvent};
use mesh_proto::{
    ErrorCode, MeshError,
    v1::{GenerateDelta, GenerateFailed, GenerateRequest, GenerateResponse, generate_response::Event},
    wire::{GenerateCall, GenerateReply, generate_reply::Reply},
};

use super::ControlServices;
use crate::{error::protocol, message};

/// The gateway says nothing more after its request: the end of its side is the client's end.
const NOTHING_MORE: usize = 0;

pub async fn generate(
    mut send: SendStream,
    mut recv: RecvStream,
    call: GenerateCall,
    services: &ControlServices,
) -> Result<(), MeshError> {
    let (request, caller) = read_call(call)?;
    tokio::select! {
        // Dropping the other branch drops the generation, which cancels it on all stages.
        done = stream(&mut send, request, caller, services) => {
            let _ = send.finish();
            done
        }
        gone = message::read::<GenerateReply>(&mut recv, NOTHING_MORE) => gone.map(drop),
    }
}

/// What a member's gateway vouches for is believed, in the form that it must have.
fn read_call(call: GenerateCall) -> Result<(GenerateRequest, Caller), MeshError> {
    let request = call
        .request
        .ok_or_else(|| protocol("a generate call holds no request"))?;
    let agent_session = Some(call.agent_session).filter(|session| !session.is_empty());
    let agent_session = agent_session.map(|session| session.parse()).transpose();
    let caller = Caller {
        agent_session: agent_session.map_err(|error| protocol(format!("an agent session is damaged: {error}")))?,
        trace: call.traceparent.parse().ok(),
    };
    Ok((request, caller))
}

async fn stream(
    send: &mut SendStream,
    request: GenerateRequest,
    caller: Caller,
    services: &ControlServices,
) -> Result<(), MeshError> {
    let admitted = match services.registry.head(&request.model) {
        Some(head) => head.generate(request, caller).await,
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
