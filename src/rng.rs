//! Randomness by seed: every random choice of a run follows from one number and a label.
//!
//! [`Seed::split`] derives an independent seed for a purpose ("router ties", "prompt 17"), so that adding a consumer does
//! not shift what the others draw. The generator is a fixed algorithm (PCG), the same on every platform.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The generator that all random choices use.
pub type Rng = Pcg64Mcg;

/// A seed from which generators and further seeds derive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seed(pub u64);

impl Seed {
    /// A seed for one purpose; equal labels give equal seeds.
    pub fn split(self, label: &str) -> Seed {
        Seed(xxh3_64_with_seed(label.as_bytes(), self.0))
    }

    /// A seed for the `index`-th member of a family (a request, a session).
    pub fn nth(self, index: u64) -> Seed {
        Seed(xxh3_64_with_seed(&index.to_le_bytes(), self.0))
    }

    /// A generator that starts from this seed.
    pub fn rng(self) -> Rng {
        Pcg64Mcg::seed_from_u64(self.0)
    }

    /// A number from 0 to 1, without 1, that belongs to `position`: a pure function of seed and position.
    pub fn unit_at(self, position: u32) -> f64 {
        let hash = xxh3_64_with_seed(&position.to_le_bytes(), self.0);
        (hash >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The token that a request emits at `position` (0 is the first output token): a pure function of seed and position.
    pub fn token_at(self, position: u32, vocab_tokens: u32) -> u32 {
        let hash = xxh3_64_with_seed(&position.to_le_bytes(), self.0);
        (hash % u64::from(vocab_tokens.max(1))) as u32
    }
}
