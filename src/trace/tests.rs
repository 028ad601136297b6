//! Tests of the room, one file an idea.

mod generate;
