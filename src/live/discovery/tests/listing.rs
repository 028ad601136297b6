//! Who is listed, who is refused, and what people leave lying about.

use std::fs;
use std::os::unix::fs::symlink;
use std::thread;

use super::super::*;
use super::{NOTHING, Sleeper, files, mode, namespace, worker, worker_of};

#[test]
fn a_registered_worker_is_listed_as_it_was_given() {
    let (_root, namespace) = namespace();
    let given = worker(50051, 3);
    let guard = namespace.register(&given).unwrap();
    assert_eq!(namespace.list().unwrap(), [worker(50051, 3)]);
    assert_eq!(files(&namespace), [format!("50051-{}.json", given.pid)]);
    assert_eq!((mode(guard.path()), mode(namespace.folder())), (0o600, 0o700));
}

#[test]
fn workers_are_listed_by_port_and_not_by_the_text_of_it() {
    let (_root, namespace) = namespace();
    let _guards =
        [(10_000, 0), (9_000, 2), (50_051, 1)].map(|(port, at)| namespace.register(&worker(port, at)).unwrap());
    let order: Vec<u32> = namespace.list().unwrap().iter().map(|entry| entry.worker_index).collect();
    assert_eq!(order, [2, 0, 1]);
}

#[test]
fn namespaces_do_not_see_each_other() {
    let root = tempfile::tempdir().unwrap();
    let blue = Namespace::open_in(root.path(), "blue").unwrap();
    let green = Namespace::open_in(root.path(), "green").unwrap();
    let _blue = blue.register(&worker(1, 0)).unwrap();
    assert_eq!(green.list().unwrap(), []);
    let _green = green.register(&worker(2, 0)).unwrap();
    assert_eq!((blue.list().unwrap(), green.list().unwrap()), (vec![worker(1, 0)], vec![worker(2, 0)]));
}

#[test]
fn dropping_the_guard_removes_the_file_and_so_does_asking_it() {
    let (_root, namespace) = namespace();
    let dropped = namespace.register(&worker(1, 0)).unwrap();
    let asked = namespace.register(&worker(2, 1)).unwrap();
    drop(dropped);
    assert_eq!(namespace.list().unwrap(), [worker(2, 1)]);
    asked.remove().unwrap();
    assert_eq!(files(&namespace), NOTHING);
}

#[test]
fn the_guard_of_a_replaced_registration_leaves_the_later_one_alone() {
    let (_root, namespace) = namespace();
    let first = namespace.register(&worker(1, 0)).unwrap();
    let second = namespace.register(&worker(1, 7)).unwrap();
    let third = namespace.register(&worker(1, 8)).unwrap();
    drop(second);
    first.remove().unwrap();
    assert_eq!(namespace.list().unwrap(), [worker(1, 8)]);
    drop(third);
    assert_eq!(namespace.list().unwrap(), []);
}

#[test]
fn a_folder_that_was_tidied_away_lists_nobody_and_is_made_again() {
    let (_root, namespace) = namespace();
    let guard = namespace.register(&worker(1, 0)).unwrap();
    fs::remove_dir_all(namespace.folder()).unwrap();
    assert_eq!(namespace.list().unwrap(), []);
    guard.remove().unwrap();
    let _again = namespace.register(&worker(1, 0)).unwrap();
    assert_eq!(namespace.list().unwrap(), [worker(1, 0)]);
}

#[test]
fn what_a_killed_writer_left_is_not_listed_and_the_next_writer_clears_it() {
    let (_root, namespace) = namespace();
    let unfinished = format!(".1-{}.json.tmp", std::process::id());
    fs::write(namespace.folder().join(&unfinished), "{\"url\":").unwrap();
    assert_eq!(namespace.list_with_problems(), (vec![], vec![]));
    let _guard = namespace.register(&worker(1, 0)).unwrap();
    assert!(!files(&namespace).contains(&unfinished));
}

#[test]
fn readers_never_trip_over_writers() {
    let (_root, namespace) = namespace();
    thread::scope(|scope| {
        for port in 1..=3 {
            let namespace = &namespace;
            scope.spawn(move || {
                for round in 0..100 {
                    drop(namespace.register(&worker(port, round)).unwrap());
                }
            });
        }
        for _ in 0..300 {
            let (live, problems) = namespace.list_with_problems();
            assert!(live.len() <= 3);
            assert_eq!(problems, NOTHING);
        }
    });
    assert_eq!(files(&namespace), NOTHING);
}

#[test]
fn a_url_of_another_living_process_is_refused_and_the_process_named() {
    let (_root, namespace) = namespace();
    let sleeper = Sleeper::start();
    let _first = namespace.register(&worker_of(sleeper.pid(), 50051)).unwrap();
    let error = namespace.register(&worker(50051, 0)).unwrap_err();
    assert!(matches!(error, DiscoveryError::Taken { pid, .. } if pid == sleeper.pid()));
    let pid = sleeper.pid();
    assert_eq!(
        error.to_string(),
        format!(
            "namespace `test`: http://127.0.0.1:50051 is registered by the running process {pid}, expected a URL of \
             its own for every worker\n  hint: stop process {pid}, or use another port or another namespace"
        )
    );
    assert_eq!(namespace.list().unwrap(), [worker_of(pid, 50051)]);
}

