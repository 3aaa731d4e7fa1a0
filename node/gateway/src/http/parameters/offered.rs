//! Parameters that are known and not offered.

use mesh_proto::{ErrorCode, MeshError};

use super::Parameters;
use crate::http::field::Shape;

/// A field's name, its value, and whether that value asks for nothing.
type Rule<'a> = (&'static str, &'a Option<Shape>, fn(&Shape) -> bool);

impl Parameters {
    /// Refuses what Mesh does not offer, naming the field. What asks for nothing passes.
    pub(in crate::http) fn refuse_unsupported(&self) -> Result<(), MeshError> {
        only_one("n", self.n)?;
        only_one("best_of", self.best_of)?;
        let rules: [Rule<'_>; 15] = [
            // In `/v1/completions`, 0 asks for the probability of the chosen token.
            ("logprobs", &self.logprobs, |shape| *shape == Shape::Bool(false)),
            ("top_logprobs", &self.top_logprobs, Shape::is_nothing),
            ("tools", &self.tools, Shape::is_nothing),
            ("tool_choice", &self.tool_choice, |shape| is_text(shape, "none")),
            ("functions", &self.functions, Shape::is_nothing),
            ("function_call", &self.function_call, |shape| is_text(shape, "none")),
            ("response_format", &self.response_format, |shape| {
                *shape == Shape::Object(Some("text".into()))
            }),
            ("suffix", &self.suffix, Shape::is_nothing),
            ("echo", &self.echo, Shape::is_nothing),
            ("audio", &self.audio, Shape::is_nothing),
            ("modalities", &self.modalities, |shape| {
                *shape == Shape::Array(vec!["text".into()])
            }),
            ("prediction", &self.prediction, Shape::is_nothing),
            ("reasoning_effort", &self.reasoning_effort, |shape| {
                is_text(shape, "none")
            }),
            ("verbosity", &self.verbosity, |shape| is_text(shape, "medium")),
            ("web_search_options", &self.web_search_options, Shape::is_nothing),
        ];
        for (name, value, asks_for_nothing) in rules {
            if value.as_ref().is_some_and(|shape| !asks_for_nothing(shape)) {
                return Err(unsupported(name));
            }
        }
        Ok(())
    }
}

fn is_text(shape: &Shape, expected: &str) -> bool {
    matches!(shape, Shape::Text(text) if text == expected)
}

fn only_one(name: &str, value: Option<i64>) -> Result<(), MeshError> {
    match value {
        None | Some(1) => Ok(()),
        Some(2..) => {
            let message = format!("only one choice is supported; use {name} = 1, or send the request several times");
            Err(MeshError::new(ErrorCode::Unsupported, message).with_param(name))
        }
        Some(value) => Err(MeshError::invalid(name, format!("{name} is {value}; use 1"))),
    }
}

fn unsupported(name: &str) -> MeshError {
    let message = format!("`{name}` is not supported yet; leave it out");
    MeshError::new(ErrorCode::Unsupported, message).with_param(name)
}
