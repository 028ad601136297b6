//! The fleet behind a pacer: commands in, every output handed to whoever waits for it.
//!
//! Tokens go to the request's own channel, cache events to the worker's log, gauges to a snapshot that servers read.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{
    ConfigError, EngineConfig, EngineInput, EngineOutput, EngineRequest, EngineStats, Fleet, FleetInput, FleetOutput,
    RejectReason,
};
use crate::ids::{RequestId, WorkerId};
use crate::journal::FleetSetup;
use crate::live::backend::ServeError;
use crate::live::journal::{Recorded, Tape};
use crate::live::kv_log::KvLog;
use crate::live::mocker::metrics::WorkerMetrics;
use crate::live::pacer::Paced;
use crate::time::{SimSpan, SimTime};

/// What the fleet is told.
#[derive(Debug)]
pub enum FleetCommand {
    /// A request for a worker.
    Submit {
        /// Which worker.
        worker: WorkerId,
        /// The request.
        request: EngineRequest,
        /// Where its tokens go.
        reply: mpsc::UnboundedSender<Reply>,
    },
    /// To a decode worker: a request whose prompt another worker holds.
    Receive {
        /// Which worker.
        worker: WorkerId,
        /// The request.
        request: EngineRequest,
        /// The sender's keys that the time of the transfer follows from.
        sender: Box<EngineConfig>,
        /// Where its tokens go.
        reply: mpsc::UnboundedSender<Reply>,
    },
    /// To a prefill worker: the blocks that it holds for a request can go.
    Release {
        /// Which worker.
        worker: WorkerId,
        /// Which request.
        id: RequestId,
    },
    /// The prompt of a request has not come to its decode worker.
    Lost {
        /// Which worker.
        worker: WorkerId,
        /// Which request.
        id: RequestId,
        /// What happened.
        error: ServeError,
    },
    /// The client of a request is gone, or somebody asked to abort it.
    Cancel {
        /// Which worker.
        worker: WorkerId,
        /// Which request.
        id: RequestId,
    },
    /// Abort all requests of all workers, telling their clients.
    AbortAll,
    /// Empty a worker's cache.
    Flush {
        /// Which worker.
        worker: WorkerId,
        /// Hears whether it was possible.
        reply: oneshot::Sender<bool>,
    },
}

/// What a request's channel carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The next output token.
    Token {
        /// The token.
        token_id: u32,
        /// When it was made.
        at: SimTime,
        /// Prompt tokens that came from the cache.
        reused_tokens: u32,
        /// True for the last one.
        finished: bool,
    },
    /// A request without output is done.
    Finished {
        /// Prompt tokens that came from the cache.
        reused_tokens: u32,
    },
    /// A prefill worker has computed the prompt and holds its blocks.
    Held {
        /// When.
        at: SimTime,
        /// Prompt tokens that came from the cache.
        reused_tokens: u32,
    },
    /// A decode worker has got the prompt's blocks.
    Received,
    /// It can never run.
    Rejected(RejectReason),
    /// Its prompt has not come.
    Lost(ServeError),
    /// Somebody asked to abort it.
    Aborted,
    /// The fleet was stopped.
    Stopped,
}

/// What servers may read of a worker at any time.
#[derive(Debug, Default)]
pub struct WorkerShared {
    /// Its cache events.
    pub kv_log: KvLog,
    /// Its latency histograms.
    pub metrics: WorkerMetrics,
    stats: Mutex<EngineStats>,
    held: AtomicU64,
    transfers_total: AtomicU64,
}

impl WorkerShared {
    /// Prompts whose blocks the worker holds for others, and hand-offs that it has ended: sent or received.
    pub fn handoffs(&self) -> (u64, u64) {
        (self.held.load(Ordering::Relaxed), self.transfers_total.load(Ordering::Relaxed))
    }

    /// The worker's gauges and counters, as of its last change.
    pub fn stats(&self) -> EngineStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, stats: EngineStats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

#[derive(Debug)]
struct LiveRequest {
    reply: mpsc::UnboundedSender<Reply>,
    arrived: SimTime,
    last_token: Option<SimTime>,
    /// Of a request whose prompt comes from elsewhere.
    sender: Option<Box<EngineConfig>>,
    prompt_tokens: u32,
}

/// The fleet and those who listen to it.
pub struct FleetActor {
    fleet: Recorded<Fleet>,
    workers: Vec<Arc<WorkerShared>>,
    requests: FxHashMap<(WorkerId, RequestId), LiveRequest>,
    flushes: Vec<Option<oneshot::Sender<bool>>>,
    /// Transfers under way, by the moment at which the blocks will be there.
    transfers: BTreeSet<(SimTime, RequestId, WorkerId)>,
    /// Requests whose transfer takes no time and that wait for room. Where a step's end makes room the next step begins at
    /// once, so the word to activate has to be there before: it is said with the request and again at each step's end.
    instant: BTreeSet<(WorkerId, RequestId)>,
    /// Prompts whose blocks are held for others.
    held: BTreeSet<(WorkerId, RequestId)>,
    speedup_ratio: f64,
    out: Vec<FleetOutput>,
}

impl FleetActor {
    /// A fleet of one engine for each configuration, which tells its journal of every call.
    pub fn new(configs: &[EngineConfig], speedup_ratio: f64, tape: Option<Tape<Fleet>>) -> Result<Self, ConfigError> {
        let fleet = Recorded::build(FleetSetup { engines: configs.to_vec() }, tape)?;
        let workers: Vec<Arc<WorkerShared>> = configs.iter().map(|_| Arc::default()).collect();
        let actor = FleetActor {
            flushes: configs.iter().map(|_| None).collect(),
            fleet,
            workers,
            requests: FxHashMap::default(),
            transfers: BTreeSet::new(),
            instant: BTreeSet::new(),
            held: BTreeSet::new(),
            speedup_ratio,
            out: Vec::new(),
        };
        for index in 0..configs.len() {
            actor.publish(WorkerId(index as u32));
        }
        Ok(actor)
    }

