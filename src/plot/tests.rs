//! What the figures promise: determinism, ink where it belongs, no failure on any numbers.

use std::fs;

use super::axis::{Axis, Scale, bar_label};
use super::font::{Fonts, Type};
use super::palette::run_style;
use super::samples::{percentile, sorted};
use super::*;

type Figure = fn(&[RunCurves], &FigureText) -> Result<Vec<u8>, PlotError>;
const COMPARISONS: [(&str, Figure); 3] =
    [("latency_bars", latency_bars), ("latency_cdf", latency_cdf), ("throughput_reuse_bars", throughput_reuse_bars)];

fn text() -> FigureText {
    FigureText { title: "Latency by router".to_owned(), parameters: "4 workers, block size 16, seed 17".to_owned() }
}

/// `count` samples spread evenly over the decades from `low` to `high`.
fn spread(count: usize, low: f64, high: f64) -> Vec<f64> {
    (0..count).map(|i| low * (high / low).powf((i * 7 % count) as f64 / count as f64)).collect()
}

fn curves(index: usize) -> RunCurves {
    let factor = 1.0 + index as f64 / 4.0;
    RunCurves {
        label: format!("run {index}"),
        ttft_ms: spread(100, 50.0 * factor, 3000.0 * factor),
        tpot_ms: spread(100, 5.0 * factor, 40.0 * factor),
        e2e_latency_ms: spread(100, 500.0, 9000.0),
        output_throughput_tok_s: 2000.0 * factor,
        request_throughput_rps: 10.0 / factor,
        prefix_reused_ratio: 0.4,
        completed_requests: 100,
        failed_requests: index as u64,
    }
}

fn timeline(index: usize) -> Timeline {
    let sent_ms: Vec<f64> = (0..60).map(|i| i as f64 * 150.0).collect();
    let ttft_ms = spread(60, 50.0, 800.0 * (index + 1) as f64);
    let end_ms = sent_ms.iter().zip(&ttft_ms).map(|(s, t)| s + 3.0 * t).collect();
    Timeline { label: format!("run {index}"), sent_ms, ttft_ms, end_ms }
}

/// Width and height of a PNG, and its pixels.
fn decode(png: &[u8]) -> (usize, usize, Vec<[u8; 3]>) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    let pixels = bytes.chunks_exact(3).map(|p| [p[0], p[1], p[2]]).collect();
    (info.width as usize, info.height as usize, pixels)
}

/// How many pixels have exactly the colour of the run at `index`.
fn pixels_of_run(png: &[u8], index: usize) -> usize {
    let (red, green, blue) = run_style(index).color.rgb;
    let (_, _, pixels) = decode(png);
    pixels.iter().filter(|p| **p == [red, green, blue]).count()
}

#[test]
fn the_same_runs_give_the_same_bytes() {
    let runs = [curves(0), curves(1)];
    for (name, figure) in COMPARISONS {
        let first = figure(&runs, &text()).unwrap();
        assert!(first == figure(&runs, &text()).unwrap(), "{name} differs");
    }
    let runs = [timeline(0), timeline(1)];
    let first = ttft_over_time(&runs, &text()).unwrap();
    assert!(first == ttft_over_time(&runs, &text()).unwrap());
}

#[test]
fn every_run_leaves_ink_of_its_colour_in_every_figure() {
    let runs: Vec<RunCurves> = (0..3).map(curves).collect();
    for (name, figure) in COMPARISONS {
        let png = figure(&runs, &text()).unwrap();
        let (width, height, _) = decode(&png);
        assert_eq!((width, height), (1400, 700), "{name}");
        for run in 0..3 {
            // The legend's key alone has fewer: at most 46 × 18.
            assert!(pixels_of_run(&png, run) > 900, "{name}: run {run} is missing");
        }
        assert_eq!(pixels_of_run(&png, 5), 0, "{name}: a sixth run from nowhere");
    }
    let png = ttft_over_time(&[timeline(0), timeline(1), timeline(2)], &text()).unwrap();
    for run in 0..3 {
        assert!(pixels_of_run(&png, run) > 900, "timeline: run {run} is missing");
    }
}

