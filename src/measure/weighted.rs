//! Samples kept one by one, each with the number of times it was recorded, and what can be asked of them without sorting.
//!
//! A replay pools millions of waits between tokens and wants a dozen percentiles of them. Values are finite and not
//! negative, so their bits are in the same order as they are: counting by the leading bits tells in which small range a
//! rank lies, and only what is in that range is sorted.

/// So many leading bits tell one range from another.
const RANGE_BITS: u32 = 14;
/// Below so many samples sorting is quicker.
const SORT_BELOW: usize = 1 << 12;
/// With so many samples equal ones are first counted together: two values in nanoseconds are often the same.
const COMPACT_FROM: usize = 1 << 22;

/// Moments and samples at ranks, and the same of the rates if there are any.
type WithRates<const N: usize, const M: usize> = (Moments, [f64; N], Option<(Moments, [f64; M])>);

/// Samples, in order of recording.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightedSamples {
    values: Vec<f64>,
    counts: Vec<u32>,
    total: u64,
    compact_at: usize,
}

impl WeightedSamples {
    /// Adds a value, which is finite and not below zero.
    #[inline]
    pub fn push(&mut self, value: f64, count: u64) {
        self.total += count;
        let Ok(times) = u32::try_from(count) else { return self.push_many(value, count) };
        if let (Some(last), Some(before)) = (self.values.last(), self.counts.last_mut())
            && *last == value
            && let Some(sum) = before.checked_add(times)
        {
            *before = sum;
            return;
        }
        self.values.push(value);
        self.counts.push(times);
        self.compact_if_long();
    }

    /// Adds values, which are finite and not below zero, with their counts.
    pub fn extend(&mut self, values: impl ExactSizeIterator<Item = (f64, u32)>) {
        self.values.reserve(values.len());
        self.counts.reserve(values.len());
        let mut total = 0;
        self.values.extend(values.filter(|(_, count)| *count > 0).map(|(value, count)| {
            total += u64::from(count);
            self.counts.push(count);
            value
        }));
        self.total += total;
        self.compact_if_long();
    }

    fn compact_if_long(&mut self) {
        if self.values.len() >= COMPACT_FROM && self.values.len() >= self.compact_at {
            self.compact();
            self.compact_at = 2 * self.values.len();
        }
    }

    fn push_many(&mut self, value: f64, mut count: u64) {
        while count > 0 {
            let times = u32::try_from(count).unwrap_or(u32::MAX);
            self.values.push(value);
            self.counts.push(times);
            count -= u64::from(times);
        }
    }

