//! Several engines as one machine: in which order they speak, and that they do not hear each other.

use super::*;
use crate::ids::WorkerId;

fn submit(fleet: &mut Fleet, at_ms: f64, worker: u32, id: u64, said: &mut Vec<FleetOutput>) {
    let request = request(id, prompt(100 * id as u32, 4), 2);
    let input = FleetInput { worker: WorkerId(worker), input: EngineInput::Submit(request) };
    fleet.handle(SimTime::from_ms(at_ms), input, said);
}

/// When which worker spoke, consecutive outputs of one as one.
fn speakers(said: &[FleetOutput]) -> Vec<(f64, u32)> {
    let mut speakers: Vec<(f64, u32)> = said.iter().map(|output| (output.at.as_ms(), output.worker.0)).collect();
    speakers.dedup();
    speakers
}

#[test]
fn at_one_moment_the_lowest_worker_speaks_first() {
    let mut fleet = Fleet::new(&[fixed(16), fixed(16), fixed(16)]).expect("valid configurations");
    let mut said = Vec::new();
    for worker in [2, 0, 1] {
        submit(&mut fleet, 0.0, worker, u64::from(worker), &mut said);
    }
    fleet.start_steps(SimTime::ZERO, &mut said);
    assert_eq!(speakers(&said), [(0.0, 0), (0.0, 1), (0.0, 2)]);
    said.clear();
    let first = SimTime::from_ms(10.0);
    assert_eq!(fleet.next_deadline(), Some(first));
    fleet.complete_steps(first, &mut said);
    assert_eq!(speakers(&said), [(10.0, 0), (10.0, 1), (10.0, 2)]);
    assert_eq!(fleet.next_deadline(), Some(first), "the next steps can start at once");
    fleet.start_steps(first, &mut said);
    assert_eq!(fleet.next_deadline(), Some(SimTime::from_ms(12.0)));
}

#[test]
fn advance_goes_from_deadline_to_deadline() {
    let slow = TimingModel::Fixed { prefill_ms: 11.0, decode_ms: 3.0 };
    let mut fleet = Fleet::new(&[EngineConfig { timing_model: slow, ..fixed(16) }, fixed(16)]).expect("valid");
    let mut said = Vec::new();
    submit(&mut fleet, 0.0, 0, 0, &mut said);
    submit(&mut fleet, 0.0, 1, 1, &mut said);
    fleet.advance(SimTime::from_ms(100.0), &mut said);
    assert_eq!(speakers(&said), [(0.0, 0), (0.0, 1), (10.0, 1), (11.0, 0), (12.0, 1), (14.0, 0)]);
    assert_eq!(fleet.next_deadline(), None);
}

#[test]
fn workers_share_neither_cache_nor_names() {
    let mut fleet = Fleet::new(&[fixed(16), fixed(16)]).expect("valid configurations");
    let mut said = Vec::new();
    submit(&mut fleet, 0.0, 0, 5, &mut said);
    submit(&mut fleet, 0.0, 1, 5, &mut said);
    fleet.advance(SimTime::from_ms(100.0), &mut said);
    for worker in [0, 1] {
        let stats = fleet.stats(WorkerId(worker)).expect("a known worker");
        assert_eq!((stats.finished_total, stats.reused_tokens_total, stats.inactive_blocks), (1, 0, 1));
    }
}

#[test]
fn a_worker_that_does_not_exist_is_ignored() {
    let mut fleet = Fleet::new(&[fixed(16)]).expect("valid configurations");
    let mut said = Vec::new();
    submit(&mut fleet, 0.0, 1, 0, &mut said);
    assert_eq!((fleet.next_deadline(), said.len(), fleet.stats(WorkerId(1))), (None, 0, None));
    assert_eq!((fleet.len(), fleet.is_empty()), (1, false));
    assert!(Fleet::new(&[fixed(16), EngineConfig { block_size: 1, ..fixed(16) }]).is_err());
}
