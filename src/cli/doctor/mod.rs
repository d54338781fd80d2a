//! `kvroom doctor`: what this machine has, what this build has, and what of it works.
//!
//! ```text
//!   machine (/proc, /sys) ─┐
//!   build   (cfg)          ├─▶ Findings ─▶ checks ─▶ table or JSON, exit code
//!   libraries (files)      │
//!   devices (the driver)   │
//!   ucx (another process)  │
//!   self_test (rooms)      ┘
//! ```
//!
//! Rules: looking changes nothing, and loads nothing but CUDA's libraries, which are asked within a bound; and UCX
//! in a process of its own. What cannot be found out is said to be unknown and never guessed. A fabric counts as working only if bytes went through it just now.

mod devices;
pub(super) mod ld_cache;
mod libraries;
mod machine;
mod report;
mod self_test;
mod table;
mod ucx;

use super::args::DoctorArgs;
use super::exit::{Failure, Verdict};
use super::output;

/// Examines the machine and prints what was found.
pub(crate) fn run(args: &DoctorArgs) -> Result<Verdict, Failure> {
    if args.try_ucx {
        ucx::attempt(args.ucx_library.as_deref());
        return Ok(Verdict::Met);
    }
    let report = report::Report::of(
        machine::look(),
        libraries::look(),
        devices::look(),
        ucx::look(args.ucx_library.as_deref()),
        &self_test::self_tests(),
    );
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&table::table(&report))?;
    }
    Ok(Verdict::from_missing(report.missing()))
}
