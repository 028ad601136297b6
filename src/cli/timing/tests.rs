//! What the user writes about timing, and what becomes of it.

use clap::Parser;

use super::*;
use crate::cli::engine::EngineSettings;
use crate::cli::settings::SettingsFile;
use crate::engine::EngineConfig;

const MINIMAX: &str = "minimax-m2.5_b200-sxm_tp4_vllm-0.19.0";

/// A profile of coefficients, told apart by its base.
fn text(base_ms: f64) -> String {
    format!(
        r#"{{"step": {{"base_ms": {base_ms}, "prefill_token_us": 0, "decode_sequence_us": 0, "kv_token_read_ns": 0,
            "chunk_context_ns": 0}}}}"#
    )
}

fn step(base_ms: f64) -> TimingModel {
    TimingModel::Step(StepModel { base_ms, ..StepModel::default() })
}

/// Two folders with profiles, in the order in which they are searched.
struct Folders {
    _place: tempfile::TempDir,
    root: PathBuf,
    searched: [PathBuf; 2],
}

impl Folders {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().to_owned();
        let searched = ["first", "second"].map(|name| root.join(name));
        for (folder, files) in searched.iter().zip([&[("both", 1.0)][..], &[("both", 2.0), ("own-2.5", 3.0)]]) {
            std::fs::create_dir(folder).expect("a folder");
            for (name, base_ms) in files {
                std::fs::write(folder.join(format!("{name}.json")), text(*base_ms)).expect("a file");
            }
        }
        Folders { _place: place, root, searched }
    }

    fn find(&self, name: &str) -> Result<TimingModel, TimingError> {
        TimingSpec::from(name).resolve_among(&self.root, &self.searched)
    }
}

#[test]
fn a_name_is_looked_for_in_the_folders_then_among_those_compiled_in() {
    let folders = Folders::new();
    assert_eq!(folders.find("both").expect("found"), step(1.0), "the first folder wins");
    assert_eq!(folders.find("own-2.5").expect("found"), step(3.0));
    let TimingModel::Profile(table) = folders.find(MINIMAX).expect("compiled in") else { panic!("no table") };
    assert_eq!(table.name(), MINIMAX);
    std::fs::write(folders.searched[1].join(format!("{MINIMAX}.json")), text(4.0)).expect("a file");
    assert_eq!(folders.find(MINIMAX).expect("found"), step(4.0), "a file wins over what is compiled in");
    let nowhere = [PathBuf::from("no-such-folder")];
    assert!(TimingSpec::from(MINIMAX).resolve_among(Path::new(""), &nowhere).is_ok(), "folders may be absent");
}

#[test]
fn a_path_ends_in_json_and_starts_at_the_given_folder() {
    let folders = Folders::new();
    assert_eq!(folders.find("second/both.json").expect("found"), step(2.0));
    let whole = folders.searched[0].join("both.json").display().to_string();
    assert_eq!(folders.find(&whole).expect("found"), step(1.0));
    let error = folders.find("both.json").expect_err("a path, not a name").to_string();
    let place = folders.root.join("both.json").display().to_string();
    assert!(error.starts_with(&place) && error.ends_with("expected a timing profile"), "{error}");
}

#[test]
fn a_name_that_nothing_has_is_answered_with_all_names() {
    let folders = Folders::new();
    let known = "polynomial, fixed, step, both, llama-3.1-8b_rtx-4090_vllm-0.19.0, \
        llama-3.1-8b_rtx-pro-6000_vllm-0.19.0, minimax-m2.5_b200-sxm_tp4_vllm-0.19.0, own-2.5";
    for name in ["minimax", "first/both", "../first/both", ""] {
        let expected = format!("`timing_model` is {name}, expected a path that ends in .json, or one of {known}");
        assert_eq!(folders.find(name).expect_err("unknown").to_string(), expected);
    }
}

#[test]
fn a_file_that_is_no_profile_is_named_with_the_place_in_it() {
    let folders = Folders::new();
    let path = folders.searched[0].join("bad.json");
    std::fs::write(&path, r#"{"prefill": {"batch": [2, 1]}}"#).expect("a file");
    let error = folders.find("bad").expect_err("bad").to_string();
    assert_eq!(
        error,
        format!("{}: `prefill.batch[1]` is 1, expected more than 2, the point before it", path.display())
    );
}

#[test]
fn the_profiles_of_the_repository_are_compiled_in() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .expect("profiles")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".json"))
        .collect();
    files.sort();
    assert_eq!(files, COMPILED_IN.map(|(name, _)| format!("{name}.json")));
    for (name, text) in COMPILED_IN {
        TimingModel::from_profile_json(name, text).unwrap_or_else(|error| panic!("{error}"));
        let file: Value = serde_json::from_str(text).expect("JSON");
        for key in ["model", "gpu", "engine", "source"] {
            assert!(file[key].is_string(), "{name}: no `{key}`");
        }
    }
}

