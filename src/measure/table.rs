//! Reports for people: aligned text, units named, no colour.

use super::latency::LatencySummary;
use super::metric::Metric;
use super::report::Report;

/// A change smaller than this share is called `same`: it is the error of a histogram's percentiles.
const SAME_SHARE: f64 = 0.0005;
const ABSENT: &str = "-";
/// With more workers than these the table gives their range.
const MOST_WORKERS_NAMED: usize = 16;

/// One report as text: what the run was, its counts and rates, and a table of its latencies.
///
/// Failed requests are named in the line directly below that table, further warnings after it.
pub fn summary_table(report: &Report) -> String {
    let mut facts = vec![
        pair("workload", "", text(report.workload.as_deref())),
        pair("router", "", text(report.router_mode.as_deref())),
        pair("arrivals", "", arrivals(report)),
        pair("speedup", "x", number(report.speedup_ratio, 0)),
        pair("seed", "", report.seed.map_or_else(|| ABSENT.to_owned(), |seed| seed.to_string())),
        pair("requests completed", "", format!("{} of {}", report.completed_requests, report.num_requests)),
        pair("requests failed", "", report.failed_requests.to_string()),
        pair("duration", "s", number(Some(report.duration_ms / 1000.0), 3)),
    ];
    facts.extend(RATES.iter().map(|row| pair(row.title, row.unit, number((row.figure)(report), row.decimals))));
    if let Some(unfinished) = report.unfinished_requests.filter(|unfinished| *unfinished > 0) {
        facts.push(pair("requests unfinished", "", unfinished.to_string()));
    }
    let bounds =
        [("reuse, infinite cache", report.infinite_cache_reused_ratio), ("reuse, Belady", report.belady_reused_ratio)];
    facts.extend(
        bounds
            .into_iter()
            .filter(|(_, ratio)| ratio.is_some())
            .map(|(title, ratio)| pair(title, "ratio", number(ratio, 4))),
    );
    let counts = report.requests_per_worker.values();
    if let (Some(least), Some(most)) = (counts.clone().min(), counts.max()) {
        let workers = report.requests_per_worker.len();
        let requests = if workers > MOST_WORKERS_NAMED {
            format!("{least} to {most} on {workers} workers")
        } else {
            let named = report.requests_per_worker.iter().map(|(worker, count)| format!("{worker} {count}"));
            named.collect::<Vec<_>>().join(", ")
        };
        facts.push(pair("requests per worker", "", requests));
    }

    let mut latencies = vec![row(["latency", "unit", "samples", "mean", "p50", "p90", "p99", "max", "std"])];
    for (metric, summary) in &report.metrics {
        let mut cells = vec![metric.title().to_owned(), metric.unit().to_owned(), summary.samples.to_string()];
        let figures = [summary.mean, summary.median, summary.p90, summary.p99, summary.max, summary.std];
        cells.extend(figures.map(|figure| number(Some(figure), 3)));
        latencies.push(cells);
    }

    let mut out = aligned(&facts, 2, 0);
    out.push('\n');
    out.push_str(&aligned(&latencies, 2, usize::MAX));
    let note = report.failure_note();
    out.extend(note.iter().map(|note| format!("note: {note}\n")));
    out.extend(
        report
            .warnings
            .iter()
            .filter(|warning| Some(*warning) != note.as_ref())
            .map(|warning| format!("warning: {warning}\n")),
    );
    out
}