#[test]
fn margins_stay_white_and_nothing_is_clipped() {
    let long = "router=kv_overlap,temperature=0.7/block-size=16 on a very long trace name ".repeat(4);
    let runs: Vec<RunCurves> = (0..8).map(|i| RunCurves { label: format!("{long}{i}"), ..curves(i) }).collect();
    let lines: Vec<Timeline> = (0..8).map(|i| Timeline { label: format!("{long}{i}"), ..timeline(i) }).collect();
    let wordy = FigureText { title: long.clone(), parameters: long.repeat(5) };
    let mut figures: Vec<Vec<u8>> = Vec::new();
    for (_, figure) in COMPARISONS {
        figures.push(figure(&runs, &wordy).unwrap());
    }
    figures.push(ttft_over_time(&lines, &wordy).unwrap());
    for png in figures {
        let (width, height, pixels) = decode(&png);
        for (index, pixel) in pixels.iter().enumerate() {
            let (x, y) = (index % width, index / width);
            let margin = x < 8 || y < 8 || x >= width - 8 || y >= height - 4;
            assert!(!margin || *pixel == [255; 3], "ink at {x}, {y}");
        }
    }
}

#[test]
fn a_run_without_samples_is_a_gap_not_an_error() {
    let mut runs = [curves(0), curves(1), curves(2)];
    runs[1].ttft_ms.clear();
    runs[1].tpot_ms = vec![f64::NAN, f64::INFINITY];
    runs[1].prefix_reused_ratio = f64::NAN;
    let patch_only = 46 * 18;
    let png = latency_bars(&runs, &text()).unwrap();
    assert!(pixels_of_run(&png, 1) <= patch_only);
    assert!(pixels_of_run(&png, 2) > patch_only);

    let nothing = vec![RunCurves::default(); 2];
    for (name, figure) in COMPARISONS {
        assert!(figure(&nothing, &text()).is_ok(), "{name}");
    }
    assert!(ttft_over_time(&[Timeline::default()], &text()).is_ok());
}

#[test]
fn no_runs_is_an_error() {
    for (name, figure) in COMPARISONS {
        let drawn = figure(&[], &text());
        assert!(matches!(drawn, Err(PlotError::NoRuns)), "{name}");
    }
    assert!(matches!(ttft_over_time(&[], &text()), Err(PlotError::NoRuns)));
}

#[test]
fn wild_numbers_never_panic() {
    let wild = [
        vec![-5.0, 0.0],
        vec![f64::MIN, f64::MAX],
        vec![5e-324, f64::MIN_POSITIVE, 1e300],
        vec![f64::NAN, f64::NEG_INFINITY, 2.0],
        vec![1e17, 1e17 + 16.0],
    ];
    for samples in &wild {
        let value = samples[samples.len() - 1];
        let run = RunCurves {
            label: "\u{0}\n\t漢字 \u{1F600}".to_owned(),
            ttft_ms: samples.clone(),
            tpot_ms: vec![value],
            output_throughput_tok_s: value,
            request_throughput_rps: samples[0],
            prefix_reused_ratio: -value,
            ..RunCurves::default()
        };
        for (name, figure) in COMPARISONS {
            let drawn = figure(&[run.clone(), curves(1)], &FigureText::default());
            assert!(drawn.is_ok(), "{name} of {samples:?}");
        }
        let line = Timeline {
            label: String::new(),
            sent_ms: samples.clone(),
            ttft_ms: samples.iter().rev().copied().collect(),
            end_ms: samples.iter().map(|t| t * 2.0).chain([1.0]).collect(),
        };
        let drawn = ttft_over_time(&[line], &FigureText::default());
        assert!(drawn.is_ok(), "timeline of {samples:?}");
    }
}

