//! Libraries that are opened: real ones carry bytes, and what is none gives an error that says what to do.
//!
//! Each is opened in a process of its own, since none is ever closed and the linker takes by its name what
//! is loaded already.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

#[path = "library/carry.rs"]
mod carry;
#[path = "common/mod.rs"]
mod common;
#[path = "library/heard.rs"]
mod heard;
#[path = "library/made.rs"]
mod made;
#[path = "library/refused.rs"]
mod refused;
#[path = "headers/source.rs"]
mod source;

use std::env;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// In the environment of the process that a test starts: for which of its runs.
const CHILD: &str = "KVROOM_UCX_CHILD";

/// Runs the test of this name again, in a process of its own with `run` for [`asked`], and gives what it said.
fn in_child(test: &str, run: &OsStr) -> String {
    let child = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, run)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{test}, {}: {}\n{said}{errors}",
        run.display(),
        child.status
    );
    said
}

/// In the process that [`in_child`] started: which run it is for.
fn asked() -> Option<std::ffi::OsString> {
    env::var_os(CHILD)
}
