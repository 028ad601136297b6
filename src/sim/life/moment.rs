//! A point in time that may not have come, in 8 bytes.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::time::SimTime;

/// A point in simulated time, or none; half the size of an `Option<SimTime>`. Serialized as that.
///
/// The last nanosecond that [`SimTime`] can hold, after 584 years, counts as none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moment(u64);

impl Moment {
    /// It has not come.
    pub const NONE: Moment = Moment(u64::MAX);

    /// When it was.
    pub fn get(self) -> Option<SimTime> {
        (self != Moment::NONE).then_some(SimTime(self.0))
    }

    /// True if it has come.
    pub fn is_some(self) -> bool {
        self != Moment::NONE
    }

    /// When it was; if it had not come, it comes now, at `at`.
    pub fn get_or_insert(&mut self, at: SimTime) -> SimTime {
        if !self.is_some() {
            *self = at.into();
        }
        SimTime(self.0)
    }

    /// Milliseconds since the start of the run.
    pub fn as_ms(self) -> Option<f64> {
        self.get().map(SimTime::as_ms)
    }
}

impl Default for Moment {
    fn default() -> Self {
        Moment::NONE
    }
}

impl From<SimTime> for Moment {
    fn from(at: SimTime) -> Self {
        Moment(at.0)
    }
}

impl From<Option<SimTime>> for Moment {
    fn from(at: Option<SimTime>) -> Self {
        at.map_or(Moment::NONE, Moment::from)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.get().serialize(serializer)
    }
}
