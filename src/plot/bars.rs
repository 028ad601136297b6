//! Bars: percentiles of the latencies in two panels, throughput and prefix reuse in three.
//!
//! Within a group there is one bar a run, in the order of the runs and, if there are several, with the run's number from
//! the legend below it. Numbers stand on the bars of a panel that has fewer than ten.

use super::axis::{Axis, Scale, bar_label, grouped};
use super::canvas::{Align, Area, Canvas, Turn};
use super::figure::{FigureText, Key, LegendEntry, draw_bar, draw_figure, run_number};
use super::font::{Fonts, Type};
use super::palette::{AXIS, FAINT_TEXT, GROUND, TEXT, run_style};
use super::panel;
use super::samples::{drawable, extent, percentile, sorted};
use super::{PlotError, RunCurves};

/// A panel with fewer bars has numbers on them.
const NUMBERED_BARS: usize = 10;
const NUMBER: Type = Type::regular(15.5);
const RUN_NUMBER: Type = Type::regular(14.5);
const GROUP_LABEL: Type = Type::bold(16.0);
const NO_SAMPLES: &str = "no samples";
const WIDEST_BAR: f64 = 84.0;
/// Width of a vertical axis with its labels, about: numbers need to know it before the axis is known.
const USUAL_LEFT: f64 = 85.0;

/// One run's bar in a group; without a value it is a gap that says so.
struct Bar {
    value: Option<f64>,
    /// 25th and 75th percentile, drawn as a whisker.
    quartiles: Option<(f64, f64)>,
}

/// Bars that stand together, one a run.
struct Group {
    label: &'static str,
    note: &'static str,
    bars: Vec<Bar>,
}

/// One panel's content.
struct Panel {
    title: &'static str,
    quantity: &'static str,
    unit: &'static str,
    groups: Vec<Group>,
    /// Whether the scale may become logarithmic.
    log_allowed: bool,
}

impl Panel {
    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().flat_map(|group| &group.bars)
    }
}

/// Compares time to first token (left) and time per output token (right): bars of the 50th, 90th and 99th percentile, one
/// a run, with a whisker from the 25th to the 75th percentile on the 50th. The vertical axes are in milliseconds, and
/// logarithmic if the largest bar is more than fifty times the smallest. Returns the PNG file's bytes.
pub fn latency_bars(runs: &[RunCurves], text: &FigureText) -> Result<Vec<u8>, PlotError> {
    let panels = [
        percentile_panel("Time to first token", "TTFT", runs, |run| &run.ttft_ms),
        percentile_panel("Time per output token", "TPOT", runs, |run| &run.tpot_ms),
    ];
    draw_figure(text, Key::Bar, &legend(runs), 470.0, |canvas, body| {
        draw_panels(canvas, body, &panels);
    })
}

/// Compares output throughput (tokens per second), request throughput (completed requests per second) and the share of
/// prompt tokens reused from the prefix cache at first admission, in three panels, one bar a run. Returns the PNG
/// file's bytes.
pub fn throughput_reuse_bars(runs: &[RunCurves], text: &FigureText) -> Result<Vec<u8>, PlotError> {
    let panels = [
        value_panel("Output throughput", "output tokens", "tok/s", runs, |run| run.output_throughput_tok_s),
        value_panel("Request throughput", "completed requests", "req/s", runs, |run| run.request_throughput_rps),
        value_panel("Prefix reuse at first admission", "reused / all prompt tokens", "ratio", runs, |run| {
            run.prefix_reused_ratio
        }),
    ];
    draw_figure(text, Key::Bar, &legend(runs), 450.0, |canvas, body| {
        draw_panels(canvas, body, &panels);
    })
}

/// The runs' names, and how many of their requests completed.
pub(super) fn legend(runs: &[RunCurves]) -> Vec<LegendEntry<'_>> {
    runs.iter()
        .map(|run| LegendEntry {
            label: &run.label,
            note: format!(
                "{} completed, {} failed",
                grouped(run.completed_requests as f64, 0),
                grouped(run.failed_requests as f64, 0)
            ),
        })
        .collect()
}

