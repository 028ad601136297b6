//! Moments of arrival at a given rate, drawn one at a time.
//!
//! The first arrival is at 0. The gaps after it have the mean `1000 / request_rate` ms: all equal (`constant`),
//! exponential (`poisson`: arrivals that know nothing of one another), or gamma with the shape `smoothness` (`gamma`:
//! bursts below 1, ever more even above). A gap's variance is its mean squared, divided by the shape, and 1 is
//! `poisson`.

use rand_distr::{Distribution, Exp1, Gamma};

use crate::rng::{Rng, Seed};
use crate::session::plan::ArrivalMode;
use crate::time::SimTime;

/// The moments of arrival of an open loop with a rate, without end. The same seed gives the same moments.
#[derive(Clone, Debug)]
pub struct ArrivalTimes {
    mean_gap_ms: f64,
    gaps: Gaps,
    arrivals: u64,
    last_ms: f64,
}

#[derive(Clone, Debug)]
enum Gaps {
    Equal,
    Exponential(Rng),
    Gamma { smoothness: f64, rng: Rng },
}

impl ArrivalTimes {
    /// The moments of a mode; `None` if it has no rate.
    pub fn of(mode: &ArrivalMode) -> Option<Self> {
        let rng = |seed| Seed(seed).split("arrival").rng();
        let (request_rate, gaps) = match *mode {
            ArrivalMode::Timestamps { .. } | ArrivalMode::Concurrency { .. } => return None,
            ArrivalMode::Constant { request_rate } => (request_rate, Gaps::Equal),
            ArrivalMode::Poisson { request_rate, seed } => (request_rate, Gaps::Exponential(rng(seed))),
            ArrivalMode::Gamma { request_rate, smoothness, seed } => {
                (request_rate, Gaps::Gamma { smoothness, rng: rng(seed) })
            }
        };
        Some(ArrivalTimes { mean_gap_ms: 1000.0 / request_rate, gaps, arrivals: 0, last_ms: 0.0 })
    }

    /// The next moment; never before the one that was given last.
    pub fn draw(&mut self) -> SimTime {
        if self.arrivals > 0 {
            self.last_ms = match &mut self.gaps {
                // A product, since a sum of many would drift.
                Gaps::Equal => self.arrivals as f64 * self.mean_gap_ms,
                Gaps::Exponential(rng) => {
                    let gap: f64 = Exp1.sample(rng);
                    self.last_ms + gap * self.mean_gap_ms
                }
                // A shape that is none, which validation refuses, makes all gaps equal.
                Gaps::Gamma { smoothness, rng } => {
                    let gap_ms = Gamma::new(*smoothness, self.mean_gap_ms / *smoothness).map(|gamma| gamma.sample(rng));
                    self.last_ms + gap_ms.unwrap_or(self.mean_gap_ms)
                }
            };
        }
        self.arrivals += 1;
        SimTime::from_ms(self.last_ms)
    }
}
