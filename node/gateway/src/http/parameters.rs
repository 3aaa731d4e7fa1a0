//! The fields of `/v1/chat/completions` and `/v1/completions`.
//!
//! One policy for all: what is known and offered is typed and range-checked; what is known and not offered is refused
//! with `unsupported_parameter` unless it asks for nothing; what cannot change the answer is ignored; **any other
//! field is refused by name**, as the OpenAI API does, since a misspelled `max_token` would otherwise change the
//! answer in silence. `null` counts as absent everywhere. A field that appears twice is refused.

use serde::Deserialize;

use super::{
    field::{Bias, Bounded, Object, Seed, Shape, Skip, Stop},
    message::Message,
    prompt::Prompt,
};

mod convert;
mod offered;

pub(super) use convert::Streaming;

/// Messages of one conversation: bounds memory, far above what a context holds.
pub(super) const MAX_MESSAGES: usize = 16_384;

/// The body of a request, before any check but types.
///
/// | fields | |
/// |---|---|
/// | `model`, `messages`, `prompt`, `stream`, `stream_options`, `max_tokens`, `max_completion_tokens`, `temperature`, `top_p`, `presence_penalty`, `frequency_penalty`, `seed`, `stop`, `logit_bias` | as OpenAI |
/// | `top_k`, `min_p`, `typical_p`, `repeat_penalty` (or `repetition_penalty`) | as llama.cpp and vLLM |
/// | `n`, `best_of` | only 1 |
/// | `logprobs`, `top_logprobs`, `tools`, `tool_choice`, `functions`, `function_call`, `response_format`, `suffix`, `echo`, `audio`, `modalities`, `prediction`, `reasoning_effort`, `verbosity`, `web_search_options` | refused unless they ask for nothing |
/// | `user`, `metadata`, `store`, `service_tier`, `parallel_tool_calls`, `safety_identifier`, `prompt_cache_key`, `prompt_cache_retention`, `cache_prompt`, `keep_alive` | ignored |
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Parameters {
    pub(super) model: Option<String>,
    pub(super) messages: Option<Bounded<Object<Message>, MAX_MESSAGES>>,
    pub(super) prompt: Option<Prompt>,
    stream: Option<bool>,
    stream_options: Option<Object<StreamOptions>>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    seed: Option<Seed>,
    stop: Option<Stop>,
    logit_bias: Option<Bias>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    typical_p: Option<f64>,
    repeat_penalty: Option<f64>,
    repetition_penalty: Option<f64>,

    n: Option<i64>,
    best_of: Option<i64>,
    logprobs: Option<Shape>,
    top_logprobs: Option<Shape>,
    tools: Option<Shape>,
    tool_choice: Option<Shape>,
    functions: Option<Shape>,
    function_call: Option<Shape>,
    response_format: Option<Shape>,
    suffix: Option<Shape>,
    echo: Option<Shape>,
    audio: Option<Shape>,
    modalities: Option<Shape>,
    prediction: Option<Shape>,
    reasoning_effort: Option<Shape>,
    verbosity: Option<Shape>,
    web_search_options: Option<Shape>,

    #[serde(rename = "user")]
    _user: Skip,
    #[serde(rename = "metadata")]
    _metadata: Skip,
    #[serde(rename = "store")]
    _store: Skip,
    #[serde(rename = "service_tier")]
    _service_tier: Skip,
    #[serde(rename = "parallel_tool_calls")]
    _parallel_tool_calls: Skip,
    #[serde(rename = "safety_identifier")]
    _safety_identifier: Skip,
    #[serde(rename = "prompt_cache_key")]
    _prompt_cache_key: Skip,
    #[serde(rename = "prompt_cache_retention")]
    _prompt_cache_retention: Skip,
    #[serde(rename = "cache_prompt")]
    _cache_prompt: Skip,
    #[serde(rename = "keep_alive")]
    _keep_alive: Skip,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Skip,
}