#[test]
fn axes_of_wild_extents_have_few_ticks_at_finite_places() {
    let values =
        [-1e18, -3.0, 0.0, 5e-324, f64::MIN_POSITIVE, 1e-9, 0.1, 1.0, 1.0 + f64::EPSILON, 7.0, 1e6, 1e17, 1e18];
    for (index, low) in values.into_iter().enumerate() {
        for high in values.into_iter().skip(index) {
            let mut axes = vec![Axis::from_zero(low, high, 0.1), Axis::for_curve(Scale::Linear, low, high)];
            if low > 0.0 {
                axes.push(Axis::logarithmic(low, high, 0.1));
            }
            for axis in axes {
                assert!(axis.ticks.len() <= 20, "{low} to {high}: {axis:?}");
                let ticks = axis.ticks.iter().map(|tick| tick.place);
                for place in ticks.chain([axis.place(low), axis.place(high)]) {
                    assert!((0.0..=1.0).contains(&place), "{low} to {high}: {axis:?}");
                }
            }
        }
    }
}

#[test]
fn more_runs_than_colours_still_draw() {
    let runs: Vec<RunCurves> = (0..17).map(curves).collect();
    for (name, figure) in COMPARISONS {
        assert!(figure(&runs, &text()).is_ok(), "{name}");
    }
}

#[test]
fn percentiles_are_elements_at_the_rounded_index() {
    let values = sorted(&[40.0, 10.0, f64::NAN, 30.0, 20.0]);
    assert_eq!(values, [10.0, 20.0, 30.0, 40.0]);
    // (4 − 1) · 0.5 = 1.5 rounds to 2; (4 − 1) · 0.25 = 0.75 rounds to 1.
    assert_eq!(percentile(&values, 50.0), Some(30.0));
    assert_eq!(percentile(&values, 25.0), Some(20.0));
    assert_eq!(percentile(&values, 0.0), Some(10.0));
    assert_eq!(percentile(&values, 99.0), Some(40.0));
    assert_eq!(percentile(&[], 50.0), None);
}

#[test]
fn scales_and_ticks_are_round() {
    assert_eq!(Scale::for_extent(10.0, 500.0), Scale::Linear);
    assert_eq!(Scale::for_extent(10.0, 501.0), Scale::Log);
    assert_eq!(Scale::for_extent(0.0, 501.0), Scale::Linear);

    let labels = |axis: &Axis| -> Vec<String> { axis.ticks.iter().map(|tick| tick.label.clone()).collect() };
    let linear = Axis::linear(0.0, 2500.0, 5);
    assert_eq!(labels(&linear), ["0", "500", "1,000", "1,500", "2,000", "2,500"]);
    let log = Axis::logarithmic(3.0, 900.0, 0.0);
    assert_eq!(labels(&log), ["2", "5", "10", "20", "50", "100", "200", "500"]);
    assert_eq!(log.title("TTFT", "ms"), "TTFT (ms, log scale)");
    assert_eq!(linear.title("TTFT", "ms"), "TTFT (ms)");
    for tick in &log.ticks {
        assert!((0.0..=1.0).contains(&tick.place));
    }
}

#[test]
fn bar_labels_have_three_significant_digits() {
    let cases = [
        (0.0, "0"),
        (0.0123, "0.0123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234.0, "1,234"),
        (-1234.0, "-1,234"),
        (25e6, "2.5e7"),
        (0.000_02, "2e-5"),
    ];
    for (value, label) in cases {
        assert_eq!(bar_label(value), label);
    }
}

#[test]
fn wrapped_lines_fit_and_lose_nothing_unless_cut() {
    let fonts = Fonts::embedded().unwrap();
    let kind = Type::regular(15.0);
    let words = "a few words and one_very_long_word_without_any_space_that_must_break somewhere";
    let lines = fonts.wrap(words, kind, 160.0, 20);
    for line in &lines {
        assert!(fonts.width(line, kind) <= 160.0, "{line}");
    }
    let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    assert_eq!(letters(&lines.concat()), letters(words));

    let cut = fonts.wrap(words, kind, 160.0, 2);
    assert_eq!(cut.len(), 2);
    assert!(cut[1].ends_with("..."));
    assert!(fonts.width(&cut[1], kind) <= 160.0);
}

#[test]
fn a_written_figure_is_whole_and_leaves_no_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figure.png");
    write_png(&path, b"first").unwrap();
    write_png(&path, b"second").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let missing = folder.path().join("no such folder").join("figure.png");
    let error = write_png(&missing, b"x").unwrap_err();
    assert!(error.to_string().contains("cannot write the figure"), "{error}");
}
