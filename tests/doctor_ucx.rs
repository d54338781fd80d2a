//! What `kvroom doctor` says of UCX: of stand-ins for its library, of one that ends the process, and of none.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

#[path = "common/made_ucx.rs"]
mod made_ucx;

use made_ucx::{folder, library};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `doctor` with this library; what it printed as JSON, and as a table.
fn doctor(library: &Path, by_variable: bool) -> (Value, String) {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvroom"));
        command.args(arguments).stdin(Stdio::null());
        command.env_remove("RUST_LOG");
        if by_variable {
            command.env("KVROOM_UCX_LIBRARY", library);
        } else {
            command.arg("--ucx-library").arg(library);
        }
        let output = command.output().unwrap();
        // Whatever the library is, it decides nothing.
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let json = serde_json::from_slice(&run(&["doctor", "--json"])).unwrap();
    let table = String::from_utf8(run(&["doctor"])).unwrap();
    (json, table)
}

fn fabric(value: &Value) -> &Value {
    let fabrics = value["fabrics"].as_array().unwrap();
    fabrics.iter().find(|f| f["name"] == "ucx").unwrap()
}

#[test]
fn a_library_that_can_be_opened_is_told_with_its_version_and_a_room_that_fails_as_broken() {
    let Some(library) = library("doctor-opened", (1, 20, 7), "") else {
        return;
    };
    let (value, table) = doctor(&library, false);
    let ucx = &value["ucx"];
    assert_eq!(ucx["state"], "opened", "{ucx}");
    assert_eq!(ucx["version"], "1.20.7");
    assert_eq!(ucx["tested"], true);
    assert_eq!(ucx["library"], library.to_str().unwrap());
    assert!(
        table.contains("opened: UCX 1.20.7, which tests have run with, of "),
        "{table}"
    );
    // It moves nothing, which is what is told of the fabric.
    assert_eq!(fabric(&value)["state"], "broken", "{value}");
    assert_eq!(value["ok"], true);
}

#[test]
fn a_library_that_is_newer_than_any_tested_is_opened_and_said_to_be() {
    let Some(library) = library("doctor-newer", (1, 99, 0), "") else {
        return;
    };
    let (value, table) = doctor(&library, true);
    assert_eq!(value["ucx"]["state"], "opened");
    assert_eq!(value["ucx"]["tested"], false);
    assert!(
        table.contains("UCX 1.99.0, which is newer than any that tests have run with"),
        "{table}"
    );
}

#[test]
fn a_library_that_is_too_old_is_refused_with_what_to_do() {
    let Some(library) = library("doctor-old", (1, 12, 1), "") else {
        return;
    };
    let (value, table) = doctor(&library, true);
    let ucx = &value["ucx"];
    assert_eq!(ucx["state"], "refused", "{ucx}");
    let detail = ucx["detail"].as_str().unwrap();
    let words = "is UCX 1.12.1, which is too old: 1.13.0 or later is needed; install a later one";
    assert!(detail.contains(words), "{detail}");
    assert!(table.contains(words), "{table}");
    assert_eq!(fabric(&value)["state"], "not run");
    assert_eq!(fabric(&value)["detail"], "UCX is refused");
}

#[test]
fn no_library_is_absent_with_what_to_do_and_nothing_bad() {
    let none = folder("doctor-absent").join("libucp.so.0");
    let (value, table) = doctor(&none, false);
    let ucx = &value["ucx"];
    assert_eq!(ucx["state"], "absent", "{ucx}");
    assert_eq!(ucx["version"], Value::Null);
    let detail = ucx["detail"].as_str().unwrap();
    assert!(
        detail.contains(none.to_str().unwrap()) && detail.contains("apt-get install libucx0"),
        "{detail}"
    );
    assert!(table.contains("absent: UCX could not be opened"), "{table}");
    assert_eq!(fabric(&value)["state"], "not run");
    assert_eq!(value["ok"], true);
}

#[test]
fn a_library_that_ends_the_process_that_opens_it_ends_no_doctor() {
    let aborts =
        "#include <stdlib.h>\n__attribute__((constructor)) static void dies(void) { abort(); }\n";
    let Some(library) = library("doctor-aborts", (1, 20, 0), aborts) else {
        return;
    };
    let (value, table) = doctor(&library, false);
    assert_eq!(value["ucx"]["state"], "broken", "{value}");
    assert!(
        table.contains("broken: the process that tried it ended with signal: 6"),
        "{table}"
    );
    assert_eq!(fabric(&value)["state"], "broken");
    assert_eq!(value["ok"], true);
}
