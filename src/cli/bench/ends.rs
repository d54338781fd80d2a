//! What is between the two nodes of a bench, checked before anything starts.

use super::super::args::{Ends, Fabric, RoomsArgs, Transport};
use super::super::exit::Failure;
use super::super::pair::{Link, Setup};
use super::super::raw;
use kvroom::{Limits, PoolLayout};
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
    /// How long shards stay awake after something happened.
    pub(crate) spin_us: u32,
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
                return usage("--fabric local is between nodes of one process; use --fabric tcp");
            }
            (Fabric::Local, Some(_)) => {
                return usage("--fabric local uses no sockets; use --fabric tcp with --transport");
            }
            (Fabric::Tcp, None | Some(Transport::Tcp)) => Link::Tcp,
            (Fabric::Tcp, Some(Transport::Unix)) => Link::Unix,
        };
        let (mut connections, mut congestion, mut payload_crc) = (None, None, None);
        if link != Link::Local {
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
                spin_us: ends.net.spin_us.unwrap_or(0),
            },
            ends: ends.clone(),
        })
    }

    /// A pair of such nodes.
    pub(crate) fn setup(&self, layout: Option<PoolLayout>, limits: Limits) -> Setup {
        Setup {
            layout,
            lanes: self.ends.lanes,
            shards: self.ends.shards,
            limits,
            link: self.link,
            apart: self.ends.processes == 2,
            net: self.ends.net.clone(),
        }
    }

    /// Whether bytes go over sockets.
    pub(crate) fn over_sockets(&self) -> bool {
        self.link != Link::Local
    }
}

/// Link and number of processes of `bench rooms`.
pub(crate) fn of_rooms(args: &RoomsArgs) -> Link {
    match (args.transport, args.processes) {
        (Some(Transport::Tcp), _) => Link::Tcp,
        (Some(Transport::Unix), _) | (None, 2..) => Link::Unix,
        (None, _) => Link::Local,
    }
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
