//! What `kvroom doctor` says of GPUs: with a stand-in for the driver, a broken one, one that hangs, and none.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

mod standin;

use serde_json::Value;
use standin::{COMPILER, DRIVER, Folder};
use std::process::Output;

/// Runs `doctor` with the libraries of a folder; what it printed as JSON, and as a table.
fn doctor(folder: &Folder, settings: &[(&str, &str)]) -> (Value, String) {
    let run = |arguments: &[&str]| -> Output {
        let mut command = folder.command(env!("CARGO_BIN_EXE_kvroom"));
        command.args(arguments).env_remove("RUST_LOG");
        command.envs(settings.iter().copied()).output().unwrap()
    };
    let json = run(&["doctor", "--json"]);
    let table = run(&["doctor"]);
    // Whatever the driver is, it decides nothing. What else is logged on a busy machine is not its doing.
    for output in [&json, &table] {
        assert!(output.status.success(), "{output:?}");
        let logged = String::from_utf8_lossy(&output.stderr);
        assert!(!logged.contains("panicked"), "{output:?}");
    }
    let value = serde_json::from_slice(&json.stdout).unwrap();
    (value, String::from_utf8(table.stdout).unwrap())
}

#[test]
fn a_driver_that_works_is_told_with_its_devices_and_their_memory() {
    let folder = Folder::with("doctor-works", &[DRIVER[0], DRIVER[1], COMPILER]);
    let (value, table) = doctor(&folder, &[("STANDIN_DEVICES", "3")]);
    let cuda = &value["cuda"];
    assert_eq!(cuda["state"], "works", "{cuda}");
    assert_eq!(
        (&cuda["driver"], &cuda["compiler"]),
        (&"12.8".into(), &"12.8".into())
    );
    let devices = cuda["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 3);
    assert_eq!(devices[2]["name"], "stand-in device 2");
    assert_eq!(devices[2]["capability"], "9.0");
    assert_eq!(devices[2]["memory_bytes"], 1_u64 << 34);
    assert_eq!(devices[2]["multiprocessors"], 132);
    assert_eq!(devices[2]["problem"], Value::Null);
    assert!(table.contains("driver for CUDA 12.8"), "{table}");
    assert!(
        table.contains("stand-in device 2, compute capability 9.0, 132 multiprocessors, 16.0 GiB"),
        "{table}"
    );
    let library = &value["libraries"][1];
    assert_eq!(
        (&library["name"], &library["loaded"]),
        (&DRIVER[0].into(), &true.into())
    );
}

#[test]
fn a_driver_without_a_compiler_works_and_says_why_there_is_none() {
    let folder = Folder::with("doctor-no-compiler", &DRIVER);
    // One that is no library stands before the system's own.
    std::fs::write(folder.path().join(COMPILER), "not a library").unwrap();
    let (value, table) = doctor(&folder, &[]);
    assert_eq!(value["cuda"]["state"], "works", "{value}");
    if value["cuda"]["compiler"].is_null() {
        assert!(table.contains("no NVRTC"), "{table}");
    }
}

#[test]
fn a_driver_that_does_not_start_is_broken_with_its_reason() {
    let folder = Folder::with("doctor-broken", &DRIVER);
    let (value, table) = doctor(&folder, &[("STANDIN_INIT", "803")]);
    assert_eq!(value["cuda"]["state"], "broken", "{value}");
    assert_eq!(value["cuda"]["driver"], Value::Null);
    assert!(
        table.contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        "{table}"
    );
    assert_eq!(value["ok"], true);
}

#[test]
fn a_driver_that_hangs_is_told_and_doctor_ends() {
    let folder = Folder::with("doctor-hangs", &DRIVER);
    let (value, table) = doctor(&folder, &[("STANDIN_HANGS", "1")]);
    assert_eq!(value["cuda"]["state"], "broken", "{value}");
    assert!(table.contains("did not answer within 3s"), "{table}");
}

#[test]
fn no_driver_is_a_plain_line_and_no_failure() {
    let folder = Folder::empty("doctor-none");
    for name in DRIVER {
        std::fs::write(folder.path().join(name), "not a library").unwrap();
    }
    let (value, table) = doctor(&folder, &[]);
    assert_eq!(value["cuda"]["state"], "absent", "{value}");
    assert_eq!(value["cuda"]["devices"], Value::Array(Vec::new()));
    assert!(
        table.contains("absent: no CUDA driver: libcuda.so.1"),
        "{table}"
    );
    assert_eq!(value["libraries"][1]["loaded"], false);
    assert!(!table.contains("MISSING"), "{table}");
}
