//! Unit tests of the engine room.