/// Several reports side by side. Each run after the first gets its figure, the difference to the first with sign and
/// per cent, and in words whether that is better; `same` below 0.05 %. A dash is a figure that does not exist.
///
/// Runs with failed requests are named in lines directly below. The table says nothing about chance: that is what
/// [`compare`](super::compare::compare) is for.
pub fn comparison_table(runs: &[(String, Report)]) -> String {
    let Some(((first_label, first), others)) = runs.split_first() else { return String::new() };
    let mut header = row(["metric", "unit", first_label]);
    for (label, _) in others {
        header.extend([label.clone(), format!("vs {first_label}"), "%".to_owned(), String::new()]);
    }
    let mut lines = vec![header];
    for row in COUNTS.iter().chain(&LATENCIES).chain(&RATES) {
        let base = (row.figure)(first);
        let mut cells = vec![row.title.to_owned(), row.unit.to_owned(), number(base, row.decimals)];
        for (_, report) in others {
            let figure = (row.figure)(report);
            cells.push(number(figure, row.decimals));
            cells.extend(difference(base, figure, row));
        }
        lines.push(cells);
    }
    let mut out = aligned(&lines, 2, usize::MAX);
    for (label, report) in runs {
        out.extend(report.failure_note().map(|note| format!("note: {label}: {note}\n")));
    }
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Better {
    Lower,
    Higher,
}

/// One line of the tables.
struct Figure {
    title: &'static str,
    unit: &'static str,
    decimals: usize,
    better: Better,
    figure: fn(&Report) -> Option<f64>,
}

const fn figure(
    title: &'static str,
    unit: &'static str,
    decimals: usize,
    better: Better,
    figure: fn(&Report) -> Option<f64>,
) -> Figure {
    Figure { title, unit, decimals, better, figure }
}

const COUNTS: [Figure; 2] = [
    figure("requests completed", "", 0, Better::Higher, |report| Some(report.completed_requests as f64)),
    figure("requests failed", "", 0, Better::Lower, |report| Some(report.failed_requests as f64)),
];

const LATENCIES: [Figure; 10] = [
    figure("TTFT mean", "ms", 2, Better::Lower, |report| of(report, Metric::Ttft, |summary| summary.mean)),
    figure("TTFT p50", "ms", 2, Better::Lower, |report| of(report, Metric::Ttft, |summary| summary.median)),
    figure("TTFT p90", "ms", 2, Better::Lower, |report| of(report, Metric::Ttft, |summary| summary.p90)),
    figure("TTFT p99", "ms", 2, Better::Lower, |report| of(report, Metric::Ttft, |summary| summary.p99)),
    figure("TPOT mean", "ms", 2, Better::Lower, |report| of(report, Metric::Tpot, |summary| summary.mean)),
    figure("TPOT p50", "ms", 2, Better::Lower, |report| of(report, Metric::Tpot, |summary| summary.median)),
    figure("TPOT p99", "ms", 2, Better::Lower, |report| of(report, Metric::Tpot, |summary| summary.p99)),
    figure("ITL p99", "ms", 2, Better::Lower, |report| of(report, Metric::Itl, |summary| summary.p99)),
    figure("E2E mean", "ms", 2, Better::Lower, |report| of(report, Metric::E2eLatency, |summary| summary.mean)),
    figure("E2E p99", "ms", 2, Better::Lower, |report| of(report, Metric::E2eLatency, |summary| summary.p99)),
];

const RATES: [Figure; 3] = [
    figure("output throughput", "tok/s", 1, Better::Higher, |report| report.output_throughput_tok_s),
    figure("request throughput", "req/s", 3, Better::Higher, |report| report.request_throughput_rps),
    figure("prefix reuse", "ratio", 4, Better::Higher, |report| report.first_admission_prefix_cache_reused_ratio),
];

fn of(report: &Report, metric: Metric, statistic: fn(&LatencySummary) -> f64) -> Option<f64> {
    report.metric(metric).map(statistic)
}

/// The difference to the base, the same in per cent, and the verdict in words.
fn difference(base: Option<f64>, figure: Option<f64>, row: &Figure) -> [String; 3] {
    let (Some(base), Some(figure)) = (base, figure) else { return [(); 3].map(|()| ABSENT.to_owned()) };
    let delta = figure - base;
    if !delta.is_finite() {
        return [(); 3].map(|()| ABSENT.to_owned());
    }
    let verdict = match row.better {
        _ if delta.abs() <= SAME_SHARE * base.abs() => "same",
        Better::Lower if delta < 0.0 => "better",
        Better::Higher if delta > 0.0 => "better",
        _ => "worse",
    };
    let percent = if base == 0.0 { ABSENT.to_owned() } else { format!("{} %", signed(100.0 * delta / base, 1)) };
    [signed(delta, row.decimals), percent, verdict.to_owned()]
}

/// A number with its sign; what rounds to nothing is `+0`, never `-0`.
fn signed(number: f64, decimals: usize) -> String {
    let text = format!("{number:+.decimals$}");
    let nothing = text.chars().all(|character| matches!(character, '-' | '0' | '.'));
    if nothing { text.replacen('-', "+", 1) } else { text }
}

fn arrivals(report: &Report) -> String {
    let mode = text(report.arrival_mode.as_deref());
    report.concurrency.map_or(mode.clone(), |limit| format!("{mode}, at most {limit} in flight"))
}

fn number(figure: Option<f64>, decimals: usize) -> String {
    figure
        .filter(|figure| figure.is_finite())
        .map_or_else(|| ABSENT.to_owned(), |figure| format!("{figure:.decimals$}"))
}

fn text(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or(ABSENT).to_owned()
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn pair(title: &str, unit: &str, value: String) -> Vec<String> {
    vec![title.to_owned(), unit.to_owned(), value]
}

/// Pads the cells of each column to the same width, two spaces between columns. The first `left` columns lean left;
/// after them, `right` columns lean right, and any further ones left again. No spaces at line ends.
fn aligned(rows: &[Vec<String>], left: usize, right: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            let leans_right = column >= left && column - left < right;
            if leans_right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line: Vec<String> = cells.collect();
        out.push_str(line.join("  ").trim_end());
        out.push('\n');
    }
    out
}
