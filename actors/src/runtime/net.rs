//! How a node talks to nodes of other processes.

pub use crate::fabric::ucx::{OneSided, UcxError, UcxOptions, UcxUse};
pub use crate::peer::auth::{ClusterKey, KeyTooShort};

/// Addresses, the cluster's key, and how data connections are made. The defaults listen nowhere.
#[derive(Clone, Debug)]
pub struct Net {
    /// Where other nodes may connect: `tcp://HOST:PORT` (port 0 for any free one) or
    /// `unix:///PATH`.
    pub listen: Vec<String>,
    /// Without one, whoever can reach the address is a peer.
    pub key: Option<ClusterKey>,
    /// Data connections to each peer for large pieces, 1 to 64. There is one more for small ones.
    pub connections: u16,
    /// Congestion control of TCP connections, by the kernel's name for it; `None` for
    /// [`Net::PREFERRED_CONGESTION`] where the kernel allows it. One that was asked for and is not
    /// allowed is logged; then, as otherwise, the system's is used.
    pub congestion: Option<String>,
    /// Send and receive buffer of each connection for large pieces in bytes; `None` leaves it to the
    /// kernel.
    pub buffer: Option<u32>,
    /// The same of the connection for small pieces: kept small, so that little waits in it.
    pub interactive_buffer: Option<u32>,
    /// Whether each data frame carries a CRC32C of its payload, besides the one of its header.
    pub payload_crc: bool,
    /// Whether memory is shared with peers on this host. It is found out by itself which those are; a
    /// peer with which memory is shared is trusted with all of each shared pool.
    pub shm: bool,
    /// Besides processes of this node's own user, memory is shared with those of this group (their
    /// primary one).
    pub shm_group: Option<u32>,
    /// UCX.
    pub ucx: UcxOptions,
}

impl Net {
    /// Used if nothing else is said: on one host, and for messages that are waited for, the pacing of
    /// `bbr` costs more than half of the throughput and some latency.
    pub const PREFERRED_CONGESTION: &str = "cubic";
}

impl Default for Net {
    fn default() -> Self {
        Net {
            listen: Vec::new(),
            key: None,
            connections: 1,
            congestion: None,
            buffer: None,
            interactive_buffer: Some(256 << 10),
            payload_crc: false,
            shm: true,
            shm_group: None,
            ucx: UcxOptions::default(),
        }
    }
}
