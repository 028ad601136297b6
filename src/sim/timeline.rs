//! `--timeline FILE`: a replay as a picture to scroll through, for the Perfetto UI.
//!
//! The file is a Chrome trace, one JSON object. The process "workers" has a track a worker, on which each step is a
//! span, and three counters a worker; the process "requests" has a track a request, on which each phase is a span.
//! Times are microseconds, written as exact decimals of whole nanoseconds. The same calls give the same bytes: nothing
//! is sorted, nothing is kept but the last state of each worker.
//!
//! What Perfetto asks of a file, and what this one keeps to: spans of a track may touch or nest but not overlap (most
//! releases leave overlapping ones out without a word); a counter belongs to a process and is told apart by its name; a
//! track's number is unique in the file and not that of its process. `docs/timeline.md` says how to read the picture.

use std::io::{self, Write};

use crate::measure::schema::failure_name;
use crate::session::ledger::Outcome;
use crate::sim::life::RequestLife;
use crate::time::SimTime;

mod event;
mod phases;

use event::Event;

/// How many requests get a track, unless told otherwise. The UI shows thousands of tracks well, from release 55 on.
pub const DEFAULT_REQUEST_TRACKS: u64 = 2000;

/// Numbers of processes; a Linux kernel would use 1 and 2 itself.
const WORKERS_PID: u32 = 10;
const REQUESTS_PID: u32 = 20;
/// Numbers of tracks: workers' and requests' do not meet, nor do they meet those of processes.
const FIRST_WORKER_TID: u64 = 100_000;
const FIRST_REQUEST_TID: u64 = 1_000_000;

/// A step of a worker, or some identical decode steps in a row as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSpan {
    /// The worker, by its place among the names.
    pub worker: u32,
    /// When the step started, the first one if there are several.
    pub started: SimTime,
    /// When it ended, the last one if there are several.
    pub ends: SimTime,
    /// Sequences that decoded in the step.
    pub decode_sequences: u32,
    /// Prompt tokens computed in the step.
    pub prefill_tokens: u32,
    /// Sequences in the running batch at the end of the step, those that ended with it not among them.
    pub running: u32,
    /// Sequences in the waiting queue at the end of the step.
    pub waiting: u32,
    /// KV blocks that running sequences hold at the end of the step.
    pub active_blocks: u32,
    /// How many steps this is; 0 counts as 1.
    pub steps: u32,
}

impl StepSpan {
    /// The span's name, and with it its colour.
    fn name(&self) -> &'static str {
        match (self.prefill_tokens > 0, self.decode_sequences > 0) {
            (true, true) => "prefill + decode",
            (true, false) => "prefill",
            (false, true) => "decode",
            (false, false) => "step",
        }
    }

    fn counters(&self) -> Counters {
        Counters { active_blocks: self.active_blocks, running: self.running, waiting: self.waiting }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    active_blocks: u32,
    running: u32,
    waiting: u32,
}

#[derive(Debug)]
struct WorkerTrack {
    name: String,
    ends: SimTime,
    counters: Counters,
}

/// Writes the file while the replay runs: steps as they end, requests whenever they are known, then
/// [`TimelineWriter::finish`]. Each event is written with one call; hand over a buffered writer.
#[derive(Debug)]
pub struct TimelineWriter<W> {
    out: W,
    text: String,
    workers: Vec<WorkerTrack>,
    request_tracks: u64,
    requests: u64,
    spans: u64,
}

