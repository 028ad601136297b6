//! Constant timing: every step's prefill and decode part takes the same time, whatever is in it.
//!
//! Good for tests and for users who study a router and not an engine. The values live in
//! [`TimingModel::Fixed`](super::TimingModel::Fixed); this module says which values are allowed.

/// `Ok` if `value_ms` can be a duration: finite and not negative.
pub fn check_ms(value_ms: f64) -> Result<(), &'static str> {
    if value_ms.is_finite() && value_ms >= 0.0 { Ok(()) } else { Err("a finite number of at least 0 milliseconds") }
}
