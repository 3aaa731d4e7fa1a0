//! Messages of a chat.

use std::fmt;

use mesh_proto::{ErrorCode, MeshError, v1::ChatMessage};
use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

use super::field::{Bounded, Object, Shape, Skip};

/// Parts of one message: bounds memory, far above what clients send.
const MAX_PARTS: usize = 1024;

/// One message as clients send it. What other APIs put into an assistant's message, and clients send back, is
/// ignored where it carries no text of the conversation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message {
    role: Option<String>,
    content: Option<Content>,
    name: Option<String>,
    tool_calls: Option<Shape>,
    function_call: Option<Shape>,
    tool_call_id: Option<Shape>,
    audio: Option<Shape>,
    #[serde(rename = "refusal")]
    _refusal: Skip,
    #[serde(rename = "annotations")]
    _annotations: Skip,
    #[serde(rename = "reasoning")]
    _reasoning: Skip,
    #[serde(rename = "reasoning_content")]
    _reasoning_content: Skip,
    #[serde(rename = "cache_control")]
    _cache_control: Skip,
    #[serde(rename = "id")]
    _id: Skip,
}

#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Vec<Object<Part>>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Part {
    r#type: Option<String>,
    text: Option<String>,
    #[serde(rename = "image_url")]
    _image_url: Skip,
    #[serde(rename = "input_audio")]
    _input_audio: Skip,
    #[serde(rename = "file")]
    _file: Skip,
    #[serde(rename = "refusal")]
    _refusal: Skip,
    #[serde(rename = "cache_control")]
    _cache_control: Skip,
}

impl Message {
    /// The message as the mesh understands it; `index` is its place in `messages`. Roles are checked later, together
    /// with those of gRPC.
    pub(super) fn into_chat(self, index: usize) -> Result<ChatMessage, MeshError> {
        let field = |name: &str| format!("messages[{index}].{name}");
        let role = self.role.ok_or_else(|| {
            MeshError::invalid(
                field("role"),
                format!("message {index} has no role; use system, developer, user or assistant"),
            )
        })?;
        if matches!(role.as_str(), "tool" | "function") {
            return Err(unsupported(field("role"), "tool messages are"));
        }
        let unsupported_fields = [
            ("tool_calls", self.tool_calls, "tool calls are"),
            ("function_call", self.function_call, "function calls are"),
            ("tool_call_id", self.tool_call_id, "tool messages are"),
            ("audio", self.audio, "audio is"),
        ];
        for (name, value, what) in unsupported_fields {
            if value.is_some_and(|shape| !shape.is_nothing()) {
                return Err(unsupported(field(name), what));
            }
        }
        let content = match self.content {
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => join(parts, &field("content"))?,
            None if role == "assistant" => String::new(),
            None => {
                let message = format!("message {index} has no content; send a string or an array of text parts");
                return Err(MeshError::invalid(field("content"), message));
            }
        };
        Ok(ChatMessage {
            role,
            content,
            name: self.name,
        })
    }
}

/// Text parts, one per line, as llama.cpp and vLLM join them.
fn join(parts: Vec<Object<Part>>, field: &str) -> Result<String, MeshError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, Object(part)) in parts.into_iter().enumerate() {
        let place = format!("{field}[{index}]");
        match (part.r#type.as_deref(), part.text) {
            (Some("text"), Some(text)) => texts.push(text),
            (Some("text"), None) => {
                return Err(MeshError::invalid(
                    format!("{place}.text"),
                    "a text part has no text; send one",
                ));
            }
            (Some("image_url" | "input_audio" | "file" | "video_url" | "refusal"), _) => {
                return Err(unsupported(place, "parts other than text are"));
            }
            _ => {
                let message = "the type of a content part is missing or unknown; use `text`";
                return Err(MeshError::invalid(format!("{place}.type"), message));
            }
        }
    }
    Ok(texts.join("\n"))
}

fn unsupported(param: String, what: &str) -> MeshError {
    MeshError::new(
        ErrorCode::Unsupported,
        format!("{what} not supported yet; send text only"),
    )
    .with_param(param)
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of parts")
            }
            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Content, A::Error> {
                let parts = serde::de::value::SeqAccessDeserializer::new(seq);
                Ok(Content::Parts(Bounded::<_, MAX_PARTS>::deserialize(parts)?.0))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
