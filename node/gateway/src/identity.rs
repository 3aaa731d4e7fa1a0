//! Who is calling, beside what is asked: the one place where a request gets its agent session and its trace.
//!
//! Both come from headers (gRPC: metadata) only. Bodies may spell the reserved names, as clients of other servers do:
//! they are stripped, so that nothing in a body can pass for an identity.

use axum::http::{HeaderMap, HeaderName};
use mesh_actors::ports::inference::Caller;
use mesh_proto::{AgentSession, MeshError, TraceContext};

/// Fields of a body that would name an identity; stripped from every request type.
const RESERVED: [&str; 5] = [
    "agent_session",
    "agent_session_id",
    "mesh_agent_session",
    "mesh_session",
    "mesh_trace",
];

/// W3C trace context (<https://www.w3.org/TR/trace-context/>).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Headers that mean something else already.
const TAKEN: [&str; 9] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "traceparent",
    "x-request-id",
];

/// A name that cannot carry agent sessions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a header name.
    #[error("{0:?} is not a header name; use letters, digits and hyphens, such as x-agent-session")]
    Invalid(String),
    /// Has a meaning of its own.
    #[error("the header {0} means something else; name another, such as x-agent-session")]
    Taken(String),
}

/// The header that carries agent sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionHeader(HeaderName);

impl SessionHeader {
    /// Checks the operator's choice.
    ///
    /// # Errors
    ///
    /// Not a header name, or one that means something else.
    pub fn new(name: &str) -> Result<Self, HeaderError> {
        let header: HeaderName = name.parse().map_err(|_| HeaderError::Invalid(name.to_owned()))?;
        // gRPC decodes the values of metadata whose names end so.
        if TAKEN.contains(&header.as_str()) || header.as_str().ends_with("-bin") || header.as_str().starts_with("grpc-")
        {
            return Err(HeaderError::Taken(header.to_string()));
        }
        Ok(Self(header))
    }
}

/// A body's field that is stripped.
pub(crate) fn is_reserved(field: &str) -> bool {
    RESERVED.contains(&field)
}

/// The caller by its headers.
///
/// # Errors
///
/// The agent session is sent twice, or is not 1 to 512 bytes of text without control characters.
pub(crate) fn caller(header: Option<&SessionHeader>, headers: &HeaderMap) -> Result<Caller, MeshError> {
    Ok(Caller {
        agent_session: header.map_or(Ok(None), |header| agent_session(header, headers))?,
        trace: trace(headers),
    })
}

/// The caller's span. One that cannot be read is as none: the trace starts here.
pub(crate) fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT)?.to_str().ok()?.parse().ok()
}

fn agent_session(header: &SessionHeader, headers: &HeaderMap) -> Result<Option<AgentSession>, MeshError> {
    let mut values = headers.get_all(&header.0).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let refused = |why: &str| MeshError::invalid(header.0.as_str(), format!("header {}: {why}", header.0));
    if values.next().is_some() {
        return Err(refused("it is sent more than once; send one"));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| refused("it is not UTF-8; send text"))?;
    text.parse()
        .map(Some)
        .map_err(|error: mesh_proto::session::AgentSessionError| refused(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn with(values: &[&[u8]]) -> HeaderMap {
        let name = HeaderName::from_static("x-agent");
        let values = values
            .iter()
            .map(|value| (name.clone(), HeaderValue::from_bytes(value).unwrap()));
        let mut headers = HeaderMap::new();
        values.for_each(|(name, value)| _ = headers.append(name, value));
        headers
    }

    fn session(values: &[&[u8]]) -> Result<Option<String>, MeshError> {
        let header = SessionHeader::new("X-Agent").unwrap();
        let caller = caller(Some(&header), &with(values))?;
        Ok(caller.agent_session.map(|session| session.to_string()))
    }

    #[test]
    fn a_session_comes_from_the_named_header_alone() {
        assert_eq!(session(&[b"  s-1 "]), Ok(Some("s-1".into())));
        assert_eq!(session(&[]), Ok(None));
        assert_eq!(caller(None, &with(&[b"s-1"])).unwrap().agent_session, None);
        for bad in [
            &[b"a".as_slice(), b"b"][..],
            &[b" "],
            &[b"a\tb"],
            &[&[0xff]],
            &[&[b'x'; 513]],
        ] {
            let error = session(bad).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("x-agent"), "{error}");
        }
    }

    #[test]
    fn headers_with_a_meaning_of_their_own_are_refused() {
        assert!(SessionHeader::new("x-agent-session").is_ok());
        for bad in [
            "",
            "a b",
            "Authorization",
            "x-request-id",
            "grpc-timeout",
            "session-bin",
        ] {
            assert!(SessionHeader::new(bad).is_err(), "{bad}");
        }
    }
}
