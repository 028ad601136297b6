//! Request by request: times within a microsecond, workers, admissions and reuse exactly.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use mockfleet::sim::life::RequestLife;

/// Runs of which the reference's requests are kept.
const KEPT: [&str; 3] = ["conv_c32_w8_rr", "conv_c32_w8_b2048_rr", "conv_ts_w8_rr"];
/// Largest difference of a time, nanoseconds; the records are rounded to one.
const TOLERANCE_NS: u64 = 1_000;

/// What both sides tell of a request. Ordered so that requests are paired by their first fields where lines lack numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    input_tokens: u32,
    output_tokens: u32,
    worker: u32,
    arrival_ns: u64,
    first_token_ns: u64,
    last_token_ns: u64,
    /// Moment and tokens reused of each.
    admissions: Vec<(u64, u32)>,
    max_reused_tokens: u32,
    readmissions: usize,
}

/// Compares all requests of the run, if the reference's are kept.
pub fn equal(name: &str, shared: &Path, lives: &[RequestLife]) {
    if !KEPT.contains(&name) {
        return;
    }
    let path = shared.join(format!("oracle/per-request/{name}.per_request.csv.gz"));
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), lives.len(), "{name}: requests");
    let numbered = lines.iter().all(|cells| !cells[0].is_empty());
    let theirs: BTreeMap<u64, Told> = match numbered {
        true => lines.iter().map(|cells| (cells[0].parse::<u64>().expect("a line") - 1, told(cells))).collect(),
        // Without the line of the trace: paired in the order of what they are.
        false => {
            let mut theirs: Vec<Told> = lines.iter().map(|cells| told(cells)).collect();
            theirs.sort();
            let mut rows: Vec<usize> = (0..lives.len()).collect();
            rows.sort_by_key(|row| ours(&lives[*row]));
            rows.into_iter().map(|row| row as u64).zip(theirs).collect()
        }
    };
    let apart: Vec<String> = theirs
        .iter()
        .filter_map(|(row, theirs)| {
            let ours = ours(&lives[*row as usize]);
            (!same(&ours, theirs)).then(|| format!("row {row}: {ours:?}\nreference {theirs:?}"))
        })
        .collect();
    let (first, count) = (apart.first().map_or("", String::as_str), apart.len());
    assert!(apart.is_empty(), "{name}: {count} of {} requests differ, the first:\n{first}", lives.len());
    assert_eq!(theirs.len(), lives.len(), "{name}: requests compared");
}

fn same(ours: &Told, theirs: &Told) -> bool {
    let near = |ours: u64, theirs: u64| ours.abs_diff(theirs) <= TOLERANCE_NS;
    let admitted = |((at, reused), (their_at, their_reused)): (&(u64, u32), &(u64, u32))| {
        near(*at, *their_at) && reused == their_reused
    };
    ours.input_tokens == theirs.input_tokens
        && ours.output_tokens == theirs.output_tokens
        && ours.worker == theirs.worker
        && near(ours.arrival_ns, theirs.arrival_ns)
        && near(ours.first_token_ns, theirs.first_token_ns)
        && near(ours.last_token_ns, theirs.last_token_ns)
        && ours.admissions.len() == theirs.admissions.len()
        && ours.admissions.iter().zip(&theirs.admissions).all(admitted)
        && ours.max_reused_tokens == theirs.max_reused_tokens
        && ours.readmissions == theirs.readmissions
}

fn ours(life: &RequestLife) -> Told {
    let ns = |moment: Option<mockfleet::time::SimTime>| moment.expect("a token").0;
    Told {
        input_tokens: life.input_tokens,
        output_tokens: life.output_tokens,
        worker: life.worker.expect("a worker"),
        arrival_ns: life.arrival.0,
        first_token_ns: ns(life.first_token.get()),
        last_token_ns: ns(life.last_token.get()),
        admissions: life.admissions.iter().map(|admission| (admission.at.0, admission.reused_tokens)).collect(),
        max_reused_tokens: life.max_reused_tokens(),
        readmissions: life.admissions.len() - 1,
    }
}

/// Columns: line of the trace, arrival, input, output, worker, reuse, admissions, first token, last token, readmissions.
fn told(cells: &[&str]) -> Told {
    let count = |text: &str| text.parse::<u32>().unwrap_or_else(|error| panic!("{text}: {error}"));
    let ns = |text: &str| (text.parse::<f64>().unwrap_or_else(|error| panic!("{text}: {error}")) * 1e6).round() as u64;
    let admission = |text: &str| {
        let (at, reused) = text.split_once(':').expect("moment:reused");
        (ns(at), count(reused))
    };
    Told {
        input_tokens: count(cells[2]),
        output_tokens: count(cells[3]),
        worker: count(cells[4]),
        arrival_ns: ns(cells[1]),
        first_token_ns: ns(cells[7]),
        last_token_ns: ns(cells[8]),
        admissions: cells[6].split(';').map(admission).collect(),
        max_reused_tokens: count(cells[5]),
        readmissions: count(cells[9]) as usize,
    }
}
