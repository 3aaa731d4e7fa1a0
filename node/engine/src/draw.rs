//! The last step of sampling: greedy choice, and the draw from a distribution.
//!
//! Deterministic on every machine: products and sums of f64 in a fixed order, an exponential of our own (libraries
//! differ in the last bit, even between processors), and a number that depends only on seed, choice and position.

use crate::philox::uniform;

/// What a draw depends on besides the distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawKey {
    /// Seed of the request.
    pub seed: u64,
    /// Choice of the request, 0 unless it asks for several.
    pub choice: u32,
    /// Position of the token being drawn.
    pub position: u32,
}

/// Index of the largest value, the lowest of equals. Nothing where no value is a finite number.
pub fn greedy(logits: &[f32]) -> Option<u32> {
    let most = largest(logits)?;
    let index = logits.iter().position(|value| *value == most)?;
    u32::try_from(index).ok()
}

/// Largest value; nothing where that is not finite. NaN never wins.
fn largest(logits: &[f32]) -> Option<f32> {
    const WIDTH: usize = 16;
    let mut best = [f32::NEG_INFINITY; WIDTH];
    let chunks = logits.chunks_exact(WIDTH);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (best, value) in best.iter_mut().zip(chunk) {
            *best = if *value > *best { *value } else { *best };
        }
    }
    let most = best.iter().chain(rest).fold(
        f32::NEG_INFINITY,
        |most, value| if *value > most { *value } else { most },
    );
    most.is_finite().then_some(most)
}

/// Draws an index with probability `exp(logit / temperature)`, normalised. `logits` come in ascending order of token
/// id, and `weights` is scratch space. Nothing where no logit is finite.
pub fn draw(logits: &[f32], temperature: f32, key: DrawKey, weights: &mut Vec<f64>) -> Option<u32> {
    let most = f64::from(largest(logits)?);
    let scale = 1.0 / f64::from(temperature);
    weights.clear();
    weights.resize(logits.len(), 0.0);
    for (weight, logit) in weights.iter_mut().zip(logits) {
        *weight = exp_below_zero((f64::from(*logit) - most) * scale);
    }
    let total: f64 = weights.chunks(BLOCK).map(block_sum).sum();
    let target = uniform(key.seed, key.choice, key.position) * total;
    u32::try_from(find(weights, target)?).ok()
}

/// Weights summed together, so that a draw skips most of them.
const BLOCK: usize = 256;

