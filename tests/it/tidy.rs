//! The repository keeps its own rules: this test reads its files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file may have this many lines.
const MAX_LINES: usize = 600;
/// Above this a file is listed as one to split.
const LONG_LINES: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files that git tracks or would track; without git, those of the folders that hold code.
fn files() -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    if let Ok(output) = listed
        && output.status.success()
    {
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        return names.lines().map(|name| root().join(name)).filter(|path| path.is_file()).collect();
    }
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> =
        ["src", "bin", "tests", "benches", "proto", "docs", "scripts"].map(|dir| root().join(dir)).to_vec();
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found
}

fn rust_files() -> Vec<(PathBuf, String)> {
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let read: Vec<_> = rust.map(|path| (path.clone(), std::fs::read_to_string(&path).expect("UTF-8 text"))).collect();
    assert!(read.len() > 50, "only {} Rust files found", read.len());
    read
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn files_are_short() {
    let mut too_long = Vec::new();
    for (path, text) in rust_files() {
        let lines = text.lines().count();
        if lines > MAX_LINES {
            too_long.push(format!("{} has {lines} lines", name(&path)));
        } else if lines > LONG_LINES {
            eprintln!("long: {} has {lines} lines, better {LONG_LINES} or fewer", name(&path));
        }
    }
    assert!(too_long.is_empty(), "over {MAX_LINES} lines: {too_long:#?}");
}

#[test]
fn every_module_says_what_idea_it_holds() {
    let silent: Vec<String> = rust_files()
        .into_iter()
        .filter(|(_, text)| !text.trim_start().starts_with("//!"))
        .map(|(path, _)| name(&path))
        .collect();
    assert!(silent.is_empty(), "without a `//!` opening: {silent:#?}");
}

#[test]
fn no_banned_words() {
    // Put together here, so that this file does not hold them.
    let macros = ["todo", "unimplemented", "dbg"].map(|word| format!("{word}!("));
    let roots = ["root", "home", "work", "Users"].map(|folder| format!("/{folder}/"));
    let mut found = Vec::new();
    for path in files() {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let is_rust = path.extension().is_some_and(|ending| ending == "rs");
        for (number, line) in text.lines().enumerate() {
            let place = || format!("{}:{}: {}", name(&path), number + 1, line.trim());
            if is_rust && macros.iter().any(|word| line.contains(word.as_str())) {
                found.push(place());
            }
            // A path of one machine starts the word that it is in.
            let starts_path = |start: &String| {
                line.match_indices(start.as_str()).any(|(at, _)| {
                    !line[..at]
                        .chars()
                        .next_back()
                        .is_some_and(|before| before.is_alphanumeric() || "._-/}~".contains(before))
                })
            };
            if name(&path) != "Dockerfile" && roots.iter().any(starts_path) {
                found.push(place());
            }
        }
    }
    assert!(found.is_empty(), "banned words or absolute paths: {found:#?}");
}

#[test]
fn pure_rooms_deny_clock_threads_and_random_order() {
    for room in ["engine", "router", "session", "journal", "measure", "sim", "trace"] {
        let text = std::fs::read_to_string(root().join("src").join(room).join("mod.rs")).expect("the room's map");
        assert!(
            text.contains("#![deny(clippy::disallowed_methods, clippy::disallowed_types)]"),
            "src/{room}/mod.rs does not deny the bans of clippy.toml"
        );
        for (path, text) in rust_files() {
            if path.starts_with(root().join("src").join(room)) {
                for impure in ["tokio", "std::net", "crate::live"] {
                    assert!(!text.contains(&format!("{impure}::")), "{} uses {impure}", name(&path));
                }
            }
        }
    }
}
