//! The one place that reads the clock: wall time to simulated time and back.
//!
//! simulated = (wall − start) × speedup ratio.

use std::time::{Duration, Instant};

use crate::time::SimTime;

/// The clock of one process.
#[derive(Clone, Copy, Debug)]
pub struct LiveClock {
    start: Instant,
    speedup_ratio: f64,
}

impl LiveClock {
    /// A clock that starts now and runs `speedup_ratio` times as fast as the wall's.
    #[expect(clippy::disallowed_methods, reason = "the clock itself")]
    pub fn start(speedup_ratio: f64) -> Self {
        LiveClock { start: Instant::now(), speedup_ratio }
    }

    /// The simulated time now.
    #[expect(clippy::disallowed_methods, reason = "the clock itself")]
    pub fn now(&self) -> SimTime {
        self.at(Instant::now())
    }

    /// The simulated time at a moment of the wall clock.
    pub fn at(&self, moment: Instant) -> SimTime {
        let wall = moment.saturating_duration_since(self.start);
        SimTime((wall.as_nanos() as f64 * self.speedup_ratio) as u64)
    }

    /// Wall time from now until a simulated moment; zero if it has passed.
    pub fn wall_until(&self, at: SimTime) -> Duration {
        let wall_ns = at.0 as f64 / self.speedup_ratio;
        let due = Duration::from_nanos(wall_ns as u64);
        due.saturating_sub(self.wall_elapsed())
    }

    /// Wall time since the start.
    #[expect(clippy::disallowed_methods, reason = "the clock itself")]
    pub fn wall_elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// How many times faster than the wall clock it runs.
    pub fn speedup_ratio(&self) -> f64 {
        self.speedup_ratio
    }
}

/// A moment of the wall clock, for time-outs of connections and for measured durations.
#[expect(clippy::disallowed_methods, reason = "the clock itself")]
pub fn wall_now() -> Instant {
    Instant::now()
}

/// Seconds since 1970, for protocols that want a date.
#[expect(clippy::disallowed_methods, reason = "the clock itself")]
pub fn unix_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
