//! Guessed tokens (multi-token prediction): how many of them a step may keep.
//!
//! A step guesses `aic_nextn` tokens behind the next one. The first is right with the first rate, the second with the
//! second if the first was, and so on; the step yields the next token and the right ones in front of the first wrong one.
//! Whether a guess is right depends on the request and the token's position alone, so that no schedule changes it.

use serde::{Deserialize, Serialize};

use crate::engine::config::{ConfigError, EngineConfig, require};
use crate::rng::Seed;

const EXPECTED: &str = "numbers from 0 to 1, separated by commas";

/// Probability that each guess is right, given that those before it are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Vec<f64>")]
pub struct AcceptRates(Vec<f64>);

/// What files say: a list, or a text with commas. What is no number becomes NaN, which the check refuses.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    List(Vec<f64>),
    Text(String),
}

impl From<Written> for AcceptRates {
    fn from(written: Written) -> Self {
        match written {
            Written::List(rates) => AcceptRates(rates),
            Written::Text(text) => text.parse().unwrap_or_else(|_| AcceptRates(vec![f64::NAN])),
        }
    }
}

impl std::str::FromStr for AcceptRates {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rates = text.split(',').map(|rate| rate.trim().parse().ok().filter(|rate: &f64| rate.is_finite()));
        rates.collect::<Option<Vec<f64>>>().map(AcceptRates).ok_or(EXPECTED)
    }
}

impl From<AcceptRates> for Vec<f64> {
    fn from(rates: AcceptRates) -> Self {
        rates.0
    }
}

impl Default for AcceptRates {
    /// The reference's default.
    fn default() -> Self {
        AcceptRates(vec![0.85, 0.3])
    }
}

impl AcceptRates {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let bad = self.0.iter().find(|rate| !(0.0..=1.0).contains(*rate));
        let value = bad.copied().unwrap_or(0.0);
        require(bad.is_none(), "aic_nextn_accept_rates", value, EXPECTED)
    }
}

impl EngineConfig {
    /// Tokens that a step yields at most for one sequence.
    pub(crate) fn burst_tokens(&self) -> u32 {
        1 + self.aic_nextn.unwrap_or(0)
    }

    /// Tokens that a step yields for the request with this seed whose next token has this position.
    pub(crate) fn accepted_burst(&self, request: Seed, position: u32) -> u32 {
        let guesses = self.aic_nextn.unwrap_or(0) as usize;
        let seed = Seed(request.0 ^ self.aic_mtp_seed).split("guesses");
        let right = |(guess, rate): &(usize, &f64)| seed.unit_at(position + 1 + *guess as u32) < **rate;
        1 + self.aic_nextn_accept_rates.0.iter().take(guesses).enumerate().take_while(right).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(nextn: u32, rates: &str) -> EngineConfig {
        let rates = Written::Text(rates.to_owned()).into();
        EngineConfig { aic_nextn: Some(nextn), aic_nextn_accept_rates: rates, ..EngineConfig::default() }
    }

    #[test]
    fn sure_rates_are_sure() {
        let burst = |nextn, rates| config(nextn, rates).accepted_burst(Seed(7), 3);
        assert_eq!(burst(2, "1,1,1"), 3);
        assert_eq!(burst(3, "1"), 2);
        assert_eq!(burst(3, "0,1,1"), 1);
        assert_eq!(EngineConfig::default().accepted_burst(Seed(7), 3), 1);
    }

    #[test]
    fn rates_are_met_on_average_and_in_turn() {
        let config = config(2, "0.85, 0.3");
        let (mut one, mut two) = (0, 0);
        for position in 0..20_000 {
            let burst = config.accepted_burst(Seed(11), position);
            one += u32::from(burst >= 2);
            two += u32::from(burst == 3);
        }
        assert!((16_800..17_200).contains(&one), "{one} of 20,000 first guesses");
        assert!((4_900..5_300).contains(&two), "{two} of 20,000 second guesses");
    }

    #[test]
    fn bad_rates_are_named() {
        for rates in ["1.5", "0.2,x", "", "-0.1"] {
            let error = config(1, rates).validate().expect_err(rates);
            assert_eq!(error.key, "aic_nextn_accept_rates");
        }
    }
}
