//! Unit tests of a request's life: its size, what is recorded, what is derived.

use super::*;
use crate::session::ledger::FailureKind;

fn at(ms: u64) -> SimTime {
    SimTime(ms * 1_000_000)
}

fn stage(pool: Pool, worker: u32) -> RouteStage {
    RouteStage {
        pool,
        worker,
        rank: 0,
        queued: false,
        wait: SimSpan::ZERO,
        selected_overlap_blocks: None,
        best_overlap_blocks: None,
    }
}

#[test]
fn a_plain_request_takes_less_than_200_bytes_and_no_heap() {
    assert_eq!(size_of::<FewOf<Admission>>(), size_of::<Admission>());
    assert_eq!(size_of::<FewOf<RouteStage>>(), size_of::<RouteStage>());
    assert!(size_of::<RequestLife>() <= 192, "{}", size_of::<RequestLife>());
    let mut life = RequestLife::new(0, 0, 0, at(0), 100, 10);
    life.routed(stage(Pool::Agg, 3));
    life.admitted(at(1), 16, Pool::Agg);
    (2..12).for_each(|ms| {
        life.token(at(ms));
    });
    life.ended(at(11), Outcome::Completed);
    // The lists lie within the life itself.
    let place = std::ptr::from_ref(&life).addr();
    for entry in [life.admissions.as_ptr().addr(), life.route.as_ptr().addr()] {
        assert!((place..place + size_of::<RequestLife>()).contains(&entry));
    }
    assert!(life.detours.is_none());
}

#[test]
fn tokens_fill_in_first_second_last_and_the_longest_gap() {
    let mut life = RequestLife::new(4, 2, 1, at(5), 100, 4);
    assert_eq!((life.ttft(), life.ttst(), life.tpot_ms(), life.max_gap()), (None, None, None, None));
    assert_eq!(life.token(at(15)), None);
    assert_eq!(
        (life.ttft(), life.ttst(), life.tpot_ms(), life.max_gap()),
        (Some(SimSpan(10_000_000)), None, None, None)
    );
    assert_eq!(life.token(at(16)), Some(SimSpan(1_000_000)));
    assert_eq!(life.token(at(23)), Some(SimSpan(7_000_000)));
    assert_eq!(life.token(at(25)), Some(SimSpan(2_000_000)));
    assert_eq!(life.output_tokens, 4);
    assert_eq!(life.second_token.get(), Some(at(16)));
    assert_eq!((life.ttst(), life.max_gap()), (Some(SimSpan(1_000_000)), Some(SimSpan(7_000_000))));
    assert_eq!(life.tpot_ms(), Some(10.0 / 3.0));
}

#[test]
fn two_tokens_at_one_moment_have_a_gap_of_zero() {
    let mut life = RequestLife::new(0, 0, 0, at(0), 1, 2);
    life.token(at(3));
    life.token(at(3));
    assert_eq!((life.max_gap(), life.tpot_ms()), (Some(SimSpan::ZERO), Some(0.0)));
}

#[test]
fn workers_go_by_pool() {
    let mut life = RequestLife::new(0, 0, 0, at(0), 1, 1);
    assert!(!life.disaggregated());
    life.routed(stage(Pool::Prefill, 3));
    // Rejected by the prefill worker: there is no hand-off, yet the run is a disaggregated one.
    assert!(life.disaggregated() && life.handoff().is_none());
    life.routed(stage(Pool::Decode, 5));
    assert_eq!((life.prefill_worker, life.worker, life.route.len()), (Some(3), Some(5), 2));
    life.handoff_mut().source_held = at(7).into();
    assert_eq!(life.handoff().and_then(|handoff| handoff.source_held.get()), Some(at(7)));
    let mut plain = RequestLife::new(0, 0, 0, at(0), 1, 1);
    plain.routed(stage(Pool::Agg, 1));
    plain.preempted(at(3));
    assert_eq!((plain.worker, plain.disaggregated(), plain.preempted_at()), (Some(1), false, &[at(3)][..]));
}

#[test]
fn reuse_is_told_of_the_first_admission_and_of_the_best() {
    let mut life = RequestLife::new(0, 0, 0, at(0), 20, 1);
    assert_eq!((life.first_reused_tokens(), life.max_reused_tokens()), (None, 0));
    for (ms, reused) in [(1, 4), (2, 16), (3, 8)] {
        life.admitted(at(ms), reused, Pool::Agg);
    }
    assert_eq!((life.first_reused_tokens(), life.max_reused_tokens()), (Some(4), 16));
    life.ended(at(4), Outcome::Failed { kind: FailureKind::Rejected, message: "too long".into() });
    assert!(!life.completed() && life.end == at(4));
}

#[test]
fn few_of_is_a_list_like_any_other() {
    for length in 0..5_u32 {
        let list: Vec<u32> = (0..length).collect();
        let mut few: FewOf<u32> = list.iter().copied().collect();
        assert_eq!(few.to_vec(), list);
        assert_eq!(serde_json::to_string(&few).expect("numbers"), serde_json::to_string(&list).expect("numbers"));
        assert_eq!(format!("{few:?}"), format!("{list:?}"));
        few.iter_mut().for_each(|entry| *entry += 1);
        assert_eq!((&few).into_iter().sum::<u32>(), list.iter().sum::<u32>() + length);
    }
}

#[test]
fn a_moment_is_an_optional_time() {
    let mut moment = Moment::default();
    assert_eq!((moment.get(), moment.is_some(), moment.as_ms()), (None, false, None));
    assert_eq!((moment.get_or_insert(at(2)), moment.get_or_insert(at(9))), (at(2), at(2)));
    assert_eq!((moment.as_ms(), Moment::from(None::<SimTime>)), (Some(2.0), Moment::NONE));
    assert_eq!(Moment::from(SimTime::ZERO).get(), Some(SimTime::ZERO));
    let json = |moment: Moment| serde_json::to_string(&moment).expect("a number");
    assert_eq!((json(moment), json(Moment::NONE)), ("2000000".to_owned(), "null".to_owned()));
}

#[test]
fn a_life_can_be_serialized() {
    let (_, expected) = reference::CASES[1];
    let mut life = reference::life(&reference::rows(expected)[2]);
    life.preempted(at(72));
    let value = serde_json::to_value(&life).expect("plain values");
    assert_eq!(value["admissions"][1]["pool"], "decode");
    assert_eq!(value["handoff"]["source_held"], 70_000_000);
    assert_eq!(value["preempted_at"][0], 72_000_000);
    assert_eq!(value["first_token"], 71_000_000);
}
