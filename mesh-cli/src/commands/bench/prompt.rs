//! What models are given to go on with while they are measured.

use mesh_proto::{
    sampling::greedy_sampling,
    v1::{GenerateRequest, generate_request::Prompt},
};

use crate::{
    client::Client,
    failure::Failure,
    generate::{Generated, generate},
};

/// Contexts are padded to this by llama.cpp.
const CONTEXT_STEP: u32 = 256;

/// Room in the context for a prompt that comes out longer than asked for.
const PROMPT_SLACK: u32 = 32;

/// Beginnings that are tried to find one the model goes on from for long.
const PROMPT_ATTEMPTS: usize = 16;

/// Raw text that models go on with instead of ending: verses that begin alike (King James Version, public domain).
pub(super) const PASSAGE: &str = "And God said, Let there be light: and there was light. And God saw the light, that it was good: \
    and God divided the light from the darkness. And God called the light Day, and the darkness he called Night. And \
    the evening and the morning were the first day. ";

/// Context in which prompt and answer fit.
pub(super) fn context_for(prompt_tokens: u32, max_tokens: u32) -> u32 {
    let room = prompt_tokens.saturating_add(max_tokens).saturating_add(PROMPT_SLACK);
    room.next_multiple_of(CONTEXT_STEP)
}

/// Goes on from a text, greedily.
pub(super) async fn go_on(client: &Client, model: &str, text: &str, max_tokens: u32) -> Result<Generated, Failure> {
    let request = GenerateRequest {
        model: model.to_owned(),
        prompt: Some(Prompt::Text(text.to_owned())),
        sampling: Some(greedy_sampling()),
        max_tokens: Some(max_tokens),
        ..GenerateRequest::default()
    };
    generate(client, request, |_| Ok(())).await
}

/// Text of about the length asked for in the tokens of this model, and after which it has much to say.
///
/// End-of-text cannot be forbidden without another sampler in the way, so several beginnings are tried.
pub(super) async fn calibrated_prompt(
    client: &Client,
    model: &str,
    prompt_tokens: u32,
    max_tokens: u32,
) -> Result<String, Failure> {
    let passage: Vec<&str> = PASSAGE.split_whitespace().collect();
    let passage_tokens = go_on(client, model, PASSAGE, 1).await?.finished.prompt_tokens.max(1);
    let words = (passage.len() * prompt_tokens as usize / passage_tokens as usize).max(1);
    let mut best = (0, String::new());
    for attempt in 0..PROMPT_ATTEMPTS {
        let start = attempt * passage.len() / PROMPT_ATTEMPTS;
        let text: Vec<&str> = passage.iter().copied().cycle().skip(start).take(words).collect();
        let text = text.join(" ");
        let tokens = go_on(client, model, &text, max_tokens)
            .await?
            .finished
            .completion_tokens;
        if tokens > best.0 {
            best = (tokens, text);
        }
        if best.0 >= max_tokens {
            break;
        }
    }
    Ok(best.1)
}
