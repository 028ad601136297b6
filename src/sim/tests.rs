//! Unit tests of the replay.