    /// What servers may read, by worker.
    pub fn shared(&self) -> Vec<Arc<WorkerShared>> {
        self.workers.clone()
    }

    fn publish(&self, worker: WorkerId) {
        if let (Some(shared), Some(stats)) = (self.workers.get(worker.0 as usize), self.fleet.stats(worker)) {
            shared.publish(stats);
        }
    }

    fn cancel(&mut self, now: SimTime, worker: WorkerId, id: RequestId, last_word: Reply) {
        self.fleet.handle(now, FleetInput { worker, input: EngineInput::Cancel(id) }, &mut self.out);
        self.no_longer_held(worker, id);
        if let Some(request) = self.requests.remove(&(worker, id)) {
            let _ = request.reply.send(last_word);
            if request.sender.is_some() {
                self.instant.remove(&(worker, id));
                self.transfers.retain(|(_, other, at)| (*other, *at) != (id, worker));
            }
        }
        self.publish(worker);
    }

    fn deliver(&mut self) {
        let mut out = std::mem::take(&mut self.out);
        // Gauges first: who sees a token may look at them at once.
        let mut shown = None;
        for FleetOutput { worker, .. } in &out {
            if shown.replace(*worker) != Some(*worker) {
                self.publish(*worker);
            }
        }
        for FleetOutput { at, worker, output } in out.drain(..) {
            match output {
                EngineOutput::Token { id, token_id, reused_tokens, finished, .. } => {
                    self.token(at, worker, id, Reply::Token { token_id, at, reused_tokens, finished }, finished);
                }
                EngineOutput::Finished { id, reused_tokens } => {
                    self.end(worker, id, Reply::Finished { reused_tokens });
                }
                EngineOutput::Rejected { id, reason } => {
                    self.instant.remove(&(worker, id));
                    self.end(worker, id, Reply::Rejected(reason));
                }
                EngineOutput::Kv(event) => {
                    if let Some(shared) = self.workers.get(worker.0 as usize) {
                        shared.kv_log.push(event);
                    }
                }
                EngineOutput::Flushed { done } => {
                    if let Some(reply) = self.flushes.get_mut(worker.0 as usize).and_then(Option::take) {
                        let _ = reply.send(done);
                    }
                }
                EngineOutput::SourceHeld { id, reused_tokens } => {
                    self.held.insert((worker, id));
                    self.count_held(worker, 1);
                    self.end(worker, id, Reply::Held { at, reused_tokens });
                }
                EngineOutput::SourceReleased { id } => {
                    self.no_longer_held(worker, id);
                    if let Some(shared) = self.workers.get(worker.0 as usize) {
                        shared.transfers_total.fetch_add(1, Ordering::Relaxed);
                    }
                }
                EngineOutput::DestinationReserved { id, fresh_blocks } => {
                    let request = self.requests.get(&(worker, id));
                    if let Some((sender, request)) =
                        request.and_then(|request| Some((request.sender.as_ref()?, request)))
                    {
                        let there = at + sender.kv_transfer_time(request.prompt_tokens, fresh_blocks);
                        self.instant.remove(&(worker, id));
                        self.transfers.insert((there, id, worker));
                    }
                }
                EngineOutput::DestinationActivated { id } => {
                    self.transfers.remove(&(at, id, worker));
                    if let Some(shared) = self.workers.get(worker.0 as usize) {
                        shared.transfers_total.fetch_add(1, Ordering::Relaxed);
                    }
                    if let Some(request) = self.requests.get(&(worker, id)) {
                        let _ = request.reply.send(Reply::Received);
                    }
                }
                EngineOutput::StepEnded { .. } => {
                    let of_worker = (worker, RequestId(0))..=(worker, RequestId(u64::MAX));
                    self.transfers.extend(self.instant.range(of_worker).map(|(worker, id)| (at, *id, *worker)));
                }
                EngineOutput::Admitted { .. } | EngineOutput::Preempted { .. } => {}
            }
        }
        self.out = out;
    }

