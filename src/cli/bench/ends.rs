//! What is between the two nodes of a bench, checked before anything starts.

use super::super::args::{Ends, Fabric, NetArgs, RoomsArgs, Transport, UcxWhen};
use super::super::exit::Failure;
use super::super::pair::{self, Link, Pools, Setup};
use super::super::raw;
use kvroom::Limits;
use serde::Serialize;

/// Every report of a bench begins with this.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Between {
    pub(crate) fabric: &'static str,
    pub(crate) processes: u8,
    pub(crate) transport: &'static str,
    pub(crate) connections: Option<u16>,
    /// Of TCP, as the kernel names it.
    pub(crate) congestion: Option<String>,
    pub(crate) payload_crc: Option<bool>,
    /// How long shards stay awake after something happened; the library's default if none.
    pub(crate) spin_us: Option<u32>,
    /// Engines drive their shards.
    pub(crate) drive: bool,
}

/// The ends as they will be.
pub(crate) struct Checked {
    link: Link,
    ends: Ends,
    pub(crate) between: Between,
}

impl Checked {
    /// Fails if the words do not go together, or the kernel does not let this process use the
    /// congestion control: then the two sides of a ratio would not be equal.
    pub(crate) fn of(ends: &Ends) -> Result<Checked, Failure> {
        let link = match (ends.fabric, ends.transport) {
            (Fabric::Local, None) if ends.processes == 1 => Link::Local,
            (Fabric::Local, None) => {
                return usage(
                    "--fabric local is between nodes of one process; use --fabric tcp, shm or ucx",
                );
            }
            (Fabric::Local, Some(_)) => {
                return usage("--fabric local uses no sockets; use --fabric tcp with --transport");
            }
            (Fabric::Tcp | Fabric::Ucx, None)
            | (Fabric::Tcp | Fabric::Shm | Fabric::Ucx, Some(Transport::Tcp)) => Link::Tcp,
            (Fabric::Shm, None)
            | (Fabric::Tcp | Fabric::Shm | Fabric::Ucx, Some(Transport::Unix)) => Link::Unix,
        };
        if ends.drive && (ends.processes != 2 || ends.shards != 1) {
            return usage("--drive is for two processes with one shard each: use --processes 2");
        }
        let (mut connections, mut congestion, mut payload_crc) = (None, None, None);
        if ends.fabric == Fabric::Tcp {
            let net = ends.net.net();
            connections = Some(net.connections);
            congestion = Some(check_congestion(net.congestion.as_deref())?);
            payload_crc = Some(net.payload_crc);
        }
        Ok(Checked {
            link,
            between: Between {
                fabric: ends.fabric.name(),
                processes: ends.processes,
                transport: link.name(),
                connections,
                congestion,
                payload_crc,
                spin_us: ends.net.spin_us,
                drive: ends.drive,
            },
            ends: Ends {
                net: with_ucx(ends.fabric == Fabric::Ucx, &ends.net),
                ..ends.clone()
            },
        })
    }

    /// A pair of such nodes.
    pub(crate) fn setup(&self, pools: Vec<Pools>, limits: Limits) -> Setup {
        Setup {
            pools,
            shared: self.shared(),
            lanes: self.ends.lanes,
            shards: self.ends.shards,
            limits,
            link: self.link,
            apart: self.ends.processes == 2,
            drive: self.ends.drive,
            net: self.ends.net.clone(),
        }
    }

    /// Whether there is a session between the nodes, and so a sender that has to be there first.
    pub(crate) fn over_sockets(&self) -> bool {
        self.link != Link::Local
    }

    /// Whether bytes go over sockets.
    pub(crate) fn data_over_sockets(&self) -> bool {
        self.ends.fabric == Fabric::Tcp
    }

    /// Whether their pools are shared memory.
    pub(crate) fn shared(&self) -> bool {
        self.ends.fabric == Fabric::Shm
    }

    /// Copy lanes of each node.
    pub(crate) fn lanes(&self) -> u16 {
        self.ends.lanes
    }
}

/// A pair of nodes of `bench rooms` for so many rooms at once.
///
/// # Errors
/// The words do not go together.
pub(crate) fn of_rooms(args: &RoomsArgs, limits: Limits) -> Result<Setup, Failure> {
    let link = match (args.fabric, args.transport, args.processes) {
        (None, None, 1) | (Some(Fabric::Local), None, 1) => Link::Local,
        (Some(Fabric::Local), _, _) => {
            return usage("--fabric local is within one process and uses no sockets");
        }
        (None | Some(Fabric::Shm), None, _) => Link::Unix,
        (Some(Fabric::Tcp | Fabric::Ucx), None, _) => Link::Tcp,
        (_, Some(Transport::Tcp), _) => Link::Tcp,
        (_, Some(Transport::Unix), _) => Link::Unix,
    };
    let shared = args.fabric == Some(Fabric::Shm);
    // Rooms without data need no pool, but a fabric of shared memory is one of shared pools.
    let layout = shared.then(|| pair::layout(1, 1, 4096));
    Ok(Setup {
        link,
        shared,
        apart: args.processes == 2,
        net: with_ucx(
            args.fabric == Some(Fabric::Ucx),
            &NetArgs {
                recorder: args.recorder,
                ..NetArgs::default()
            },
        ),
        ..Setup::local(layout, limits)
    })
}

/// The same, through UCX in any case.
fn with_ucx(ucx: bool, net: &NetArgs) -> NetArgs {
    let mut net = net.clone();
    if ucx {
        net.ucx = UcxWhen::Always;
    }
    net
}

fn check_congestion(name: Option<&str>) -> Result<String, Failure> {
    raw::congestion(name).map_err(|e| {
        Failure::Usage(format!(
            "congestion control {}: {e}; doctor says which there are",
            name.unwrap_or("of the system")
        ))
    })
}

fn usage<T>(text: &str) -> Result<T, Failure> {
    Err(Failure::Usage(text.to_owned()))
}
