//! What a command says about connections to other processes.

use clap::{Args, ValueEnum};
use kvroom::{Net, NodeBuilder, UcxOptions, UcxUse};
use std::path::PathBuf;
use std::time::Duration;

/// When bytes go through UCX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum UcxWhen {
    /// Never
    #[default]
    Off,
    /// With peers that it reaches by RDMA
    Rdma,
    /// With every peer that has it, whatever it has, and by the next route where it does not work
    Prefer,
    /// With every peer that has it, whatever it has, or not at all
    Always,
}

impl UcxWhen {
    fn name(self) -> &'static str {
        match self {
            UcxWhen::Off => "off",
            UcxWhen::Rdma => "rdma",
            UcxWhen::Prefer => "prefer",
            UcxWhen::Always => "always",
        }
    }
}

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
    /// When bytes go through UCX
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) ucx: UcxWhen,
    /// UCX's library; what the system finds as libucp.so.0 if not given
    #[arg(long, value_name = "FILE", env = "KVROOM_UCX_LIBRARY")]
    pub(crate) ucx_library: Option<PathBuf>,
    /// Transports that UCX may use, as UCX_TLS names them; if not given those of RDMA, or all but those by which a peer writes alone
    #[arg(long, value_name = "LIST")]
    pub(crate) ucx_transports: Option<String>,
}

impl NetArgs {
    /// As the library takes it; listens nowhere.
    pub(crate) fn net(&self) -> Net {
        let defaults = Net::default();
        Net {
            connections: self.connections.unwrap_or(defaults.connections),
            congestion: self.congestion.clone().or(defaults.congestion.clone()),
            payload_crc: self.payload_crc || defaults.payload_crc,
            ucx: self.ucx_options(),
            ..defaults
        }
    }

    /// What it says of UCX.
    fn ucx_options(&self) -> UcxOptions {
        UcxOptions {
            when: match self.ucx {
                UcxWhen::Off => UcxUse::Off,
                UcxWhen::Rdma => UcxUse::Rdma,
                UcxWhen::Prefer => UcxUse::Prefer,
                UcxWhen::Always => UcxUse::Always,
            },
            library: self.ucx_library.clone(),
            transports: self.ucx_transports.clone(),
            ..UcxOptions::default()
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
        if self.ucx != UcxWhen::Off {
            words.extend(["--ucx".to_owned(), self.ucx.name().to_owned()]);
        }
        if let Some(library) = &self.ucx_library {
            words.extend(["--ucx-library".to_owned(), library.display().to_string()]);
        }
        if let Some(transports) = &self.ucx_transports {
            words.extend(["--ucx-transports".to_owned(), transports.clone()]);
        }
        words
    }
}
