//! `kvroom bench`: what the runtime reaches, next to what the machine itself can do.
//!
//! ```text
//!   args ─▶ ends, workload ─▶ run_transfer | run_rooms | run_latency | run_rate | run_abort ─▶ report ─▶ table or JSON, bars
//!                               ├─ pair: two nodes, one process or two                        └─ stats
//!                               └─ yardsticks: memcpy, one_copy (kernel), raw TCP
//!   args ─▶ compare: the programs of others and this one in turns ─▶ table, chart
//! ```
//!
//! Rules: a ratio is always taken in one run, in turns with its yardstick. Nothing is reported that
//! was not verified, or that another fabric did than was asked for. Memory is measured in a fresh
//! process for every count.

mod busy;
pub(super) mod compare;
mod ends;
mod kernel;
mod memcpy;
mod one_copy;
mod perm;
mod quiet;
mod report;
mod rss;
mod run_abort;
mod run_latency;
mod run_rate;
mod run_rooms;
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
        Bench::Latency(args) => finish(&run_latency::run(&args)?, &args, args.json),
        Bench::Rate(args) => {
            let workload =
                workload::find(&args.workload).map_err(|e| Failure::Usage(e.to_string()))?;
            finish(&run_rate::run(&args, &workload)?, &args, args.json)
        }
        Bench::Compare(args) => compare::run(&args),
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
