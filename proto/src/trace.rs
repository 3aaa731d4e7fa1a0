//! W3C trace context, so that one trace follows a request over HTTP, gRPC, control streams and stage frames.

use std::{fmt, str::FromStr};

use data_encoding::HEXLOWER;

/// A span that others can be children of, as `traceparent` writes it
/// (<https://www.w3.org/TR/trace-context/#traceparent-header>). `tracestate` is not carried.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceContext {
    /// The trace; not all zero.
    pub trace_id: [u8; 16],
    /// The span; not all zero.
    pub span_id: [u8; 8],
    /// Bit 0: the trace is recorded.
    pub flags: u8,
}

impl TraceContext {
    /// Whoever made the span records it.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// The trace id as logs and trace viewers write it.
    pub fn trace_id_hex(&self) -> String {
        HEXLOWER.encode(&self.trace_id)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (HEXLOWER.encode(&self.trace_id), HEXLOWER.encode(&self.span_id));
        write!(f, "00-{trace}-{span}-{:02x}", self.flags)
    }
}

/// The text is not a `traceparent`; callers go on without one, as the specification wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a W3C traceparent")]
pub struct ParseTraceError;

impl FromStr for TraceContext {
    type Err = ParseTraceError;

    fn from_str(text: &str) -> Result<Self, ParseTraceError> {
        let mut parts = text.split('-');
        let mut next = |bytes: &mut [u8]| {
            let part = parts.next().filter(|part| part.len() == bytes.len() * 2);
            let decoded = part.and_then(|part| HEXLOWER.decode(part.as_bytes()).ok());
            decoded
                .map(|decoded| bytes.copy_from_slice(&decoded))
                .ok_or(ParseTraceError)
        };
        let (mut version, mut flags) = ([0], [0]);
        let (mut trace_id, mut span_id) = ([0; 16], [0; 8]);
        next(&mut version)?;
        next(&mut trace_id)?;
        next(&mut span_id)?;
        next(&mut flags)?;
        // Later versions may append fields; version 255 is forbidden, and version 0 has exactly these.
        let more = parts.next().is_some();
        if version == [0xff] || (version == [0] && more) || trace_id == [0; 16] || span_id == [0; 8] {
            return Err(ParseTraceError);
        }
        Ok(Self {
            trace_id,
            span_id,
            flags: flags[0],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_the_specification_survives() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context: TraceContext = text.parse().unwrap();
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), text);
        assert_eq!(context.trace_id_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
    }

    #[test]
    fn what_the_specification_forbids_is_refused() {
        for text in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(ParseTraceError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_context_or_an_error(text in ".{0,80}") {
            let _ = text.parse::<TraceContext>();
        }
    }
}
