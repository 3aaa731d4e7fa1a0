//! An answer as server-sent events.
//!
//! Whole events only, then exactly one of: the closing chunk (and usage, if asked for) with `[DONE]`, or one error
//! event without it. A client that goes away drops the body, and with it the generation.

use std::{convert::Infallible, fmt::Write as _, time::Duration};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::stream;
use mesh_actors::ports::inference::{GenerateEvent, Generation};
use mesh_proto::{MeshError, v1::GenerateFinished};
use serde::Serialize;

use super::{answer::Answer, error::ErrorBody};
use crate::admission::{Work, draining};

/// What a stream is made of; all of it lives as long as the response's body.
pub(super) struct Source {
    pub(super) answer: Answer,
    pub(super) include_usage: bool,
    pub(super) generation: Generation,
    pub(super) work: Work,
    pub(super) ping: Duration,
}

/// The headers go out at once, so that the client knows it was admitted.
pub(super) fn respond(source: Source) -> Response {
    let events = stream::unfold(State::Opening(source), |state| async {
        let (event, state) = state.step().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // nginx would hold the events back otherwise.
        (
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        ),
    ];
    (headers, Body::from_stream(events)).into_response()
}

enum State {
    Opening(Source),
    Running(Source),
    Ended,
}

impl State {
    async fn step(self) -> Option<(Bytes, Self)> {
        match self {
            Self::Opening(source) => match source.answer.opening(source.include_usage) {
                Some(chunk) => Some((event(&chunk), Self::Running(source))),
                None => source.next().await,
            },
            Self::Running(source) => source.next().await,
            Self::Ended => None,
        }
    }
}

impl Source {
    async fn next(mut self) -> Option<(Bytes, State)> {
        let next = tokio::select! {
            biased;
            () = self.work.expired() => Some(GenerateEvent::Failed(draining())),
            next = self.generation.events.next() => next,
            () = tokio::time::sleep(self.ping) => return Some((Bytes::from_static(b": ping\n\n"), State::Running(self))),
        };
        Some(match next {
            Some(GenerateEvent::Delta { text, .. }) => (
                event(&self.answer.delta(&text, self.include_usage)),
                State::Running(self),
            ),
            Some(GenerateEvent::Finished(finished)) => (self.ending(&finished), State::Ended),
            Some(GenerateEvent::Failed(error)) => (event(&ErrorBody::from(&error)), State::Ended),
            None => {
                let error = MeshError::internal("the generation ended without a result; see the node's log");
                (event(&ErrorBody::from(&error)), State::Ended)
            }
        })
    }

    fn ending(&self, finished: &GenerateFinished) -> Bytes {
        let mut events = event(&self.answer.closing(finished, self.include_usage)).to_vec();
        if self.include_usage {
            events.extend_from_slice(&event(&self.answer.usage(finished)));
        }
        events.extend_from_slice(b"data: [DONE]\n\n");
        events.into()
    }
}

/// One event. JSON has no raw line breaks, so one `data` line holds it.
fn event(data: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(data).unwrap_or_else(|error| {
        // Only strings, numbers and nulls are written; should that change, the client still sees an error.
        tracing::error!(%error, "an event could not be written");
        r#"{"error":{"message":"the node could not write an event; see its log","type":"server_error","param":null,"code":"internal_error"}}"#.to_owned()
    });
    let mut event = String::with_capacity(json.len() + "data: \n\n".len());
    _ = write!(event, "data: {json}\n\n");
    event.into()
}
