//! The reference's default timing: fitted polynomials, in milliseconds.
//!
//! Source: NVIDIA Dynamo 1.6.1 (aisimulate-core 0.13.0, engine/common/perf_model.rs), coefficients only.

use super::{DecodeBatch, PrefillBatch};

/// 4.209989e-07·t² + 1.518344e-02·t + 16.50142 for t new tokens; 0 for none. t is requests × (mean length − mean prefix),
/// with integer means.
pub fn prefill_ms(batch: PrefillBatch) -> f64 {
    let tokens = batch.new_tokens_of_means() as f64;
    if tokens == 0.0 {
        return 0.0;
    }
    4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 16.50142
}

/// max(1, −25.74·p² + 54.01·p + 5.74) for the share p of the pool that the decoding sequences fill, at most 1.
#[inline]
pub fn decode_ms(batch: DecodeBatch) -> f64 {
    // Token counts are far below 2⁶³, and signed numbers convert in one instruction.
    let share = if batch.pool_tokens == 0 {
        1.0
    } else {
        (batch.context_tokens as i64 as f64 / batch.pool_tokens as i64 as f64).min(1.0)
    };
    (-25.74 * share * share + 54.01 * share + 5.74).max(1.0)
}
