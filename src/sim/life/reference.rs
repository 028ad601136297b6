//! Lives as the reference lived them: the rows of the golden cases, for the writers' tests.

use serde_json::Value;

use super::{Admission, Moment, Pool, RequestLife, RouteStage};
use crate::session::ledger::Outcome;
use crate::time::{SimSpan, SimTime};

/// The golden cases whose rows have everything that a life has: name and text of `expected.json`.
pub(crate) const CASES: [(&str, &str); 5] = [
    ("preemption-lifo", include_str!("../../../tests/golden/preemption-lifo/expected.json")),
    ("disaggregated", include_str!("../../../tests/golden/disaggregated/expected.json")),
    ("router-queue-priority", include_str!("../../../tests/golden/router-queue-priority/expected.json")),
    ("kv-router-2-workers", include_str!("../../../tests/golden/kv-router-2-workers/expected.json")),
    ("sessions-concurrency", include_str!("../../../tests/golden/sessions-concurrency/expected.json")),
];

/// The rows of a case.
pub(crate) fn rows(expected: &str) -> Vec<Value> {
    let case: Value = serde_json::from_str(expected).expect("JSON");
    case["requests"].as_array().expect("a list of rows").clone()
}

fn count(value: &Value) -> u32 {
    u32::try_from(value.as_u64().expect("a count")).expect("a small count")
}

fn time(value: &Value) -> SimTime {
    SimTime::from_ms(value.as_f64().expect("milliseconds"))
}

fn moment(value: Option<&Value>) -> Moment {
    value.filter(|value| !value.is_null()).map(time).into()
}

fn pool(value: &Value) -> Pool {
    [Pool::Agg, Pool::Prefill, Pool::Decode]
        .into_iter()
        .find(|pool| value.as_str() == Some(pool.name()))
        .expect("a pool")
}

/// The life that a row tells; the session is the row. Gaps and times of preemption are not in the row.
pub(crate) fn life(row: &Value) -> RequestLife {
    let number = count(&row["row"]);
    let output_tokens = count(&row["output_length"]);
    let input_tokens = count(&row["input_length"]);
    let mut life = RequestLife::new(
        u64::from(number),
        number,
        count(&row["turn"]),
        time(&row["arrival_ms"]),
        input_tokens,
        output_tokens,
    );
    for stage in row["route"].as_array().expect("a list of stages") {
        let overlap = |key: &str| stage[key].as_u64().map(|blocks| blocks as u32);
        life.routed(RouteStage {
            pool: pool(&stage["pool"]),
            worker: count(&stage["worker"]),
            rank: 0,
            queued: stage["outcome"] == "queued",
            wait: SimSpan::from_ms(stage["wait"].as_f64().expect("milliseconds")),
            selected_overlap_blocks: overlap("sel_overlap"),
            best_overlap_blocks: overlap("best_overlap"),
        });
    }
    life.admissions = row["admissions"]
        .as_array()
        .expect("a list of admissions")
        .iter()
        .map(|admission| Admission {
            at: time(&admission["at_ms"]),
            reused_tokens: count(&admission["reused"]),
            pool: pool(&admission["pool"]),
        })
        .collect();
    life.output_tokens = output_tokens;
    life.first_token = moment(row.get("first_token_ms"));
    life.last_token = moment(row.get("last_token_ms"));
    let ttst = row["time_to_second_token_ms"].as_f64().map(SimSpan::from_ms);
    life.second_token = life.first_token.get().zip(ttst).map(|(first, ttst)| first + ttst).into();
    if row.get("source_held_ms").is_some() {
        let handoff = life.handoff_mut();
        handoff.source_held = moment(row.get("source_held_ms"));
        handoff.destination_reserved = moment(row.get("destination_reserved_ms"));
        handoff.destination_activated = moment(row.get("destination_activated_ms"));
        handoff.source_released = moment(row.get("source_released_ms"));
    }
    let end = life.last_token.get().unwrap_or(life.arrival);
    life.ended(end, Outcome::Completed);
    life
}
