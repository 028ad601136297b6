//! Fewest requests in flight: of all workers, or of two drawn ones.
//!
//! Two draws spread requests nearly as evenly as a look at all workers, and do not send everybody to the same one where
//! several routers choose at once. Source of the rules: NVIDIA Dynamo 1.6.1, routing_policy/picker (facts only).

use rand::RngExt;

use crate::rng::Rng;
use crate::router::config::TieBreak;

/// Index of the worker with the fewest of `requests`; there is at least one. Of equal ones any, by seed, or the first.
pub fn least(requests: &[u32], ties: TieBreak, rng: &mut Rng) -> usize {
    let fewest = requests.iter().copied().min().unwrap_or(0);
    let tied: Vec<usize> = (0..requests.len()).filter(|worker| requests[*worker] == fewest).collect();
    match (tied.len(), ties) {
        (0, _) => 0,
        (1, _) | (_, TieBreak::Lowest) => tied[0],
        (several, TieBreak::Seeded) => tied[rng.random_range(0..several)],
    }
}

/// Index of the one with fewer requests of two different workers that are drawn; of equal ones the first drawn.
pub fn of_two(requests: &[u32], rng: &mut Rng) -> usize {
    if requests.len() < 2 {
        return 0;
    }
    let first = rng.random_range(0..requests.len());
    // Any but the first: those from its place on move up by one.
    let second = rng.random_range(0..requests.len() - 1);
    let second = second + usize::from(second >= first);
    if requests[second] < requests[first] { second } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Seed;

    #[test]
    fn the_least_loaded_wins_and_ties_spread() {
        let mut rng = Seed(1).rng();
        assert_eq!(least(&[3, 1, 2], TieBreak::Seeded, &mut rng), 1);
        let mut times = [0; 4];
        for _ in 0..300 {
            times[least(&[5, 1, 1, 1], TieBreak::Seeded, &mut rng)] += 1;
        }
        assert!(times[0] == 0 && times[1..].iter().all(|times| *times > 60), "{times:?}");
        assert_eq!(least(&[5, 1, 1], TieBreak::Lowest, &mut rng), 1);
    }

    #[test]
    fn of_two_draws_the_fuller_one_never_wins() {
        let mut rng = Seed(2).rng();
        let mut times = [0; 3];
        for _ in 0..300 {
            times[of_two(&[9, 1, 5], &mut rng)] += 1;
        }
        // The fullest loses against both, the emptiest wins against both: in two of three pairs.
        assert_eq!(times[0], 0);
        assert!((160..=240).contains(&times[1]) && times[1] + times[2] == 300, "{times:?}");
        assert_eq!(of_two(&[7], &mut rng), 0);
    }
}
