//! Namespaces and the folder above them: which names, whose folder.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};

use super::super::runtime_dir::{check_mode, check_owner, choose};
use super::super::*;
use super::{mode, set_mode, worker};

#[test]
fn bad_names_of_namespaces_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let long = "x".repeat(65);
    for (name, fault) in [
        ("", "is empty"),
        (".", "starts with a dot"),
        ("..", "starts with a dot"),
        (".hidden", "starts with a dot"),
        ("a/b", "holds `/`"),
        ("../up", "holds `/`"),
        ("a b", "holds ` `"),
        ("tab\there", "holds `\\t`"),
        ("größe", "holds `ö`"),
        (long.as_str(), "has 65 characters"),
    ] {
        let error = Namespace::open_in(root.path(), name).unwrap_err().to_string();
        let shown = name.escape_debug();
        let expected = "expected 1 to 64 characters of A-Z a-z 0-9 . _ -, the first not a dot";
        assert_eq!(error, format!("namespace `{shown}` {fault}, {expected}"));
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    for name in ["a", "-", "_.", "Fleet-2.b_c", &"x".repeat(64)] {
        assert_eq!(Namespace::open_in(root.path(), name).unwrap().name(), name);
    }
}

#[test]
fn the_folder_follows_the_environment() {
    let present = tempfile::tempdir().unwrap();
    let xdg = || Some(present.path().as_os_str().to_owned());
    let choose = |own: Option<&str>, xdg| choose(own.map(Into::into), xdg, Path::new("/t"), 7);
    assert_eq!(choose(Some("/own"), xdg()), PathBuf::from("/own"));
    assert_eq!(choose(Some(""), xdg()), present.path().join("mockfleet"));
    assert_eq!(choose(None, xdg()), present.path().join("mockfleet"));
    let absent = present.path().join("absent").into_os_string();
    for not_set in [None, Some("".into()), Some(".".into()), Some(absent)] {
        assert_eq!(choose(None, not_set), PathBuf::from("/t/mockfleet-7"));
    }
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let root = tempfile::tempdir().unwrap();
    for open_to_others in [0o777, 0o770, 0o720, 0o702] {
        set_mode(root.path(), open_to_others);
        let error = Namespace::open_in(root.path(), "test").unwrap_err().to_string();
        let place = root.path().display();
        assert_eq!(
            error,
            format!(
                "{place}: others may write to the folder (mode {open_to_others:03o}), expected one that only its owner \
                 may write to\n  hint: set MOCKFLEET_RUNTIME_DIR to a folder that only you may write to"
            )
        );
    }
    set_mode(root.path(), 0o755);
    let namespace = Namespace::open_in(root.path(), "test").unwrap();
    set_mode(namespace.folder(), 0o777);
    assert!(matches!(namespace.register(&worker(1, 0)), Err(DiscoveryError::UnsafeFolder { .. })));
    assert!(check_mode(root.path(), 0o40700).is_ok());
}

#[test]
fn a_folder_of_another_user_is_refused() {
    assert!(check_owner(Path::new("/t/mockfleet-7"), 7, 7).is_ok());
    assert_eq!(
        check_owner(Path::new("/t/mockfleet-7"), 8, 7).unwrap_err().to_string(),
        "/t/mockfleet-7: the folder belongs to user 8, expected one of user 7, who runs this\n  hint: set \
         MOCKFLEET_RUNTIME_DIR to a folder of your own"
    );
    // Only the superuser can give a folder away; others have tested the rule above.
    let root = tempfile::tempdir().unwrap();
    if chown(root.path(), Some(54_321), None).is_ok() {
        let error = Namespace::open_in(root.path(), "test").unwrap_err();
        assert!(error.to_string().contains(": the folder belongs to user 54321, expected one of user "), "{error}");
    }
}

#[test]
fn a_link_to_a_safe_folder_is_followed_and_one_to_an_unsafe_folder_refused() {
    let root = tempfile::tempdir().unwrap();
    let (folder, link) = (root.path().join("folder"), root.path().join("link"));
    fs::create_dir(&folder).unwrap();
    symlink(&folder, &link).unwrap();
    set_mode(&folder, 0o755);
    assert!(Namespace::open_in(&link, "test").is_ok());
    set_mode(&folder, 0o777);
    assert!(matches!(Namespace::open_in(&link, "test"), Err(DiscoveryError::UnsafeFolder { .. })));
}

#[test]
fn a_missing_folder_is_made_and_a_file_in_its_place_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("a/b");
    Namespace::open_in(&deep, "test").unwrap();
    assert_eq!((mode(&root.path().join("a")), mode(&deep)), (0o700, 0o700));
    fs::write(root.path().join("file"), "").unwrap();
    let error = Namespace::open_in(&root.path().join("file"), "test").unwrap_err();
    assert!(matches!(error, DiscoveryError::File { action: "create the folder", .. }), "{error}");
}
