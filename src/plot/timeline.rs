//! A run's requests over time: each one's time to first token above, the number in flight below, on one time axis.
//!
//! A request is in flight from its sending to its end. Points are drawn in the order of sending, all runs mixed, so that
//! no run hides another one as a whole.

use super::axis::{Axis, Scale, grouped};
use super::canvas::{Align, Area, Canvas, Turn};
use super::figure::{FigureText, Key, LegendEntry, draw_figure, draw_marker, run_number};
use super::palette::{FAINT_TEXT, run_style};
use super::panel::{self, BOTTOM_AXIS_HEIGHT, REMARK};
use super::samples::{drawable, extent};
use super::{PlotError, Timeline};

/// From this time on the axis is in seconds.
const SECONDS_FROM_MS: f64 = 10_000.0;

/// What is drawn of one run; times in milliseconds.
struct RunPoints {
    /// Requests that were sent.
    requests: usize,
    /// Time of sending and time to first token of the requests that have both.
    first_tokens: Vec<(f64, f64)>,
    /// Number in flight from a time on, ascending in time; begins and ends at zero.
    in_flight: Vec<(f64, f64)>,
}

/// Draws each request's time to first token (milliseconds) at the time of its sending, and below it the number of
/// requests in flight, over the time since the start of the run (milliseconds, or seconds for long runs). Returns the PNG
/// file's bytes.
pub fn ttft_over_time(runs: &[Timeline], text: &FigureText) -> Result<Vec<u8>, PlotError> {
    let points: Vec<RunPoints> = runs.iter().map(RunPoints::new).collect();
    let legend: Vec<LegendEntry> = runs
        .iter()
        .zip(&points)
        .map(|(run, points)| LegendEntry {
            label: &run.label,
            note: format!(
                "first token for {} of {} requests",
                grouped(points.first_tokens.len() as f64, 0),
                grouped(points.requests as f64, 0)
            ),
        })
        .collect();
    draw_figure(text, Key::LineThenMarker, &legend, 560.0, |canvas, body| {
        draw_panels(canvas, body, &points);
    })
}

impl RunPoints {
    fn new(run: &Timeline) -> Self {
        let pairs = |values: &[f64]| -> Vec<(f64, f64)> {
            let sent = run.sent_ms.iter().copied().map(drawable);
            let values = values.iter().copied().map(drawable);
            sent.zip(values).filter_map(|(sent, value)| sent.zip(value)).collect()
        };
        let mut first_tokens = pairs(&run.ttft_ms);
        first_tokens.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ended = pairs(&run.end_ms);
        let lives = ended.into_iter().filter(|(sent, end)| end >= sent);
        let mut changes: Vec<(f64, f64)> = lives.flat_map(|(sent, end)| [(sent, 1.0), (end, -1.0)]).collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut count = 0.0;
        let mut in_flight: Vec<(f64, f64)> = Vec::with_capacity(changes.len());
        for (time, change) in changes {
            count += change;
            match in_flight.last_mut() {
                // What happens at one moment is one change.
                Some(last) if last.0 == time => last.1 = count,
                _ => in_flight.push((time, count)),
            }
        }
        Self { requests: run.sent_ms.iter().filter(|sent| sent.is_finite()).count(), first_tokens, in_flight }
    }
}

fn draw_panels(canvas: &mut Canvas, body: Area, runs: &[RunPoints]) {
    let times = runs.iter().flat_map(|run| {
        let sent = run.first_tokens.iter().map(|point| point.0);
        sent.chain(run.in_flight.iter().map(|point| point.0))
    });
    let upper_title = "Time to first token of each request";
    let lower_title = "Requests in flight";
    let lower_height = (body.height() * 0.40).round();
    let upper = Area { bottom: body.bottom - lower_height, ..body };
    let lower = Area { top: upper.bottom, ..body };
    let Some((first, last)) = extent(times) else {
        panel::draw_no_samples(canvas, upper, 14.0, upper_title);
        panel::draw_no_samples(canvas, lower, BOTTOM_AXIS_HEIGHT, lower_title);
        return;
    };
    let (ms_per_unit, unit) = if last.abs().max(first.abs()) >= SECONDS_FROM_MS { (1000.0, "s") } else { (1.0, "ms") };
    let time_axis = time_axis(first / ms_per_unit, last / ms_per_unit);
    let time_title = format!("time since the start of the run ({unit})");

    let ttft_axis = ttft_axis(runs);
    let most = extent(runs.iter().flat_map(|run| run.in_flight.iter().map(|p| p.1)));
    let flight_axis = most.map(|(_, most)| in_flight_axis(most));
    // Both plots keep the wider margin, so that the same moment lies at the same place.
    let left = [&ttft_axis, &flight_axis]
        .into_iter()
        .flatten()
        .map(|axis| panel::left_axis_width(canvas.fonts(), axis))
        .fold(60.0, f64::max);

    let plot = panel::plot_area(upper, left, 16.0, 14.0);
    panel::draw_title(canvas, plot, upper_title);
    match &ttft_axis {
        Some(axis) => {
            panel::draw_left_axis(canvas, plot, axis, &axis.title("TTFT", "ms"));
            panel::draw_bottom_axis(canvas, plot, &time_axis, "", false);
            draw_points(canvas, plot, &time_axis, axis, ms_per_unit, runs);
        }
        None => draw_empty(canvas, plot, &time_axis, ""),
    }

    let plot = panel::plot_area(lower, left, 16.0, BOTTOM_AXIS_HEIGHT);
    panel::draw_title(canvas, plot, lower_title);
    match &flight_axis {
        Some(axis) => {
            panel::draw_left_axis(canvas, plot, axis, "requests");
            panel::draw_bottom_axis(canvas, plot, &time_axis, &time_title, true);
            for (run, points) in runs.iter().enumerate() {
                let line = in_flight_line(plot, &time_axis, axis, ms_per_unit, points);
                canvas.run_line(&line, 1.8, &run_style(run));
            }
        }
        None => draw_empty(canvas, plot, &time_axis, &time_title),
    }
}

