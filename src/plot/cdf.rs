//! Distribution curves: which share of a run's requests stayed at or below a latency.
//!
//! The curve of n sorted samples rises by 1/n at each of them. Every run has its own colour, dash and marker; the markers
//! of different runs sit at different heights, so that curves that lie on each other still show both.

use super::axis::{Axis, Scale};
use super::bars::legend;
use super::canvas::{Align, Area, Canvas, Turn};
use super::figure::{FigureText, Key, draw_figure, draw_marker};
use super::font::Type;
use super::palette::{FAINT_TEXT, GRID, run_style};
use super::panel::{self, BOTTOM_AXIS_HEIGHT, REMARK};
use super::samples::{extent, sorted};
use super::{PlotError, RunCurves};

/// Shares that are marked at the right edge.
const GUIDES: [(f64, &str); 3] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")];
const GUIDE_LABEL: Type = Type::regular(14.5);
/// Markers on each curve.
const MARKERS: usize = 5;

/// Draws the cumulative distributions of time to first token (left) and time per output token (right), in
/// milliseconds, one curve a run. The horizontal axis is logarithmic if the largest sample is more than fifty times the
/// smallest positive one. Returns the PNG file's bytes.
pub fn latency_cdf(runs: &[RunCurves], text: &FigureText) -> Result<Vec<u8>, PlotError> {
    let ttft: Vec<Vec<f64>> = runs.iter().map(|run| sorted(&run.ttft_ms)).collect();
    let tpot: Vec<Vec<f64>> = runs.iter().map(|run| sorted(&run.tpot_ms)).collect();
    let panels = [("Time to first token", "TTFT", ttft), ("Time per output token", "TPOT", tpot)];
    let legend = legend(runs);
    draw_figure(text, Key::LineAndMarker, &legend, 470.0, |canvas, body| {
        for ((title, quantity, runs), cell) in panels.iter().zip(panel::columns(body, 2, 30.0)) {
            draw_panel(canvas, cell, title, quantity, runs);
        }
    })
}

fn draw_panel(canvas: &mut Canvas, cell: Area, title: &str, quantity: &str, runs: &[Vec<f64>]) {
    let samples = || runs.iter().flatten().copied();
    let Some((low, high)) = extent(samples()) else {
        panel::draw_no_samples(canvas, cell, BOTTOM_AXIS_HEIGHT, title);
        return;
    };
    // Samples of zero or less cannot set the scale; on a logarithmic axis they lie on its left edge.
    let positive_low = extent(samples().filter(|value| *value > 0.0)).map_or(low, |range| range.0);
    let scale = Scale::for_extent(positive_low, high);
    let x_axis = match scale {
        Scale::Log => Axis::for_curve(scale, positive_low, high),
        Scale::Linear => Axis::for_curve(scale, low, high),
    };
    let y_axis = Axis::linear(0.0, 1.0, 5);

    let left = panel::left_axis_width(canvas.fonts(), &y_axis);
    let plot = panel::plot_area(cell, left, 44.0, BOTTOM_AXIS_HEIGHT);
    panel::draw_title(canvas, plot, title);
    panel::draw_left_axis(canvas, plot, &y_axis, "share of requests at or below");
    let x_title = x_axis.title(quantity, "ms");
    panel::draw_bottom_axis(canvas, plot, &x_axis, &x_title, true);
    for (share, label) in GUIDES {
        let y = plot.bottom - share * plot.height();
        canvas.level_rule(y, plot.left, plot.right, GRID);
        let anchor = (plot.right + 7.0, y);
        canvas.text(label, GUIDE_LABEL, FAINT_TEXT, anchor, Align::Start, Turn::Level);
    }

    let x_of = |value: f64| plot.left + x_axis.place(value) * plot.width();
    let y_of = |share: f64| plot.bottom - share * plot.height();
    for (run, values) in runs.iter().enumerate() {
        canvas.run_line(&steps(values, x_of, y_of), 2.4, &run_style(run));
    }
    for (run, values) in runs.iter().enumerate() {
        for mark in 0..MARKERS {
            let share = (mark as f64 + (run as f64 + 0.5) / runs.len() as f64) / MARKERS as f64;
            let index = (share * values.len() as f64) as usize;
            if let Some(value) = values.get(index) {
                draw_marker(canvas, (x_of(*value), y_of(share)), 4.6, &run_style(run));
            }
        }
    }
    remark_on_empty_runs(canvas, plot, runs);
}

/// The curve as a line: up by 1/n at each sample, level to the next. Corners closer than a third of a pixel to the one
/// before are left out.
fn steps(values: &[f64], x_of: impl Fn(f64) -> f64, y_of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let x = x_of(*value);
        let before = y_of(index as f64 / values.len() as f64);
        let after = y_of((index + 1) as f64 / values.len() as f64);
        let last = index + 1 == values.len();
        for point in [(x, before), (x, after)] {
            let near = |seen: &(f64, f64)| (seen.0 - point.0).abs() < 0.34 && (seen.1 - point.1).abs() < 0.34;
            if last || !points.last().is_some_and(near) {
                points.push(point);
            }
        }
    }
    points
}

/// Names the runs without a curve in the lower right corner.
fn remark_on_empty_runs(canvas: &mut Canvas, plot: Area, runs: &[Vec<f64>]) {
    let empty: Vec<String> =
        runs.iter().enumerate().filter(|(_, values)| values.is_empty()).map(|(run, _)| (run + 1).to_string()).collect();
    if empty.is_empty() {
        return;
    }
    let remark = format!("no samples: run {}", empty.join(", "));
    let anchor = (plot.right - 10.0, plot.bottom - 16.0);
    canvas.text(&remark, REMARK, FAINT_TEXT, anchor, Align::End, Turn::Level);
}
