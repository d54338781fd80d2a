//! Ways to move bytes. Each says of every piece what became of it, and never less.
//!
//! What a lane did with a piece is one of four different facts: landed, refused (the gate was
//! closed), errored, fenced. Only the first counts towards coverage. There are four fabrics:
//!
//! | Fabric | Moves | Where its gate lives | What an abort costs |
//! |---|---|---|---|
//! | [`local`] | memcpy within the process | in the process | one piece |
//! | `shm` | memcpy into a mapping of the peer's pool, on one host | beside the pool, in memory of both processes | one piece |
//! | `tcp` | frames over stream connections, page to page | in the receiving process | one read |
//! | `ucx` | messages that the receiver's thread of UCX writes | in the receiving process | one message |
//! | `ucx`, one-sided | puts of the sender, by RDMA | with the sender | one window's flush, and the peer's answer |

pub mod local;
pub(crate) mod shm;
pub(crate) mod stream;
pub(crate) mod tcp;
pub mod ucx;

use crate::copy::job::Place;
use crate::copy::pieces::Pieces;
use crate::memory::GateTable;
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::plan::Plan;
use kvroom_kernels::plan::cube::PageList;
use std::sync::Arc;

/// How bytes get to one life of a peer.
#[derive(Clone, Debug)]
pub(crate) enum PeerRoute {
    /// It is in this process; these are its gates.
    Local(Arc<GateTable>),
    /// It is in another process of this host.
    Shm(shm::ShmRoute),
    /// It is in another process, or on another host.
    Tcp(tcp::TcpRoute),
    /// The same, through UCX.
    Ucx(ucx::UcxRoute),
}

impl PeerRoute {
    /// Whether this node writes its own pages, of what comes, and accounts for their cells itself.
    pub(crate) fn marks_here(&self) -> bool {
        match self {
            PeerRoute::Tcp(_) => true,
            PeerRoute::Ucx(route) => route.gated_here(),
            PeerRoute::Local(_) | PeerRoute::Shm(_) => false,
        }
    }

    /// The fabric's name.
    pub(crate) fn fabric(&self) -> Fabric {
        match self {
            PeerRoute::Local(_) => Fabric::Local,
            PeerRoute::Shm(_) => Fabric::Shm,
            PeerRoute::Tcp(_) => Fabric::Tcp,
            PeerRoute::Ucx(_) => Fabric::Ucx,
        }
    }
}

/// Plans the copies of a job onto the pages of a claim that this node writes itself, in a pool of this layout.
///
/// # Errors
/// [`Fact::Errored`] if the two ends do not fit.
fn plan_onto(
    layout: &Arc<PoolLayout>,
    place: &Place,
    to: &Arc<PoolLayout>,
    pages: &Arc<[u32]>,
) -> Result<Pieces, Fact> {
    if let Some(slice) = &place.slice {
        let to = PageList {
            list: Arc::clone(pages),
            range: place.to.clone(),
        };
        let plan = slice.plan(place.layers.clone(), place.source(), to);
        return plan
            .map(|plan| Pieces::Slices(Box::new(plan)))
            .map_err(|error| Fact::Errored(error.to_string()));
    }
    Plan::new(
        layout,
        to,
        place.layers.clone(),
        Arc::clone(&place.pages),
        place.from.clone(),
        Arc::clone(pages),
        place.to.clone(),
    )
    .map(Pieces::Cells)
    .map_err(|error| Fact::Errored(error.to_string()))
}

/// Where a claim's pages are, for a node that writes them itself.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// In mappings of the peer's pools.
    Shm(Arc<shm::ShmClaim>),
    /// At addresses of the peer's process.
    Ucx(Arc<ucx::UcxClaim>),
}

/// The fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fabric {
    /// Within the process.
    Local,
    /// Between processes of one host, through shared memory.
    Shm,
    /// Over stream sockets.
    Tcp,
    /// Through UCX: by RDMA, or whatever else it has.
    Ucx,
}

impl std::fmt::Display for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fabric::Local => "local",
            Fabric::Shm => "shm",
            Fabric::Tcp => "tcp",
            Fabric::Ucx => "ucx",
        })
    }
}

/// Why a piece did not land, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The gate was closed; nothing was written.
    Refused,
    /// It could not be written; the text says why.
    Errored(String),
}
