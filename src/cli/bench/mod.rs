//! `kvroom bench`: what the runtime reaches, next to what the machine itself can do.
//!
//! ```text
//!   args ─▶ workload ─▶ run_transfer | run_rooms | run_abort ─▶ report ─▶ table or JSON, bars
//!                           └─ pair: two nodes of one process   └─ stats
//! ```
//!
//! Rules: a ratio is always taken in one run, in turns with its yardstick. Nothing is reported that
//! was not verified. Memory is measured in a fresh process for every count.
// Until `run_*.rs` are compiled, what only they use is not.
#![cfg_attr(not(test), allow(dead_code))]

mod memcpy;
mod perm;
mod report;
mod rss;
#[cfg(any())]
mod run_abort;
#[cfg(any())]
mod run_rooms;
#[cfg(any())]
mod run_transfer;
mod stats;
pub(crate) mod workload;

use super::args::{Bench, BenchArgs};
use super::exit::{Failure, Verdict};
use super::output;
use report::Report;

/// Runs the bench that was asked for.
pub(crate) fn run(args: BenchArgs) -> Result<Verdict, Failure> {
    match args.bench {
        Bench::Rooms(args) => run_rooms::run(&args),
        Bench::Transfer(args) => {
            let workload =
                workload::find(&args.workload).map_err(|e| Failure::Usage(e.to_string()))?;
            let report = run_transfer::run(&args, &workload)?;
            finish(&report, &args, args.json)
        }
        Bench::Abort(args) => finish(&run_abort::run(&args)?, &args, args.json),
    }
}

/// Prints `report` and holds it against the bars.
fn finish<R: Report>(report: &R, bars: &R::Bars, json: bool) -> Result<Verdict, Failure> {
    if json {
        output::print_json(report)?;
    } else {
        output::print(&report.to_string())?;
    }
    Ok(Verdict::from_missing(report.unmet(bars)))
}

/// Stands in for the three runs until the library offers what they need.
mod not_yet {
    use super::super::args::{AbortArgs, RoomsArgs, TransferArgs};
    use super::super::exit::{Failure, Verdict};
    use super::report::{AbortReport, TransferReport};
    use super::workload::Workload;

    pub(super) mod run_rooms {
        pub(crate) use super::rooms as run;
    }
    pub(super) mod run_transfer {
        pub(crate) use super::transfer as run;
    }
    pub(super) mod run_abort {
        pub(crate) use super::abort as run;
    }

    pub(crate) fn rooms(_: &RoomsArgs) -> Result<Verdict, Failure> {
        Err(failure())
    }
    pub(crate) fn transfer(_: &TransferArgs, _: &Workload) -> Result<TransferReport, Failure> {
        Err(failure())
    }
    pub(crate) fn abort(_: &AbortArgs) -> Result<AbortReport, Failure> {
        Err(failure())
    }
    fn failure() -> Failure {
        Failure::Failed("this build has no runtime to measure".to_owned())
    }
}
use not_yet::{run_abort, run_rooms, run_transfer};
