//! From logits to a token: penalties, logit bias, (grammar,) top-k, typical, top-p, min-p, temperature, draw.
//!
//! A sampler has no state that grows: everything is computed from the logits of one row and the tokens before it. So
//! a resumed, batched or speculated request draws the same tokens as an undisturbed one.

use llama_cpp_2::{
    sampling::LlamaSampler,
    token::{LlamaToken, data::LlamaTokenData, data_array::LlamaTokenDataArray},
};
use mesh_actors::ports::engine::EngineError;
use mesh_proto::{sampling::validate_sampling, v1::Sampling};

use crate::{
    draw::{DrawKey, draw, greedy},
    penalties,
};

/// Space that samplers of all lanes share, as large as the vocabulary.
#[derive(Default)]
pub struct SamplerScratch {
    logits: Vec<f32>,
    weights: Vec<f64>,
    candidates: Vec<LlamaTokenData>,
}

/// Sampling of one request.
pub struct Sampler {
    sampling: Sampling,
    seed: u64,
    penalized: bool,
    /// llama.cpp's truncating samplers, in order; they keep no state. Nothing where none is on, or all is greedy.
    filters: Option<LlamaSampler>,
}

impl Sampler {
    /// Prepares the sampling of a request over a vocabulary of `n_vocab`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Sampling`] where a value is out of range or a draw has no seed.
    pub fn new(sampling: &Sampling, n_vocab: u32) -> Result<Self, EngineError> {
        validate_sampling(sampling).map_err(|error| EngineError::Sampling(error.message))?;
        if let Some(bias) = sampling.logit_bias.iter().find(|bias| bias.token >= n_vocab) {
            let token = bias.token;
            return Err(EngineError::Sampling(format!(
                "logit_bias names token {token}; the vocabulary has {n_vocab}"
            )));
        }
        let is_greedy = sampling.temperature <= 0.0;
        if !is_greedy && sampling.seed.is_none() {
            return Err(EngineError::Sampling(
                "a drawn request has no seed; the head must draw one".to_owned(),
            ));
        }
        Ok(Self {
            seed: sampling.seed.unwrap_or_default(),
            penalized: penalties::are_needed(sampling),
            filters: if is_greedy { None } else { filters(sampling) },
            sampling: sampling.clone(),
        })
    }

    /// The token after `tokens`, which are all tokens from position 0 on, given the logits of the last of them.
    ///
    /// # Errors
    ///
    /// [`EngineError::Sampling`] where no logit is finite.
    pub fn sample(&mut self, scratch: &mut SamplerScratch, logits: &[f32], tokens: &[u32]) -> Result<u32, EngineError> {
        let SamplerScratch {
            logits: adjusted,
            weights,
            candidates,
        } = scratch;
        let logits = if self.penalized {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            penalties::apply(&self.sampling, tokens, adjusted);
            adjusted.as_slice()
        } else {
            logits
        };
        // A grammar will mask here.
        let temperature = self.sampling.temperature;
        let key = DrawKey {
            seed: self.seed,
            choice: 0,
            position: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
        };
        let token = match &mut self.filters {
            None if temperature <= 0.0 => greedy(logits),
            None => draw(logits, temperature, key, weights),
            Some(filters) => {
                let kept = filter(filters, logits, candidates);
                let logits: Vec<f32> = kept.iter().map(LlamaTokenData::logit).collect();
                draw(&logits, temperature, key, weights).map(|index| kept[index as usize].id().0.cast_unsigned())
            }
        };
        token.ok_or_else(|| EngineError::Sampling("the model gave no finite logit; its file may be damaged".to_owned()))
    }
}

/// Chain of the truncating samplers that are on.
fn filters(sampling: &Sampling) -> Option<LlamaSampler> {
    let mut chain = Vec::new();
    if sampling.top_k > 0 {
        chain.push(LlamaSampler::top_k(i32::try_from(sampling.top_k).unwrap_or(i32::MAX)));
    }
    if sampling.typical_p < 1.0 {
        chain.push(LlamaSampler::typical(sampling.typical_p, 1));
    }
    if sampling.top_p < 1.0 {
        chain.push(LlamaSampler::top_p(sampling.top_p, 1));
    }
    if sampling.min_p > 0.0 {
        chain.push(LlamaSampler::min_p(sampling.min_p, 1));
    }
    (!chain.is_empty()).then(|| LlamaSampler::chain(chain, true))
}

