//! The command line of `kvroom bench`.

use super::net::NetArgs;
use clap::{Args, Subcommand, ValueEnum};

pub(super) const AFTER: &str = "\
Every bench prints its result as a table, or with --json as one JSON object on one line.
A bar that is asked for with --require-... and not reached gives exit code 3; the result is
printed all the same.

With --fabric tcp the two nodes are joined by sockets on this host, 127.0.0.1 or a Unix socket; with
--processes 2 the sending one is a process of its own. Every report then says so: processes (1 | 2),
transport (local | tcp | unix), and of data connections: connections, congestion (as the kernel
names it, null where there is none), payload_crc, spin_us (see --spin-us).";

pub(super) const TRANSFER_AFTER: &str = "\
Built-in workloads (layers x pages x page size):
  a_32x64x16K  b_32x512x16K  c_1x16384x4K  d_1x1x256M  tiny_1x1x16K  many_8x16K

A file of workloads is JSON:
  {\"workloads\": [{\"name\": \"mine\", \"layers\": 32, \"pages\": 64, \"page_bytes\": 16384,
                  \"pool_pages\": 128, \"seed\": 1}]}
Each side has a pool of layers x pool_pages pages; the request takes `pages` of them in an order
that follows from `seed`, another one on each side, the same in every layer.

Each repetition moves the whole request through a room and then copies the same pages of two plain
buffers with one thread. The clock runs from the receiver's start to its outcome; over sockets the
sender has started, pushed and finished before. With --fabric tcp each repetition also moves the
same pages between plain buffers by raw TCP, in turns with the rooms: as many threads on each side
as there are connections, in as many processes as the nodes, with the same congestion control,
blocking sockets, no framing, writev of 64 pages (or 1 MiB of a larger page), readv in place, one
byte to ask for it all and one byte back when all is read.

Keys of --json: fabric, processes, transport, connections, congestion, payload_crc, spin_us, workload, kind,
lanes, reps, bytes, verified, GBps {min, median, max}, us {min, median, max}, memcpy_GBps (median),
ratio_memcpy (of medians), raw_GBps {min, median, max}, ratio_raw_tcp (of medians),
ratio_raw_tcp_pairs (median of the ratios of each repetition); the last three are null for local.";

pub(super) const ROOMS_AFTER: &str = "\
A whole room is a sender and a receiver, without data; its life is within the clock from the start
of both to the outcomes of both. With --transport or --processes 2 only the rate is measured. With
two processes the senders are started and waited for by commands to the other process, in batches.

Keys of --json: processes, transport, shards, reps, rooms_per_rep, rooms_per_s (median),
rooms_per_s_spread {min, median, max}, bytes_per_idle_room (the worst of all counts, null if none),
idle: list of rooms, bytes_per_room, rss_before_bytes, rss_idle_bytes, rss_after_abort_bytes.";

pub(super) const LATENCY_AFTER: &str = "\
One room after the other moves one page of 16 KiB, class interactive. The sender's room has started,
pushed its page and finished when the clock starts with the receiver's start; it stops at the
receiver's outcome (done) and when its page is back (released). Keys of --json: fabric, processes,
transport, connections, congestion, payload_crc, spin_us, lanes, reps, page_bytes, done_us and released_us,
each {p50, p90, p99, max}.";

pub(super) const ABORT_AFTER: &str = "\
The receiver aborts while at least 64 MiB of the request wait to be moved. Keys of --json: fabric,
processes, transport, connections, congestion, payload_crc, spin_us, lanes, reps, request_bytes,
queued_bytes_min (the fewest bytes that had not landed in any repetition), abort_to_answer_us and
abort_to_reusable_us, each {p50, p90, p99, max}.";

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
    /// Throughput of one request's pages, next to plain memcpy and raw TCP of the same pages
    #[command(after_help = TRANSFER_AFTER)]
    Transfer(TransferArgs),
    /// Time of one small room
    #[command(after_help = LATENCY_AFTER)]
    Latency(LatencyArgs),
    /// Time from an abort to its answer and to memory that may be used again
    #[command(after_help = ABORT_AFTER)]
    Abort(AbortArgs),
}

/// The fabrics that a bench can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fabric {
    /// Between two nodes of one process
    Local,
    /// Over sockets
    Tcp,
}

impl Fabric {
    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fabric::Local => "local",
            Fabric::Tcp => "tcp",
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
    /// Processes that the two nodes are in; 2 needs --fabric tcp
    #[arg(long, value_name = "1|2", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) processes: u8,
    /// Sockets of the session and of its data connections; tcp if not given
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
    #[command(flatten)]
    pub(crate) net: NetArgs,
}

/// Arguments of `bench rooms`.
#[derive(Debug, Args)]
pub(crate) struct RoomsArgs {
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
