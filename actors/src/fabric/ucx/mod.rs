//! Copies through UCX: puts into the peer's memory, which the peer's own worker lets in.

mod claim;
mod error;
mod options;

pub(crate) use claim::{FarPool, FarSection, UcxClaim};
pub use error::UcxError;
pub use options::{OneSided, UcxOptions, UcxUse};

use crate::copy::job::Place;
use crate::copy::schedule::Class;
use crate::fabric::tcp::NewJob;
use crate::ids::{ClaimNo, LifeId, PeerRef};
use crate::memory::{FarPath, Pool, Ticket};
use crate::peer::hello::{FarKey, UcxMode, UcxOffer};
use crate::runtime::meter::Meter;
use crate::runtime::shared::NodeShared;
use crate::runtime::stats::Stats;
use kvroom_kernels::layout::PoolLayout;
use std::sync::Arc;

/// UCX in this process: its library, a context, and the one thread that calls it. Clones are the same.
#[derive(Clone, Debug)]
pub struct Ucx(Arc<()>);

/// A worker that serves one session, before there is one.
#[derive(Debug)]
pub(crate) struct UcxEnd(());

/// The way to one life of a peer. Clones are the same route; usable from any thread.
#[derive(Clone, Debug)]
pub(crate) struct UcxRoute {
    path: Arc<FarPath>,
}

/// Pages of one chunk (or an aux row) for one claim.
pub(crate) struct UcxJob {
    pub(crate) ticket: Ticket,
    pub(crate) class: Class,
    /// Where the pages are; none if the receiver writes them.
    pub(crate) claim: Option<Arc<UcxClaim>>,
    pub(crate) number: ClaimNo,
    /// The slot of the claim's gate, if that is with the receiver.
    pub(crate) gate: u32,
    pub(crate) layout: Arc<PoolLayout>,
    pub(crate) place: Place,
    /// Whether the source's sum goes with it.
    pub(crate) checksum: bool,
    /// The peer's.
    pub(crate) meter: Option<Arc<Meter>>,
}

impl Ucx {
    /// Opens the library, makes a context, and starts the thread. Blocks for as long as UCX looks at the
    /// machine.
    ///
    /// # Errors
    /// [`UcxError`]: what is missing, and what to do.
    pub fn start(_options: &UcxOptions, _stats: &Arc<Stats>) -> Result<Ucx, UcxError> {
        Err(UcxError::Library("not there yet".into()))
    }

    /// The version of the library.
    pub fn version(&self) -> (u32, u32, u32) {
        (0, 0, 0)
    }

    /// Whether one of its transports is RDMA.
    pub fn has_rdma(&self) -> bool {
        false
    }

    /// A worker for one session.
    pub(crate) async fn end(&self) -> Result<UcxEnd, UcxError> {
        Err(UcxError::Ended(String::new()))
    }

    /// Registers a pool, which stays registered, and with it its memory, for as long as the process runs. The same
    /// pool is registered once.
    pub(crate) async fn register(&self, _pool: &Pool) -> Result<FarKey, UcxError> {
        Err(UcxError::Ended(String::new()))
    }
}

impl Ucx {
    /// How a pool is written, if it was registered.
    pub(crate) fn key_of(&self, _pool: &Pool) -> Option<FarKey> {
        None
    }
}

impl UcxEnd {
    /// Where it is.
    pub(crate) fn address(&self) -> &[u8] {
        &[]
    }

    /// A word of this side that the peer may write.
    pub(crate) fn probe(&self) -> FarKey {
        FarKey {
            base: 0,
            key: Vec::new(),
        }
    }

    /// Connects to the peer's worker, and writes its probe, within [`UcxOptions::wire_up`].
    pub(crate) async fn connect(
        self,
        _theirs: &UcxOffer,
        _mode: UcxMode,
    ) -> Result<UcxRoute, UcxError> {
        Err(UcxError::Ended(String::new()))
    }
}

impl UcxRoute {
    /// Whether this node's own gates are before its pages: bytes come in messages.
    pub(crate) fn gated_here(&self) -> bool {
        false
    }

    /// A session begins over it: from now on there may be jobs and claims.
    pub(crate) fn begin(&self, _peer: PeerRef, _node: &Arc<NodeShared>, _meter: &Arc<Meter>) {}

    /// What its gates hear of it.
    pub(crate) fn path(&self) -> &Arc<FarPath> {
        &self.path
    }

    /// Hands a job over. One that finds no place says so by its ticket.
    pub(crate) fn post(&self, job: UcxJob) {
        drop(job);
    }

    /// Jobs of this life were cancelled.
    pub(crate) fn cancel(&self, _life: LifeId) {}

    /// The session is over: jobs are handed back, and the path is destroyed.
    pub(crate) fn close(&self) {}
}

impl UcxJob {
    /// A job as shards build it, for pages that the claim names.
    pub(crate) fn new(job: NewJob, claim: Option<Arc<UcxClaim>>) -> UcxJob {
        UcxJob {
            number: job.claim,
            gate: job.gate,
            ticket: job.ticket,
            class: job.class,
            claim,
            layout: job.layout,
            place: job.place,
            checksum: job.checksum,
            meter: job.meter,
        }
    }
}
