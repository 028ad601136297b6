//! Fleets as files and flags describe them.

use std::path::Path;

use clap::Parser;

use super::*;
use crate::engine::{PreemptionMode, TimingModel};

#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
struct Line {
    #[command(flatten)]
    fleet: FleetSettings,
    #[command(flatten)]
    engine: EngineSettings,
    #[command(flatten)]
    replay: ReplayEngineSettings,
}

/// The fleet of a file `case.json` and a command line.
fn fleet(file: &str, flags: &str) -> Result<FleetConfig, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("case.json");
    std::fs::write(&path, file).expect("a temporary file");
    let line =
        Line::try_parse_from(std::iter::once("replay").chain(flags.split_whitespace())).map_err(|e| e.to_string())?;
    let told = |error: Failure| error.message.replace(&format!("{}/", folder.path().display()), "");
    let mut file = SettingsFile::read(Some(&path)).map_err(|error| error.to_string())?;
    let blocks = EngineBlocks::take(&mut file);
    line.fleet.exclude_from(&mut file);
    let fleet = file.layer(line.fleet).map_err(|error| error.to_string())?;
    let flags = (line.engine, line.replay);
    let plain = (file.layer(flags.0.clone()).expect("engine keys"), file.layer(flags.1.clone()).expect("engine keys"));
    file.finish().map_err(|error| error.to_string())?;
    fleet.resolve(&blocks, &EngineLayers { plain, flags }).map_err(told)
}

fn aggregated(file: &str, flags: &str) -> Vec<EngineConfig> {
    match fleet(file, flags) {
        Ok(FleetConfig::Aggregated(engines)) => engines,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_is_above_the_plain_keys_and_flags_are_above_both() {
    let file = r#"{"num_workers": 2, "num_gpu_blocks": 10, "max_num_seqs": 5, "block_size": 4,
        "engine": {"num_gpu_blocks": 20, "max_num_seqs": null, "preemption_mode": "fifo",
                   "timing_model": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0}}}"#;
    let engines = aggregated(file, "--block-size 8 --speedup-ratio 2");
    assert_eq!(engines.len(), 2);
    let engine = &engines[1];
    assert_eq!((engine.num_gpu_blocks, engine.max_num_seqs, engine.block_size), (20, None, 8));
    assert_eq!((engine.preemption_mode, engine.speedup_ratio), (PreemptionMode::Fifo, 2.0));
    assert_eq!(engine.timing_model, TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 1.0 });
    assert_eq!(aggregated(file, "--timing polynomial")[0].timing_model, TimingModel::Polynomial);
    assert_eq!(aggregated("{}", "").len(), 1);
}

#[test]
fn values_of_a_plain_timing_model_may_come_from_both_places() {
    let file = r#"{"timing_model": "fixed", "prefill_ms": 10, "decode_ms": 1}"#;
    let engines = aggregated(file, "--prefill-ms 5");
    assert_eq!(engines[0].timing_model, TimingModel::Fixed { prefill_ms: 5.0, decode_ms: 1.0 });
}

#[test]
fn a_list_has_a_block_for_each_worker() {
    let file = r#"{"engine": [{"num_gpu_blocks": 10}, {"num-gpu-blocks": 20}, {}]}"#;
    let blocks: Vec<u32> = aggregated(file, "").iter().map(|engine| engine.num_gpu_blocks).collect();
    assert_eq!(blocks, [10, 20, 16_384]);
    let error = fleet(file, "--num-workers 2").expect_err("two and three");
    assert_eq!(error, "case.json: `engine`: it is a list of 3 workers, and their number is given as 2");
}

#[test]
fn separate_pools_have_their_own_blocks() {
    let file = r#"{"num_prefill_workers": 2, "num_decode_workers": 3, "kv_transfer_bandwidth": 5,
        "prefill_engine": {"worker_type": "prefill", "num_gpu_blocks": 7}, "decode_engine": {"num_gpu_blocks": 9}}"#;
    let Ok(FleetConfig::Disaggregated { prefill, decode }) = fleet(file, "") else { panic!("two pools") };
    assert_eq!((prefill.len(), prefill[1].num_gpu_blocks, prefill[1].worker_type), (2, 7, WorkerType::Prefill));
    assert_eq!((decode.len(), decode[2].num_gpu_blocks, decode[2].worker_type), (3, 9, WorkerType::Decode));
    assert_eq!((prefill[0].kv_transfer_bandwidth, decode[0].free_decode_recompute), (Some(5.0), true));
    // A flag for the other kind of fleet takes the place of the file's.
    assert_eq!(aggregated(file, "--num-workers 4").len(), 4);
    let Ok(FleetConfig::Disaggregated { prefill, decode }) =
        fleet("{}", "--num-prefill-workers 1 --num-decode-workers 2")
    else {
        panic!("two pools")
    };
    assert_eq!((prefill.len(), decode.len()), (1, 2));
}

#[test]
fn what_cannot_be_is_named() {
    for (file, flags, expected) in [
        (
            r#"{"engine": {"num_gpu_block": 1}}"#,
            "",
            "case.json: `engine`: unknown key `num_gpu_block`, expected one of ",
        ),
        (r#"{"engine": [{}, {"num_gpu_blocks": "x"}]}"#, "", "case.json: `engine[1]`: `num_gpu_blocks` is \"x\": "),
        (
            r#"{"engine": {"num_gpu_blocks": 0}}"#,
            "",
            "case.json: `engine`: `num_gpu_blocks` is 0, expected a whole number of at least 1",
        ),
        (r#"{"engine": 3}"#, "", "case.json: `engine`: it is 3, expected engine keys with values"),
        (
            r#"{"engine": {"worker_type": "decode"}}"#,
            "",
            "case.json: `engine`: `worker_type` is decode, expected that ",
        ),
        (r#"{"engine": {"timing_model": {"type": "fixed"}}}"#, "", "case.json: `engine`: `timing_model` is "),
        ("{}", "--num-prefill-workers 1", "`num_decode_workers` is missing, expected "),
        (
            "{}",
            "--num-prefill-workers 0 --num-decode-workers 1",
            "`num_prefill_workers` is 0, expected a whole number from 1",
        ),
        ("{}", "--dp-size 0", "`dp_size` is 0, expected a whole number of at least 1"),
        ("{}", "--aic-nextn 6", "`aic_nextn` is 6, expected a whole number from 1 to 5"),
        ("{}", "--num-workers 1 --num-decode-workers 1", "error: the argument '--num-workers <N>' cannot be used with"),
        (
            r#"{"num_workers": 1, "num_prefill_workers": 1}"#,
            "",
            "`num_workers` and `num_prefill_workers` or `num_decode_workers` are set, expected the one or the others",
        ),
    ] {
        let error = fleet(file, flags).expect_err(file);
        assert!(error.starts_with(expected), "{file} {flags}: {error}");
    }
    let profile = Path::new("nowhere.json");
    let error = fleet(&format!(r#"{{"engine": {{"timing_model": {profile:?}}}}}"#), "").expect_err("no file");
    assert!(error.contains("nowhere.json") && error.contains("expected a timing profile"), "{error}");
}
