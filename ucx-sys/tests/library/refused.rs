//! What is not UCX, or not one that works.

use crate::common::folder;
use crate::made::{Made, complete};
use crate::{asked, in_child};
use kvroom_ucx_sys::{LEAST, LoadError, Ucx, Version};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Opens what a path names, in a process of its own.
fn apart(test: &str, make: impl FnOnce(&Path) -> Option<PathBuf>, check: impl FnOnce(&Path)) {
    if let Some(path) = asked() {
        check(Path::new(&path));
        return;
    }
    let at = folder(test.rsplit("::").next().unwrap());
    if let Some(path) = make(&at) {
        in_child(test, path.as_os_str());
    }
}

fn refused(path: &Path) -> LoadError {
    let error = Ucx::open(Some(path)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ucx.library"), "what to do: {text}");
    assert!(text.contains(path.to_str().unwrap()), "whose fault: {text}");
    error
}

/// Whether a file is mapped by this process.
fn loaded(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .any(|line| line.ends_with(real.to_str().unwrap()))
}

#[test]
fn a_library_that_is_not_there_or_cannot_be_loaded_is_absent_and_the_linkers_reason_is_told() {
    let test = "refused::a_library_that_is_not_there_or_cannot_be_loaded_is_absent_and_the_linkers_reason_is_told";
    let make = |at: &Path| {
        fs::write(at.join("text.so"), "no library").unwrap();
        Some(at.join("text.so"))
    };
    apart(test, make, |text| {
        let LoadError::Absent { tried, why } = refused(text) else {
            panic!("not absent");
        };
        assert_eq!(tried, text);
        assert!(why.contains("text.so"), "{why}");
        let nowhere = Path::new("/no/such/folder/libucp.so.0");
        let LoadError::Absent { why, .. } = refused(nowhere) else {
            panic!("not absent");
        };
        assert!(why.contains("No such file"), "{why}");
        let error = Ucx::open(Some(Path::new(OsStr::from_bytes(b"/a\0b")))).unwrap_err();
        assert!(matches!(error, LoadError::Absent { .. }), "{error}");
    });
}

#[test]
fn a_library_that_is_something_else_is_not_taken_for_ucx() {
    let test = "refused::a_library_that_is_something_else_is_not_taken_for_ucx";
    apart(
        test,
        |_| Some("libm.so.6".into()),
        |libm| {
            let library = libm.to_owned();
            assert_eq!(refused(libm), LoadError::NotUcx { library });
        },
    );
}

#[test]
fn a_library_that_is_too_old_says_what_it_is_and_what_is_needed() {
    let test = "refused::a_library_that_is_too_old_says_what_it_is_and_what_is_needed";
    apart(
        test,
        |at| complete(1, 12, 9).in_folder(at),
        |path| {
            let error = refused(path);
            let text = error.to_string();
            let found = Version::new(1, 12, 9);
            let library = path.to_owned();
            assert_eq!(
                error,
                LoadError::TooOld {
                    library,
                    found,
                    least: LEAST
                }
            );
            assert!(text.contains("1.12.9") && text.contains("1.13.0"), "{text}");
            // What was refused is not closed: its initialisers have run.
            assert!(loaded(path));
        },
    );
}

#[test]
fn a_library_of_another_major_version_is_refused() {
    let test = "refused::a_library_of_another_major_version_is_refused";
    apart(
        test,
        |at| complete(2, 0, 0).in_folder(at),
        |path| {
            let found = Version::new(2, 0, 0);
            let library = path.to_owned();
            assert_eq!(refused(path), LoadError::OtherMajor { library, found });
        },
    );
}

#[test]
fn a_library_without_one_of_the_functions_is_refused_and_the_function_is_named() {
    let test =
        "refused::a_library_without_one_of_the_functions_is_refused_and_the_function_is_named";
    let made = Made {
        version: (1, 13, 1),
        without: "ucp_rkey_ptr",
    };
    apart(
        test,
        |at| made.in_folder(at),
        |path| {
            let expected = LoadError::MissingSymbol {
                library: path.to_owned(),
                symbol: "ucp_rkey_ptr",
                version: Version::new(1, 13, 1),
            };
            assert_eq!(refused(path), expected);
        },
    );
}

#[test]
fn a_library_that_is_newer_than_any_tested_is_taken_and_said_to_be_and_is_never_closed() {
    let test = "refused::a_library_that_is_newer_than_any_tested_is_taken_and_said_to_be_and_is_never_closed";
    apart(
        test,
        |at| complete(1, 99, 0).in_folder(at),
        |path| {
            let ucx = Ucx::open(Some(path)).unwrap();
            assert_eq!(ucx.version(), Version::new(1, 99, 0));
            assert!(!ucx.version().is_tested());
            assert_eq!(ucx.library(), path);
            drop(ucx);
            assert!(loaded(path));
        },
    );
}

#[test]
fn a_library_that_comes_to_use_parts_of_another_installation_is_refused() {
    let test = "refused::a_library_that_comes_to_use_parts_of_another_installation_is_refused";
    let make = |at: &Path| {
        complete(1, 13, 0).in_folder(&at.join("one"))?;
        complete(1, 20, 0).in_folder(&at.join("other"))?;
        Some(at.to_owned())
    };
    apart(test, make, |at| {
        let (one, other) = (at.join("one"), at.join("other"));
        let first = Ucx::open(Some(&one.join("libucp.so.0"))).unwrap();
        assert_eq!(first.version(), Version::new(1, 13, 0));
        // The linker takes the first one's `libucs.so.0` for the second, since it has the name.
        let expected = LoadError::Mixed {
            ucp: other.join("libucp.so.0"),
            ucs: one.join("libucs.so.0"),
        };
        assert_eq!(refused(&other.join("libucp.so.0")), expected);
        // By the name alone it is the one that is there.
        assert_eq!(Ucx::open(None).unwrap().library(), first.library());
    });
}
