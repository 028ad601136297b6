//! Whether the process that wrote a registration still lives.
//!
//! A process number alone is not enough: the system gives it out again, and a process that has ended keeps it until its
//! parent asks. On Linux `/proc` answers both: the start time tells two owners of one number apart, and the state names
//! the dead. Elsewhere the number has to do.

use std::io;

/// When a process started, in clock ticks since the machine did (field 22 of `/proc/PID/stat`). `None` if there is no
/// such process, or the system is not Linux.
pub fn process_started(pid: u32) -> Option<u64> {
    stat(pid).map(|stat| stat.started)
}

/// Whether process `pid` runs, and is the one that started at `started` if both that and its start are known.
///
/// A process that has ended and waits for its parent (a zombie) is not alive. In doubt the answer is yes: a worker too
/// many fails its first request, one too few is never asked.
pub fn is_alive(pid: u32, started: Option<u64>) -> bool {
    exists(pid)
        && stat(pid).is_none_or(|stat| {
            let ended = matches!(stat.state, 'Z' | 'X' | 'x');
            !ended && started.is_none_or(|started| started == stat.started)
        })
}

fn exists(pid: u32) -> bool {
    // 0 and the negative numbers name groups of processes.
    let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0) else {
        return false;
    };
    // SAFETY: signal 0 is never delivered; the call only asks whether one could be. It touches no memory of ours.
    let answer = unsafe { libc::kill(pid, 0) };
    // Any other refusal (EPERM: another user's process) comes from a process that exists.
    answer == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: char,
    pub(super) started: u64,
}

#[cfg(target_os = "linux")]
fn stat(pid: u32) -> Option<Stat> {
    // The name of the program may be any bytes.
    let line = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&line))
}

#[cfg(not(target_os = "linux"))]
fn stat(_pid: u32) -> Option<Stat> {
    None
}

/// Field 2 is the program's name in brackets, which may itself hold brackets and spaces: fields are counted from the
/// last closing one.
#[cfg(any(target_os = "linux", test))]
pub(super) fn parse_stat(line: &str) -> Option<Stat> {
    const STATE: usize = 3;
    const STARTED: usize = 22;
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(STARTED - STATE - 1)?.parse().ok()?;
    Some(Stat { state, started })
}
