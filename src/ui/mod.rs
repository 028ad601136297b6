//! What people see while a program works: the progress bar and the log, both on stderr.

pub mod log;
pub mod progress;

pub use progress::LoadProgress;
