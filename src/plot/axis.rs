//! Scales and ticks: from the extent of the numbers to positions between 0 and 1 and labels at round values.
//!
//! A scale is logarithmic if the largest number is more than fifty times the smallest; otherwise the small ones would be
//! flat on the axis.

/// Above this ratio of largest to smallest a linear scale hides the small values.
const WIDE_RATIO: f64 = 50.0;
/// A logarithmic axis reaches at most this many decades below its largest value; what is smaller lies on its edge.
const MOST_DECADES: f64 = 12.0;
/// A logarithmic axis shows smaller values as this.
const SMALLEST_DRAWN: f64 = 1e-12;
/// Grid lines between decades are drawn up to this many decades.
const MINOR_DECADES: f64 = 4.5;
/// 1, 2 and 5 of each decade are labelled up to this many decades, only the powers of ten beyond.
const DENSE_DECADES: f64 = 3.2;

/// How values become lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// Equal differences are equal lengths.
    Linear,
    /// Equal ratios are equal lengths.
    Log,
}

impl Scale {
    /// Logarithmic if all is positive and `high` more than fifty times `low`.
    pub fn for_extent(low: f64, high: f64) -> Self {
        if low > 0.0 && high / low > WIDE_RATIO { Self::Log } else { Self::Linear }
    }
}

/// A labelled value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// Position along the axis, 0 to 1.
    pub place: f64,
    /// The value as text.
    pub label: String,
    /// True if the label goes before others where there is no room for all.
    pub major: bool,
}

/// One axis: its scale, the values at its ends, its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Labelled ticks, ascending.
    pub ticks: Vec<Tick>,
    /// Positions, 0 to 1, of unlabelled grid lines.
    pub minor: Vec<f64>,
}

impl Axis {
    /// An axis that shows zero, `low` and `high`, with `headroom` (a share of the axis, below 1) left free above.
    pub fn from_zero(low: f64, high: f64, headroom: f64) -> Self {
        let (bottom, top) = (low.min(0.0), high.max(0.0));
        let span = match top - bottom {
            span if span > 1e-300 => span,
            _ => 1.0, // nothing to tell apart
        };
        Self::linear(bottom, bottom + span / (1.0 - headroom), 6)
    }

    /// A linear axis from `low` to `high`, which must be greater, with about `wanted` ticks at round values.
    pub fn linear(low: f64, high: f64, wanted: u32) -> Self {
        let raw = (high - low) / f64::from(wanted.max(1));
        let decade = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|mantissa| mantissa * decade)
            .find(|step| *step >= raw * 0.8)
            .unwrap_or(10.0 * decade);
        let mut axis = Self { scale: Scale::Linear, low, high, ticks: Vec::new(), minor: Vec::new() };
        let first = (low / step - 1e-9).ceil();
        // Never more than twenty: when the values are so close that steps vanish, the loop still ends.
        for count in 0..20 {
            let value = (first + f64::from(count)) * step;
            if value > high + step * 1e-9 {
                break;
            }
            let label = tick_label(value, step, low.abs().max(high.abs()));
            if axis.ticks.last().is_some_and(|tick| tick.label == label) {
                continue;
            }
            let place = axis.place(value);
            let major = true;
            axis.ticks.push(Tick { place, label, major });
        }
        axis
    }

    /// A logarithmic axis that shows `low` to `high`, both positive, widened to round values below and, with
    /// `headroom` (a share of the axis, below 1) left free, above.
    pub fn logarithmic(low: f64, high: f64, headroom: f64) -> Self {
        // No value is too small for its logarithm or for a tick below it.
        let high = high.max(SMALLEST_DRAWN);
        let low = round_below(low.max(high / 10_f64.powf(MOST_DECADES)));
        let top = high.log10() + (high.log10() - low.log10()) * headroom / (1.0 - headroom);
        let high = 10_f64.powf(top).max(low * 10.0);
        let mut axis = Self { scale: Scale::Log, low, high, ticks: Vec::new(), minor: Vec::new() };
        let decades = high.log10() - low.log10();
        let stride = (decades / 7.0).ceil().max(1.0) as i32;
        let first_decade = low.log10().floor() as i32;
        let last_decade = high.log10().ceil() as i32;
        for decade in first_decade..=last_decade {
            for mantissa in 1..=9 {
                let value = f64::from(mantissa) * 10_f64.powi(decade);
                if value < low * (1.0 - 1e-9) || value > high * (1.0 + 1e-9) {
                    continue;
                }
                let place = axis.place(value);
                let labelled = match mantissa {
                    1 => decade.rem_euclid(stride) == 0,
                    2 | 5 => decades <= DENSE_DECADES,
                    _ => false,
                };
                if labelled {
                    let label =
                        if low < 1e-5 || high >= 1e7 { scientific(value, 2) } else { tick_label(value, value, value) };
                    let major = mantissa == 1;
                    axis.ticks.push(Tick { place, label, major });
                } else if decades <= MINOR_DECADES || mantissa == 1 {
                    axis.minor.push(place);
                }
            }
        }
        axis
    }

    /// The axis of `scale` for a curve: a linear one begins at zero, a logarithmic one at the smallest positive value.
    pub fn for_curve(scale: Scale, low: f64, high: f64) -> Self {
        match scale {
            Scale::Log => Self::logarithmic(low, high, 0.02),
            Scale::Linear => Self::from_zero(low, high, 0.03),
        }
    }

    /// Position of `value`, between 0 and 1; values beyond the ends lie on them.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value <= 0.0 => 0.0,
            Scale::Log => (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10()),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The axis title: what it shows and its unit, and the scale if it is not the usual one.
    pub fn title(&self, quantity: &str, unit: &str) -> String {
        match self.scale {
            Scale::Linear => format!("{quantity} ({unit})"),
            Scale::Log => format!("{quantity} ({unit}, log scale)"),
        }
    }
}

/// The largest of 1, 2 and 5 times a power of ten that is not above `value`, which must be positive.
fn round_below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0]
        .into_iter()
        .map(|mantissa| mantissa * decade)
        .find(|round| *round <= value * (1.0 + 1e-9))
        .unwrap_or(decade)
}

/// A tick's value with as many decimals as the distance `step` between ticks needs, or with a power of ten if that, or
/// the `largest` value of the axis, would take too many digits.
fn tick_label(value: f64, step: f64, largest: f64) -> String {
    let value = if value.abs() < step * 1e-6 { 0.0 } else { value };
    let decimals = -(step.log10() + 1e-9).floor();
    if largest >= 1e7 || decimals > 5.0 {
        return scientific(value, 2);
    }
    grouped(value, decimals.clamp(0.0, 5.0) as usize)
}

/// A value with three significant digits, as it stands beside a bar.
pub(super) fn bar_label(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return "0".to_owned(); // it has no significant digit, nor a logarithm
    }
    if !(1e-4..1e7).contains(&magnitude) {
        return scientific(value, 2);
    }
    let decimals = (2.0 - magnitude.log10().floor()).clamp(0.0, 6.0) as usize;
    grouped(value, decimals)
}

/// `value` with that many decimals and commas between thousands.
pub(super) fn grouped(value: f64, decimals: usize) -> String {
    let plain = format!("{:.*}", decimals, value.abs());
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let mut text = String::new();
    if value < 0.0 && plain.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        text.push('-');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

/// `value` as a mantissa of at most `decimals` decimals and a power of ten, such as 2.5e8.
fn scientific(value: f64, decimals: usize) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if mantissa.contains('.') => {
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            format!("{mantissa}e{exponent}")
        }
        _ => text,
    }
}
