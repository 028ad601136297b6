//! Any worker, each as likely as the others.

use rand::RngExt;

use crate::rng::Rng;

/// Index of one of `candidates` workers; the caller has at least one.
pub fn choose(candidates: usize, rng: &mut Rng) -> usize {
    rng.random_range(0..candidates.max(1))
}
