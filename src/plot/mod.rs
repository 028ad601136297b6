//! Figures that compare runs, as PNG bytes.
//!
//! Every figure is a pure function of the runs' numbers and of a little text: the same input gives the same bytes, with
//! no system font, clock or random number involved. A run keeps its colour, hatch, dash and marker, which follow from
//! its place in the slice, in every figure; the legend numbers the runs so that a print in black and white can be read.
//!
//! Where to look: `bars`, `cdf` and `timeline` hold one kind of figure each; `figure` the sheet around them (title,
//! legend, parameters) and `panel` the axes of one panel; `axis` chooses scales and ticks, `samples` cleans the numbers
//! and takes percentiles, `palette` gives a run its looks; `font` and `canvas` put ink on the supersampled picture,
//! `file` writes it to disk.

mod axis;
mod bars;
mod canvas;
mod cdf;
mod figure;
mod file;
mod font;
mod palette;
mod panel;
mod samples;
#[cfg(test)]
mod tests;
mod timeline;

pub use bars::{latency_bars, throughput_reuse_bars};
pub use cdf::latency_cdf;
pub use figure::FigureText;
pub use file::{PlotError, write_png};
pub use samples::{RunCurves, Timeline};
pub use timeline::ttft_over_time;
