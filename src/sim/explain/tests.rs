//! Unit tests of the writer of decisions: one JSON object a line, faults of the file told.

use super::*;
use crate::ids::WorkerId;
use crate::router::explain::Pool;
use crate::router::{CostTerms, RouterMode};
use crate::time::{SimSpan, SimTime};

fn explained(row: u64, costs: &[f64]) -> Explained {
    let terms = costs.iter().map(|cost| CostTerms { cost: *cost, ..CostTerms::default() });
    Explained {
        at: SimTime(row * 1_500_000),
        row,
        pool: Pool::Decode,
        worker: WorkerId(0),
        queued: false,
        wait: SimSpan::ZERO,
        ties: 1,
        candidates: (0..).map(WorkerId).zip(terms).collect(),
    }
}

#[test]
fn one_object_a_line_in_the_order_given() {
    let config = RouterConfig { router_mode: RouterMode::Kv, router_temperature: 0.5, ..RouterConfig::default() };
    let mut writer = ExplainWriter::new(Vec::new());
    for row in [2, 0, 1] {
        writer.decision(&explained(row, &[1.0, 2.0, 4.0]), &config, 1).expect("memory");
    }
    assert_eq!(writer.decisions(), 3);
    let text = String::from_utf8(writer.finish().expect("memory")).expect("UTF-8");
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let rows: Vec<_> = lines.iter().map(|line| (line["row"].as_u64(), line["at_ms"].as_f64())).collect();
    assert_eq!(rows, [(Some(2), Some(3.0)), (Some(0), Some(0.0)), (Some(1), Some(1.5))]);
    for line in &lines {
        let candidates = line["candidates"].as_array().expect("a list");
        let sum: f64 = candidates.iter().filter_map(|candidate| candidate["probability"].as_f64()).sum();
        assert!(candidates.len() == 3 && (sum - 1.0).abs() < 1e-12, "{line}");
        assert_eq!((line["pool"].as_str(), line["mode"].as_str()), (Some("decode"), Some("kv")));
    }
    assert!(text.ends_with("}\n"));
}

#[test]
fn ranks_are_named_beside_their_worker() {
    let mut writer = ExplainWriter::new(Vec::new());
    let explained = Explained { worker: WorkerId(3), ..explained(0, &[1.0, 2.0, 4.0, 0.5]) };
    writer.decision(&explained, &RouterConfig::default(), 2).expect("memory");
    let line: serde_json::Value = serde_json::from_slice(&writer.finish().expect("memory")).expect("JSON");
    assert_eq!((&line["worker"], &line["dp_rank"]), (&1.into(), &1.into()));
    let places: Vec<_> =
        (0..4).map(|at| &line["candidates"][at]).map(|one| (&one["worker"], &one["dp_rank"])).collect();
    let (zero, one, none) = (0.into(), 1.into(), serde_json::Value::Null);
    assert_eq!(
        places,
        [(&zero, &none), (&zero, &one), (&one, &none), (&one, &one)],
        "the first rank goes without saying"
    );
}

#[test]
fn a_full_disk_is_told() {
    let mut room = [0_u8; 40];
    let mut writer = ExplainWriter::new(&mut room[..]);
    let fault = writer.decision(&explained(0, &[1.0]), &RouterConfig::default(), 1).expect_err("no room");
    assert_eq!(fault.kind(), io::ErrorKind::WriteZero);
}
