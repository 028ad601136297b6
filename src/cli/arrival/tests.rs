//! Tests of the arrival flags: what they mean, and which exclude which.

use clap::Parser;

use super::{ArrivalPattern, ArrivalSettings};
use crate::cli::settings::SettingsFile;
use crate::session::plan::ArrivalMode;

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    arrival: ArrivalSettings,
}

fn flags(arguments: &[&str]) -> ArrivalSettings {
    Flags::try_parse_from([&["program"], arguments].concat()).unwrap().arrival
}

/// What flags over a file mean; the error is its text.
fn mode(arguments: &[&str], file: &str) -> Result<ArrivalMode, String> {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("settings.toml");
    std::fs::write(&path, file).unwrap();
    let mut file = SettingsFile::read(Some(&path)).unwrap();
    let flags = flags(arguments);
    flags.exclude_from(&mut file);
    let settings = file.layer(flags).map_err(|error| error.to_string())?;
    file.finish().map_err(|error| error.to_string())?;
    settings.resolve(7).map_err(|failure| failure.message)
}

#[test]
fn each_way_has_its_mode() {
    let trace_pace = ArrivalMode::Timestamps { arrival_speedup_ratio: 1.0 };
    assert_eq!(mode(&[], ""), Ok(trace_pace));
    assert_eq!(mode(&["--concurrency", "3"], ""), Ok(ArrivalMode::Concurrency { concurrency: 3 }));
    let poisson = ArrivalMode::Poisson { request_rate: 2.5, seed: 7 };
    assert_eq!(mode(&["--request-rate", "2.5"], ""), Ok(poisson));
    assert_eq!(mode(&["--request-rate", "2.5", "--arrival-pattern", "poisson"], ""), Ok(poisson));
    assert_eq!(mode(&[], "request_rate = 2.5"), Ok(poisson));
    let constant = ["--request-rate", "2", "--arrival-pattern", "constant"];
    assert_eq!(mode(&constant, ""), Ok(ArrivalMode::Constant { request_rate: 2.0 }));
    let gamma = |smoothness| Ok(ArrivalMode::Gamma { request_rate: 2.0, smoothness, seed: 7 });
    assert_eq!(mode(&[], "request_rate = 2\narrival_pattern = \"gamma\""), gamma(1.0));
    assert_eq!(mode(&["--arrival-smoothness", "4"], "request_rate = 2\narrival-pattern = \"gamma\""), gamma(4.0));
}

#[test]
fn a_flag_takes_the_place_of_the_keys_of_other_ways() {
    let rate = "request_rate = 2\narrival_pattern = \"gamma\"\narrival_smoothness = 3\n";
    let closed = Ok(ArrivalMode::Concurrency { concurrency: 3 });
    assert_eq!(mode(&["--concurrency", "3"], rate), closed);
    assert_eq!(mode(&["--concurrency", "3"], "arrival_speedup_ratio = 2"), closed);
    let timed = Ok(ArrivalMode::Timestamps { arrival_speedup_ratio: 4.0 });
    assert_eq!(mode(&["--arrival-speedup-ratio", "4"], rate), timed);
    assert_eq!(mode(&["--arrival-speedup-ratio", "4"], "concurrency = 2"), timed);
    let poisson = Ok(ArrivalMode::Poisson { request_rate: 9.0, seed: 7 });
    assert_eq!(mode(&["--request-rate", "9"], "concurrency = 2"), poisson);
    assert_eq!(mode(&["--request-rate", "9"], "arrival_speedup_ratio = 2"), poisson);
    let gamma = Ok(ArrivalMode::Gamma { request_rate: 9.0, smoothness: 3.0, seed: 7 });
    assert_eq!(mode(&["--request-rate", "9"], rate), gamma, "keys of the same way stay");
}

#[test]
fn flags_of_two_ways_exclude_each_other() {
    let ways = [
        &["--concurrency=1"][..],
        &["--arrival-speedup-ratio=1"],
        &["--request-rate=1", "--arrival-pattern=gamma", "--arrival-smoothness=1"],
    ];
    for (index, way) in ways.iter().enumerate() {
        for (one, other) in ways[index + 1..]
            .iter()
            .flat_map(|other| other.iter())
            .flat_map(|other| way.iter().map(move |one| (one, other)))
        {
            let error = Flags::try_parse_from(["program", one, other]).expect_err("a conflict").to_string();
            assert!(error.contains("cannot be used with"), "{one} {other}: {error}");
        }
    }
}

#[test]
fn what_contradicts_or_is_out_of_range_is_named() {
    for (file, start) in [
        ("concurrency = 2\narrival_speedup_ratio = 1", "`concurrency` and `arrival_speedup_ratio` are both set"),
        ("concurrency = 2\nrequest_rate = 1", "`concurrency` and `request_rate` are both set"),
        ("arrival_speedup_ratio = 2\narrival_pattern = \"gamma\"", "`arrival_speedup_ratio` and `arrival_pattern` are"),
        ("arrival_pattern = \"gamma\"", "`arrival_pattern` is set without `request_rate`"),
        ("arrival_smoothness = 1", "`arrival_smoothness` is set without `request_rate`"),
        ("request_rate = 1\narrival_smoothness = 1", "`arrival_smoothness` belongs to the pattern gamma\n  hint: "),
        ("concurrency = 0", "`concurrency` is 0, expected a whole number of at least 1"),
        ("arrival_speedup_ratio = 0", "`arrival_speedup_ratio` is 0, expected a number above 0"),
        ("request_rate = 0", "`request_rate` is 0, expected requests per simulated second, a number above 0"),
        ("request_rate = -1", "`request_rate` is -1, "),
        (
            "request_rate = 1\narrival_pattern = \"gamma\"\narrival_smoothness = 0",
            "`arrival_smoothness` is 0, expected a number above 0, from 0.001 to 1000000",
        ),
    ] {
        let error = mode(&[], file).expect_err(file);
        assert!(error.starts_with(start), "{file}: {error}");
    }
    let error = mode(&[], "\nrequest_rate = \"fast\"").unwrap_err();
    assert!(
        error
            .ends_with("settings.toml:2: `request_rate` is \"fast\": invalid type: string \"fast\", expected a number")
    );
    let error = mode(&[], "arrival_pattern = \"even\"").unwrap_err();
    assert!(error.contains("`arrival_pattern` is \"even\": unknown variant"), "{error}");
    assert_eq!(flags(&["--arrival-pattern", "constant"]).arrival_pattern, Some(ArrivalPattern::Constant));
}
