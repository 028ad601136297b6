//! Unit tests of phases: what a life looks like, by its admissions, preemptions and hand-off.

use proptest::prelude::*;

use super::*;
use crate::session::ledger::{FailureKind, Outcome};
use crate::sim::life::reference;

fn at(ms: u64) -> SimTime {
    SimTime(ms * 1_000_000)
}

fn ended(mut life: RequestLife, ms: u64) -> RequestLife {
    life.ended(at(ms), Outcome::Completed);
    life
}

/// Name, start and end of each phase, in milliseconds.
fn seen(life: &RequestLife) -> Vec<(&'static str, f64, f64)> {
    phases(life).iter().map(|phase| (phase.kind.name(), phase.from.as_ms(), phase.to.as_ms())).collect()
}

fn case(name: &str, row: usize) -> RequestLife {
    let (_, expected) = reference::CASES.into_iter().find(|(case, _)| *case == name).expect("a case");
    reference::life(&reference::rows(expected)[row])
}

#[test]
fn queued_prefill_decode() {
    // The router held it for 53 ms, its worker admitted it at 54.
    let life = case("router-queue-priority", 1);
    assert_eq!(seen(&life), [("queued", 1.0, 54.0), ("prefill", 54.0, 76.0), ("decode", 76.0, 109.0)]);
    let immediate = case("router-queue-priority", 0);
    assert_eq!(seen(&immediate), [("prefill", 0.0, 10.0), ("decode", 10.0, 43.0)]);
}

#[test]
fn preempted_twice() {
    let mut life = case("preemption-lifo", 2);
    life.preempted(at(18));
    life.preempted(at(31));
    let expected = [
        ("prefill", 0.0, 10.0),
        ("decode", 10.0, 18.0),
        ("preempted", 18.0, 29.0),
        ("decode", 29.0, 31.0),
        ("preempted", 31.0, 47.0),
        ("decode", 47.0, 70.0),
    ];
    assert_eq!(seen(&life), expected);
    let reused: Vec<Option<u32>> = phases(&life).iter().map(|phase| phase.run.map(|run| run.reused_tokens)).collect();
    assert_eq!(reused, [Some(0), Some(0), None, Some(0), None, Some(16)]);
}

#[test]
fn preempted_before_the_first_token() {
    let mut life = RequestLife::new(0, 0, 0, at(1), 100, 1);
    life.admitted(at(2), 0, Pool::Agg);
    life.preempted(at(4));
    life.admitted(at(9), 32, Pool::Agg);
    life.token(at(12));
    let expected = [("queued", 1.0, 2.0), ("prefill", 2.0, 4.0), ("preempted", 4.0, 9.0), ("prefill", 9.0, 12.0)];
    assert_eq!(seen(&ended(life, 12)), expected);
}

#[test]
fn handed_over_without_a_transfer_time() {
    let life = case("disaggregated", 3);
    assert_eq!(seen(&life), [("queued", 61.0, 70.0), ("prefill", 70.0, 80.0), ("decode", 80.0, 83.0)]);
}

#[test]
fn handed_over_with_waits_on_both_sides() {
    let mut life = RequestLife::new(0, 0, 0, at(0), 100, 3);
    life.admitted(at(1), 4, Pool::Prefill);
    let handoff = life.handoff_mut();
    handoff.source_held = at(11).into();
    handoff.destination_reserved = at(14).into();
    handoff.destination_activated = at(22).into();
    handoff.source_released = at(23).into();
    life.admitted(at(25), 0, Pool::Decode);
    (27..30).for_each(|ms| {
        life.token(at(ms));
    });
    (life.prefill_worker, life.worker) = (Some(2), Some(5));
    let life = ended(life, 29);
    let expected = [
        ("queued", 0.0, 1.0),
        ("prefill", 1.0, 11.0),
        ("queued", 11.0, 14.0),
        ("transfer", 14.0, 22.0),
        ("queued", 22.0, 25.0),
        ("decode", 25.0, 29.0),
    ];
    assert_eq!(seen(&life), expected);
    let workers: Vec<Option<u32>> = phases(&life).iter().map(|phase| phase.run?.worker(&life)).collect();
    assert_eq!(workers, [None, Some(2), None, None, None, Some(5)]);
}

#[test]
fn a_prefill_that_takes_no_time_leaves_no_trace() {
    let mut life = RequestLife::new(0, 0, 0, at(0), 100, 3);
    life.admitted(at(0), 0, Pool::Prefill);
    let handoff = life.handoff_mut();
    handoff.source_held = at(0).into();
    handoff.destination_reserved = at(0).into();
    handoff.destination_activated = at(8).into();
    life.admitted(at(8), 0, Pool::Decode);
    life.token(at(9));
    assert_eq!(seen(&ended(life, 9)), [("transfer", 0.0, 8.0), ("decode", 8.0, 9.0)]);
}

#[test]
fn what_never_ran_is_queued_to_its_end() {
    let mut life = RequestLife::new(0, 0, 0, at(3), 100, 3);
    life.ended(at(7), Outcome::Failed { kind: FailureKind::Rejected, message: "too long".into() });
    assert_eq!(seen(&life), [("queued", 3.0, 7.0)]);
    // Rejected at once: there is no phase at all.
    assert_eq!(seen(&ended(RequestLife::new(0, 0, 0, at(3), 100, 3), 3)), []);
}

#[test]
fn what_still_runs_is_drawn_to_its_last_token() {
    let mut life = RequestLife::new(0, 0, 0, at(3), 100, 3);
    life.admitted(at(4), 0, Pool::Agg);
    life.token(at(5));
    life.token(at(8));
    assert_eq!(seen(&life), [("queued", 3.0, 4.0), ("prefill", 4.0, 5.0), ("decode", 5.0, 8.0)]);
}

proptest! {
    /// Whatever the moments, even impossible ones: phases follow one another without gap or overlap.
    #[test]
    fn phases_never_overlap(
        arrival in 0..20_u64,
        admissions in prop::collection::vec((0..60_u64, 0..3_usize), 0..5),
        preempted in prop::collection::vec(0..60_u64, 0..4),
        tokens in prop::collection::vec(0..60_u64, 0..3),
        handoff in prop::option::of([0..60_u64, 0..60_u64, 0..60_u64]),
        end in 0..60_u64,
    ) {
        let mut life = RequestLife::new(0, 0, 0, at(arrival), 10, 3);
        for (ms, pool) in admissions {
            life.admitted(at(ms), 0, [Pool::Agg, Pool::Prefill, Pool::Decode][pool]);
        }
        preempted.into_iter().for_each(|ms| life.preempted(at(ms)));
        tokens.into_iter().for_each(|ms| {
            life.token(at(ms));
        });
        if let Some([held, reserved, activated]) = handoff {
            let times = life.handoff_mut();
            times.source_held = at(held).into();
            times.destination_reserved = at(reserved).into();
            times.destination_activated = at(activated).into();
        }
        let mut cursor = at(arrival);
        for phase in phases(&ended(life, end)) {
            prop_assert_eq!(phase.from, cursor);
            prop_assert!(phase.to > phase.from);
            cursor = phase.to;
        }
    }
}
