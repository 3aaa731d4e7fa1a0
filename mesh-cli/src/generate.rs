//! One generation over gRPC: text as it comes, and what the client saw of the time.

use std::time::{Duration, Instant};

use mesh_proto::{
    MeshError,
    v1::{
        ChatMessage, ChatPrompt, GenerateFinished, GenerateRequest, GenerateResponse, RequestTimings,
        generate_request::Prompt, generate_response::Event,
    },
    wire,
};
use tonic::Streaming;

use crate::{client::Client, failure::Failure};

/// A generation that came to its end.
#[derive(Debug, Clone)]
pub(crate) struct Generated {
    pub(crate) text: String,
    /// From the call to the first text.
    pub(crate) ttft: Duration,
    pub(crate) finished: GenerateFinished,
}

impl Generated {
    pub(crate) fn timings(&self) -> RequestTimings {
        self.finished.timings.clone().unwrap_or_default()
    }

    /// Tokens after the first one: those that decoding made.
    pub(crate) fn decoded(&self) -> u32 {
        self.finished.completion_tokens.saturating_sub(1)
    }

    /// Decoded tokens per second; `None` if there was nothing to measure.
    pub(crate) fn decode_tps(&self) -> Option<f64> {
        per_second(self.decoded(), self.timings().decode_us)
    }

    /// Prompt tokens per second, the first token's step included; `None` if there was nothing to measure.
    pub(crate) fn prompt_tps(&self) -> Option<f64> {
        per_second(self.finished.prompt_tokens, self.timings().prefill_us)
    }

    /// One line for people.
    pub(crate) fn speed(&self) -> String {
        let rate = self
            .decode_tps()
            .map_or_else(String::new, |rate| format!(", {rate:.1} tokens/s"));
        let finished = &self.finished;
        format!(
            "{} prompt tokens, {} tokens, first after {:.1} ms{rate}",
            finished.prompt_tokens,
            finished.completion_tokens,
            self.ttft.as_secs_f64() * 1000.0
        )
    }
}

fn per_second(count: u32, microseconds: u64) -> Option<f64> {
    (count > 0 && microseconds > 0).then(|| f64::from(count) * 1e6 / microseconds as f64)
}

/// One message of the user, put into the model's chat template.
pub(crate) fn chat(text: &str) -> Prompt {
    let message = ChatMessage {
        role: "user".to_owned(),
        content: text.to_owned(),
        name: None,
    };
    Prompt::Chat(ChatPrompt {
        messages: vec![message],
    })
}

/// Runs a request to its end; `on_text` sees each piece as it comes. Dropping the future cancels the request.
pub(crate) async fn generate(
    client: &Client,
    request: GenerateRequest,
    mut on_text: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Generated, Failure> {
    let called = Instant::now();
    let mut events: Streaming<GenerateResponse> = client.inference().generate(request).await?.into_inner();
    let mut text = String::new();
    let mut ttft = None;
    while let Some(response) = events.message().await? {
        match response.event {
            Some(Event::Delta(delta)) => {
                ttft.get_or_insert_with(|| called.elapsed());
                text.push_str(&delta.text);
                on_text(&delta.text)?;
            }
            Some(Event::Finished(finished)) => {
                let ttft = ttft.unwrap_or_else(|| called.elapsed());
                return Ok(Generated { text, ttft, finished });
            }
            Some(Event::Failed(failed)) => {
                let refusal = wire::Refusal {
                    code: failed.code,
                    message: failed.message,
                    param: failed.param,
                };
                return Err(MeshError::from(refusal).into());
            }
            Some(Event::Started(_)) | None => {}
        }
    }
    Err(Failure::failed(
        "the node ended the answer without saying why; see its log",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(completion_tokens: u32, decode_us: u64) -> Generated {
        let timings = RequestTimings {
            decode_us,
            prefill_us: 500_000,
            ..RequestTimings::default()
        };
        let finished = GenerateFinished {
            prompt_tokens: 10,
            completion_tokens,
            timings: Some(timings),
            ..Default::default()
        };
        Generated {
            text: String::new(),
            ttft: Duration::from_millis(5),
            finished,
        }
    }

    #[test]
    fn rates_count_what_the_time_was_spent_on() {
        let generated = generated(11, 2_000_000);
        assert_eq!(generated.decode_tps(), Some(5.0));
        assert_eq!(generated.prompt_tps(), Some(20.0));
    }

    #[test]
    fn an_answer_of_one_token_has_no_rate() {
        assert_eq!(generated(1, 0).decode_tps(), None);
        assert_eq!(generated(0, 0).decode_tps(), None);
        assert!(!generated(1, 0).speed().contains("tokens/s"));
    }
}
