//! Keeps what the world tells as one life a request.

use crate::ids::RequestId;
use crate::session::ledger::{FailureKind, Outcome};
use crate::session::workload::Workload;
use crate::sim::life::{RequestLife, RouteStage};
use crate::sim::world::{HandoffStage, WorldEvent};
use crate::time::SimTime;

/// The lives of a workload's requests, by row.
#[derive(Clone, Debug)]
pub struct Lives(Vec<Option<RequestLife>>);

impl Lives {
    /// Nothing has come yet of a workload of so many requests.
    pub fn new(requests: usize) -> Self {
        Lives(vec![None; requests])
    }

    /// All that have come, by row.
    pub fn into_vec(self) -> Vec<RequestLife> {
        self.0.into_iter().flatten().collect()
    }

    /// All that have come so far, by row.
    pub fn iter(&self) -> impl Iterator<Item = &RequestLife> {
        self.0.iter().flatten()
    }

    /// Takes in an event; true if the request ended with it.
    pub fn note(&mut self, workload: &Workload, at: SimTime, event: WorldEvent) -> bool {
        let lives = &mut self.0;
        let slot = |id: RequestId| id.0 as usize;
        match event {
            WorldEvent::Released(release) => {
                let row = slot(release.id);
                let item = &workload.items[row];
                let (session, turn) = (release.session.0, release.turn);
                let life = RequestLife::new(
                    row as u64,
                    session,
                    turn,
                    release.intended,
                    item.input_tokens,
                    item.output_tokens,
                );
                lives[row] = Some(life);
                false
            }
            WorldEvent::Routed { id, pool, worker, rank, decision } => {
                if let Some(life) = &mut lives[slot(id)] {
                    life.routed(RouteStage {
                        pool,
                        worker,
                        rank: rank as u16,
                        queued: decision.queued,
                        wait: decision.wait,
                        selected_overlap_blocks: decision.overlap_blocks,
                        best_overlap_blocks: decision.best_overlap_blocks,
                    });
                }
                false
            }
            WorldEvent::Handoff(id, stage) => {
                if let Some(life) = &mut lives[slot(id)] {
                    let times = life.handoff_mut();
                    match stage {
                        HandoffStage::SourceHeld => times.source_held = at.into(),
                        HandoffStage::DestinationReserved => times.destination_reserved = at.into(),
                        HandoffStage::DestinationActivated => times.destination_activated = at.into(),
                        HandoffStage::SourceReleased => times.source_released = at.into(),
                    }
                }
                false
            }
            WorldEvent::Step { .. } | WorldEvent::Gauges { .. } => false,
            WorldEvent::Admitted { id, pool, reused_tokens } => {
                if let Some(life) = &mut lives[slot(id)] {
                    life.admitted(at, reused_tokens, pool);
                }
                false
            }
            WorldEvent::Preempted(id) => {
                if let Some(life) = &mut lives[slot(id)] {
                    life.preempted(at);
                }
                false
            }
            WorldEvent::Token { id, position, finished, max_gap } => {
                if let Some(life) = &mut lives[slot(id)] {
                    match position {
                        0 => life.first_token = at.into(),
                        1 => life.second_token = at.into(),
                        _ => {}
                    }
                    life.last_token = at.into();
                    life.longest_gap = max_gap;
                    life.output_tokens = position + 1;
                    if finished {
                        life.ended(at, Outcome::Completed);
                    }
                }
                finished
            }
            WorldEvent::Finished(id) => end(lives, slot(id), at, Outcome::Completed),
            WorldEvent::Rejected(id, reason) => {
                let outcome = Outcome::Failed { kind: FailureKind::Rejected, message: reason.to_string() };
                end(lives, slot(id), at, outcome)
            }
        }
    }
}

fn end(lives: &mut [Option<RequestLife>], row: usize, at: SimTime, outcome: Outcome) -> bool {
    if let Some(life) = &mut lives[row] {
        life.ended(at, outcome);
    }
    true
}