    /// Samples in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Values, each with its count, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (f64, u64)> {
        self.values.iter().zip(&self.counts).map(|(value, count)| (*value, u64::from(*count)))
    }

    /// Sorts the samples and counts equal ones together.
    fn compact(&mut self) {
        let mut runs: Vec<(u64, u32)> =
            self.values.iter().map(|value| value.to_bits()).zip(self.counts.drain(..)).collect();
        runs.sort_unstable();
        self.values.clear();
        for (bits, count) in runs {
            match (self.values.last(), self.counts.last_mut()) {
                (Some(last), Some(times)) if last.to_bits() == bits && times.checked_add(count).is_some() => {
                    *times += count
                }
                _ => {
                    self.values.push(f64::from_bits(bits));
                    self.counts.push(count);
                }
            }
        }
        self.values.shrink_to_fit();
        self.counts.shrink_to_fit();
    }

    /// Moments, and the samples at the given ranks, counted from 0 in ascending order and below
    /// [`WeightedSamples::total`]. Nothing depends on the order of recording. `None` without samples.
    pub fn figures<const N: usize>(&self, ranks: [u64; N]) -> Option<(Moments, [f64; N])> {
        let (moments, found, _) = self.figures_with_rates(ranks, |_| [0; 0])?;
        Some((moments, found))
    }

    /// As [`WeightedSamples::figures`], and the same of the rates 1000/x of all samples x above zero, whose ranks
    /// `rate_ranks` gives for their number. Both at once, as going through millions of samples is what takes the time.
    pub fn figures_with_rates<const N: usize, const M: usize>(
        &self,
        ranks: [u64; N],
        rate_ranks: impl Fn(u64) -> [u64; M],
    ) -> Option<WithRates<N, M>> {
        let (mut min, mut max, mut least_positive) = (self.values.first().copied()?, 0.0, f64::INFINITY);
        for value in &self.values {
            min = if *value < min { *value } else { min };
            max = if *value > max { *value } else { max };
            least_positive = if *value > 0.0 && *value < least_positive { *value } else { least_positive };
        }
        let wants_rates = M > 0 && max > 0.0 && rate(least_positive).is_finite();
        let ranges = Ranges::of(min, max, self.values.len());
        let mut weights = vec![0u64; ranges.index(max) + 1];
        let (mut sum, mut rates) = (Sum::up_to(max), Sum::up_to(rate(least_positive)));
        for (value, count) in self.values.iter().zip(&self.counts) {
            sum.add(*value, *count);
            weights[ranges.index(*value)] += u64::from(*count);
            if wants_rates && *value > 0.0 {
                rates.add(rate(*value), *count);
            }
        }
        // A high rate is a low sample: ranks from the other end.
        let rate_ranks = if wants_rates { rate_ranks(rates.samples).map(|rank| self.total - 1 - rank) } else { [0; M] };
        let places = ranks.map(|rank| place(&weights, rank));
        let rate_places = rate_ranks.map(|rank| place(&weights, rank));
        let mut wanted = vec![false; weights.len()];
        places.iter().chain(&rate_places).for_each(|place| wanted[place.range] = true);

        let (mut spread, mut rate_spread) = (sum.spread(), rates.spread());
        let mut inside: Vec<(u64, u32)> = Vec::new();
        for (value, count) in self.values.iter().zip(&self.counts) {
            spread.add(*value, *count);
            if wants_rates && *value > 0.0 {
                rate_spread.add(rate(*value), *count);
            }
            if wanted[ranges.index(*value)] {
                inside.push((value.to_bits(), *count));
            }
        }
        inside.sort_unstable();
        let at = |place: Place, rank: u64| {
            let start = inside.partition_point(|(bits, _)| ranges.index(f64::from_bits(*bits)) < place.range);
            let mut seen = place.below;
            let sample = inside[start..].iter().find(|(_, count)| {
                seen += u64::from(*count);
                seen > rank
            });
            sample.map_or(max, |(bits, _)| f64::from_bits(*bits))
        };
        let mut found = [0.0; N];
        for (found, (place, rank)) in found.iter_mut().zip(places.into_iter().zip(ranks)) {
            *found = at(place, rank);
        }
        let mut found_rates = [0.0; M];
        for (found, (place, rank)) in found_rates.iter_mut().zip(rate_places.into_iter().zip(rate_ranks)) {
            *found = rate(at(place, rank));
        }
        let moments = spread.moments(min, max);
        let rates = wants_rates.then(|| (rate_spread.moments(rate(max), rate(least_positive)), found_rates));
        Some((moments, found, rates))
    }
}

fn rate(value: f64) -> f64 {
    1000.0 / value
}

/// A sum that is the same in any order.
struct Sum {
    scale: Scale,
    coarse: Scale,
    sum: u128,
    samples: u64,
}

impl Sum {
    fn up_to(max: f64) -> Self {
        Sum { scale: Scale::up_to(max, 48), coarse: Scale::up_to(max, 31), sum: 0, samples: 0 }
    }

    #[inline]
    fn add(&mut self, value: f64, count: u32) {
        self.sum += u128::from(self.scale.whole(value)) * u128::from(count);
        self.samples += u64::from(count);
    }

    fn spread(&self) -> Spread {
        let samples = self.samples;
        let mean = if samples == 0 { 0.0 } else { self.scale.value(self.sum as f64 / samples as f64) };
        Spread { whole_mean: self.coarse.whole(mean), coarse: self.coarse, mean, squares: 0, samples }
    }
}

/// Squared deviations, the same in any order.
struct Spread {
    coarse: Scale,
    mean: f64,
    /// Beside the mean, on the coarse scale.
    whole_mean: u64,
    squares: u128,
    samples: u64,
}

impl Spread {
    #[inline]
    fn add(&mut self, value: f64, count: u32) {
        let distance = self.coarse.whole(value).abs_diff(self.whole_mean);
        self.squares += u128::from(distance * distance) * u128::from(count);
    }

    fn moments(&self, min: f64, max: f64) -> Moments {
        let beside = self.mean * self.coarse.factor - self.whole_mean as f64;
        let variance = (self.squares as f64 / self.samples as f64 - beside * beside).max(0.0);
        let (mean, std) = (self.mean.clamp(min, max), self.coarse.value(variance.sqrt()));
        Moments { samples: self.samples, mean, std, min, max }
    }
}

/// What describes samples beside their ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moments {
    pub samples: u64,
    pub mean: f64,
    /// Of the population.
    pub std: f64,
    pub min: f64,
    pub max: f64,
}

/// Values as whole numbers, so that their sums are the same in any order.
#[derive(Clone, Copy)]
struct Scale {
    factor: f64,
}

impl Scale {
    /// The largest value has so many bits. With 31 bits squares fit into 62, and what rounding adds to a deviation is a
    /// billionth of the largest value.
    fn up_to(max: f64, bits: i32) -> Self {
        let exponent = (max.to_bits() >> 52) as i32 - 1023;
        Scale { factor: f64::powi(2.0, (bits - 1 - exponent).min(1000)) }
    }

