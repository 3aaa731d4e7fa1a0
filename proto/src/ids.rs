//! Identifiers. Each is a type of its own, so that a lane cannot be passed where a session is meant.

use std::{fmt, str::FromStr};

use uuid::Uuid;

use crate::MeshError;

/// Identity of a node: the public key of its QUIC endpoint. Written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 32]);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({})", data_encoding::HEXLOWER.encode(&self.0[..5]))
    }
}

/// The text is not an id of the kind asked for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a {kind}")]
pub struct ParseIdError {
    kind: &'static str,
    text: String,
}

impl FromStr for NodeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let refused = || ParseIdError {
            kind: "node id (64 hexadecimal digits)",
            text: text.chars().take(80).collect(),
        };
        let bytes = data_encoding::HEXLOWER_PERMISSIVE
            .decode(text.as_bytes())
            .map_err(|_| refused())?;
        Ok(Self(bytes.try_into().map_err(|_| refused())?))
    }
}

/// Identity of a request: what HTTP returns in `x-request-id`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub Uuid);

impl RequestId {
    /// A new random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id in the field `request_id` of a question.
    ///
    /// # Errors
    ///
    /// `invalid_request`, naming the field.
    pub fn asked(text: &str) -> Result<Self, MeshError> {
        text.parse()
            .map_err(|error| MeshError::invalid("request_id", format!("{error}; take it from `x-request-id`")))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RequestId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        Uuid::from_str(text).map(Self).map_err(|_| ParseIdError {
            kind: "request id (a UUID)",
            text: text.chars().take(80).collect(),
        })
    }
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id!(
    /// A lane of a deployment: one KV stream on every stage. `0..lanes`; the sequence id in llama.cpp.
    LaneId,
    u32
);
number_id!(
    /// One occupation of a lane, by one attempt of one request. Never used again within an epoch: it fences late
    /// answers and late frees.
    SessionId,
    u64
);
number_id!(
    /// One arrangement of a deployment's stages. Grows whenever the owner arranges them anew.
    Epoch,
    u64
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_survives_text() {
        let id = NodeId([0xab; 32]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("ab".parse::<NodeId>().is_err());
        assert!("zz".repeat(32).parse::<NodeId>().is_err());
    }
}
