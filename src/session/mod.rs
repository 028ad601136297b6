//! What shall be sent, when, and what became of it: the plan, the driver that follows it, and the ledger.

pub mod ledger;
