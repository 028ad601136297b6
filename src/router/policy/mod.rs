//! How one of the candidates is chosen, one file a policy.

pub mod in_flight;
pub mod kv;
pub mod random;
pub mod round_robin;
