//! The dead that only `/proc` tells from the living: zombies, and earlier owners of a number.

use std::thread;
use std::time::{Duration, Instant};

use super::super::*;
use super::{NOTHING, Sleeper, files, namespace, worker, worker_of};

#[test]
fn a_killed_worker_that_its_parent_has_not_asked_after_is_cleared_away() {
    let (_root, namespace) = namespace();
    let mut sleeper = Sleeper::start();
    let worker = worker_of(sleeper.pid(), 50051);
    let _guard = namespace.register(&worker).unwrap();
    sleeper.kill();
    // The signal is on its way; death takes a moment, and nobody reaps.
    let patience = Instant::now();
    while is_alive(worker.pid, worker.process_started) && patience.elapsed().as_secs() < 10 {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(process_started(worker.pid).is_some(), "a zombie still has its number");
    assert_eq!(namespace.list().unwrap(), []);
    assert_eq!(files(&namespace), NOTHING);
}

#[test]
fn a_number_that_another_process_got_later_is_not_taken_for_the_worker() {
    let (_root, namespace) = namespace();
    let own = worker(50051, 0);
    let earlier = Registration { process_started: own.process_started.map(|ticks| ticks - 1), ..own.clone() };
    let _guard = namespace.register(&earlier).unwrap();
    assert_eq!(namespace.list().unwrap(), []);
    assert_eq!(files(&namespace), NOTHING);
}
