//! Names of things: newtypes, so that a worker is never taken for a request.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// One request of a run, unique within the machine that carries it.
    RequestId(u64)
);
id!(
    /// One engine of a fleet, counted from 0.
    WorkerId(u32)
);
id!(
    /// One session: requests sent one after another, each waiting for the one before.
    SessionId(u32)
);
id!(
    /// Hash of a block and of all blocks before it: equal hashes mean equal prefixes.
    SequenceHash(u64)
);
id!(
    /// Hash of the tokens of one block alone.
    TokensHash(u64)
);
