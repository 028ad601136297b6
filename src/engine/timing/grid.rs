//! A function known at the points of a grid: linear between them along every axis, constant outside.

/// A coordinate's bucket is its exponent and this many bits of its mantissa.
const MANTISSA_BITS: u32 = 4;

/// The points of one axis, strictly ascending, at least one.
///
/// Steps are priced a million times in a replay, so that a coordinate's cell is looked up by its order of magnitude, not
/// searched for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    points: Vec<f64>,
    /// One over the distance of each point to the next.
    per_width: Vec<f64>,
    /// For each bucket up to the last point's: points at or below all its coordinates.
    at_or_below: Vec<u16>,
}

/// Values over N axes, the last axis fastest.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grid<const N: usize> {
    axes: [Axis; N],
    values: Vec<f64>,
}

/// Where a coordinate lies on its axis.
#[derive(Clone, Copy)]
struct Place {
    low: usize,
    high: usize,
    /// Weight of `high`; that of `low` is the rest.
    share: f64,
    outside: bool,
}

impl Axis {
    /// `None` unless the points ascend strictly from 0 or above and there is one, at most 65535.
    pub fn new(mut points: Vec<f64>) -> Option<Self> {
        // JSON knows −0, whose bits would make it the largest of all.
        points.iter_mut().for_each(|point| *point += 0.0);
        let last = u16::try_from(points.len()).ok().and_then(|_| points.last().copied())?;
        if points[0] < 0.0 || !last.is_finite() || !points.windows(2).all(|pair| pair[0] < pair[1]) {
            return None;
        }
        let mut at_or_below = vec![0; bucket(last) + 1];
        for (index, point) in points.iter().enumerate() {
            // A point inside of a bucket is not below all of it.
            let first = if bucket_start(bucket(*point)) < *point { bucket(*point) + 1 } else { bucket(*point) };
            at_or_below.iter_mut().skip(first).for_each(|count| *count = index as u16 + 1);
        }
        let per_width = points.windows(2).map(|pair| 1.0 / (pair[1] - pair[0])).collect();
        Some(Axis { points, per_width, at_or_below })
    }

    pub fn len(&self) -> usize {
        self.points.len()
    }

    fn locate(&self, coordinate: u64) -> Place {
        let points = self.points.as_slice();
        let last = points.len() - 1;
        let at = coordinate as f64;
        let Some(count) = self.at_or_below.get(bucket(at)) else {
            return Place { low: last, high: last, share: 0.0, outside: true };
        };
        let mut high = usize::from(*count);
        while points.get(high).is_some_and(|point| *point <= at) {
            high += 1;
        }
        match high {
            0 => Place { low: 0, high: 0, share: 0.0, outside: true },
            high if high > last => Place { low: last, high: last, share: 0.0, outside: at > points[last] },
            high => {
                let low = high - 1;
                Place { low, high, share: (at - points[low]) * self.per_width[low], outside: false }
            }
        }
    }
}

/// The bucket of a coordinate of at least 0; all below 1 share the first with 1.
fn bucket(at: f64) -> usize {
    (at.to_bits() >> (52 - MANTISSA_BITS)).saturating_sub(1023 << MANTISSA_BITS) as usize
}

/// The least coordinate of a bucket.
fn bucket_start(bucket: usize) -> f64 {
    if bucket == 0 { 0.0 } else { f64::from_bits((bucket as u64 + (1023 << MANTISSA_BITS)) << (52 - MANTISSA_BITS)) }
}

impl<const N: usize> Grid<N> {
    /// `None` unless there is a value for every point.
    pub fn new(axes: [Axis; N], values: Vec<f64>) -> Option<Self> {
        let points: usize = axes.iter().map(Axis::len).product();
        (points == values.len()).then_some(Grid { axes, values })
    }

    /// Points along each axis.
    pub fn dimensions(&self) -> [usize; N] {
        self.axes.each_ref().map(Axis::len)
    }

    /// The points of each axis, and the values.
    pub fn parts(&self) -> ([&[f64]; N], &[f64]) {
        (self.axes.each_ref().map(|axis| axis.points.as_slice()), &self.values)
    }

    /// The value at a place, and whether an axis ends before it, which is then taken at its edge. At a point of the grid
    /// it is that point's value to the last bit.
    pub fn at(&self, coordinates: [u64; N]) -> (f64, bool) {
        let places: [Place; N] = std::array::from_fn(|axis| self.axes[axis].locate(coordinates[axis]));
        let outside = places.iter().any(|place| place.outside);
        let mut value = 0.0;
        // Each bit of `corner` says which end of the cell is meant along one axis.
        for corner in 0..1_usize << N {
            let mut weight = 1.0;
            let mut index = 0;
            for (axis, place) in places.iter().enumerate() {
                let (point, share) = match corner >> axis & 1 {
                    0 => (place.low, 1.0 - place.share),
                    _ => (place.high, place.share),
                };
                weight *= share;
                index = index * self.axes[axis].len() + point;
            }
            value += weight * self.values[index];
        }
        (value, outside)
    }
}
