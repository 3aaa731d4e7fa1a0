//! Penalties and logit bias, on the few tokens that they touch.
//!
//! The formulas are those of `llama_sampler_penalties_apply` and `llama_sampler_logit_bias_apply`
//! (`llama-sampler.cpp`), bit for bit as a test holds; llama.cpp's own samplers look up every token of the vocabulary
//! in a table, which costs more than a hop between nodes.

use std::collections::BTreeMap;

use mesh_proto::{sampling::REPEAT_WINDOW, v1::Sampling};

/// Whether any penalty or bias is on.
pub(crate) fn are_needed(sampling: &Sampling) -> bool {
    sampling.presence_penalty != 0.0
        || sampling.frequency_penalty != 0.0
        || repeats(sampling)
        || !sampling.logit_bias.is_empty()
}

fn repeats(sampling: &Sampling) -> bool {
    sampling.repeat_penalty != 1.0 && sampling.repeat_penalty > 0.0
}

/// Applies them to `logits`, indexed by token. `tokens` is everything before the token being drawn, the prompt included.
pub(crate) fn apply(sampling: &Sampling, tokens: &[u32], logits: &mut [f32]) {
    if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
        let generated = &tokens[(sampling.prompt_tokens as usize).min(tokens.len())..];
        for (token, count) in count(generated) {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
            }
        }
    }
    if repeats(sampling) {
        for (token, _) in count(&tokens[tokens.len().saturating_sub(REPEAT_WINDOW)..]) {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit <= 0.0 {
                    *logit * sampling.repeat_penalty
                } else {
                    *logit / sampling.repeat_penalty
                };
            }
        }
    }
    for bias in &sampling.logit_bias {
        if let Some(logit) = logits.get_mut(bias.token as usize) {
            *logit += bias.bias;
        }
    }
}

fn count(tokens: &[u32]) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for token in tokens {
        *counts.entry(*token).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_cpp_2::{
        sampling::LlamaSampler,
        token::{LlamaToken, data::LlamaTokenData, data_array::LlamaTokenDataArray, logit_bias::LlamaLogitBias},
    };
    use mesh_proto::{sampling::default_sampling, v1::LogitBias};
    use proptest::prelude::*;

    fn reference(sampling: &Sampling, tokens: &[u32], logits: &[f32]) -> Vec<u32> {
        let accept = |mut sampler: LlamaSampler, tokens: &[u32]| {
            sampler.accept_many(tokens.iter().map(|token| LlamaToken(token.cast_signed())));
            sampler
        };
        let size = i32::try_from(logits.len()).unwrap();
        let generated = &tokens[(sampling.prompt_tokens as usize).min(tokens.len())..];
        let window = i32::try_from(generated.len()).unwrap();
        let counted = LlamaSampler::penalties(size, window, 1.0, sampling.frequency_penalty, sampling.presence_penalty);
        let repeated = LlamaSampler::penalties(size, 64, sampling.repeat_penalty, 0.0, 0.0);
        let biases: Vec<_> = sampling
            .logit_bias
            .iter()
            .map(|bias| LlamaLogitBias::new(LlamaToken(bias.token.cast_signed()), bias.bias))
            .collect();
        let mut array = LlamaTokenDataArray::from_iter(
            (0..)
                .zip(logits)
                .map(|(id, logit)| LlamaTokenData::new(LlamaToken(id), *logit, 0.0)),
            false,
        );
        accept(counted, generated).apply(&mut array);
        accept(repeated, tokens).apply(&mut array);
        LlamaSampler::logit_bias(size, &biases).apply(&mut array);
        array.data.iter().map(|data| data.logit().to_bits()).collect()
    }

    proptest! {
        #[test]
        fn same_bits_as_the_samplers_of_llama_cpp(
            logits in proptest::collection::vec(-10.0f32..10.0, 50),
            tokens in proptest::collection::vec(0u32..50, 0..150),
            prompt_tokens in 0u32..100,
            (presence, frequency, repeat) in (-2.0f32..2.0, -2.0f32..2.0, 0.5f32..2.0),
            biases in proptest::collection::btree_map(0u32..50, -5.0f32..5.0, 0..6),
        ) {
            let sampling = Sampling {
                presence_penalty: presence,
                frequency_penalty: frequency,
                repeat_penalty: repeat,
                prompt_tokens,
                logit_bias: biases.into_iter().map(|(token, bias)| LogitBias { token, bias }).collect(),
                ..default_sampling()
            };
            let mut ours = logits.clone();
            apply(&sampling, &tokens, &mut ours);
            let ours: Vec<u32> = ours.iter().map(|logit| logit.to_bits()).collect();
            prop_assert_eq!(ours, reference(&sampling, &tokens, &logits));
        }
    }

    #[test]
    fn presence_and_frequency_ignore_the_prompt_and_repeat_does_not() {
        let tokens = [3, 3, 4];
        let sampling = Sampling {
            presence_penalty: 1.0,
            prompt_tokens: 2,
            ..default_sampling()
        };
        let mut logits = vec![0.0; 6];
        apply(&sampling, &tokens, &mut logits);
        assert_eq!(logits, [0.0, 0.0, 0.0, 0.0, -1.0, 0.0]);
        let sampling = Sampling {
            repeat_penalty: 2.0,
            prompt_tokens: 2,
            ..default_sampling()
        };
        let mut logits = vec![4.0; 6];
        apply(&sampling, &tokens, &mut logits);
        assert_eq!(logits, [4.0, 4.0, 4.0, 2.0, 2.0, 4.0]);
    }
}
