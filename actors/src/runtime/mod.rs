//! A node's threads: one system thread, shards and lanes on arbiters of their own, and the order in
//! which they stop.
//!
//! ```text
//!   thread kvroom-NAME: System ── Control (listeners, greetings, peers, pools, shutdown)
//!      ├─ arbiter: Shard 0 (rooms, sessions)     ├─ arbiter: Lane 0
//!      ├─ arbiter: Shard 1 …                     ├─ arbiter: Lane 1 …
//! ```
//!
//! A driven node's one shard has no thread of its own ([`drive`]): it is on its engine's.
//!
//! Only channels leave these threads: actix wants its `System` on a thread of its own, and a host
//! with a tokio runtime of another kind must not notice. Stopping: listeners first, then rooms (every
//! shard says that it is empty), then lanes and routes, then sessions say goodbye, then the shards with what custody is
//! left. What is left at the deadline is leaked, never unmapped, and listed.

pub mod address;
mod affinity;
pub mod config;
pub(crate) mod control;
mod dial;
pub mod drive;
mod former;
mod greet;
pub mod histogram;
pub mod hub;
pub(crate) mod later;
pub(crate) mod link;
pub mod listen;
pub mod meter;
pub mod net;
mod other_process;
mod peers;
pub mod pulse;
pub mod queue;
pub(crate) mod readable;
pub mod shared;
pub(crate) mod spin;
pub mod stats;
mod stuck;
pub mod tally;
mod thread;
pub(crate) mod wired;

pub use crate::peer::actor::PeerState;
pub use address::{Address, AddressError};
pub use affinity::{Cpus, PinError, Pinning, cpus_of_this_thread};
pub use config::NodeConfig;
pub use control::{ConnectError, Contents, PeerInfo, PoolChangeError};
pub use drive::Driver;
pub use hub::LocalHub;
pub use listen::ListenError;
pub use net::{ClusterKey, KeyTooShort, Net, OneSided, UcxBound, UcxError, UcxOptions, UcxUse};
pub use other_process::OtherProcess;
pub use stuck::Silent;
pub use thread::{NodeError, Runtime, StopReport};
