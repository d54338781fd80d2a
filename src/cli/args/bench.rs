//! The command line of `kvroom bench`.

use super::bench_help::{
    ABORT_AFTER, COMPARE_AFTER, LATENCY_AFTER, RATE_AFTER, ROOMS_AFTER, TRANSFER_AFTER,
};
use super::net::NetArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

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
    /// Throughput of one request's pages, next to memcpy, the best plain copies, and raw TCP of the same pages
    #[command(after_help = TRANSFER_AFTER)]
    Transfer(TransferArgs),
    /// Time of one small room
    #[command(after_help = LATENCY_AFTER)]
    Latency(LatencyArgs),
    /// Rooms of a few pages per second, with some of them under way at a time
    #[command(after_help = RATE_AFTER)]
    Rate(RateArgs),
    /// Time from an abort to its answer and to memory that may be used again
    #[command(after_help = ABORT_AFTER)]
    Abort(AbortArgs),
    /// These benches and those of other programs in turns, as one table and one chart
    #[command(after_help = COMPARE_AFTER)]
    Compare(CompareArgs),
}

/// The fabrics that a bench can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fabric {
    /// Between two nodes of one process
    Local,
    /// Over sockets
    Tcp,
    /// Into shared memory of the same host
    Shm,
    /// Through UCX, by whatever transports it is let use
    Ucx,
}

impl Fabric {
    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fabric::Local => "local",
            Fabric::Tcp => "tcp",
            Fabric::Shm => "shm",
            Fabric::Ucx => "ucx",
        }
    }
}

/// The sockets that a bench can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// TCP over 127.0.0.1
    Tcp,
    /// A Unix socket in a temporary directory
    Unix,
}

/// Where the two ends are and what is between them.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ends {
    /// How the bytes move
    #[arg(long, value_enum, default_value_t = Fabric::Local)]
    pub(crate) fabric: Fabric,
    /// Processes that the two nodes are in; 2 needs --fabric tcp, shm or ucx
    #[arg(long, value_name = "1|2", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) processes: u8,
    /// Sockets of the session and of its data connections; if not given tcp, for shm unix
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
    /// Copy lanes of each node
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) lanes: u16,
    /// Shards of each node
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) shards: u16,
    /// Each node's one shard is driven by the thread of its engine, which looks without a break; needs
    /// --processes 2
    #[arg(long)]
    pub(crate) drive: bool,
    #[command(flatten)]
    pub(crate) net: NetArgs,
}

/// Arguments of `bench rooms`.
#[derive(Debug, Args)]
pub(crate) struct RoomsArgs {
    /// How a room's bytes would move, if it had any; what follows from --transport if not given
    #[arg(long, value_enum)]
    pub(crate) fabric: Option<Fabric>,
    /// Processes that the two nodes are in
    #[arg(long, value_name = "1|2", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) processes: u8,
    /// Sockets between the nodes; none within one process and unix between two, if not given
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
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
    /// Only measure the processor time that nodes with so many waiting rooms take
    #[arg(long, value_name = "N", conflicts_with_all = ["soak", "idle_only"],
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) idle_cpu: Option<u64>,
    /// For how long, with --idle-cpu
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Exit with 3 if a process takes more than this much of a core, with --idle-cpu
    #[arg(long, value_name = "PERCENT", requires = "idle_cpu")]
    pub(crate) require_idle_percent: Option<f64>,
    /// Only measure resident memory while so many rooms live and end
    #[arg(long, value_name = "N", conflicts_with = "idle_only",
          value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    pub(crate) soak: Option<u64>,
    /// Exit with 3 if late_growth_bytes_per_room is above this, with --soak
    #[arg(long, value_name = "BYTES", requires = "soak")]
    pub(crate) require_growth: Option<f64>,
    /// Entries that the flight recorder keeps for each shard, 0 for none; the library's default if not given
    #[arg(long, value_name = "ENTRIES", value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    pub(crate) recorder: Option<u32>,
}

/// Arguments of `bench transfer`.
#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    #[command(flatten)]
    pub(crate) ends: Ends,
    /// A built-in workload, or FILE:NAME for one of a JSON file
    #[arg(long, value_name = "NAME|FILE:NAME", default_value = "b_32x512x16K")]
    pub(crate) workload: String,
    /// Timed repetitions, after one to warm up and to compare every byte
    #[arg(long, value_name = "N", default_value_t = 11,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) reps: u32,
    /// Exit with 3 if ratio_memcpy is below this
    #[arg(long, value_name = "RATIO")]
    pub(crate) require_ratio: Option<f64>,
    /// Exit with 3 if ratio_one_copy is below this
    #[arg(long, value_name = "RATIO")]
    pub(crate) require_ratio_one_copy: Option<f64>,
    /// Exit with 3 if ratio_raw_tcp is below this
    #[arg(long, value_name = "RATIO")]
    pub(crate) require_ratio_raw: Option<f64>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `bench latency`.
#[derive(Debug, Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) ends: Ends,
    /// Rooms to measure, after 200 to warm up
    #[arg(long, value_name = "N", default_value_t = 2_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) reps: u32,
    /// Wait for the outcome as a task does, instead of looking at it in a loop
    #[arg(long)]
    pub(crate) wait: bool,
    /// Measure beside a bulk room of so many bytes too
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 36))]
    pub(crate) busy_bytes: Option<u64>,
    /// Exit with 3 if the ratio_p90 of busy is above this
    #[arg(long, value_name = "RATIO", requires = "busy_bytes")]
    pub(crate) require_busy_ratio: Option<f64>,
    /// Exit with 3 if the median of done_us is above this
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) require_p50_us: Option<f64>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `bench abort`.
#[derive(Debug, Args)]
pub(crate) struct AbortArgs {
    #[command(flatten)]
    pub(crate) ends: Ends,
    /// Aborts to measure, after ten to warm up
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) reps: u32,
    /// Exit with 3 if the 90th percentile of abort_to_reusable_us is above this
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) require_p90_us: Option<f64>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `bench rate`.
#[derive(Debug, Args)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    pub(crate) ends: Ends,
    /// A built-in workload, or FILE:NAME for one of a JSON file; its pages are those of one room
    #[arg(long, value_name = "NAME|FILE:NAME", default_value = "many_8x16K")]
    pub(crate) workload: String,
    /// How many rooms are under way at a time; several, separated by commas
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 16],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) inflight: Vec<u16>,
    /// Rooms in each repetition
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rooms: u32,
    /// Timed repetitions for each --inflight, after one to warm up
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) reps: u32,
    /// Exit with 3 if rooms_per_s is below this
    #[arg(long, value_name = "ROOMS_PER_S")]
    pub(crate) require_rate: Option<f64>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `bench compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Directory of the other programs' scripts
    #[arg(long, value_name = "DIR")]
    pub(crate) peers: PathBuf,
    /// Python interpreter with NIXL
    #[arg(long, value_name = "FILE")]
    pub(crate) python: Option<PathBuf>,
    /// Python interpreter with Mooncake
    #[arg(long, value_name = "FILE")]
    pub(crate) python_mooncake: Option<PathBuf>,
    /// Directory for the table, the chart and all lines; has to exist
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) out: PathBuf,
    /// How often each contender runs each workload
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Repetitions in each run
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) reps: u32,
    /// Only these workloads; several, separated by commas; all built-in ones if not given
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) workloads: Vec<String>,
    /// Seconds after which a run is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 240,
          value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) limit: u32,
    /// Print the results as one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}
