//! Constant timing: every step's prefill and decode part takes the same time, whatever is in it.
//!
//! Good for tests and for users who study a router and not an engine. The values live in
//! [`TimingModel::Fixed`](super::TimingModel::Fixed); this module says which values are allowed.

/// The longest part of a step: a day.
const MAX_MS: f64 = 86_400_000.0;

/// `Ok` if `value_ms` can be a part of a step: not negative, at most a day.
pub fn check_ms(value_ms: f64) -> Result<(), &'static str> {
    if (0.0..=MAX_MS).contains(&value_ms) { Ok(()) } else { Err("milliseconds from 0 to 86400000") }
}