    fn no_longer_held(&mut self, worker: WorkerId, id: RequestId) {
        if self.held.remove(&(worker, id)) {
            self.count_held(worker, -1);
        }
    }

    fn count_held(&self, worker: WorkerId, change: i64) {
        if let Some(shared) = self.workers.get(worker.0 as usize) {
            shared.held.fetch_add(change as u64, Ordering::Relaxed);
        }
    }

    /// Lets transfers end that are due at `now`.
    fn end_transfers(&mut self, now: SimTime) {
        while let Some((there, id, worker)) = self.transfers.first().copied().filter(|(there, ..)| *there <= now) {
            self.transfers.remove(&(there, id, worker));
            self.fleet.handle(there, FleetInput { worker, input: EngineInput::Activate(id) }, &mut self.out);
            self.publish(worker);
            self.deliver();
        }
    }

    fn begin(&mut self, now: SimTime, worker: WorkerId, input: EngineInput, live: LiveRequest) {
        if let EngineInput::Submit(request) | EngineInput::Reserve(request) = &input {
            self.requests.insert((worker, request.id), live);
        }
        self.fleet.handle(now, FleetInput { worker, input }, &mut self.out);
        self.publish(worker);
    }

    fn token(&mut self, at: SimTime, worker: WorkerId, id: RequestId, reply: Reply, finished: bool) {
        let Some(request) = self.requests.get_mut(&(worker, id)) else { return };
        if let Some(shared) = self.workers.get(worker.0 as usize) {
            let wall_s = |since: SimTime| at.since(since).as_ms() / 1e3 / self.speedup_ratio;
            match request.last_token {
                None => shared.metrics.time_to_first_token_s(wall_s(request.arrived)),
                Some(last) => shared.metrics.inter_token_latency_s(wall_s(last)),
            }
            if finished {
                shared.metrics.e2e_request_latency_s(wall_s(request.arrived));
            }
        }
        request.last_token = Some(at);
        // A receiver that is gone cancels by itself.
        let _ = request.reply.send(reply);
        if finished {
            self.requests.remove(&(worker, id));
        }
    }

    fn end(&mut self, worker: WorkerId, id: RequestId, reply: Reply) {
        if let Some(request) = self.requests.remove(&(worker, id)) {
            let _ = request.reply.send(reply);
        }
    }
}

impl Paced for FleetActor {
    type Input = FleetCommand;

    fn handle(&mut self, now: SimTime, command: FleetCommand) {
        match command {
            FleetCommand::Submit { worker, request, reply } => {
                let prompt_tokens = request.prompt.len_tokens();
                let live = LiveRequest { reply, arrived: now, last_token: None, sender: None, prompt_tokens };
                self.begin(now, worker, EngineInput::Submit(request), live);
            }
            FleetCommand::Receive { worker, request, sender, reply } => {
                let prompt_tokens = request.prompt.len_tokens();
                if sender.kv_transfer_time(prompt_tokens, u32::MAX) == SimSpan::ZERO {
                    self.instant.insert((worker, request.id));
                    self.transfers.insert((now, request.id, worker));
                }
                let sender = Some(sender);
                let live = LiveRequest { reply, arrived: now, last_token: None, sender, prompt_tokens };
                self.begin(now, worker, EngineInput::Reserve(request), live);
            }
            FleetCommand::Release { worker, id } => {
                self.fleet.handle(now, FleetInput { worker, input: EngineInput::ReleaseSource(id) }, &mut self.out);
                self.publish(worker);
            }
            FleetCommand::Lost { worker, id, error } => self.cancel(now, worker, id, Reply::Lost(error)),
            FleetCommand::Cancel { worker, id } => self.cancel(now, worker, id, Reply::Aborted),
            FleetCommand::AbortAll => {
                let mut live: Vec<(WorkerId, RequestId)> = self.requests.keys().copied().collect();
                live.sort_unstable();
                for (worker, id) in live {
                    self.cancel(now, worker, id, Reply::Stopped);
                }
            }
            FleetCommand::Flush { worker, reply } => {
                if let Some(slot) = self.flushes.get_mut(worker.0 as usize) {
                    *slot = Some(reply);
                }
                self.fleet.handle(now, FleetInput { worker, input: EngineInput::FlushCache }, &mut self.out);
                self.publish(worker);
            }
        }
        self.deliver();
        self.end_transfers(now);
    }

    fn next_deadline(&self) -> Option<SimTime> {
        let transfer = self.transfers.first().map(|(there, ..)| *there);
        [self.fleet.next_deadline(), transfer].into_iter().flatten().min()
    }

    fn advance(&mut self, to: SimTime) {
        // An engine whose step ends now has to know of it before it starts the next one.
        self.end_transfers(to);
        self.fleet.advance(to, &mut self.out);
        self.deliver();
        self.end_transfers(to);
    }
}

#[cfg(test)]
mod tests;
