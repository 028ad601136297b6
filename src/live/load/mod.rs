//! The load generator's transports.