/// Sum of a block, always in the same order: four partial sums, then these.
fn block_sum(block: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let quads = block.chunks_exact(4);
    let rest: f64 = quads.remainder().iter().sum();
    for quad in quads {
        for (sum, weight) in sums.iter_mut().zip(quad) {
            *sum += weight;
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest
}

/// First index at which the running sum exceeds the target; by rounding, it may be the last one of any weight.
fn find(weights: &[f64], target: f64) -> Option<usize> {
    let mut before = 0.0;
    let mut found = None;
    for (block, part) in weights.chunks(BLOCK).enumerate() {
        let after = before + block_sum(part);
        if after > before {
            found = Some((block, before));
        }
        if after > target {
            break;
        }
        before = after;
    }
    let (block, mut sum) = found?;
    let mut index = None;
    for (offset, weight) in weights[block * BLOCK..].iter().take(BLOCK).enumerate() {
        sum += weight;
        if *weight > 0.0 {
            index = Some(block * BLOCK + offset);
            if sum > target {
                break;
            }
        }
    }
    index
}

/// `exp(x)` for x ≤ 0 to within two units in the last place; 0 below -700 and for NaN.
///
/// Reduction to `x = k ln 2 + r`, |r| ≤ ln 2 / 2, with ln 2 in two parts (Cody and Waite, 1980), then Taylor's series
/// to degree 13, whose remainder is below 2⁻⁵⁷.
#[inline(always)]
fn exp_below_zero(x: f64) -> f64 {
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding and subtracting 1.5 · 2⁵² rounds to the nearest whole number.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    // 1/13!, 1/12!, …, 1/1!, 1/0!
    const COEFFICIENTS: [f64; 14] = [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        1.0 / 2.0,
        1.0,
        1.0,
    ];
    let bounded = if x > -700.0 { x } else { -700.0 };
    let shifted = bounded * std::f64::consts::LOG2_E + ROUNDER;
    let whole = shifted - ROUNDER;
    let rest = (bounded - whole * LN_2_HIGH) - whole * LN_2_LOW;
    let mut sum = 0.0;
    for coefficient in COEFFICIENTS {
        sum = sum * rest + coefficient;
    }
    // The low bits of `shifted` hold the whole number in two's complement; it is at least -1010, so 2^whole is normal.
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    if x > -700.0 { sum * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(seed: u64, position: u32) -> DrawKey {
        DrawKey {
            seed,
            choice: 0,
            position,
        }
    }

    #[test]
    fn the_exponential_is_right_over_its_range() {
        assert_eq!(exp_below_zero(0.0), 1.0);
        assert_eq!(exp_below_zero(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp_below_zero(f64::NAN), 0.0);
        for step in 0..70_000 {
            let x = -f64::from(step) / 100.0;
            let (ours, theirs) = (exp_below_zero(x), x.exp());
            assert!(
                (ours - theirs).abs() <= theirs * 4.5e-16,
                "exp({x}) = {ours:e}, not {theirs:e}"
            );
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_never_nan() {
        assert_eq!(greedy(&[1.0, 3.0, f32::NAN, 3.0]), Some(1));
        assert_eq!(greedy(&[f32::NAN, f32::NEG_INFINITY]), None);
        let mut long = vec![0.0; 1000];
        long[777] = 1.0;
        long[901] = 1.0;
        assert_eq!(greedy(&long), Some(777));
    }

    #[test]
    fn frequencies_match_probabilities() {
        let logits = [0.0f32, 1.0, -1.0, 2.0, f32::NEG_INFINITY, 0.5];
        for temperature in [0.5f32, 1.0, 1.7] {
            let weights: Vec<f64> = logits
                .iter()
                .map(|logit| f64::from(logit / temperature).exp())
                .collect();
            let total: f64 = weights.iter().sum();
            let draws = 40_000;
            let mut counts = [0u32; 6];
            let mut scratch = Vec::new();
            for position in 0..draws {
                counts[draw(&logits, temperature, key(7, position), &mut scratch).unwrap() as usize] += 1;
            }
            // Chi-square with 4 degrees of freedom: above 23.5 once in ten thousand.
            let chi: f64 = (0..6)
                .filter(|index| weights[*index] > 0.0)
                .map(|index| {
                    let expected = weights[index] / total * f64::from(draws);
                    (f64::from(counts[index]) - expected).powi(2) / expected
                })
                .sum();
            assert!(chi < 23.5, "chi-square {chi} at temperature {temperature}: {counts:?}");
            assert_eq!(counts[4], 0);
        }
    }

    proptest! {
        #[test]
        fn the_same_key_draws_the_same_token_whatever_came_before(
            logits in proptest::collection::vec(-20.0f32..20.0, 1..200),
            seed: u64, positions in proptest::collection::vec(any::<u32>(), 2..10),
        ) {
            let mut scratch = Vec::new();
            let forward: Vec<_> =
                positions.iter().map(|position| draw(&logits, 0.8, key(seed, *position), &mut scratch)).collect();
            let mut backward: Vec<_> =
                positions.iter().rev().map(|position| draw(&logits, 0.8, key(seed, *position), &mut scratch)).collect();
            backward.reverse();
            prop_assert_eq!(&forward, &backward);
            prop_assert!(forward.iter().all(|token| (token.unwrap() as usize) < logits.len()));
        }
    }
}
