//! The live side: clock, threads, sockets. Everything here carries inputs to the pure machines and their outputs away.
//!
//! Map: [`clock`] the only reader of the wall clock, [`pacer`] the thread that owns a machine, [`serve`] connections on a
//! listener, [`backend`] the trait behind both surfaces, [`http`] and [`grpc`] the surfaces, [`mocker`] the fleet of
//! workers, [`gateway`] the router as a server, [`load`] the generator's transports, [`discovery`] how they find each other.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod backend;
pub mod clock;
pub mod discovery;
pub mod fleet_actor;
pub mod gateway;
pub mod grpc;
pub mod http;
pub mod journal;
pub mod kv_log;
pub mod load;
pub mod mocker;
pub mod pacer;
pub mod serve;
pub mod shutdown;
