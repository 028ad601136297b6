//! The pacer: one plain thread that owns a machine and lets its time pass.
//!
//! What arrives carries the simulated time at which it arrived. Deadlines are kept in simulated time and handed over at
//! their nominal value: a thread that wakes late calls `advance` with the deadline, not with the time it woke, so being
//! late never stretches the schedule. The thread waits on its channel with a time-out and a timer slack of 1 ns; tokio's
//! timer is 1 ms coarse and never used for pacing. How late it woke is kept in a histogram.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::live::clock::LiveClock;
use crate::measure::latency::LatencySet;
use crate::time::SimTime;

/// A machine that a pacer can own: it hands its outputs on by itself.
pub trait Paced: Send + 'static {
    /// What can arrive.
    type Input: Send + 'static;

    /// Something arrived at `now`; time has been advanced up to `now` before.
    fn handle(&mut self, now: SimTime, input: Self::Input);

    /// When it wants to be woken.
    fn next_deadline(&self) -> Option<SimTime>;

    /// Time has passed up to `to`, inclusive.
    fn advance(&mut self, to: SimTime);
}

enum Message<I> {
    Input(SimTime, I),
    Stop,
}

/// How late the pacer was, in wall milliseconds: the moment it acted less the moment it should have.
#[derive(Clone, Debug)]
pub struct Lateness(Arc<Mutex<LatencySet>>);

impl Lateness {
    fn new() -> Self {
        Lateness(Arc::new(Mutex::new(LatencySet::histogram())))
    }

    fn record(&self, late: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).record(late.as_secs_f64() * 1e3);
    }

    /// All that was recorded so far.
    pub fn snapshot(&self) -> LatencySet {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The way into a paced machine; cheap to clone.
#[derive(Debug)]
pub struct PacerHandle<I> {
    sender: Sender<Message<I>>,
    clock: LiveClock,
    lateness: Lateness,
}

impl<I> Clone for PacerHandle<I> {
    fn clone(&self) -> Self {
        PacerHandle { sender: self.sender.clone(), clock: self.clock, lateness: self.lateness.clone() }
    }
}

impl<I: Send + 'static> PacerHandle<I> {
    /// Sends an input that arrived just now. Returns false if the pacer has stopped.
    pub fn send(&self, input: I) -> bool {
        self.send_at(self.clock.now(), input)
    }

    /// Sends an input that arrived at `at`.
    pub fn send_at(&self, at: SimTime, input: I) -> bool {
        self.sender.send(Message::Input(at, input)).is_ok()
    }

    /// The clock that the machine runs by.
    pub fn clock(&self) -> LiveClock {
        self.clock
    }

    /// How late the pacer has been.
    pub fn lateness(&self) -> Lateness {
        self.lateness.clone()
    }
}

/// A running pacer. Dropping it stops the thread.
#[derive(Debug)]
pub struct Pacer<I> {
    handle: PacerHandle<I>,
    thread: Option<JoinHandle<()>>,
}

impl<I: Send + 'static> Pacer<I> {
    /// Starts a thread that owns `machine`.
    pub fn spawn<M: Paced<Input = I>>(name: &str, machine: M, clock: LiveClock) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let lateness = Lateness::new();
        let recorder = lateness.clone();
        #[expect(clippy::disallowed_methods, reason = "the pacer is the one plain thread of a process")]
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            sharpen_timer();
            run(machine, clock, &receiver, &recorder);
        })?;
        Ok(Pacer { handle: PacerHandle { sender, clock, lateness }, thread: Some(thread) })
    }

    /// A way in.
    pub fn handle(&self) -> PacerHandle<I> {
        self.handle.clone()
    }
}

impl<I> Drop for Pacer<I> {
    fn drop(&mut self) {
        // A thread that is gone already needs no word.
        let _ = self.handle.sender.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<M: Paced>(mut machine: M, clock: LiveClock, receiver: &Receiver<Message<M::Input>>, lateness: &Lateness) {
    // Simulated time never runs backwards, although stamps of different threads may arrive out of order.
    let mut last = SimTime::ZERO;
    loop {
        let message = match machine.next_deadline() {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => receiver.recv_timeout(clock.wall_until(deadline)),
        };
        match message {
            Ok(Message::Input(at, input)) => {
                let at = at.max(last);
                // What was due before it arrived comes first.
                while let Some(deadline) = machine.next_deadline().filter(|deadline| *deadline <= at) {
                    lateness.record(late(clock, deadline));
                    machine.advance(deadline);
                }
                machine.handle(at, input);
                last = at;
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(deadline) = machine.next_deadline() {
                    lateness.record(late(clock, deadline));
                    machine.advance(deadline);
                    last = last.max(deadline);
                }
            }
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Wall time since a deadline.
fn late(clock: LiveClock, deadline: SimTime) -> Duration {
    Duration::from_nanos((clock.now().since(deadline).0 as f64 / clock.speedup_ratio()) as u64)
}

/// Linux rounds the time-outs of ordinary threads by 50 µs unless told otherwise.
#[cfg(target_os = "linux")]
fn sharpen_timer() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and concerns only the calling thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64);
    }
}

#[cfg(not(target_os = "linux"))]
fn sharpen_timer() {}