/// Candidates that survive, in ascending order of id, so that the draw does not depend on how llama.cpp sorts.
fn filter(filters: &mut LlamaSampler, logits: &[f32], candidates: &mut Vec<LlamaTokenData>) -> Vec<LlamaTokenData> {
    let mut data = std::mem::take(candidates);
    data.clear();
    data.extend(
        (0..)
            .zip(logits)
            .map(|(id, logit)| LlamaTokenData::new(LlamaToken(id), *logit, 0.0)),
    );
    let mut array = LlamaTokenDataArray::new(data, false);
    filters.apply(&mut array);
    let mut kept = array.data.clone();
    kept.sort_unstable_by_key(LlamaTokenData::id);
    *candidates = array.data;
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_proto::{
        sampling::{default_sampling, greedy_sampling},
        v1::LogitBias,
    };
    use proptest::prelude::*;

    fn sample(sampling: &Sampling, logits: &[f32], tokens: &[u32]) -> u32 {
        let size = u32::try_from(logits.len()).unwrap();
        Sampler::new(sampling, size)
            .unwrap()
            .sample(&mut SamplerScratch::default(), logits, tokens)
            .unwrap()
    }

    fn seeded(seed: u64) -> Sampling {
        Sampling {
            seed: Some(seed),
            ..default_sampling()
        }
    }

    #[test]
    fn a_draw_without_a_seed_is_refused() {
        assert!(matches!(
            Sampler::new(&default_sampling(), 4),
            Err(EngineError::Sampling(_))
        ));
        assert!(Sampler::new(&greedy_sampling(), 4).is_ok());
    }

    #[test]
    fn bias_turns_a_greedy_choice() {
        let bias = vec![LogitBias { token: 2, bias: 5.0 }];
        let sampling = Sampling {
            logit_bias: bias,
            ..greedy_sampling()
        };
        assert_eq!(sample(&sampling, &[1.0, 3.0, 0.0], &[]), 2);
        let outside = Sampling {
            logit_bias: vec![LogitBias { token: 3, bias: 1.0 }],
            ..greedy_sampling()
        };
        assert!(Sampler::new(&outside, 3).is_err());
    }

    #[test]
    fn no_finite_logit_is_an_error() {
        let mut sampler = Sampler::new(&greedy_sampling(), 2).unwrap();
        assert!(
            sampler
                .sample(&mut SamplerScratch::default(), &[f32::NAN, f32::NAN], &[])
                .is_err()
        );
    }

    #[test]
    fn top_k_keeps_the_k_most_likely() {
        let logits: Vec<f32> = (0..1000u16).map(|id| f32::from(id % 100)).collect();
        let sampling = Sampling {
            top_k: 3,
            temperature: 2.0,
            ..seeded(1)
        };
        for position in 0..200u32 {
            let tokens = vec![0; position as usize];
            assert!(sample(&sampling, &logits, &tokens) % 100 >= 99);
        }
    }

    #[test]
    fn min_p_and_top_p_and_typical_drop_the_tail() {
        let logits = [5.0f32, 4.9, -3.0, -4.0];
        let narrow = [
            Sampling {
                min_p: 0.5,
                ..seeded(9)
            },
            Sampling {
                top_p: 0.9,
                ..seeded(9)
            },
            Sampling {
                typical_p: 0.9,
                ..seeded(9)
            },
        ];
        for sampling in narrow {
            let drawn: Vec<u32> = (0..200)
                .map(|length| sample(&sampling, &logits, &vec![0; length]))
                .collect();
            assert!(drawn.iter().all(|token| *token < 2), "{sampling:?}");
            assert!(drawn.contains(&0) && drawn.contains(&1), "{sampling:?}");
        }
    }

    proptest! {
        #[test]
        fn a_token_depends_on_seed_position_and_row_only(
            rows in proptest::collection::vec(proptest::collection::vec(-8.0f32..8.0, 40), 1..6),
            seed: u64, top_k in 0u32..20, top_p in 0.1f32..1.0, min_p in 0.0f32..0.5,
        ) {
            let sampling = Sampling { top_k, top_p, min_p, frequency_penalty: 0.5, ..seeded(seed) };
            let mut sampler = Sampler::new(&sampling, 40).unwrap();
            let mut scratch = SamplerScratch::default();
            let tokens: Vec<u32> = (0..rows.len() as u32).collect();
            let together: Vec<u32> = rows.iter().enumerate()
                .map(|(row, logits)| sampler.sample(&mut scratch, logits, &tokens[..=row]).unwrap()).collect();
            let alone: Vec<u32> = rows.iter().enumerate().rev()
                .map(|(row, logits)| sample(&sampling, logits, &tokens[..=row])).collect();
            prop_assert!(together.iter().eq(alone.iter().rev()));
        }
    }
}
