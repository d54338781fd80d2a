//! The command line as types, and every word of its help.

use clap::{Args, Parser, Subcommand, ValueEnum};

const ABOUT: &str = "\
Moves the KV cache of LLM requests from a prefill engine to a decode engine,
and can always prove when the memory on both ends may be used again.";

const AFTER: &str = "\
Examples:
  kvroom doctor                                    what this machine has and which fabrics work
  kvroom doctor --json | jq .fabrics               the same for programs
  kvroom bench transfer --workload b_32x512x16K    throughput, next to plain memcpy
  kvroom bench transfer --workload my.json:mine    a workload of your own
  kvroom completions bash > /etc/bash_completion.d/kvroom

Exit codes:
  0  it worked
  1  what was asked for failed
  2  the command line, a workload or RUST_LOG is wrong
  3  it ran, and a bar given with --require-... or a check that doctor requires is not met

Results go to standard output, logs and errors to standard error.
RUST_LOG chooses what is logged (default: warn), for example RUST_LOG=kvroom=debug.";

const DOCTOR_AFTER: &str = "\
Keys of --json (stable; a value that cannot be found out is null):
  version     of this program
  os          name, kernel, arch
  cpu         cores, usable (by this process)
  memory      total_bytes, available_bytes, cgroup_limit_bytes
  huge_pages  size_bytes, total, free, transparent (the kernel's mode)
  dev_shm     mounted, fstype, size_bytes, detail
  pidfd       supported, detail
  build       profile, panic, isolates_panics, target
  fabrics     list of name, state (works | broken | not run | not in this build), detail
  libraries   list of name, found_at (list), loaded, detail
  checks      list of name, required, ok, detail
  ok          true if every required check is ok; else the exit code is 3";

const BENCH_AFTER: &str = "\
Every bench prints its result as a table, or with --json as one JSON object on one line.
A bar that is asked for with --require-... and not reached gives exit code 3; the result is
printed all the same.";

const TRANSFER_AFTER: &str = "\
Built-in workloads (layers x pages x page size):
  a_32x64x16K  b_32x512x16K  c_1x16384x4K  d_1x1x256M  tiny_1x1x16K  many_8x16K

A file of workloads is JSON:
  {\"workloads\": [{\"name\": \"mine\", \"layers\": 32, \"pages\": 64, \"page_bytes\": 16384,
                  \"pool_pages\": 128, \"seed\": 1}]}
Each side has a pool of layers x pool_pages pages; the request takes `pages` of them in an order
that follows from `seed`, another one on each side, the same in every layer.

Each repetition moves the whole request through a room and then copies the same pages of two plain
buffers with one thread. Keys of --json: fabric, workload, kind, lanes, reps, bytes, verified,
GBps {min, median, max}, us {min, median, max}, memcpy_GBps (median), ratio_memcpy (of medians).";

const ROOMS_AFTER: &str = "\
A whole room is a sender and a receiver, without data. Keys of --json: shards, reps, rooms_per_rep,
rooms_per_s (median), rooms_per_s_spread {min, median, max}, bytes_per_idle_room (the worst of all
counts), idle: list of rooms, bytes_per_room, rss_before_bytes, rss_idle_bytes,
rss_after_abort_bytes.";

const ABORT_AFTER: &str = "\
The receiver aborts while at least 64 MiB of the request wait on the copy lane. Keys of --json:
fabric, lanes, reps, request_bytes, queued_bytes_min (the fewest bytes that had not landed in any
repetition), abort_to_answer_us and abort_to_reusable_us, each {p50, p90, p99, max}.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "kvroom",
    version,
    about = ABOUT,
    after_help = AFTER,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// How logs are written to standard error
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t = LogFormat::Human,
        env = "KVROOM_LOG_FORMAT"
    )]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Human,
    /// One JSON object a line
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what this machine has, which fabrics work and what was loaded
    #[command(after_help = DOCTOR_AFTER)]
    Doctor(DoctorArgs),
    /// Measure the runtime on this machine, next to what the machine itself can do
    #[command(after_help = BENCH_AFTER)]
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) bench: Bench,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Rooms per second without data, and resident memory of an idle room
    #[command(after_help = ROOMS_AFTER)]
    Rooms(RoomsArgs),
    /// Throughput of one request's pages, next to plain memcpy of the same pages
    #[command(after_help = TRANSFER_AFTER)]
    Transfer(TransferArgs),
    /// Time from an abort to its answer and to memory that may be used again
    #[command(after_help = ABORT_AFTER)]
    Abort(AbortArgs),
}

/// The fabrics that a bench can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fabric {
    /// Between two nodes of one process
    Local,
}

impl Fabric {
    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fabric::Local => "local",
        }
    }
}

/// Arguments of `bench rooms`.
#[derive(Debug, Args)]
pub(crate) struct RoomsArgs {
    /// How many idle rooms to measure memory with; several, separated by commas
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_values_t = [100_000, 1_000_000],
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    pub(crate) rooms: Vec<u64>,
    /// Rooms in each timed repetition
    #[arg(long, value_name = "N", default_value_t = 50_000,
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) rate_rooms: u64,
    /// Timed repetitions, after one to warm up
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) reps: u32,
    /// Exit with 3 if fewer rooms per second (median) are reached
    #[arg(long, value_name = "ROOMS_PER_S")]
    pub(crate) require_rate: Option<f64>,
    /// Exit with 3 if an idle room takes more resident memory
    #[arg(long, value_name = "BYTES")]
    pub(crate) require_bytes: Option<f64>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Only measure the memory of this many idle rooms, in this process, and print that as JSON
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) idle_only: Option<u64>,
}

/// Arguments of `bench transfer`.
#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    /// How the bytes move
    #[arg(long, value_enum, default_value_t = Fabric::Local)]
    pub(crate) fabric: Fabric,
    /// A built-in workload, or FILE:NAME for one of a JSON file
    #[arg(long, value_name = "NAME|FILE:NAME", default_value = "b_32x512x16K")]
    pub(crate) workload: String,
    /// Timed repetitions, after one to warm up and to compare every byte
    #[arg(long, value_name = "N", default_value_t = 11,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) reps: u32,
    /// Copy lanes of each node
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) lanes: u16,
    /// Exit with 3 if ratio_memcpy is below this
    #[arg(long, value_name = "RATIO")]
    pub(crate) require_ratio: Option<f64>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `bench abort`.
#[derive(Debug, Args)]
pub(crate) struct AbortArgs {
    /// How the bytes move
    #[arg(long, value_enum, default_value_t = Fabric::Local)]
    pub(crate) fabric: Fabric,
    /// Aborts to measure, after ten to warm up
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) reps: u32,
    /// Copy lanes of each node
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) lanes: u16,
    /// Exit with 3 if the 90th percentile of abort_to_reusable_us is above this
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) require_p90_us: Option<f64>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_built_in_workload_is_in_the_help() {
        for w in super::super::bench::workload::built_in() {
            assert!(TRANSFER_AFTER.contains(&w.name), "{} is missing", w.name);
        }
    }
}
