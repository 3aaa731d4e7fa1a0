//! The scripted model: a pure function of the tokens of a lane, the layers, and the sampling.
//!
//! Every layer keeps a running digest of all rows of its lane so far (its "KV cache") and mixes it into the row that
//! goes on. So a row that is lost, doubled, out of order, at a wrong position, or in another lane changes every token
//! after it; and where the layers are cut changes nothing.

use mesh_proto::v1::Sampling;

/// Values of an activation row: 16 bits each, exact in f32.
pub const WIDTH: usize = 4;

/// One token in so many ends generation.
const END_ONE_IN: u64 = 48;

/// Mixes two numbers (the finalizer of SplitMix64).
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(23) ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The digests of one layer for one lane: one for each position.
#[derive(Debug, Clone, Default)]
pub struct LayerCache {
    digests: Vec<u64>,
}

impl LayerCache {
    /// Computes one row of this layer at the next position.
    pub fn row(&mut self, layer: u32, input: u64) -> u64 {
        let before = self.digests.last().copied().unwrap_or(0x5EED);
        let position = self.digests.len() as u64;
        let digest = mix(mix(before, input), position);
        self.digests.push(digest);
        mix(digest, u64::from(layer))
    }

    /// Forgets everything from `position` on.
    pub fn trim(&mut self, position: usize) {
        self.digests.truncate(position);
    }
}

/// What enters layer 0.
pub fn embed(token: u32) -> u64 {
    mix(0xE3BED, u64::from(token))
}

/// The token drawn at `position` (where it will stand) from the last layer's row.
pub fn draw(row: u64, sampling: &Sampling, position: u32) -> u32 {
    let noise = mix(row, mix(sampling.seed.unwrap_or(0), u64::from(position)));
    if noise.is_multiple_of(END_ONE_IN) {
        return super::END;
    }
    let byte = match (noise >> 8) % 16 {
        // Any byte, so that characters are split, and broken, over tokens.
        0 => (noise >> 16) as u8,
        // Halves of a two-byte character.
        1 => 0xC3,
        2 => 0xA9,
        3 => b' ',
        _ => b'a' + ((noise >> 16) % 26) as u8,
    };
    1 + u32::from(byte)
}

/// A row as activations.
pub fn to_activations(row: u64) -> [f32; WIDTH] {
    std::array::from_fn(|at| f32::from((row >> (16 * at)) as u16))
}

/// Activations as a row; `None` where a value is none that this model makes.
pub fn from_activations(values: &[f32]) -> Option<u64> {
    let mut row = 0;
    for (at, value) in values.iter().enumerate() {
        if !(0.0..=65535.0).contains(value) || value.fract() != 0.0 {
            return None;
        }
        row |= (*value as u64) << (16 * at);
    }
    Some(row)
}

/// What a request has to come to, computed without actors, engine or batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Tokens, without the one that ends generation.
    pub tokens: Vec<u32>,
    /// Text.
    pub text: String,
    /// Generation ended by itself, before `max_tokens`.
    pub stopped: bool,
}

/// The answer of the model to a prompt.
pub fn expected(prompt: &[u32], sampling: &Sampling, layers: u32, max_tokens: usize) -> Expected {
    let mut caches = vec![LayerCache::default(); layers as usize];
    let mut run = |token: u32| {
        let layers = caches.iter_mut().enumerate();
        layers.fold(embed(token), |row, (layer, cache)| cache.row(layer as u32, row))
    };
    let mut row = 0;
    for token in prompt {
        row = run(*token);
    }
    let mut tokens = Vec::new();
    let mut stopped = false;
    while tokens.len() < max_tokens {
        let token = draw(row, sampling, (prompt.len() + tokens.len()) as u32);
        if token == super::END {
            stopped = true;
            break;
        }
        tokens.push(token);
        row = run(token);
    }
    let bytes: Vec<u8> = tokens.iter().map(|token| (token - 1) as u8).collect();
    Expected {
        tokens,
        text: String::from_utf8_lossy(&bytes).into_owned(),
        stopped,
    }
}