fn percentile_panel(
    title: &'static str,
    quantity: &'static str,
    runs: &[RunCurves],
    samples: impl Fn(&RunCurves) -> &[f64],
) -> Panel {
    let runs: Vec<Vec<f64>> = runs.iter().map(|run| sorted(samples(run))).collect();
    let groups =
        [(50.0, "p50", "whisker: p25 to p75"), (90.0, "p90", ""), (99.0, "p99", "")].map(|(percent, label, note)| {
            let bars = runs
                .iter()
                .map(|values| Bar {
                    value: percentile(values, percent),
                    quartiles: percentile(values, 25.0).zip(percentile(values, 75.0)).filter(|_| percent == 50.0),
                })
                .collect();
            Group { label, note, bars }
        });
    Panel { title, quantity, unit: "ms", groups: groups.into(), log_allowed: true }
}

fn value_panel(
    title: &'static str,
    quantity: &'static str,
    unit: &'static str,
    runs: &[RunCurves],
    value: impl Fn(&RunCurves) -> f64,
) -> Panel {
    let bars = runs.iter().map(|run| Bar { value: drawable(value(run)), quartiles: None }).collect();
    let group = Group { label: "", note: "", bars };
    Panel { title, quantity, unit, groups: vec![group], log_allowed: false }
}

/// Widths of a panel's bars, in pixels.
struct Spacing {
    group: f64,
    /// From one bar of a group to the next.
    slot: f64,
    bar: f64,
}

impl Spacing {
    fn new(panel: &Panel, width: f64) -> Self {
        let group = width / panel.groups.len() as f64;
        let runs = panel.groups.first().map_or(1, |group| group.bars.len());
        // One bar's breadth is free between groups.
        let slot = (group / (runs as f64 + 0.9)).min(WIDEST_BAR / 0.82);
        Self { group, slot, bar: slot * 0.82 }
    }
}

/// How the numbers on the bars of a figure are set.
#[derive(Clone, Copy)]
struct NumberStyle {
    kind: Type,
    turn: Turn,
    /// Pixels needed above the highest bar.
    room: f64,
}

impl NumberStyle {
    /// The same for all panels: level if the widest number fits above its bar, at need a little smaller; else turned
    /// upwards. None if a panel has too many bars.
    fn new(fonts: &Fonts, panels: &[Panel], panel_width: f64) -> Option<Self> {
        if panels.iter().any(|panel| panel.bars().count() >= NUMBERED_BARS) {
            return None;
        }
        let widest = |panel: &Panel, kind: Type| {
            panel
                .bars()
                .filter_map(|bar| bar.value)
                .map(|value| fonts.width(&bar_label(value), kind))
                .fold(0.0, f64::max)
        };
        for size in [NUMBER.size, 14.0] {
            let kind = Type::regular(size);
            let fits = |panel: &Panel| widest(panel, kind) + 4.0 <= Spacing::new(panel, panel_width - USUAL_LEFT).slot;
            if panels.iter().all(fits) {
                return Some(Self { kind, turn: Turn::Level, room: 26.0 });
            }
        }
        let widest = panels.iter().map(|panel| widest(panel, NUMBER));
        Some(Self { kind: NUMBER, turn: Turn::Upwards, room: widest.fold(0.0, f64::max) + 18.0 })
    }
}

fn draw_panels(canvas: &mut Canvas, body: Area, panels: &[Panel]) {
    let cells = panel::columns(body, panels.len(), 32.0);
    let width = cells.first().map_or(0.0, Area::width);
    let numbers = NumberStyle::new(canvas.fonts(), panels, width);
    for (panel, cell) in panels.iter().zip(cells) {
        draw_panel(canvas, cell, panel, numbers);
    }
}

