//! What the node and its text child say to each other; both are the same binary, so nothing here need stay compatible.

use mesh_proto::{MeshError, v1::ChatMessage, wire::Refusal};
use prost::{Message, Oneof};

/// To the child.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Order {
    #[prost(oneof = "OrderKind", tags = "1, 2")]
    pub kind: Option<OrderKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum OrderKind {
    #[prost(message, tag = "1")]
    Load(Load),
    #[prost(message, tag = "2")]
    Question(Question),
}

/// First of all, once.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Load {
    /// As the system has it; need not be UTF-8.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// The model's template ended a child: why a fallback is used.
    #[prost(string, optional, tag = "2")]
    pub fallback: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Question {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint32, tag = "2")]
    pub context: u32,
    #[prost(oneof = "Text", tags = "3, 4, 5")]
    pub text: Option<Text>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Text {
    #[prost(string, tag = "3")]
    Raw(String),
    #[prost(message, tag = "4")]
    Chat(Chat),
    #[prost(string, tag = "5")]
    Encode(String),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Chat {
    #[prost(message, repeated, tag = "1")]
    pub messages: Vec<ChatMessage>,
}

/// From the child.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Report {
    #[prost(oneof = "ReportKind", tags = "1, 2, 3, 4, 5")]
    pub kind: Option<ReportKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum ReportKind {
    /// The tokenizer has been tried; the template comes next.
    #[prost(bool, tag = "1")]
    TokenizerWorks(bool),
    #[prost(message, tag = "2")]
    Ready(Ready),
    #[prost(message, tag = "3")]
    Refused(Refusal),
    /// The template of this question is done; the tokenizer comes next.
    #[prost(uint64, tag = "4")]
    Rendered(u64),
    #[prost(message, tag = "5")]
    Answer(Answer),
}

/// The vocabulary is loaded.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Ready {
    /// Bytes of all tokens, one after the other.
    #[prost(bytes = "vec", tag = "1")]
    pub pieces: Vec<u8>,
    /// Bytes of each.
    #[prost(uint32, repeated, tag = "2")]
    pub lengths: Vec<u32>,
    /// Tokens that end generation.
    #[prost(uint32, repeated, tag = "3")]
    pub ends: Vec<u32>,
    /// Name of the chat template in use.
    #[prost(string, tag = "4")]
    pub template: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Answer {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "Outcome", tags = "2, 3")]
    pub outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Outcome {
    #[prost(message, tag = "2")]
    Tokens(Tokens),
    #[prost(message, tag = "3")]
    Refused(Refusal),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tokens {
    #[prost(uint32, repeated, tag = "1")]
    pub ids: Vec<u32>,
}

impl From<Result<Vec<u32>, MeshError>> for Outcome {
    fn from(result: Result<Vec<u32>, MeshError>) -> Self {
        match result {
            Ok(ids) => Self::Tokens(Tokens { ids }),
            Err(error) => Self::Refused(error.into()),
        }
    }
}

impl From<Outcome> for Result<Vec<u32>, MeshError> {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Tokens(tokens) => Ok(tokens.ids),
            Outcome::Refused(refusal) => Err(refusal.into()),
        }
    }
}