#[test]
fn a_url_of_a_dead_process_is_taken_over() {
    let (_root, namespace) = namespace();
    let mut sleeper = Sleeper::start();
    let _first = namespace.register(&worker_of(sleeper.pid(), 50051)).unwrap();
    sleeper.kill();
    sleeper.reap();
    let _second = namespace.register(&worker(50051, 0)).unwrap();
    assert_eq!(files(&namespace), [format!("50051-{}.json", std::process::id())]);
}

#[test]
fn of_two_processes_that_want_one_url_at_once_one_gets_it() {
    let (_root, namespace) = namespace();
    let sleepers: Vec<Sleeper> = (0..4).map(|_| Sleeper::start()).collect();
    let results: Vec<_> = thread::scope(|scope| {
        let start = |sleeper: &Sleeper| {
            let (namespace, wanted) = (&namespace, worker_of(sleeper.pid(), 50051));
            scope.spawn(move || namespace.register(&wanted))
        };
        let racers: Vec<_> = sleepers.iter().map(start).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert_eq!(namespace.list().unwrap().len(), 1);
}

#[test]
fn a_port_under_two_hosts_of_one_process_is_refused() {
    let (_root, namespace) = namespace();
    let _first = namespace.register(&worker(50051, 0)).unwrap();
    let second = Registration { url: "http://127.0.0.2:50051".to_string(), ..worker(50051, 1) };
    assert!(matches!(namespace.register(&second), Err(DiscoveryError::PortTaken { .. })));
}

#[test]
fn a_registration_that_nobody_could_use_is_refused() {
    let (_root, namespace) = namespace();
    let refusal = |wrong: Registration| namespace.register(&wrong).unwrap_err().to_string();
    let good = worker(1, 0);
    assert_eq!(
        refusal(Registration { speedup_ratio: f64::INFINITY, ..good.clone() }),
        "registration: `speedup_ratio` is inf, expected a finite number"
    );
    assert_eq!(
        refusal(Registration { pid: 0, ..good.clone() }),
        "registration: `pid` is 0, expected the number of a process"
    );
    assert!(refusal(Registration { url: "localhost".to_string(), ..good }).starts_with("worker `localhost`: "));
    assert_eq!(files(&namespace), NOTHING);
}

#[test]
fn a_corrupted_file_is_reported_and_hides_nobody() {
    let (_root, namespace) = namespace();
    let _guard = namespace.register(&worker(50051, 0)).unwrap();
    let corrupted = namespace.register(&worker(50052, 1)).unwrap();
    fs::write(corrupted.path(), "{\"url\": 5}\n").unwrap();
    assert_eq!(namespace.list().unwrap(), [worker(50051, 0)]);
    let (live, problems) = namespace.list_with_problems();
    assert_eq!(live, [worker(50051, 0)]);
    let expected = format!(
        "{}:1:9: not the registration of a worker: invalid type: integer `5`, expected a string\n  hint: remove the \
         file if nobody uses it",
        corrupted.path().display()
    );
    assert_eq!(problems, [expected]);
    // The worker itself can put it right.
    let _again = namespace.register(&worker(50052, 1)).unwrap();
    assert_eq!(namespace.list_with_problems().1, NOTHING);
}

#[test]
fn copies_folders_and_links_are_no_workers() {
    let (root, namespace) = namespace();
    let guard = namespace.register(&worker(50051, 0)).unwrap();
    let at = |name: &str| namespace.folder().join(name);
    fs::copy(guard.path(), at("copy.json")).unwrap();
    fs::create_dir(at("folder.json")).unwrap();
    symlink(root.path().join("nowhere"), at("link.json")).unwrap();
    fs::write(at("README"), "not for us").unwrap();
    let (live, problems) = namespace.list_with_problems();
    assert_eq!(live, [worker(50051, 0)]);
    let own_name = guard.path().file_name().unwrap().to_string_lossy();
    assert_eq!(
        problems,
        [
            format!("{}: holds what belongs in {own_name}", at("copy.json").display()),
            format!("{}: not a plain file, expected the registration of a worker", at("folder.json").display()),
            format!("{}: not a plain file, expected the registration of a worker", at("link.json").display()),
        ]
    );
}

#[test]
fn keys_of_a_later_version_are_ignored() {
    let (_root, namespace) = namespace();
    let guard = namespace.register(&worker(50051, 0)).unwrap();
    let text = fs::read_to_string(guard.path()).unwrap();
    fs::write(guard.path(), text.replacen('{', "{\"zone\": \"a\",", 1)).unwrap();
    assert_eq!(namespace.list_with_problems(), (vec![worker(50051, 0)], vec![]));
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error_and_not_an_empty_fleet() {
    let (_root, namespace) = namespace();
    fs::remove_dir(namespace.folder()).unwrap();
    fs::write(namespace.folder(), "a file").unwrap();
    assert!(matches!(namespace.list(), Err(DiscoveryError::File { .. })));
    let (live, problems) = namespace.list_with_problems();
    assert_eq!((live.len(), problems.len()), (0, 1));
}