fn draw_panel(canvas: &mut Canvas, cell: Area, panel: &Panel, numbers: Option<NumberStyle>) {
    let below = if panel.groups.iter().any(|group| !group.label.is_empty()) { 72.0 } else { 32.0 };
    let values = panel.bars().filter_map(|bar| bar.value);
    let Some((low, high)) = extent(values) else {
        panel::draw_no_samples(canvas, cell, below, panel.title);
        return;
    };
    let whiskers = panel.bars().filter_map(|bar| bar.quartiles).flat_map(|(low, high)| [low, high]);
    let (all_low, all_high) = extent(whiskers.chain([low, high])).unwrap_or((low, high));

    let height = panel::plot_area(cell, USUAL_LEFT, 8.0, below).height();
    let headroom = numbers.map_or(12.0, |style| style.room) / height;
    let scale = if panel.log_allowed { Scale::for_extent(low, high) } else { Scale::Linear };
    let axis = match scale {
        // Half the smallest value, so that its bar has some height.
        Scale::Log => {
            let positive_low = if all_low > 0.0 { all_low } else { low };
            Axis::logarithmic(positive_low.min(low / 2.0), all_high, headroom)
        }
        Scale::Linear => Axis::from_zero(all_low, all_high, headroom),
    };

    let left = panel::left_axis_width(canvas.fonts(), &axis);
    let plot = panel::plot_area(cell, left, 8.0, below);
    panel::draw_title(canvas, plot, panel.title);
    panel::draw_left_axis(canvas, plot, &axis, &axis.title(panel.quantity, panel.unit));
    let spacing = Spacing::new(panel, plot.width());
    for (index, group) in panel.groups.iter().enumerate() {
        let center = plot.left + (index as f64 + 0.5) * spacing.group;
        draw_group(canvas, plot, &axis, group, center, &spacing, numbers);
    }
    panel::draw_baseline(canvas, plot);
}

fn draw_group(
    canvas: &mut Canvas,
    plot: Area,
    axis: &Axis,
    group: &Group,
    center: f64,
    spacing: &Spacing,
    numbers: Option<NumberStyle>,
) {
    let y_of = |value: f64| plot.bottom - axis.place(value) * plot.height();
    let zero = y_of(0.0);
    let runs = group.bars.len();
    for (run, bar) in group.bars.iter().enumerate() {
        let x = center + (run as f64 + 0.5 - runs as f64 / 2.0) * spacing.slot;
        if let Some(number) = run_number(run, runs) {
            let anchor = (x, plot.bottom + 15.0);
            canvas.text(&number, RUN_NUMBER, TEXT, anchor, Align::Center, Turn::Level);
        }
        let Some(value) = bar.value else {
            let anchor = (x, plot.bottom - 10.0);
            canvas.text(NO_SAMPLES, panel::REMARK, FAINT_TEXT, anchor, Align::Start, Turn::Upwards);
            continue;
        };
        let y = y_of(value);
        let area =
            Area { left: x - spacing.bar / 2.0, top: y.min(zero), right: x + spacing.bar / 2.0, bottom: y.max(zero) };
        draw_bar(canvas, area, &run_style(run));
        let mut top = area.top;
        if let Some((low, high)) = bar.quartiles {
            draw_whisker(canvas, x, y_of(high), y_of(low), spacing.bar);
            top = top.min(y_of(high));
        }
        if let Some(style) = numbers {
            let label = bar_label(value);
            let (align, lift) = match style.turn {
                Turn::Level => (Align::Center, 5.0 + style.kind.cap_height() / 2.0),
                Turn::Upwards => (Align::Start, 8.0),
            };
            canvas.text(&label, style.kind, TEXT, (x, top - lift), align, style.turn);
        }
    }
    let label_y = plot.bottom + if runs > 1 { 36.0 } else { 20.0 };
    let anchor = (center, label_y);
    canvas.text(group.label, GROUP_LABEL, TEXT, anchor, Align::Center, Turn::Level);
    let anchor = (center, label_y + 20.0);
    canvas.text(group.note, RUN_NUMBER, FAINT_TEXT, anchor, Align::Center, Turn::Level);
}

/// An upright line with feet, dark on a white edge so that it shows on any bar.
fn draw_whisker(canvas: &mut Canvas, x: f64, top: f64, bottom: f64, bar_width: f64) {
    let foot = (bar_width * 0.22).min(9.0);
    for (width, color) in [(4.2, GROUND), (1.8, AXIS)] {
        canvas.line(&[(x, top), (x, bottom)], width, color, &[]);
        for y in [top, bottom] {
            canvas.line(&[(x - foot, y), (x + foot, y)], width, color, &[]);
        }
    }
}
