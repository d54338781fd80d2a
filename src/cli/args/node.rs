//! The command line of `kvroom node`.

use super::super::settings::{DeadlineSetting, LimitSetting};
use super::net::NetArgs;
use super::words::{PoolSpec, address};
use clap::Args;
use std::path::PathBuf;

pub(super) const AFTER: &str = "\
Standard output, one JSON object on each line:
  {\"event\":\"ready\",\"name\":…,\"pid\":…,\"addresses\":[…],\"peers\":[…]}   the node serves, peers of
                                                    --connect are connected
  {\"event\":\"stopped\",\"why\":…,\"drained\":…,\"leaked\":[…]}            the last line
It stops on SIGTERM or SIGINT, or at the end of standard input with --until-stdin-closes. The exit
code is 0 if every room drained by the deadline, 1 if not or if it could not start, 2 if the command
line is wrong. The cluster key is the contents of --key-file without white space at its ends, or
else the environment variable KVROOM_CLUSTER_KEY; without either, whoever reaches an address is a
peer.

With --commands each line of standard input is one command, a JSON object with \"op\" and, if
wanted, an \"id\" that its answer repeats. This is for tests and benches and changes without notice.
An answer is {\"id\":…,\"ok\":true,…} or {\"id\":…,\"ok\":false,\"error\":…}. Commands are done in turn;
only the answer of a wait comes when it comes. PAGES is a list of page numbers, the same for every
room of the command, or {\"first\":N,\"each\":N}: the k-th room of the command, from 0, has the
pages first + k x each and following; or {\"sets\":[LIST,…]}: a list for each room, in turns.
  ping
  fill        pool pages seed [index=0]     writes a pattern that follows from seed, layer and the
                                            page's place in the list, from index
  check       pool pages seed [index=0]     answers differs: null, or the first cell that is not so
  send        first count [attempt receivers class tag deadline_ms] [pool pages chunk_pages]
              [total] [finish=true]         starts rooms first..first+count, pushes their pages and
                                            finishes them; answers started, refused, reasons
  push        first count [attempt] pool pages [token=0]    one chunk for each room
  finish      first count [attempt] total
  receive     first count [attempt] from [receivers rank class tag deadline_ms checksum] [skip]
              [pool pages | total]          from is a list of peers' names
  wait        role first count [attempt] [timeout_ms=60000] [released=true]
                                            waits for outcomes, and for the memory unless told not
                                            to; answers done, aborted, timed_out, unknown, codes,
                                            reasons. Rooms whose memory is back are forgotten
  abort       role first count [attempt reason]
  abort_where which (\"all\" | {\"room\":N} | {\"tag\":T} | {\"peer\":NAME}) [reason]
  stats, peers, rooms, early_claims         lists of rooms and claims have 1,000 entries at most
  connect     address
  disconnect  peer
  raw_serve   of the benches: plain TCP over the same pages
  stop        answers, then stops the node
role is send or receive, class is bulk or interactive, counts are at most 1,000,000, a line has at
most 16 MiB.";

/// Arguments of `node`.
#[derive(Args, Debug)]
pub(crate) struct NodeArgs {
    /// Its name, 1 to 64 bytes
    #[arg(long)]
    pub(crate) name: String,
    /// Listen here: tcp://HOST:PORT (port 0 for any free one) or unix:///PATH; may be repeated
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) listen: Vec<String>,
    /// The thread that serves commands drives the one shard, and looks without a break: a busy core
    #[arg(long, conflicts_with = "shards")]
    pub(crate) drive: bool,
    /// Connect to a node there before saying ready; may be repeated
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) connect: Vec<String>,
    /// A pool of host memory, one token a page; may be repeated
    #[arg(long, value_name = "NAME:LAYERS:PAGES:PAGE_BYTES")]
    pub(crate) pool: Vec<PoolSpec>,
    /// Make the pools of shared memory, so that peers on this host write into them
    #[arg(long)]
    pub(crate) shared_pools: bool,
    /// File with the cluster's key
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Copy lanes
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) lanes: u16,
    /// Shards; the library's choice if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) shards: Option<u16>,
    #[command(flatten)]
    pub(crate) net: NetArgs,
    /// A field of the library's Limits; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) limit: Vec<LimitSetting>,
    /// A field of the library's Deadlines in milliseconds (outcome may be none); may be repeated
    #[arg(long, value_name = "NAME=MS")]
    pub(crate) deadline: Vec<DeadlineSetting>,
    /// Stop when standard input ends
    #[arg(long)]
    pub(crate) until_stdin_closes: bool,
    /// Take commands from standard input, see below
    #[arg(long)]
    pub(crate) commands: bool,
}