#[test]
fn an_object_names_its_type() {
    let spec = |text: &str| serde_json::from_str::<TimingSpec>(text);
    for (text, expected) in [
        (r#""fixed""#, TimingSpec::Named("fixed".to_owned())),
        (r#"{"type": "polynomial", "note": "of the reference"}"#, TimingSpec::Model(TimingModel::Polynomial)),
        (
            r#"{"type": "fixed", "prefill_ms": 10, "decode_ms": 1}"#,
            TimingSpec::Model(TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 1.0 }),
        ),
        (
            r#"{"type": "step", "base_ms": 7, "prefill_token_us": 0, "decode_sequence_us": 0, "kv_token_read_ns": 0,
                "chunk_context_ns": 0, "note": ["any", "thing"]}"#,
            TimingSpec::Model(step(7.0)),
        ),
        (r#"{"type": "profile", "profile": "both", "note": "ignored"}"#, TimingSpec::Profile("both".to_owned())),
    ] {
        let read = spec(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(read, expected);
        let written = serde_json::to_string(&read).expect("JSON");
        assert_eq!(spec(&written).expect("its own"), expected, "{written}");
    }
    for (text, expected) in [
        ("3", "expected a name, a path, or an object with a `type`"),
        (r#"{"prefill_ms": 1}"#, "expected a `type`: polynomial, fixed, step or profile"),
        (r#"{"type": "roofline"}"#, "`type` is roofline, expected polynomial, fixed, step or profile"),
        (r#"{"type": "fixed", "prefill_ms": 1}"#, "missing field `decode_ms`"),
        (r#"{"type": "fixed", "prefill_ms": 1, "decode_ms": 1, "itl_ms": 1}"#, "unknown field `itl_ms`"),
        (r#"{"type": "profile"}"#, "`profile` is missing, expected a name or a path"),
        (r#"{"type": "profile", "profile": 5}"#, "`profile` is 5, expected a name or a path"),
        (r#"{"type": "profile", "name": "both"}"#, "unknown key `name`, expected `profile`"),
    ] {
        let error = spec(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn an_object_is_resolved_and_checked() {
    let folders = Folders::new();
    let resolve = |text: &str| {
        let spec: TimingSpec = serde_json::from_str(text).expect(text);
        spec.resolve_among(&folders.root, &folders.searched)
    };
    assert_eq!(resolve(r#"{"type": "profile", "profile": "second/both.json"}"#).expect("found"), step(2.0));
    assert_eq!(resolve(r#"{"type": "profile", "profile": "own-2.5"}"#).expect("found"), step(3.0));
    assert_eq!(resolve(r#""polynomial""#).expect("a model"), TimingModel::Polynomial);
    let error = resolve(r#"{"type": "fixed", "prefill_ms": -1, "decode_ms": 1}"#).expect_err("bad").to_string();
    assert_eq!(error, "`prefill_ms` is -1, expected milliseconds from 0 to 86400000");
    let error = resolve(r#""fixed""#).expect_err("no values").to_string();
    assert_eq!(error, "`prefill_ms` is missing, expected milliseconds, as timing_model is fixed");
    let error = resolve(r#"{"type": "profile", "profile": "fixed"}"#).expect_err("no profile").to_string();
    assert!(error.starts_with("`timing_model` is fixed, expected a path"), "{error}");
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    engine: EngineSettings,
}

/// The engine that flags and a file of this ending mean.
fn engine(flags: &[&str], ending: &str, file: &str) -> Result<EngineConfig, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(format!("settings.{ending}"));
    std::fs::write(&path, file).expect("a file");
    let parsed = Flags::try_parse_from([&["program"], flags].concat()).map_err(|error| error.to_string())?;
    let mut settings = SettingsFile::read(Some(&path)).map_err(|error| error.to_string())?;
    let engine = settings.layer(parsed.engine).map_err(|error| error.to_string())?;
    settings.finish().map_err(|error| error.to_string())?;
    engine.resolve().map_err(|error| error.to_string())
}

#[test]
fn flags_and_keys_name_the_same_model() {
    let of_flags = |flags: &[&str]| engine(flags, "toml", "").map(|engine| engine.timing_model);
    let of_file = |ending: &str, file: &str| engine(&[], ending, file).map(|engine| engine.timing_model);
    let fixed = Ok(TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 2.0 });
    assert_eq!(of_flags(&[]), Ok(TimingModel::Polynomial));
    assert_eq!(of_flags(&["--timing", "polynomial"]), Ok(TimingModel::Polynomial));
    for flag in ["--timing", "--timing-model"] {
        assert_eq!(of_flags(&[flag, "fixed", "--prefill-ms", "10", "--decode-ms", "2"]), fixed, "{flag}");
    }
    for key in ["timing", "timing_model", "timing-model"] {
        assert_eq!(of_file("toml", &format!("{key} = 'fixed'\nprefill_ms = 10\ndecode_ms = 2")), fixed, "{key}");
        let nested = format!("{key}: {{type: fixed, prefill_ms: 10, decode_ms: 2, note: why}}");
        assert_eq!(of_file("yaml", &nested), fixed, "{key}");
    }
    assert_eq!(of_file("toml", "[timing_model]\ntype = 'fixed'\nprefill_ms = 10\ndecode_ms = 2"), fixed);
    let table = of_file("yaml", &format!("timing_model: {MINIMAX}")).expect("a profile");
    assert!(matches!(&table, TimingModel::Profile(profile) if profile.name() == MINIMAX), "{table:?}");
    assert_eq!(of_flags(&["--timing", MINIMAX]), Ok(table.clone()));
    assert_eq!(of_file("yaml", &format!("timing_model: {{type: profile, profile: {MINIMAX}}}")), Ok(table));
}

#[test]
fn a_flag_wins_over_the_files_model() {
    let file = "timing_model: {type: fixed, prefill_ms: 10, decode_ms: 2}";
    let model = engine(&["--timing", "polynomial"], "yaml", file).map(|engine| engine.timing_model);
    assert_eq!(model, Ok(TimingModel::Polynomial));
}

#[test]
fn a_line_for_the_step_is_told_by_its_coefficients() {
    let flags = ["--timing", "step", "--base-ms", "7.5", "--prefill-token-us", "20", "--decode-sequence-us", "22"];
    let rest = ["--kv-token-read-ns", "0.25", "--chunk-context-ns", "0.5"];
    let line = StepModel {
        base_ms: 7.5,
        prefill_token_us: 20.0,
        decode_sequence_us: 22.0,
        kv_token_read_ns: 0.25,
        chunk_context_ns: 0.5,
        ..StepModel::default()
    };
    let model = |flags: &[&str], file: &str| engine(flags, "toml", file).map(|engine| engine.timing_model);
    assert_eq!(model(&[&flags[..], &rest].concat(), ""), Ok(TimingModel::Step(line)));
    let saturating = "saturating_ms = 8.25\nsaturating_tokens = 87";
    let expected = StepModel { saturating_ms: 8.25, saturating_tokens: 87.0, ..line };
    assert_eq!(model(&[&flags[..], &rest].concat(), saturating), Ok(TimingModel::Step(expected)));
    let error = model(&flags, "").expect_err("coefficients are missing");
    assert_eq!(error, "`kv_token_read_ns` is missing, expected a number, as timing_model is step");
}

#[test]
fn values_without_their_model_are_refused() {
    for (flags, file, expected) in [
        (&["--timing", "fixed"][..], "", "`prefill_ms` is missing, expected milliseconds, as timing_model is fixed"),
        (&["--prefill-ms", "1"], "", "`prefill_ms` is 1, expected no value unless timing_model is fixed"),
        (
            &["--timing", "step", "--decode-ms", "1"],
            "",
            "`decode_ms` is 1, expected no value unless timing_model is fixed",
        ),
        (&["--timing", MINIMAX], "base_ms: 3", "`base_ms` is 3, expected no value unless timing_model is step"),
        (
            &["--decode-ms", "3"],
            "timing_model: {type: fixed, prefill_ms: 1, decode_ms: 2}",
            "`decode_ms` is 3, expected no value, as timing_model is an object that has its own",
        ),
    ] {
        assert_eq!(engine(flags, "yaml", file).expect_err(expected), expected);
    }
    let error = engine(&[], "yaml", "seed: 1\ntiming_model: {type: roofline}").expect_err("an unknown type");
    assert!(
        error.contains("settings.yaml:2: `timing_model` is {\"type\":\"roofline\"}: `type` is roofline, expected"),
        "{error}"
    );
}

#[test]
fn decode_speedup_is_a_setting_of_its_own() {
    let ratio = |flags: &[&str], file: &str| engine(flags, "toml", file).map(|engine| engine.decode_speedup_ratio);
    assert_eq!(ratio(&[], ""), Ok(1.0));
    assert_eq!(ratio(&["--decode-speedup-ratio", "1.5"], "decode_speedup_ratio = 3"), Ok(1.5));
    let error = "`decode_speedup_ratio` is 0, expected a finite number above 0";
    assert_eq!(ratio(&[], "decode_speedup_ratio = 0"), Err(error.to_owned()));
}
