//! The thread that writes: what is handed over is in the file, whatever happens to the disk.

use std::fs;

use super::*;
use crate::ids::RequestId;
use crate::journal::{DriverSetup, replay};
use crate::session::driver::{Driver, DriverInput, Release};
use crate::session::plan::{ArrivalMode, PlannedSession, PlannedTurn};

fn setup(requests: u64) -> DriverSetup {
    let session =
        |row| PlannedSession { session_id: None, start_ms: None, turns: vec![PlannedTurn { row, delay_ms: 0.0 }] };
    DriverSetup { arrival: ArrivalMode::Concurrency { concurrency: 1 }, sessions: (0..requests).map(session).collect() }
}

/// Lets all requests of a closed loop come and go.
fn drive(driver: &mut Recorded<Driver>) {
    let (mut out, mut now) = (Vec::new(), SimTime::ZERO);
    while let Some(due) = driver.next_deadline() {
        driver.advance(due.max(now), &mut out);
        now = SimTime(due.0 + 7);
        for Release { id, .. } in out.split_off(0) {
            driver.handle(now, DriverInput::Ended { id, session_continues: true }, &mut out);
        }
    }
}

#[test]
fn what_is_handed_over_is_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("driver.journal");
    let journal = Journal::create(&path).expect("a journal");
    // More than the channel holds, so that somebody waits.
    let requests = MOST_WAITING as u64;
    let mut driver = Recorded::<Driver>::build(setup(requests), Some(journal.tape())).expect("a driver");
    drive(&mut driver);
    let summary = journal.finish().expect("a whole journal");
    let counts = JournalCounts { starts: 1, inputs: requests, advances: requests, outputs: requests };
    assert_eq!(summary.counts, counts);
    let replayed = replay("driver.journal", fs::read(&path).expect("a file").as_slice()).expect("the same outputs");
    assert_eq!((replayed.counts, replayed.cut), (counts, None));
    // A machine that outlives its journal does no harm.
    driver.handle(SimTime(u64::MAX), DriverInput::Ended { id: RequestId(0), session_continues: true }, &mut Vec::new());
}

#[test]
fn an_existing_file_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("precious");
    fs::write(&path, "precious").expect("a file");
    let Err(error) = Journal::<Driver>::create(&path) else { panic!("it was overwritten") };
    assert!(error.to_string().contains("there is a file already"), "{error}");
    assert_eq!(fs::read_to_string(&path).expect("a file"), "precious");
    let Err(error) = Journal::<Driver>::create(&folder.path().join("none/at all")) else { panic!("no such folder") };
    assert!(error.to_string().contains("cannot write the journal"), "{error}");
}

#[test]
fn without_a_machine_there_is_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("driver.journal");
    let journal = Journal::<Driver>::create(&path).expect("a journal");
    assert!(path.exists());
    drop(journal);
    assert!(!path.exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_does_not_end_the_run() {
    let shared = Shared { path: "full".into(), ..Shared::default() };
    let file = OpenOptions::new().write(true).open("/dev/full").expect("the device");
    let (sender, receiver) = sync_channel(MOST_WAITING);
    let tape = Tape { sender, shared: Arc::new(shared) };
    let shared = tape.shared.clone();
    let thread = std::thread::spawn(move || write::<Driver>(&shared, file, &receiver));
    let mut driver = Recorded::build(setup(20_000), Some(tape.clone())).expect("a driver");
    drive(&mut driver);
    assert!(driver.is_finished());
    tape.put(Entry::End);
    let error = thread.join().expect("no panic").expect_err("nothing fits");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(!tape.is_open());
}

#[test]
fn a_machine_that_is_too_fast_waits_and_says_so() {
    let (sender, receiver) = sync_channel(1);
    let tape = Tape::<Driver> { sender, shared: Arc::default() };
    let writer = tape.clone();
    let thread = std::thread::spawn(move || (0..3).for_each(|at| writer.put(Entry::Advance(SimTime(at), Vec::new()))));
    while tape.shared.waits.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let times: Vec<SimTime> = (0..3)
        .map(|_| match receiver.recv().expect("an entry") {
            Entry::Advance(to, _) => to,
            _ => panic!("another entry"),
        })
        .collect();
    assert_eq!(times, [0, 1, 2].map(SimTime), "nothing is left out");
    thread.join().expect("no panic");
}
