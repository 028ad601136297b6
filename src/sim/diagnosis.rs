//! Who waits for what when a replay gets no further, request by request.

use std::fmt::Write;

use crate::sim::life::{Pool, RequestLife};

/// More requests than that are only counted.
const NAMED: usize = 8;

/// The requests that have come and not ended, by row, and what each waits for.
pub fn who_waits<'a>(lives: impl Iterator<Item = &'a RequestLife>) -> String {
    let mut text = String::new();
    let mut unnamed = 0;
    for (place, life) in lives.filter(|life| life.outcome.is_none()).enumerate() {
        if place >= NAMED {
            unnamed += 1;
            continue;
        }
        let between = if place > 0 { ", " } else { "" };
        // Writing to a text cannot fail.
        let _ = write!(text, "{between}row {} {}", life.row, waits_for(life));
    }
    if unnamed > 0 {
        let _ = write!(text, " and {unnamed} more");
    }
    text
}

fn waits_for(life: &RequestLife) -> String {
    let Some(stage) = life.route.last() else { return "waits in the router's queue".to_owned() };
    let (pool, worker) = (stage.pool, stage.worker);
    let place = match (pool, stage.rank) {
        (Pool::Agg, 0) => format!("worker {worker}"),
        (Pool::Agg, rank) => format!("worker {worker} rank {rank}"),
        (_, 0) => format!("{} worker {worker}", pool.name()),
        (_, rank) => format!("{} worker {worker} rank {rank}", pool.name()),
    };
    let handoff = life.handoff().copied().unwrap_or_default();
    let admitted =
        life.admissions.iter().filter(|admission| admission.pool == pool).map(|admission| admission.at).next_back();
    let preempted = life.preempted_at().last().copied();
    match pool {
        Pool::Decode if handoff.destination_reserved.get().is_none() => format!("waits for room at {place}"),
        Pool::Decode if handoff.destination_activated.get().is_none() => format!("waits for its blocks at {place}"),
        Pool::Prefill if handoff.source_held.get().is_some() => "waits for a decode worker".to_owned(),
        _ if admitted.is_none() => format!("waits for admission at {place}"),
        _ if preempted >= admitted => format!("waits, preempted, for admission at {place}"),
        _ => format!("runs at {place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ledger::Outcome;
    use crate::sim::life::RouteStage;
    use crate::time::{SimSpan, SimTime};

    fn routed(row: u64, pool: Pool, rank: u16) -> RequestLife {
        let mut life = RequestLife::new(row, 0, 0, SimTime::ZERO, 8, 4);
        life.routed(RouteStage {
            pool,
            worker: 3,
            rank,
            queued: false,
            wait: SimSpan::ZERO,
            selected_overlap_blocks: None,
            best_overlap_blocks: None,
        });
        life
    }

    #[test]
    fn every_stage_has_its_word() {
        let queued = RequestLife::new(0, 0, 0, SimTime::ZERO, 8, 4);
        let waiting = routed(1, Pool::Agg, 0);
        let mut running = routed(2, Pool::Agg, 1);
        running.admitted(SimTime(5), 0, Pool::Agg);
        let mut preempted = running.clone();
        preempted.row = 3;
        preempted.preempted(SimTime(7));
        let mut held = routed(4, Pool::Prefill, 0);
        held.handoff_mut().source_held = SimTime(9).into();
        let no_room = routed(5, Pool::Decode, 0);
        let mut no_blocks = routed(6, Pool::Decode, 0);
        no_blocks.handoff_mut().destination_reserved = SimTime(9).into();
        let mut done = waiting.clone();
        done.ended(SimTime(9), Outcome::Completed);
        let lives = [queued, waiting, running, preempted, held, no_room, no_blocks, done];
        assert_eq!(
            who_waits(lives.iter()),
            "row 0 waits in the router's queue, row 1 waits for admission at worker 3, row 2 runs at worker 3 rank 1, \
             row 3 waits, preempted, for admission at worker 3 rank 1, row 4 waits for a decode worker, \
             row 5 waits for room at decode worker 3, row 6 waits for its blocks at decode worker 3"
        );
    }

    #[test]
    fn many_are_counted() {
        let lives: Vec<_> = (0..20).map(|row| routed(row, Pool::Agg, 0)).collect();
        let text = who_waits(lives.iter());
        assert!(text.ends_with("row 7 waits for admission at worker 3 and 12 more"), "{text}");
    }
}
