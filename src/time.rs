//! Simulated time: whole nanoseconds since the start of a run.
//!
//! Models compute in f64 milliseconds, clocks and event queues compare whole nanoseconds, so that the same run gives the
//! same order of events on every machine. A [`SimTime`] is a point, a [`SimSpan`] a distance; nothing here reads a clock.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

const NANOS_PER_MS: f64 = 1e6;

/// A point in simulated time, in nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SimTime(pub u64);

/// A distance in simulated time, in nanoseconds. Never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SimSpan(pub u64);

impl SimTime {
    /// The start of the run.
    pub const ZERO: SimTime = SimTime(0);

    /// A point from milliseconds, rounded to the nearest nanosecond; negative and NaN become the start of the run.
    pub fn from_ms(ms: f64) -> Self {
        SimTime(ms_to_ns(ms))
    }

    /// Milliseconds since the start of the run.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / NANOS_PER_MS
    }

    /// Time since `earlier`; zero if `earlier` is in fact later.
    pub fn since(self, earlier: SimTime) -> SimSpan {
        SimSpan(self.0.saturating_sub(earlier.0))
    }
}

impl SimSpan {
    /// No time at all.
    pub const ZERO: SimSpan = SimSpan(0);

    /// A span from milliseconds, rounded to the nearest nanosecond; negative and NaN become zero.
    #[inline]
    pub fn from_ms(ms: f64) -> Self {
        SimSpan(ms_to_ns(ms))
    }

    /// The span in milliseconds.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / NANOS_PER_MS
    }
}

#[inline]
fn ms_to_ns(ms: f64) -> u64 {
    // `as` saturates and maps NaN to zero, which is the documented behaviour.
    // Halves away from zero, as `round`, which is a call into the maths library on most machines.
    let ns = ms * NANOS_PER_MS;
    let whole = (ns as i64).max(0);
    (whole as u64).saturating_add(u64::from(ns - whole as f64 >= 0.5))
}

impl Add<SimSpan> for SimTime {
    type Output = SimTime;
    fn add(self, span: SimSpan) -> SimTime {
        SimTime(self.0.saturating_add(span.0))
    }
}

impl AddAssign<SimSpan> for SimTime {
    fn add_assign(&mut self, span: SimSpan) {
        *self = *self + span;
    }
}

impl Add for SimSpan {
    type Output = SimSpan;
    fn add(self, other: SimSpan) -> SimSpan {
        SimSpan(self.0.saturating_add(other.0))
    }
}

impl Sub for SimTime {
    type Output = SimSpan;
    fn sub(self, earlier: SimTime) -> SimSpan {
        self.since(earlier)
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.as_ms())
    }
}
