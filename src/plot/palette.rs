//! What a run looks like: colour, hatch, dash and marker follow from its place among the runs, the same in all figures.
//!
//! The colours are Okabe and Ito's, which people with any common colour blindness can tell apart. Hatch, dash and marker
//! say the same again for a print in black and white. After eight runs the colours begin again with other patterns.

use plotters_backend::BackendColor;

/// Drawn beneath everything.
pub(super) const GROUND: BackendColor = opaque(255, 255, 255);
/// Titles and labels.
pub(super) const TEXT: BackendColor = opaque(34, 34, 34);
/// Text of second rank: notes and parameters.
pub(super) const FAINT_TEXT: BackendColor = opaque(98, 98, 98);
/// Axis lines, bar outlines, whiskers.
pub(super) const AXIS: BackendColor = opaque(64, 64, 64);
/// Grid lines at labelled ticks.
pub(super) const GRID: BackendColor = opaque(222, 222, 222);
/// Grid lines between labelled ticks.
pub(super) const FAINT_GRID: BackendColor = opaque(240, 240, 240);

const fn opaque(red: u8, green: u8, blue: u8) -> BackendColor {
    BackendColor { alpha: 1.0, rgb: (red, green, blue) }
}

/// The pattern over a bar's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hatch {
    /// Plain colour.
    None,
    /// Lines rising to the right.
    Rising,
    /// Lines falling to the right.
    Falling,
    /// Both of these.
    Cross,
    /// Level lines.
    Level,
    /// Upright lines.
    Upright,
    /// A square grid.
    Grid,
    /// Dots.
    Dots,
}

/// The shape of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// A disc.
    Disc,
    /// A square on its side.
    Square,
    /// A triangle pointing up.
    TriangleUp,
    /// A square on its corner.
    Diamond,
    /// A triangle pointing down.
    TriangleDown,
    /// A five-pointed star.
    Star,
    /// An upright cross.
    Plus,
    /// A diagonal cross.
    Saltire,
}

/// How one run is drawn.
#[derive(Clone, Copy)]
pub(super) struct RunStyle {
    /// Colour of bars, lines and points.
    pub color: BackendColor,
    /// Colour of the hatch over `color`.
    pub hatch_color: BackendColor,
    /// Pattern of bars.
    pub hatch: Hatch,
    /// Lengths of strokes and gaps in turn, in pixels; empty for a solid line.
    pub dash: &'static [f64],
    /// Shape of points.
    pub marker: Marker,
    /// True if lines need a dark edge to be seen on white.
    pub cased: bool,
}

const WHITE_HATCH: BackendColor = opaque(255, 255, 255);

/// Colour, colour of the hatch over it, whether lines need a dark edge.
const COLORS: [(BackendColor, BackendColor, bool); 8] = [
    (opaque(0, 114, 178), WHITE_HATCH, false),
    (opaque(230, 159, 0), opaque(140, 80, 0), false),
    (opaque(0, 158, 115), WHITE_HATCH, false),
    (opaque(204, 121, 167), opaque(110, 35, 78), false),
    (opaque(213, 94, 0), WHITE_HATCH, false),
    (opaque(86, 180, 233), opaque(0, 72, 120), false),
    (opaque(0, 0, 0), WHITE_HATCH, false),
    (opaque(240, 228, 66), opaque(122, 110, 0), true),
];

const HATCHES: [Hatch; 8] =
    [Hatch::None, Hatch::Rising, Hatch::Falling, Hatch::Dots, Hatch::Level, Hatch::Cross, Hatch::Upright, Hatch::Grid];

const DASHES: [&[f64]; 8] = [
    &[],
    &[9.0, 4.0],
    &[3.0, 3.0],
    &[12.0, 4.0, 3.0, 4.0],
    &[18.0, 5.0],
    &[6.0, 3.0, 2.0, 3.0, 2.0, 3.0],
    &[2.0, 5.0],
    &[14.0, 3.0, 6.0, 3.0],
];

const MARKERS: [Marker; 8] = [
    Marker::Disc,
    Marker::Square,
    Marker::TriangleUp,
    Marker::Diamond,
    Marker::TriangleDown,
    Marker::Star,
    Marker::Saltire,
    Marker::Plus,
];

/// The looks of the run at place `index`, from 0.
pub(super) fn run_style(index: usize) -> RunStyle {
    let (color, hatch_color, cased) = COLORS[index % COLORS.len()];
    // Shift the patterns by one at every new turn of the colours, so that 8 · 8 runs differ.
    let pattern = index + index / COLORS.len();
    RunStyle {
        color,
        hatch_color,
        hatch: HATCHES[pattern % HATCHES.len()],
        dash: DASHES[pattern % DASHES.len()],
        marker: MARKERS[pattern % MARKERS.len()],
        cased,
    }
}
