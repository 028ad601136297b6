//! One panel: where its plot lies within its cell, and the title, grid and axes around it.

use super::axis::Axis;
use super::canvas::{Align, Area, Canvas, Turn};
use super::font::{Fonts, Type};
use super::palette::{AXIS, FAINT_GRID, FAINT_TEXT, GRID, TEXT};

/// Panel titles.
const PANEL_TITLE: Type = Type::bold(18.0);
/// Axis titles.
const AXIS_TITLE: Type = Type::regular(16.5);
/// Labels of ticks.
pub(super) const TICK: Type = Type::regular(15.5);
/// Remarks within a panel.
pub(super) const REMARK: Type = Type::regular(15.0);

const TITLE_HEIGHT: f64 = 36.0;
const TICK_LENGTH: f64 = 5.0;

/// Height below a plot for tick labels and the title of a horizontal axis.
pub(super) const BOTTOM_AXIS_HEIGHT: f64 = 58.0;

/// Splits `area` into `count` cells side by side.
pub(super) fn columns(area: Area, count: usize, gap: f64) -> Vec<Area> {
    let width = (area.width() - gap * (count as f64 - 1.0)) / count as f64;
    (0..count)
        .map(|column| {
            let left = area.left + column as f64 * (width + gap);
            Area { left, right: left + width, ..area }
        })
        .collect()
}

/// Width left of a plot for the title and the labels of a vertical axis.
pub(super) fn left_axis_width(fonts: &Fonts, axis: &Axis) -> f64 {
    let labels = axis.ticks.iter().map(|tick| fonts.width(&tick.label, TICK));
    AXIS_TITLE.line_height() + 8.0 + labels.fold(0.0, f64::max) + TICK_LENGTH + 5.0
}

/// The plot within `cell`: what the title above and the margins given leave over.
pub(super) fn plot_area(cell: Area, left: f64, right: f64, bottom: f64) -> Area {
    Area {
        left: (cell.left + left).round(),
        top: (cell.top + TITLE_HEIGHT).round(),
        right: (cell.right - right).round(),
        bottom: (cell.bottom - bottom).round(),
    }
}

/// The panel's title, above the left end of the plot.
pub(super) fn draw_title(canvas: &mut Canvas, plot: Area, title: &str) {
    let anchor = (plot.left, plot.top - 19.0);
    canvas.text(title, PANEL_TITLE, TEXT, anchor, Align::Start, Turn::Level);
}

/// Level grid lines, tick labels left of the plot, and the axis title turned beside them.
pub(super) fn draw_left_axis(canvas: &mut Canvas, plot: Area, axis: &Axis, title: &str) {
    let y_of = |place: f64| plot.bottom - place * plot.height();
    for place in &axis.minor {
        canvas.level_rule(y_of(*place), plot.left, plot.right, FAINT_GRID);
    }
    for tick in &axis.ticks {
        let y = y_of(tick.place);
        canvas.level_rule(y, plot.left, plot.right, GRID);
        canvas.level_rule(y, plot.left - TICK_LENGTH, plot.left, AXIS);
        let anchor = (plot.left - TICK_LENGTH - 5.0, y.floor() + 0.5);
        canvas.text(&tick.label, TICK, TEXT, anchor, Align::End, Turn::Level);
    }
    canvas.upright_rule(plot.left, plot.top, plot.bottom, AXIS);
    let x = plot.left - left_axis_width(canvas.fonts(), axis) + AXIS_TITLE.line_height() / 2.0;
    let anchor = (x, plot.center().1);
    canvas.text(title, AXIS_TITLE, TEXT, anchor, Align::Center, Turn::Upwards);
}

/// Upright grid lines and the baseline of a plot with a horizontal axis; `labels` adds tick labels and the title.
pub(super) fn draw_bottom_axis(canvas: &mut Canvas, plot: Area, axis: &Axis, title: &str, labels: bool) {
    let x_of = |place: f64| plot.left + place * plot.width();
    for place in &axis.minor {
        canvas.upright_rule(x_of(*place), plot.top, plot.bottom, FAINT_GRID);
    }
    for tick in &axis.ticks {
        let x = x_of(tick.place);
        canvas.upright_rule(x, plot.top, plot.bottom, GRID);
        canvas.upright_rule(x, plot.bottom, plot.bottom + TICK_LENGTH, AXIS);
    }
    if labels {
        draw_bottom_labels(canvas, plot, axis);
    }
    draw_baseline(canvas, plot);
    if labels {
        let anchor = (plot.center().0, plot.bottom + BOTTOM_AXIS_HEIGHT - 15.0);
        canvas.text(title, AXIS_TITLE, TEXT, anchor, Align::Center, Turn::Level);
    }
}

/// Labels below the ticks, the major ones first, then those that fit between.
fn draw_bottom_labels(canvas: &mut Canvas, plot: Area, axis: &Axis) {
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for major in [true, false] {
        for tick in axis.ticks.iter().filter(|tick| tick.major == major) {
            let x = (plot.left + tick.place * plot.width()).floor() + 0.5;
            let half = canvas.fonts().width(&tick.label, TICK) / 2.0 + 4.0;
            let (left, right) = (x - half, x + half);
            if taken.iter().any(|other| left < other.1 && other.0 < right) {
                continue;
            }
            taken.push((left, right));
            let anchor = (x, plot.bottom + TICK_LENGTH + 12.0);
            canvas.text(&tick.label, TICK, TEXT, anchor, Align::Center, Turn::Level);
        }
    }
}

/// The line that a plot stands on.
pub(super) fn draw_baseline(canvas: &mut Canvas, plot: Area) {
    canvas.level_rule(plot.bottom, plot.left, plot.right, AXIS);
}

/// An empty panel, `bottom` pixels above the end of its cell: a frame and the words "no samples" in its middle.
pub(super) fn draw_no_samples(canvas: &mut Canvas, cell: Area, bottom: f64, title: &str) {
    let plot = plot_area(cell, 30.0, 10.0, bottom);
    draw_title(canvas, plot, title);
    canvas.outline(plot, 1.0, GRID);
    canvas.text("no samples", AXIS_TITLE, FAINT_TEXT, plot.center(), Align::Center, Turn::Level);
}
