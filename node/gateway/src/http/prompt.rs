//! The prompt of `/v1/completions`.

use std::fmt;

use mesh_proto::{
    ErrorCode, MeshError,
    v1::{TokenPrompt, generate_request},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use super::field::Skip;

/// What a client may send: a string, an array of strings, an array of token ids, an array of such arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Prompt {
    /// Text, tokenized with special tokens.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// More than one prompt.
    Several,
}

impl Prompt {
    /// The one prompt.
    pub(super) fn into_request(self) -> Result<generate_request::Prompt, MeshError> {
        match self {
            Self::Text(text) => Ok(generate_request::Prompt::Text(text)),
            Self::Tokens(ids) => Ok(generate_request::Prompt::Tokens(TokenPrompt { ids })),
            Self::Several => {
                let message = "several prompts in one request are not supported; send one request for each";
                Err(MeshError::new(ErrorCode::Unsupported, message).with_param("prompt"))
            }
        }
    }
}

enum Element {
    Token(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Prompt;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, an array of one string or an array of token ids")
            }
            fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
                Ok(Prompt::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompt, A::Error> {
                match seq.next_element()? {
                    None => Ok(Prompt::Tokens(Vec::new())),
                    Some(Element::Token(first)) => tokens(first, seq),
                    Some(Element::Prompt(prompt)) => only(prompt, seq),
                }
            }
        }
        deserializer.deserialize_any(Any)
    }
}

fn tokens<'de, A: SeqAccess<'de>>(first: u32, mut seq: A) -> Result<Prompt, A::Error> {
    let mut ids = vec![first];
    while let Some(id) = seq.next_element()? {
        ids.push(id);
    }
    Ok(Prompt::Tokens(ids))
}

fn only<'de, A: SeqAccess<'de>>(prompt: Prompt, mut seq: A) -> Result<Prompt, A::Error> {
    let mut prompts = 1_usize;
    while seq.next_element::<Skip>()?.is_some() {
        prompts += 1;
    }
    Ok(if prompts == 1 { prompt } else { Prompt::Several })
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or an array of token ids")
            }
            fn visit_i64<E: de::Error>(self, id: i64) -> Result<Element, E> {
                Err(E::invalid_value(de::Unexpected::Signed(id), &"a token id"))
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
                let id =
                    u32::try_from(id).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(id), &"a token id"))?;
                Ok(Element::Token(id))
            }
            fn visit_str<E>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = seq.next_element()? {
                    ids.push(id);
                }
                Ok(Element::Prompt(Prompt::Tokens(ids)))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_prompt_in_any_form_is_taken_and_several_are_told_apart() {
        let read = |json: &str| serde_json::from_str::<Prompt>(json).ok();
        assert_eq!(read(r#""hi""#), Some(Prompt::Text("hi".into())));
        assert_eq!(read(r#"["hi"]"#), Some(Prompt::Text("hi".into())));
        assert_eq!(read("[1,2]"), Some(Prompt::Tokens(vec![1, 2])));
        assert_eq!(read("[[1,2]]"), Some(Prompt::Tokens(vec![1, 2])));
        assert_eq!(read("[]"), Some(Prompt::Tokens(vec![])));
        assert_eq!(read(r#"["a","b"]"#), Some(Prompt::Several));
        assert_eq!(read("[[1],[2]]"), Some(Prompt::Several));
        for wrong in ["7", "[-1]", "[1.5]", "[4294967296]", r#"[1,"a"]"#, "{}", "true"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