/// From zero if the run began near it, as it should.
fn time_axis(first: f64, last: f64) -> Axis {
    let low = if first > 0.0 && first > 0.5 * last { first } else { first.min(0.0) };
    let span = if last > low { last - low } else { last.abs().max(1.0) };
    Axis::linear(low, low + span * 1.01, 10)
}

fn ttft_axis(runs: &[RunPoints]) -> Option<Axis> {
    let values = || runs.iter().flat_map(|run| run.first_tokens.iter().map(|p| p.1));
    let (low, high) = extent(values())?;
    let positive_low = extent(values().filter(|value| *value > 0.0)).map_or(low, |range| range.0);
    Some(match Scale::for_extent(positive_low, high) {
        Scale::Log => Axis::logarithmic(positive_low, high, 0.04),
        Scale::Linear => Axis::from_zero(low, high, 0.05),
    })
}

/// Ticks at whole numbers of requests.
fn in_flight_axis(most: f64) -> Axis {
    let most = most.max(1.0);
    let wanted = if most >= 4.0 { 4 } else { most as u32 };
    Axis::linear(0.0, most * 1.08, wanted)
}

fn draw_points(
    canvas: &mut Canvas,
    plot: Area,
    time_axis: &Axis,
    ttft_axis: &Axis,
    ms_per_unit: f64,
    runs: &[RunPoints],
) {
    let mut points: Vec<(f64, f64, usize)> = runs
        .iter()
        .enumerate()
        .flat_map(|(run, points)| points.first_tokens.iter().map(move |p| (p.0, p.1, run)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
    let radius = match points.len() {
        0..400 => 4.2,
        400..2000 => 3.2,
        2000..8000 => 2.4,
        _ => 1.8,
    };
    for (sent, ttft, run) in points {
        let x = plot.left + time_axis.place(sent / ms_per_unit) * plot.width();
        let y = plot.bottom - ttft_axis.place(ttft) * plot.height();
        draw_marker(canvas, (x, y), radius, &run_style(run));
    }
    let without: Vec<String> = runs
        .iter()
        .enumerate()
        .filter(|(_, points)| points.first_tokens.is_empty())
        .filter_map(|(run, _)| run_number(run, runs.len()))
        .collect();
    if !without.is_empty() {
        let remark = format!("no samples: run {}", without.join(", "));
        let anchor = (plot.right, plot.top - 19.0);
        canvas.text(&remark, REMARK, FAINT_TEXT, anchor, Align::End, Turn::Level);
    }
}

/// The step line of the number in flight; corners that fall on the one before are left out.
fn in_flight_line(
    plot: Area,
    time_axis: &Axis,
    count_axis: &Axis,
    ms_per_unit: f64,
    run: &RunPoints,
) -> Vec<(f64, f64)> {
    let mut line: Vec<(f64, f64)> = Vec::new();
    let mut y = plot.bottom;
    for (time, count) in &run.in_flight {
        let x = plot.left + time_axis.place(time / ms_per_unit) * plot.width();
        let next = plot.bottom - count_axis.place(*count) * plot.height();
        for point in [(x, y), (x, next)] {
            let near = |seen: &(f64, f64)| (seen.0 - point.0).abs() < 0.34 && (seen.1 - point.1).abs() < 0.34;
            if !line.last().is_some_and(near) {
                line.push(point);
            }
        }
        y = next;
    }
    line
}

fn draw_empty(canvas: &mut Canvas, plot: Area, time_axis: &Axis, time_title: &str) {
    panel::draw_bottom_axis(canvas, plot, time_axis, time_title, !time_title.is_empty());
    canvas.text("no samples", REMARK, FAINT_TEXT, plot.center(), Align::Center, Turn::Level);
}
