//! The abort storm: agents are killed in the middle of their transfers, and a probe must still be
//! served. On `kvroom`, and on an honest model of the design it replaces.
//!
//! ```text
//! cargo run --release --example abort_storm                        both engines, side by side
//! cargo run --release --example abort_storm -- --engine rooms --storm groups --json
//! cargo run --release --example abort_storm -- --fabric tcp --processes 2 --storm peer-kill
//! cargo run --release --example abort_storm -- --fabric shm --processes 2 --storm peer-stop
//! ```
//!
//! `--record FILE` writes what both nodes recorded, `--replay FILE` takes a recording in place of a storm
//! (`docs/recording.md`).
//!
//! With two processes this one plays decode (with `--swap` prefill) and keeps the report; a child
//! plays the other side, ends with this process, and is the one that is killed or stopped.
//!
//! With `--json` each engine's report is one JSON object on a line of its own, and the last line of
//! standard output is the last engine's: `rooms`, if both run. People get a table instead.
//!
//! Exit codes: 0, the run worked and, for `rooms`, nothing of its contract was broken; 1, it was,
//! or something was planted; 2, the command line cannot be used. A wedge of `shared-dict` is what
//! is shown, not a failure.
#![forbid(unsafe_code)]

mod driver;
mod engine;
mod load;
mod memory;
mod options;
mod oracle;
mod other;
mod pages;
mod prefill;
mod report;
mod rooms;
mod runs;
mod shared_dict;
mod stamp;
mod storms;
mod timeline;
mod trace;
#[cfg(test)]
mod trace_fuzzing;
mod world;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = options::Options::parse();
    match runs::all(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
