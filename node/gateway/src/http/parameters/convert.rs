//! Parameters as the request that the mesh understands.

use mesh_proto::{
    MeshError,
    sampling::default_sampling,
    v1::{GenerateRequest, Sampling, generate_request::Prompt},
};

use super::Parameters;

/// How the answer is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Streaming {
    /// One JSON object when all is done.
    Off,
    /// Server-sent events.
    On {
        /// One more chunk with the counts, before `[DONE]`.
        include_usage: bool,
    },
}

impl Parameters {
    /// Whether to stream, and with usage.
    pub(in crate::http) fn streaming(&self) -> Result<Streaming, MeshError> {
        let options = self.stream_options.as_ref();
        if self.stream == Some(true) {
            let include_usage = options.and_then(|options| options.0.include_usage).unwrap_or(false);
            return Ok(Streaming::On { include_usage });
        }
        if options.is_some() {
            let message = "stream_options needs stream = true; set it, or leave stream_options out";
            return Err(MeshError::invalid("stream_options", message));
        }
        Ok(Streaming::Off)
    }

    /// The request, with this prompt. Ranges are checked later, together with those of gRPC.
    pub(in crate::http) fn into_request(self, prompt: Prompt) -> Result<GenerateRequest, MeshError> {
        let model = self.model.as_ref();
        let missing = || MeshError::invalid("model", "the model is missing; name one of `GET /v1/models`");
        Ok(GenerateRequest {
            model: model.ok_or_else(missing)?.clone(),
            prompt: Some(prompt),
            sampling: Some(self.sampling()?),
            max_tokens: self.most_tokens()?,
            stop: self.stop.map_or_else(Vec::new, |stop| stop.0),
            request_id: String::new(),
        })
    }

    fn most_tokens(&self) -> Result<Option<u32>, MeshError> {
        let old = at_least_one("max_tokens", self.max_tokens)?;
        let new = at_least_one("max_completion_tokens", self.max_completion_tokens)?;
        agree("max_completion_tokens", new, "max_tokens", old)
    }

    fn sampling(&self) -> Result<Sampling, MeshError> {
        let default = default_sampling();
        let repeat = agree(
            "repeat_penalty",
            self.repeat_penalty,
            "repetition_penalty",
            self.repetition_penalty,
        )?;
        let or = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
        Ok(Sampling {
            temperature: or(self.temperature, default.temperature),
            top_p: or(self.top_p, default.top_p),
            top_k: self.top_k.map_or(Ok(default.top_k), top_k)?,
            min_p: or(self.min_p, default.min_p),
            typical_p: or(self.typical_p, default.typical_p),
            presence_penalty: or(self.presence_penalty, default.presence_penalty),
            frequency_penalty: or(self.frequency_penalty, default.frequency_penalty),
            repeat_penalty: or(repeat, default.repeat_penalty),
            logit_bias: self.logit_bias.as_ref().map_or_else(Vec::new, |bias| bias.0.clone()),
            seed: self.seed.map(|seed| seed.0),
            prompt_tokens: 0,
        })
    }
}

/// The head clamps to the room in the context, so a huge number means all of it.
fn at_least_one(name: &str, value: Option<i64>) -> Result<Option<u32>, MeshError> {
    match value {
        Some(..=0) => {
            let message = format!(
                "{name} is {}; use at least 1, or leave it out",
                value.unwrap_or_default()
            );
            Err(MeshError::invalid(name, message))
        }
        value => Ok(value.map(|value| u32::try_from(value).unwrap_or(u32::MAX))),
    }
}

/// vLLM writes -1 for off.
fn top_k(value: i64) -> Result<u32, MeshError> {
    if value == -1 {
        return Ok(0);
    }
    u32::try_from(value)
        .map_err(|_| MeshError::invalid("top_k", format!("top_k is {value}; use 0 (off) to {}", u32::MAX)))
}

/// Two names of one parameter.
fn agree<T: PartialEq>(name: &str, value: Option<T>, other: &str, synonym: Option<T>) -> Result<Option<T>, MeshError> {
    match (value, synonym) {
        (Some(value), Some(synonym)) if value != synonym => Err(MeshError::invalid(
            name,
            format!("{name} and {other} differ; send one of them"),
        )),
        (value, synonym) => Ok(value.or(synonym)),
    }
}
