//! Defaults and ranges of [`Sampling`].

use crate::{error::MeshError, v1::Sampling};

/// Tokens that `repeat_penalty` looks back over, the prompt's tail included (llama.cpp's default).
pub const REPEAT_WINDOW: usize = 64;

/// Most entries of `logit_bias` (the OpenAI API's own limit is 300; this bounds one frame).
pub const MAX_LOGIT_BIAS: usize = 1024;

/// Temperature 1, top_p 1, nothing else: the model's own distribution.
pub fn default_sampling() -> Sampling {
    Sampling {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        typical_p: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repeat_penalty: 1.0,
        logit_bias: Vec::new(),
        seed: None,
        prompt_tokens: 0,
    }
}

/// Greedy decoding: temperature 0, nothing else.
pub fn greedy_sampling() -> Sampling {
    Sampling {
        temperature: 0.0,
        ..default_sampling()
    }
}

/// Refuses values outside their range, naming the field.
pub fn validate_sampling(sampling: &Sampling) -> Result<(), MeshError> {
    let within = |name: &str, value: f32, low: f32, high: f32, open_low: bool| {
        let above = if open_low { value > low } else { value >= low };
        if value.is_finite() && above && value <= high {
            return Ok(());
        }
        let bracket = if open_low { '(' } else { '[' };
        Err(MeshError::invalid(
            name,
            format!("{name} is {value}; use a value in {bracket}{low}, {high}]"),
        ))
    };
    within("temperature", sampling.temperature, 0.0, 2.0, false)?;
    within("top_p", sampling.top_p, 0.0, 1.0, true)?;
    within("min_p", sampling.min_p, 0.0, 1.0, false)?;
    within("typical_p", sampling.typical_p, 0.0, 1.0, true)?;
    within("presence_penalty", sampling.presence_penalty, -2.0, 2.0, false)?;
    within("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0, false)?;
    within("repeat_penalty", sampling.repeat_penalty, 0.0, 10.0, true)?;
    if sampling.logit_bias.len() > MAX_LOGIT_BIAS {
        let message = format!(
            "logit_bias has {} entries; use at most {MAX_LOGIT_BIAS}",
            sampling.logit_bias.len()
        );
        return Err(MeshError::invalid("logit_bias", message));
    }
    for entry in &sampling.logit_bias {
        within("logit_bias", entry.bias, -100.0, 100.0, false)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_absurd_values_are_named() {
        assert_eq!(validate_sampling(&default_sampling()), Ok(()));
        assert_eq!(validate_sampling(&greedy_sampling()), Ok(()));
        let cases = [
            (
                Sampling {
                    temperature: -1.0,
                    ..default_sampling()
                },
                "temperature",
            ),
            (
                Sampling {
                    temperature: f32::NAN,
                    ..default_sampling()
                },
                "temperature",
            ),
            (
                Sampling {
                    top_p: 0.0,
                    ..default_sampling()
                },
                "top_p",
            ),
            (
                Sampling {
                    min_p: 1.5,
                    ..default_sampling()
                },
                "min_p",
            ),
            (
                Sampling {
                    repeat_penalty: 0.0,
                    ..default_sampling()
                },
                "repeat_penalty",
            ),
        ];
        for (sampling, field) in cases {
            let error = validate_sampling(&sampling).expect_err(field);
            assert_eq!(error.param.as_deref(), Some(field));
        }
    }
}
