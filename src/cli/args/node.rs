//! The command line of `kvroom node`.

use super::super::settings::{DeadlineSetting, LimitSetting};
use super::net::NetArgs;
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

/// A pool as the command line says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolSpec {
    pub(crate) name: String,
    pub(crate) layers: u32,
    pub(crate) pages: u32,
    pub(crate) page_bytes: u64,
}

impl std::str::FromStr for PoolSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolSpec, String> {
        let mut parts = text.rsplitn(4, ':');
        let (bytes, pages, layers, name) = (parts.next(), parts.next(), parts.next(), parts.next());
        let (Some(bytes), Some(pages), Some(layers), Some(name)) = (bytes, pages, layers, name)
        else {
            return Err("write NAME:LAYERS:PAGES:PAGE_BYTES, for example kv:32:512:16384".into());
        };
        if name.is_empty() {
            return Err("the pool has no name".into());
        }
        fn number<T: std::str::FromStr + PartialOrd + From<u8>>(
            what: &str,
            text: &str,
        ) -> Result<T, String> {
            match text.parse() {
                Ok(n) if n >= T::from(1) => Ok(n),
                _ => Err(format!("{what} {text:?} is not a whole number from 1")),
            }
        }
        Ok(PoolSpec {
            name: name.to_owned(),
            layers: number("layers", layers)?,
            pages: number("pages", pages)?,
            page_bytes: number("page bytes", bytes)?,
        })
    }
}

/// Whether this can be an address at all; whether it can be used is for the library to find out.
fn address(text: &str) -> Result<String, String> {
    let fits = match text.split_once("://") {
        Some(("tcp", rest)) => rest.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        }),
        Some(("unix", rest)) => rest.starts_with('/') && rest.len() > 1,
        _ => false,
    };
    if fits {
        Ok(text.to_owned())
    } else {
        Err("write tcp://HOST:PORT or unix:///PATH".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_and_shaped_by_one_word() {
        let pool: PoolSpec = "a:b:2:3:4096".parse().unwrap();
        assert_eq!(
            pool,
            PoolSpec {
                name: "a:b".into(),
                layers: 2,
                pages: 3,
                page_bytes: 4096
            }
        );
        for bad in [
            "kv",
            "kv:1:2",
            ":1:2:3",
            "kv:0:2:3",
            "kv:1:x:3",
            "kv:1:2:-3",
        ] {
            assert!(bad.parse::<PoolSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_words_that_can_be_addresses_are_taken() {
        for good in [
            "tcp://127.0.0.1:0",
            "tcp://[::1]:7",
            "tcp://host:65535",
            "unix:///a",
        ] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "host:7",
            "tcp://host",
            "tcp://:7",
            "tcp://h:65536",
            "tcp://a/b:1",
            "unix://a",
            "unix:///",
            "local://a",
            "udp://h:1",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
