//! What a node is started with.

use crate::limits::{Deadlines, Limits};
use crate::memory::{CopyMode, Pool};
use crate::runtime::affinity::Pinning;
use crate::runtime::hub::LocalHub;
use crate::runtime::net::Net;
use std::time::Duration;

/// Everything a node needs to start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its name, 1 to 64 bytes; peers in the same hub connect to it by `local://NAME`.
    pub name: String,
    /// Its pools, in the order that gives them their ids.
    pub pools: Vec<Pool>,
    /// How it talks to other processes.
    pub net: Net,
    /// Where other nodes of the process find it.
    pub hub: Option<LocalHub>,
    /// Shards; `None` for one on up to four cores, a quarter of the cores beyond.
    pub shards: Option<usize>,
    /// How long a shard's thread looks for more after something happened, before it sleeps. Zero for
    /// not at all; more than 10 ms counts as 10 ms; `None` for 50 µs while the node has a session over
    /// shared memory, and not at all otherwise.
    pub spin: Option<Duration>,
    /// Copy lanes, each with a thread of its own.
    pub lanes: usize,
    /// Where its threads run.
    pub pin: Pinning,
    /// How bytes are copied, in the whole process; `None` leaves that as it is.
    pub copy: Option<CopyMode>,
    /// Limits.
    pub limits: Limits,
    /// Deadlines.
    pub deadlines: Deadlines,
    /// Entries that the flight recorder keeps for each shard, and for all else; 0 for none.
    pub recorder: usize,
    /// What its lanes do wrong on purpose.
    #[cfg(feature = "plant")]
    pub plant: Option<crate::copy::plant::Plant>,
    /// Holds its lanes up inside gates.
    #[cfg(feature = "plant")]
    pub brake: Option<crate::copy::plant::Brake>,
}

impl NodeConfig {
    /// Entries of a ring of the flight recorder, if nobody says how many.
    pub const RECORDER: usize = 16_384;

    /// A node without pools, with the defaults of everything.
    pub fn new(name: impl Into<String>) -> Self {
        NodeConfig {
            name: name.into(),
            pools: Vec::new(),
            net: Net::default(),
            hub: None,
            shards: None,
            spin: None,
            lanes: 1,
            pin: Pinning::default(),
            copy: None,
            limits: Limits::default(),
            deadlines: Deadlines::default(),
            recorder: NodeConfig::RECORDER,
            #[cfg(feature = "plant")]
            plant: None,
            #[cfg(feature = "plant")]
            brake: None,
        }
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.unwrap_or_else(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            if cores <= 4 { 1 } else { cores / 4 }
        })
    }
}