impl<W: Write> TimelineWriter<W> {
    /// Opens the file with a track for each name; [`StepSpan::worker`] is the place in `worker_names`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, worker_names: &[impl AsRef<str>]) -> io::Result<Self> {
        let workers = worker_names
            .iter()
            .map(|name| WorkerTrack {
                name: name.as_ref().to_owned(),
                ends: SimTime::ZERO,
                counters: Counters::default(),
            })
            .collect();
        let mut writer = TimelineWriter {
            out,
            text: String::from("{\"traceEvents\":[\n"),
            workers,
            request_tracks: DEFAULT_REQUEST_TRACKS,
            requests: 0,
            spans: 0,
        };
        // The first event has no comma before it.
        event::name_process(&mut writer.text, WORKERS_PID, "workers");
        writer.text.push_str(",\n");
        event::sort_process(&mut writer.text, WORKERS_PID, 0);
        writer.put()?;
        for index in 0..writer.workers.len() {
            writer.open_worker(index)?;
        }
        Ok(writer)
    }

    /// Gives at most `tracks` requests a track; the rest is counted only.
    pub fn with_request_tracks(mut self, tracks: u64) -> Self {
        self.request_tracks = tracks;
        self
    }

    fn open_worker(&mut self, index: usize) -> io::Result<()> {
        let tid = FIRST_WORKER_TID + index as u64;
        self.next();
        event::name_track(&mut self.text, WORKERS_PID, tid, &self.workers[index].name);
        self.next();
        event::sort_track(&mut self.text, WORKERS_PID, tid, index as u64);
        self.put()?;
        self.count(index, SimTime::ZERO)
    }

    /// Draws a step. Steps of one worker come in the order of time.
    ///
    /// # Errors
    /// Those of `out`; [`io::ErrorKind::InvalidInput`] for a worker without a name, and for a step that starts before
    /// its predecessor ended: the UI would leave it out without a word.
    pub fn step(&mut self, step: &StepSpan) -> io::Result<()> {
        let index = step.worker as usize;
        let named = self.workers.len();
        let Some(worker) = self.workers.get_mut(index) else {
            let message = format!("worker {index} has a step, expected one of the {named} workers named");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        if step.started < worker.ends || step.ends < step.started {
            let message = format!(
                "{}: a step from {} to {}, expected it to start at {} or later and to end after that",
                worker.name, step.started, step.ends, worker.ends
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        worker.ends = step.ends;
        let changed = worker.counters != step.counters();
        worker.counters = step.counters();
        self.spans += 1;
        self.next();
        Event::span(WORKERS_PID, FIRST_WORKER_TID + index as u64, step.started, step.ends, step.name())
            .start(&mut self.text)
            .number("decode_sequences", u64::from(step.decode_sequences))
            .number("prefill_tokens", u64::from(step.prefill_tokens))
            .number("running", u64::from(step.running))
            .number("waiting", u64::from(step.waiting))
            .number("active_blocks", u64::from(step.active_blocks))
            .number("steps", u64::from(step.steps.max(1)))
            .end();
        self.put()?;
        if changed { self.count(index, step.ends) } else { Ok(()) }
    }

    /// Writes a worker's counters, as they are from `at` on.
    fn count(&mut self, index: usize, at: SimTime) -> io::Result<()> {
        self.next();
        let WorkerTrack { name, counters, .. } = &self.workers[index];
        Event::counters(WORKERS_PID, at, name)
            .start(&mut self.text)
            .number("active_blocks", u64::from(counters.active_blocks))
            .number("running", u64::from(counters.running))
            .number("waiting", u64::from(counters.waiting))
            .end();
        self.put()
    }

    /// Draws a request on a track of its own, below those drawn before, or counts it if there are tracks enough.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn request(&mut self, life: &RequestLife, name: &str) -> io::Result<()> {
        let place = self.requests;
        self.requests += 1;
        if place >= self.request_tracks {
            return Ok(());
        }
        let tid = FIRST_REQUEST_TID + place;
        self.next();
        event::name_track(&mut self.text, REQUESTS_PID, tid, name);
        self.next();
        event::sort_track(&mut self.text, REQUESTS_PID, tid, place);
        for phase in phases::phases(life) {
            self.spans += 1;
            self.next();
            let span = Event::span(REQUESTS_PID, tid, phase.from, phase.to, phase.kind.name());
            let mut args = span
                .start(&mut self.text)
                .number("row", life.row)
                .number("input_tokens", u64::from(life.input_tokens))
                .number("output_tokens", u64::from(life.output_tokens));
            if let Some(run) = phase.run {
                args = args.number("reused_tokens", u64::from(run.reused_tokens));
                if let Some(worker) = run.worker(life) {
                    args = args.number("worker", u64::from(worker));
                }
            }
            args.end();
        }
        if let Some(Outcome::Failed { kind, message }) = &life.outcome {
            self.next();
            Event::instant(REQUESTS_PID, tid, life.end, failure_name(*kind))
                .start(&mut self.text)
                .number("row", life.row)
                .text("error", message)
                .end();
        }
        self.put()
    }

    /// Closes the file and gives `out` back.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        let tracks = self.requests.min(self.request_tracks);
        if self.requests > 0 {
            let name = match self.requests - tracks {
                0 => "requests".to_owned(),
                // Said where it is seen: the UI does not show what stands beside the events.
                _ => format!("requests (first {tracks} of {})", self.requests),
            };
            self.next();
            event::name_process(&mut self.text, REQUESTS_PID, &name);
            self.next();
            event::sort_process(&mut self.text, REQUESTS_PID, 1);
        }
        let facts = serde_json::json!({
            "workers": self.workers.len(),
            "spans": self.spans,
            "requests": self.requests,
            "request_tracks": tracks,
            "requests_left_out": self.requests - tracks,
        });
        self.text.push_str("\n],\"otherData\":");
        self.text.push_str(&facts.to_string());
        self.text.push_str("}\n");
        self.put()?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Another event follows.
    fn next(&mut self) {
        self.text.push_str(",\n");
    }

    fn put(&mut self) -> io::Result<()> {
        self.out.write_all(self.text.as_bytes())?;
        self.text.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