    fn whole(&self, value: f64) -> u64 {
        (value * self.factor + 0.5) as i64 as u64
    }

    fn value(&self, whole: f64) -> f64 {
        whole / self.factor
    }
}

/// Ranges of values that have their leading bits in common.
struct Ranges {
    least: u64,
    shift: u32,
}

impl Ranges {
    fn of(min: f64, max: f64, samples: usize) -> Self {
        let (least, most) = (min.to_bits(), max.to_bits());
        let bits = u64::BITS - (most - least).leading_zeros();
        let shift = if samples < SORT_BELOW { u64::BITS - 1 } else { bits.saturating_sub(RANGE_BITS) };
        Ranges { least, shift }
    }

    fn index(&self, value: f64) -> usize {
        ((value.to_bits() - self.least) >> self.shift) as usize
    }
}

/// Where a rank is: in which range, and how many samples are in those below.
#[derive(Clone, Copy)]
struct Place {
    range: usize,
    below: u64,
}

fn place(weights: &[u64], rank: u64) -> Place {
    let mut below = 0;
    for (range, weight) in weights.iter().enumerate() {
        if below + weight > rank {
            return Place { range, below };
        }
        below += weight;
    }
    Place { range: weights.len() - 1, below }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(samples: &[(f64, u64)]) -> Vec<f64> {
        let mut sorted: Vec<f64> =
            samples.iter().flat_map(|(value, count)| std::iter::repeat_n(*value, *count as usize)).collect();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    proptest! {
        #[test]
        fn ranks_are_those_of_the_sorted_samples(
            mut samples in prop::collection::vec((prop_oneof![0.0..1e9, 5.0..6.0, Just(5.0), Just(0.0)], 1..4u64), 1..200),
            many in any::<bool>(),
        ) {
            if many {
                let more = (0..2 * SORT_BELOW as u64).map(|at| ((at.wrapping_mul(2_654_435_761) % 10_007) as f64 / 7.0, 1 + at % 3));
                samples.extend(more);
            }
            let mut set = WeightedSamples::default();
            samples.iter().for_each(|(value, count)| set.push(*value, *count));
            let sorted = sorted(&samples);
            prop_assert_eq!(set.total(), sorted.len() as u64);
            let last = set.total() - 1;
            let ranks = [0, last / 3, last / 2, last * 9 / 10, last];
            let (moments, found) = set.figures(ranks).expect("samples");
            prop_assert_eq!(found, ranks.map(|rank| sorted[rank as usize]));
            let mut compacted = set.clone();
            compacted.compact();
            prop_assert_eq!(compacted.figures(ranks), set.figures(ranks), "order of recording matters");
            prop_assert!(compacted.values.is_sorted() && compacted.total() == set.total());
            let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
            let squares: f64 = sorted.iter().map(|sample| (sample - mean) * (sample - mean)).sum();
            let std = (squares / sorted.len() as f64).sqrt();
            prop_assert!((moments.mean - mean).abs() <= 1e-12 * moments.max, "{moments:?} against {mean}");
            prop_assert!((moments.std - std).abs() <= 1e-9 * moments.max, "{moments:?} against {std}");
            prop_assert_eq!([moments.min, moments.max], [sorted[0], sorted[last as usize]]);
            let mut rates: Vec<f64> = sorted.iter().filter(|sample| **sample > 0.0).map(|sample| rate(*sample)).collect();
            rates.sort_by(f64::total_cmp);
            let (_, _, own) = set.figures_with_rates([0], |samples| [0, samples / 2, samples - 1]).expect("samples");
            let of_sorted = (!rates.is_empty()).then(|| [rates[0], rates[rates.len() / 2], rates[rates.len() - 1]]);
            prop_assert_eq!(own.map(|(_, found)| found), of_sorted);
            if let Some((moments, _)) = own {
                let mean = rates.iter().sum::<f64>() / rates.len() as f64;
                prop_assert!((moments.mean - mean).abs() <= 1e-12 * moments.max, "{moments:?} against {mean}");
                prop_assert_eq!([moments.min, moments.max], [rates[0], rates[rates.len() - 1]]);
            }
        }
    }

    #[test]
    fn a_long_recording_is_compacted_on_the_way() {
        let mut set = WeightedSamples::default();
        for at in 0..COMPACT_FROM as u64 + 10 {
            set.push((at % 1000) as f64, 1);
        }
        assert!(set.values.len() < 2000, "{} values kept", set.values.len());
        assert_eq!(set.total(), COMPACT_FROM as u64 + 10);
        let (_, found) = set.figures([0, set.total() / 2, set.total() - 1]).expect("samples");
        assert_eq!(found, [0.0, 499.0, 999.0]);
    }
}
