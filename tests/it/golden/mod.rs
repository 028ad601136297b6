//! Golden cases: results measured on the reference, matched within one microsecond and exactly in counts.
//!
//! A case's rows take the way that they take in the product: read, planned into sessions, released by the driver, routed,
//! computed; only the loop around the replay's world is in here, so that it can look at the engines' gauges. Every case
//! runs twice, with engines that tell every token and with engines that take steps together; both must say the same.

use std::io::Read;
use std::path::{Path, PathBuf};

use mockfleet::engine::{EngineRequest, EngineStats};
use mockfleet::ids::{RequestId, WorkerId};
use mockfleet::rng::Seed;
use mockfleet::session::driver::Driver;
use mockfleet::session::workload::Workload;
use mockfleet::sim::ReplayConfig;
use mockfleet::sim::life::{Pool, RequestLife};
use mockfleet::sim::lives::Lives;
use mockfleet::sim::world::{Asking, World, WorldEvent};
use mockfleet::time::SimTime;
use serde_json::Value;

mod case;
mod random;
mod whole;

pub(crate) use case::config;

/// Largest difference of a time, milliseconds.
const TOLERANCE_MS: f64 = 0.001;
/// More ticks than any case has; a loop that stands still is an error, not a hang.
const MAX_TICKS: usize = 200_000;

/// What is to be run, from a case and its trace.
pub(crate) struct Scenario {
    pub name: String,
    pub config: ReplayConfig,
    pub workload: Workload,
}

pub(crate) struct Run {
    /// By row of the trace.
    pub lives: Vec<RequestLife>,
    /// Engine gauges at each step's end and each submission, as the reference publishes them.
    published: Vec<Published>,
}

/// An engine's gauges at a moment.
struct Published {
    at: SimTime,
    pool: Pool,
    engine: WorkerId,
    stats: EngineStats,
    /// A request arrived.
    arrival: bool,
}

impl Scenario {
    /// Runs everything in simulated time.
    pub(crate) fn drive(&self) -> Run {
        let run = self.drive_with(true);
        let together = self.drive_with(false);
        for (one, other) in run.lives.iter().zip(&together.lives) {
            assert_eq!(one, other, "case {}: steps taken together differ", self.name);
        }
        run
    }

    fn drive_with(&self, every_token: bool) -> Run {
        let driver = Driver::new(self.workload.sessions.clone(), self.config.arrival);
        let mut world = World::new(&self.config, driver, every_token).expect("a valid configuration");
        let mut lives = Lives::new(self.workload.items.len());
        let mut published = Vec::new();
        for _ in 0..MAX_TICKS {
            let Some(now) = world.next_deadline() else {
                assert_eq!(world.in_flight(), 0, "case {}: stuck; {}", self.name, world.state());
                let lives = lives.into_vec();
                assert_eq!(lives.len(), self.workload.items.len(), "case {}: requests", self.name);
                return Run { lives, published };
            };
            world.tick(now, &mut |id| self.request(id), &mut |at, event| {
                let told = match &event {
                    WorldEvent::Step { pool, worker, stats, .. } => Some((pool, worker, stats, false)),
                    WorldEvent::Gauges { pool, worker, stats, arrival } => Some((pool, worker, stats, *arrival)),
                    _ => None,
                };
                if let Some((pool, engine, stats, arrival)) = told {
                    published.push(Published { at, pool: *pool, engine: *engine, stats: *stats, arrival });
                }
                lives.note(&self.workload, at, event);
            });
            world.check().unwrap_or_else(|broken| panic!("case {} at {now}: {broken}", self.name));
        }
        panic!("case {}: more than {MAX_TICKS} ticks", self.name)
    }

    fn request(&self, id: RequestId) -> Asking {
        let item = &self.workload.items[id.0 as usize];
        let request = EngineRequest {
            id,
            prompt: item.prompt.tokens().into(),
            max_output_tokens: item.output_tokens,
            output_seed: Seed(7).nth(id.0),
            vocab_tokens: 1 << 20,
            priority: item.priority,
        };
        Asking { request, priority_jump: f64::from(item.priority), strict_priority: item.strict_priority }
    }
}

fn golden_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The lines of a golden file, gzipped or not.
pub(crate) fn golden_lines(file: &str) -> Vec<Value> {
    let path = golden_root().join(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    let read = match file.ends_with(".gz") {
        true => flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text),
        false => (&bytes[..]).read_to_string(&mut text),
    };
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(parse).collect()
}

/// Panics with the place, the key and both values if they differ.
fn same_ms(place: &str, key: &str, ours: Option<f64>, theirs: &Value) {
    let same = match (ours, theirs.as_f64()) {
        (Some(ours), Some(theirs)) => (ours - theirs).abs() <= TOLERANCE_MS,
        (ours, theirs) => ours.is_none() && theirs.is_none(),
    };
    assert!(same, "{place}: `{key}` is {ours:?}, the reference has {theirs}");
}

/// Panics with the place, the key and both values if they differ.
fn same_count(place: &str, key: &str, ours: impl Into<Option<u64>>, theirs: &Value) {
    let ours = ours.into();
    assert!(theirs.as_u64() == ours, "{place}: `{key}` is {ours:?}, the reference has {theirs}");
}
