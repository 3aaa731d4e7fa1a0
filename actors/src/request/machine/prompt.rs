//! The prompt, once template and tokenizer are done: let in or refused.

use mesh_proto::{ErrorCode, MeshError};

use super::{Effect, RequestMachine, State};

impl RequestMachine {
    pub(super) fn prepared(&mut self, result: Result<Vec<u32>, MeshError>, effects: &mut Vec<Effect>) {
        if !matches!(self.state, State::Preparing) {
            return;
        }
        match result.and_then(|prompt| self.check_prompt(prompt)) {
            Ok(prompt) => {
                self.budget = self
                    .plan
                    .max_tokens
                    .unwrap_or(u32::MAX)
                    .min(self.plan.context - prompt.len() as u32);
                self.prompt = prompt.into();
                self.plan.sampling.prompt_tokens = self.prompt_tokens();
                self.state = State::Waiting;
                effects.push(Effect::Admit {
                    prompt_tokens: self.prompt_tokens(),
                });
                effects.push(Effect::AskLane);
            }
            Err(error) => self.reject(error, effects),
        }
    }

    fn check_prompt(&self, prompt: Vec<u32>) -> Result<Vec<u32>, MeshError> {
        let (tokens, context) = (prompt.len(), self.plan.context as usize);
        if prompt.is_empty() {
            return Err(MeshError::invalid(
                "prompt",
                "the prompt has no tokens; send at least one",
            ));
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= self.vocabulary.len()) {
            let message = format!(
                "token {token} is not in the vocabulary of {} tokens",
                self.vocabulary.len()
            );
            return Err(MeshError::invalid("prompt", message));
        }
        if let Some(entry) = self
            .plan
            .sampling
            .logit_bias
            .iter()
            .find(|entry| entry.token as usize >= self.vocabulary.len())
        {
            let message = format!(
                "logit_bias names token {}, the vocabulary has {}",
                entry.token,
                self.vocabulary.len()
            );
            return Err(MeshError::invalid("logit_bias", message));
        }
        if tokens >= context {
            let message = format!(
                "the prompt has {tokens} tokens and the context is {context}, of which at least one is needed for the \
                 answer; shorten the prompt or serve the model with a larger --context"
            );
            return Err(MeshError::new(ErrorCode::ContextLengthExceeded, message).with_param("messages"));
        }
        Ok(prompt)
    }
}
