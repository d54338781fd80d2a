//! How UCX is used.

use std::path::PathBuf;
use std::time::Duration;

/// When bytes go through UCX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UcxUse {
    /// Never; UCX is not even looked for.
    #[default]
    Off,
    /// With peers that it reaches by RDMA, if both sides can, and with those that ask for it ([`UcxUse::Prefer`],
    /// [`UcxUse::Always`]).
    Rdma,
    /// With every peer that has it, whatever it has, and by the next route where it does not work or did not lately:
    /// the trust is that of [`UcxUse::Always`].
    Prefer,
    /// With every peer that has it, whatever it has: over its `tcp` and on one host, too, where its remote
    /// keys protect nothing and a peer is trusted with the whole process. A peer with which it does not work
    /// is refused.
    Always,
}

/// When a sender puts bytes into the receiver's memory by itself. Else it sends them as messages, which the
/// receiver's own worker writes, through the gates of its claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OneSided {
    /// Where both sides could use RDMA.
    #[default]
    Rdma,
    /// With every peer that says the same. Not over UCX's `tcp`: there a sender that dies takes the
    /// receiver's process along, by an assertion of UCX.
    Always,
}

/// Options of the fabric `ucx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UcxOptions {
    /// When it is used.
    pub when: UcxUse,
    /// When senders write by themselves.
    pub one_sided: OneSided,
    /// The library; `libucp.so.0` where the system finds it, if none is said.
    pub library: Option<PathBuf>,
    /// Which of its transports it may use, as `UCX_TLS` names them. If none is said: those of RDMA where there are
    /// any, and else all but those by which a peer writes this process's memory alone.
    pub transports: Option<String>,
    /// Which network devices, as `UCX_NET_DEVICES` names them; all, if none is said.
    pub devices: Option<String>,
    /// Most bytes that a room has posted to a peer and not flushed; 4 KiB to 64 MiB. An abort waits for no
    /// more than that.
    pub window_bytes: u64,
    /// Most puts in a window; 1 to 4,096.
    pub window_puts: u32,
    /// How long a peer may take until the first put to it has landed.
    pub wire_up: Duration,
    /// How long a window may take until it is flushed. Then the route is given up, and its rooms end.
    pub flush: Duration,
    /// After a path to a peer has failed, how long UCX is not offered to it, so that what is tried again goes by
    /// sockets; zero to an hour. Not with [`UcxUse::Always`], which leaves nothing else.
    pub after_failure: Duration,
    /// How long the end of a connection may take before it is forced.
    pub close: Duration,
    /// How long its thread looks for work before it sleeps.
    pub spin: Duration,
    /// Pages of how many peers that did not answer may be waited for by keeping their connections; 0 to 65,536.
    pub retired: usize,
}

impl Default for UcxOptions {
    fn default() -> Self {
        UcxOptions {
            when: UcxUse::Off,
            one_sided: OneSided::Rdma,
            library: None,
            transports: None,
            devices: None,
            window_bytes: 1 << 20,
            window_puts: 128,
            wire_up: Duration::from_secs(5),
            flush: Duration::from_secs(10),
            after_failure: Duration::from_secs(60),
            close: Duration::from_secs(2),
            spin: Duration::from_micros(50),
            retired: 1024,
        }
    }
}
