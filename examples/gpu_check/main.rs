//! Checks this machine's GPU: each kernel against its host twin, then how fast, in one table.
//!
//! ```text
//!   options ─▶ devices ─▶ steps, each within a bound:
//!                           correct    every kernel on random shapes and places, every byte compared
//!                           speed      gather, scatter, reslice against the driver's own large copy
//!                           pipeline   gather ─▶ a ring of slots ─▶ scatter, on two streams
//!                           memcheck   `correct` once more, as a child of compute-sanitizer
//!                           rooms      aborted in mid-pipeline, with canaries in the pages that came back
//!                         ─▶ table ─▶ exit code
//! ```
//!
//! `scripts/gpu_check.sh` builds it, carries it to a machine with a GPU and no network, and runs it there.
//! With `--device emulated` it needs none: then threads are the device, the kernels' twins run on them, and
//! what is said about speed is of the emulation, but for the pipeline's overlap.
//!
//! Exit codes: 0, all that was checked is right and within its bars; 1, a wrong byte, a bar that was
//! missed, or a step that failed or did not end; 2, the command line cannot be used; 3, there is no such
//! device, and nothing was checked.
#![forbid(unsafe_code)]

mod correct;
mod devices;
mod failure;
mod memcheck;
mod memory;
mod options;
mod pipeline;
mod random;
mod rooms;
mod samples;
mod speed;
mod steps;
mod table;

use clap::Parser;
use devices::Devices;
use options::{Options, Part};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use steps::Steps;
use table::Row;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(why) = options.conflict() {
        eprintln!("gpu_check: {why}");
        return ExitCode::from(2);
    }
    if options.print_source {
        print!("{}", kvroom_kernels::cuda::SOURCE);
        return ExitCode::SUCCESS;
    }
    let opening = steps::within(Duration::from_secs(30), {
        let options = options.clone();
        move || Devices::open(&options)
    });
    let devices = match opening {
        Ok(Ok(devices)) => Arc::new(devices),
        Ok(Err(why)) | Err(why) => {
            eprintln!("gpu_check: {why}");
            eprintln!("Nothing was checked. `--device emulated` shows that the program works.");
            return ExitCode::from(3);
        }
    };
    println!("{}", devices.said());
    let mut steps = Steps::new(Duration::from_secs(options.seconds));
    if options.part != Part::Speed {
        correct::steps(&mut steps, &devices, &options);
    }
    if options.part != Part::Correct {
        speed::steps(&mut steps, &devices, &options);
        pipeline::steps(&mut steps, &devices, &options);
    }
    if options.part == Part::All {
        memcheck::step(&mut steps, &options);
        rooms::steps(&mut steps, &devices, &options);
    }
    let rows = steps.rows();
    print!("{}", table::table(&rows));
    match rows.iter().all(Row::is_good) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    }
}
