//! The dead are cleared away, and nobody is taken for another.

use super::super::process::{Stat, parse_stat};
use super::super::*;
use super::{Sleeper, namespace, worker, worker_of};

#[test]
fn a_worker_whose_process_is_gone_is_cleared_away() {
    let (_root, namespace) = namespace();
    let mut sleeper = Sleeper::start();
    let guard = namespace.register(&worker_of(sleeper.pid(), 50051)).unwrap();
    let _own = namespace.register(&worker(50052, 1)).unwrap();
    assert_eq!(namespace.list().unwrap().len(), 2);
    sleeper.kill();
    sleeper.reap();
    assert_eq!(namespace.list_with_problems(), (vec![worker(50052, 1)], vec![]));
    assert!(!guard.path().exists());
    guard.remove().unwrap();
}

#[test]
fn a_worker_that_does_not_know_its_start_is_judged_by_its_number() {
    let (_root, namespace) = namespace();
    let silent = Registration { process_started: None, ..worker(50051, 0) };
    let _guard = namespace.register(&silent).unwrap();
    assert_eq!(namespace.list().unwrap(), [silent]);
}

#[test]
fn numbers_that_name_no_process_are_not_alive() {
    let own = std::process::id();
    assert!(is_alive(own, None) && is_alive(own, process_started(own)));
    assert!(is_alive(1, None), "alive, whoever's it is");
    for pid in [0, i32::MAX as u32, 1 << 31, u32::MAX] {
        assert!(!is_alive(pid, None), "{pid}");
        assert_eq!(process_started(pid), None, "{pid}");
    }
}

#[test]
fn the_name_of_a_program_does_not_shift_the_fields() {
    let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20 21";
    for name in ["sleep", "a b", "x) Z 1 (y", ")", ""] {
        let line = format!("42 ({name}) {rest}\n");
        assert_eq!(parse_stat(&line), Some(Stat { state: 'S', started: 987_654 }), "{name}");
    }
    for line in ["", "42", "42 (cut) S 1 2", "42 (sleep) "] {
        assert_eq!(parse_stat(line), None, "{line}");
    }
}
