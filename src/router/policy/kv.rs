//! The least cost, or a draw that prefers low costs.
//!
//! At temperature 0 the minimum wins; equal minima are drawn from evenly, or the first of them is taken. Above 0 a candidate's weight is
//! exp(−(cost − min) / ((max − min) × temperature)): costs are normalised to their range, so the temperature has no unit;
//! with two candidates of unequal cost it alone fixes the split.

use rand::RngExt;

use crate::rng::Rng;
use crate::router::config::TieBreak;

/// Index of the chosen candidate; `costs` is not empty and in a fixed order of workers.
pub fn choose(costs: &[f64], temperature: f64, ties: TieBreak, rng: &mut Rng) -> usize {
    if temperature > 0.0 {
        let draw = rng.random::<f64>();
        return draw_index(&weights(costs, temperature), draw);
    }
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let mut tied = costs.iter().enumerate().filter(|(_, cost)| **cost == least).map(|(index, _)| index);
    let count = if ties == TieBreak::Lowest { 1 } else { tied.clone().count() };
    let pick = if count > 1 { rng.random_range(0..count) } else { 0 };
    tied.nth(pick).unwrap_or(0)
}

/// Probability of each candidate at a temperature above 0.
pub fn weights(costs: &[f64], temperature: f64) -> Vec<f64> {
    let largest = costs.iter().fold(0.0_f64, |max, cost| max.max(cost.abs()));
    // A range that overflows is shrunk first; the weights do not depend on the scale.
    let scale = if largest > f64::MAX / 4.0 { largest } else { 1.0 };
    let scaled = || costs.iter().map(|cost| cost / scale);
    let min = scaled().fold(f64::INFINITY, f64::min);
    let max = scaled().fold(f64::NEG_INFINITY, f64::max);
    let range = max - min;
    if range <= 0.0 {
        return vec![1.0 / costs.len() as f64; costs.len()];
    }
    let raw: Vec<f64> = scaled().map(|cost| (-(cost - min) / (range * temperature)).exp()).collect();
    let sum: f64 = raw.iter().sum();
    raw.into_iter().map(|weight| weight / sum).collect()
}

/// The first index at which the cumulative probability reaches `draw`; the last one if rounding leaves a gap.
pub fn draw_index(weights: &[f64], draw: f64) -> usize {
    let mut cumulative = 0.0;
    for (index, weight) in weights.iter().enumerate() {
        cumulative += weight;
        if cumulative >= draw {
            return index;
        }
    }
    weights.len().saturating_sub(1)
}
