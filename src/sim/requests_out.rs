//! `--requests-out FILE`: every request of a replay, one JSON object a line, in the order of their rows.
//!
//! The fields follow the reference's per-request record, so that two replays can be compared line by line;
//! `docs/requests-out.md` maps them. Times are simulated milliseconds: whole nanoseconds divided once, so that the text
//! is the exact decimal and reading it gives the same nanosecond, for 26 days of simulated time.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use crate::measure::schema::failure_name;
use crate::session::ledger::Outcome;
use crate::sim::life::{Admission, HandoffTimes, Pool, RequestLife, RouteStage};

/// Writes one line a request, sorted by row. `session_name` names a session by its number; `None`: the trace does not.
/// Each line is written with one call; hand over a buffered writer.
///
/// # Errors
/// Those of `out`.
pub fn write_requests_jsonl<'a>(
    lives: &[RequestLife],
    session_name: impl Fn(u32) -> Option<&'a str>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut line = Vec::new();
    let mut write = |life: &RequestLife| {
        line.clear();
        serde_json::to_writer(&mut line, &RequestLine::new(life, session_name(life.session)))?;
        line.push(b'\n');
        out.write_all(&line)
    };
    if lives.is_sorted_by_key(|life| life.row) {
        return lives.iter().try_for_each(write);
    }
    let mut sorted: Vec<&RequestLife> = lives.iter().collect();
    sorted.sort_by_key(|life| life.row);
    sorted.into_iter().try_for_each(&mut write)
}

/// A line; the fields are the keys, in this order.
#[derive(Serialize)]
struct RequestLine<'a> {
    row: u64,
    session_id: Option<&'a str>,
    turn: u32,
    arrival_ms: f64,
    input_tokens: u32,
    output_tokens: u32,
    #[serde(serialize_with = "admissions")]
    admissions: &'a [Admission],
    first_token_ms: Option<f64>,
    last_token_ms: Option<f64>,
    ttst_ms: Option<f64>,
    tpot_ms: Option<f64>,
    worker: Option<u32>,
    prefill_worker: Option<u32>,
    #[serde(serialize_with = "route")]
    route: &'a [RouteStage],
    #[serde(flatten)]
    handoff: Option<HandoffFields>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> RequestLine<'a> {
    fn new(life: &'a RequestLife, session_id: Option<&'a str>) -> Self {
        let (status, error) = match &life.outcome {
            Some(Outcome::Completed) => ("completed", None),
            Some(Outcome::Failed { kind, message }) => (failure_name(*kind), Some(message.as_str())),
            None => ("unfinished", None),
        };
        RequestLine {
            row: life.row,
            session_id,
            turn: life.turn,
            arrival_ms: life.arrival.as_ms(),
            input_tokens: life.input_tokens,
            output_tokens: life.output_tokens,
            admissions: &life.admissions,
            first_token_ms: life.first_token.as_ms(),
            last_token_ms: life.last_token.as_ms(),
            ttst_ms: life.ttst().map(|span| span.as_ms()),
            tpot_ms: life.tpot_ms(),
            worker: life.worker,
            prefill_worker: life.prefill_worker,
            route: &life.route,
            handoff: life.disaggregated().then(|| life.handoff().copied().unwrap_or_default().into()),
            status,
            error,
        }
    }
}

#[derive(Serialize)]
struct AdmissionFields {
    at_ms: f64,
    reused_tokens: u32,
    pool: Pool,
}

fn admissions<S: Serializer>(admissions: &[Admission], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(admissions.iter().map(|admission| AdmissionFields {
        at_ms: admission.at.as_ms(),
        reused_tokens: admission.reused_tokens,
        pool: admission.pool,
    }))
}

#[derive(Serialize)]
struct RouteFields {
    pool: Pool,
    worker: u32,
    #[serde(skip_serializing_if = "is_first")]
    dp_rank: u16,
    outcome: &'static str,
    wait_ms: f64,
    selected_overlap_blocks: Option<u32>,
    best_overlap_blocks: Option<u32>,
}

fn is_first(rank: &u16) -> bool {
    *rank == 0
}

fn route<S: Serializer>(route: &[RouteStage], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(route.iter().map(|stage| RouteFields {
        pool: stage.pool,
        worker: stage.worker,
        dp_rank: stage.rank,
        outcome: if stage.queued { "queued" } else { "immediate" },
        wait_ms: stage.wait.as_ms(),
        selected_overlap_blocks: stage.selected_overlap_blocks,
        best_overlap_blocks: stage.best_overlap_blocks,
    }))
}

#[derive(Serialize)]
struct HandoffFields {
    source_held_ms: Option<f64>,
    destination_reserved_ms: Option<f64>,
    destination_activated_ms: Option<f64>,
    source_released_ms: Option<f64>,
}

impl From<HandoffTimes> for HandoffFields {
    fn from(times: HandoffTimes) -> Self {
        HandoffFields {
            source_held_ms: times.source_held.as_ms(),
            destination_reserved_ms: times.destination_reserved.as_ms(),
            destination_activated_ms: times.destination_activated.as_ms(),
            source_released_ms: times.source_released.as_ms(),
        }
    }
}

#[cfg(test)]
mod tests;
