//! Computing for the self-check, past sessions and lanes.

use mesh_actors::ports::engine::EngineError;

use super::LlamaStage;
use crate::raw::context::RowInput;

/// Input of the self-check, owned.
pub(crate) enum ProbeInput {
    Token(u32),
    Activation(Vec<f32>),
}

impl ProbeInput {
    fn as_row(&self) -> RowInput<'_> {
        match self {
            Self::Token(token) => RowInput::Token(*token),
            Self::Activation(values) => RowInput::Activation(values),
        }
    }
}

impl LlamaStage {
    /// Bits of rows computed in a lane that the self-check has for itself: logits or activations of each row.
    pub(crate) fn probe(
        &mut self,
        rows: &[(u32, u32)],
        input: &dyn Fn(u32) -> ProbeInput,
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        self.call.clear();
        let inputs: Vec<ProbeInput> = rows.iter().map(|(_, position)| input(*position)).collect();
        for ((lane, position), input) in rows.iter().zip(&inputs) {
            self.call.push(*lane, *position, input.as_row(), true);
        }
        let lone = self.pad_lone_row();
        self.decode()?;
        if let Some((lane, position)) = lone {
            self.trim_cache(lane, position + 1)?;
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        let missing = || EngineError::Sampling("a flagged row has no logits".to_owned());
        (0..rows.len())
            .map(|row| {
                let values = if self.last {
                    self.context.logits(row)
                } else {
                    self.context
                        .captured()
                        .and_then(|values| values.get(row * self.n_embd..(row + 1) * self.n_embd))
                };
                values.map(bits).ok_or_else(missing)
            })
            .collect()
    }
}
