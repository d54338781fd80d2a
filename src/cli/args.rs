//! The command line as types, and every word of its help.

mod bench;
mod bench_help;
mod client;
mod net;
mod node;
mod serve;
pub(crate) mod words;

pub(crate) use bench::TransferArgs;
pub(crate) use bench::{
    AbortArgs, Bench, BenchArgs, CompareArgs, Ends, Fabric, LatencyArgs, RateArgs, RoomsArgs,
    Transport,
};
pub(crate) use client::{
    AbortRoomsArgs, DaemonArgs, EventsArgs, PoolsArgs, RecordArgs, RoomArgs, RoomsOfDaemonArgs,
    Until,
};
pub(crate) use net::{NetArgs, UcxWhen};
pub(crate) use node::NodeArgs;
pub(crate) use serve::{ConfigArgs, ServeArgs};
pub(crate) use words::PoolSpec;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const ABOUT: &str = "\
Moves the KV cache of LLM requests from a prefill engine to a decode engine,
and can always prove when the memory on both ends may be used again.";

const AFTER: &str = "\
Examples:
  kvroom doctor                                    what this machine has and which fabrics work
  kvroom doctor --json | jq .fabrics               the same for programs
  kvroom bench transfer --workload b_32x512x16K    throughput, next to plain memcpy
  kvroom bench transfer --workload my.json:mine    a workload of your own
  kvroom bench latency --fabric tcp --processes 2  one small room, between two processes
  kvroom node --name p0 --listen tcp://127.0.0.1:7400 --pool kv:32:512:16384
                                                   a bare node, for tests and benchmarks
  kvroom serve                                     a daemon on 127.0.0.1:7480, see its dashboard
  kvroom config --config kvroom.toml               what serve would make of a file
  kvroom rooms --state draining                    rooms of a daemon whose memory is still held
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
  tcp         congestion (the system's), available, allowed (lists: what is loaded, and what a
              process without privilege may choose)
  copies      how this process copies pages of host memory: instructions (null if nothing but
              memcpy), streaming_from_bytes (the least for which streaming stores are used, null if
              they are not), pairs (whether two pages are copied together), measured_ms and rounds
              (what the choice took), sizes (list of bytes, memcpy, streaming, streaming_two in GB/s)
  cuda        what the CUDA driver says within 3 seconds: state (works | absent | broken | not in this
              build), driver (the version it is for), compiler (the version of NVRTC), devices (list of
              ordinal, name, capability, memory_bytes, multiprocessors, problem), detail
  ucx         what came of opening UCX, in a process of its own and within 20 seconds: state (opened |
              absent | refused: too old, or not UCX | broken: that process died), version, tested
              (whether kvroom's tests have run with it), library (the file), rdma, detail
  fabrics     list of name, state (works | broken | not run), detail; unix is fabric tcp over a Unix
              socket
  libraries   list of name, found_at (list), loaded, detail
  checks      list of name, required, ok, detail
  ok          true if every required check is ok; else the exit code is 3";

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
    #[command(after_help = bench_help::AFTER)]
    Bench(BenchArgs),
    /// Run a bare node, for tests and benchmarks
    #[command(after_help = node::AFTER)]
    Node(Box<NodeArgs>),
    /// Serve engines over HTTP
    #[command(after_help = serve::AFTER)]
    Serve(Box<ServeArgs>),
    /// Print the configuration that serve would have, and where each value is from
    #[command(after_help = serve::CONFIG_AFTER)]
    Config(Box<ConfigArgs>),
    /// List a daemon's rooms
    #[command(after_help = client::AFTER)]
    Rooms(RoomsOfDaemonArgs),
    /// Show one room of a daemon, and why its memory is still held
    #[command(after_help = client::ROOM_AFTER)]
    Room(RoomArgs),
    /// End rooms of a daemon
    #[command(after_help = client::AFTER)]
    Abort(AbortRoomsArgs),
    /// List a daemon's pools
    #[command(after_help = client::AFTER)]
    Pools(PoolsArgs),
    /// Follow what happens at a daemon
    #[command(after_help = client::AFTER)]
    Events(EventsArgs),
    /// Take a daemon's flight recording
    #[command(after_help = client::AFTER)]
    Record(RecordArgs),
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
    /// UCX's library; what the system finds as libucp.so.0 if not given
    #[arg(long, value_name = "FILE", env = "KVROOM_UCX_LIBRARY")]
    pub(crate) ucx_library: Option<PathBuf>,
    /// In the process that opens UCX: say what comes of it, and nothing else.
    #[arg(long, hide = true)]
    pub(crate) try_ucx: bool,
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
            assert!(
                bench_help::TRANSFER_AFTER.contains(&w.name),
                "{} is missing",
                w.name
            );
        }
    }
}
