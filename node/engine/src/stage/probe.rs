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
    /// Computes rows, each a lane and a position, as one call of just these rows. Gives the bits of the rows `wanted`
    /// (places in the call, ascending): logits or activations.
    pub(crate) fn probe(
        &mut self,
        rows: &[(u32, u32)],
        wanted: &[u32],
        input: &dyn Fn(u32) -> ProbeInput,
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        self.call.clear();
        let inputs: Vec<ProbeInput> = rows.iter().map(|(_, position)| input(*position)).collect();
        for (row, ((lane, position), input)) in (0..).zip(rows.iter().zip(&inputs)) {
            let output = !self.last || wanted.contains(&row);
            self.call.push(*lane, *position, input.as_row(), output);
        }
        // A single row with logits would be a lone row from the last layer on.
        if self.last && rows.len() > 1 {
            self.call.flag_two_outputs();
        }
        self.decode()?;
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        let missing = || EngineError::Sampling("a flagged row has no logits".to_owned());
        wanted
            .iter()
            .map(|row| {
                let row = *row as usize;
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
