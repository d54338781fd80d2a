//! What a command says about connections to other processes.

use clap::Args;
use kvroom::{Net, NodeBuilder};
use std::time::Duration;

/// How data connections are made; the same words for a node and for a bench.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NetArgs {
    /// Data connections to each peer for large pieces; the node's default if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) connections: Option<u16>,
    /// Congestion control of TCP data connections, by the kernel's name; cubic if not given and allowed, else the
    /// system's
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// Put a CRC32C of its payload into every data frame
    #[arg(long)]
    pub(crate) payload_crc: bool,
    /// Microseconds that a shard's thread looks for more after something happened, before it sleeps;
    /// the library's default if not given, but 100 for bench latency over tcp
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) spin_us: Option<u32>,
    /// Entries that the flight recorder keeps for each shard, 0 for none; the library's default if not given
    #[arg(long, value_name = "ENTRIES", value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    pub(crate) recorder: Option<u32>,
}

impl NetArgs {
    /// As the library takes it; listens nowhere.
    pub(crate) fn net(&self) -> Net {
        let defaults = Net::default();
        Net {
            connections: self.connections.unwrap_or(defaults.connections),
            congestion: self.congestion.clone().or(defaults.congestion.clone()),
            payload_crc: self.payload_crc || defaults.payload_crc,
            ..defaults
        }
    }

    /// Says how long shards stay awake and how much is recorded, as far as that was given.
    pub(crate) fn spin(&self, mut builder: NodeBuilder) -> NodeBuilder {
        if let Some(entries) = self.recorder {
            builder = builder.recorder(entries as usize);
        }
        match self.spin_us {
            Some(us) => builder.spin(Duration::from_micros(u64::from(us))),
            None => builder,
        }
    }

    /// As words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(n) = self.connections {
            words.extend(["--connections".to_owned(), n.to_string()]);
        }
        if let Some(name) = &self.congestion {
            words.extend(["--congestion".to_owned(), name.clone()]);
        }
        if self.payload_crc {
            words.push("--payload-crc".to_owned());
        }
        if let Some(us) = self.spin_us {
            words.extend(["--spin-us".to_owned(), us.to_string()]);
        }
        if let Some(entries) = self.recorder {
            words.extend(["--recorder".to_owned(), entries.to_string()]);
        }
        words
    }
}
