//! Events of a Chrome trace as text.
//!
//! Written by hand, as a time is an exact decimal here: nanoseconds with the point moved, never a rounded number.

use std::fmt::{self, Write};

use crate::time::SimTime;

/// Nanoseconds, written in microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1000, self.0 % 1000) {
            (whole, 0) => write!(f, "{whole}"),
            (whole, rest) => write!(f, "{whole}.{rest:03}"),
        }
    }
}

/// A text with quotes around it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self.0).map_err(|_| fmt::Error)?)
    }
}

/// Appends to a text, which cannot fail.
macro_rules! append {
    ($text:expr, $($arguments:tt)*) => {
        let _ = write!($text, $($arguments)*);
    };
}

/// An event that has arguments.
pub(super) struct Event<'a> {
    pid: u32,
    tid: Option<u64>,
    at: SimTime,
    name: &'a str,
    kind: Kind,
}

enum Kind {
    Span { ends: SimTime },
    Instant,
    Counters,
}

impl<'a> Event<'a> {
    /// A span on a track.
    pub(super) fn span(pid: u32, tid: u64, started: SimTime, ends: SimTime, name: &'a str) -> Self {
        Event { pid, tid: Some(tid), at: started, name, kind: Kind::Span { ends } }
    }

    /// A point on a track.
    pub(super) fn instant(pid: u32, tid: u64, at: SimTime, name: &'a str) -> Self {
        Event { pid, tid: Some(tid), at, name, kind: Kind::Instant }
    }

    /// Values of counters from `at` on; each argument is a counter, called by `name` and its own.
    pub(super) fn counters(pid: u32, at: SimTime, name: &'a str) -> Self {
        Event { pid, tid: None, at, name, kind: Kind::Counters }
    }

    /// Appends all but the arguments.
    pub(super) fn start(self, text: &mut String) -> Arguments<'_> {
        let phase = match self.kind {
            Kind::Span { .. } => "X",
            Kind::Instant => "i",
            Kind::Counters => "C",
        };
        append!(text, "{{\"ph\":\"{phase}\",\"pid\":{}", self.pid);
        if let Some(tid) = self.tid {
            append!(text, ",\"tid\":{tid}");
        }
        append!(text, ",\"ts\":{}", Micros(self.at.0));
        match self.kind {
            Kind::Span { ends } => {
                append!(text, ",\"dur\":{}", Micros(ends.since(self.at).0));
            }
            // As wide as its track.
            Kind::Instant => text.push_str(",\"s\":\"t\""),
            Kind::Counters => {}
        }
        append!(text, ",\"name\":{},\"args\":{{", Quoted(self.name));
        Arguments { text, first: true }
    }
}

/// The arguments of an event that is being written.
pub(super) struct Arguments<'a> {
    text: &'a mut String,
    first: bool,
}

impl Arguments<'_> {
    pub(super) fn number(mut self, key: &str, value: u64) -> Self {
        self.key(key);
        append!(self.text, "{value}");
        self
    }

    pub(super) fn text(mut self, key: &str, value: &str) -> Self {
        self.key(key);
        append!(self.text, "{}", Quoted(value));
        self
    }

    pub(super) fn end(self) {
        self.text.push_str("}}");
    }

    fn key(&mut self, key: &str) {
        let comma = if self.first { "" } else { "," };
        append!(self.text, "{comma}\"{key}\":");
        self.first = false;
    }
}

/// Appends the event that names a process.
pub(super) fn name_process(text: &mut String, pid: u32, name: &str) {
    append!(text, "{{\"ph\":\"M\",\"pid\":{pid},\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}", Quoted(name));
}

/// Appends the event that puts a process in its place, 0 on top.
pub(super) fn sort_process(text: &mut String, pid: u32, place: u64) {
    append!(text, "{{\"ph\":\"M\",\"pid\":{pid},\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{place}}}}}");
}

/// Appends the event that names a track.
pub(super) fn name_track(text: &mut String, pid: u32, tid: u64, name: &str) {
    append!(
        text,
        "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}",
        Quoted(name)
    );
}

/// Appends the event that puts a track in its place within the process, 0 on top.
pub(super) fn sort_track(text: &mut String, pid: u32, tid: u64, place: u64) {
    append!(text, "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"thread_sort_index\",");
    append!(text, "\"args\":{{\"sort_index\":{place}}}}}");
}
