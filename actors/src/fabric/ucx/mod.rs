//! Copies through UCX: messages that the receiver's own worker writes, or puts into the peer's memory.
//!
//! ```text
//!   handles, on any thread             the thread `kvroom-ucx`, alone with UCX
//!   Ucx ─ UcxEnd ─ UcxRoute ─▶ Mailbox ─▶ Thread ─▶ Route for each peer: Worker, Windows ┬ Messages
//!                    └ path ◀── fenced, by a row of the fence table, when that is over ──┴ Puts
//! ```
//!
//! | | Messages | Puts |
//! |---|---|---|
//! | used | where there is no RDMA | with RDMA, or if both sides ask for it |
//! | writes pages | the receiver, through its claims' gates | the sender |
//! | proof of an abort | the closed gate | the sender's word, or the fence table |
//!
//! Rules:
//! - One worker serves one session. What a peer that puts may still do when the session is over, the end of
//!   that worker decides, and [`fence`] says for which transports that is a proof.
//! - Nothing here blocks its caller, and no handle owns what UCX reads or writes: dropping one asks the
//!   thread, which lets go when UCX has.
//! - A peer is trusted with the whole process: over `tcp` and on one host a remote key protects nothing.

mod claim;
mod context;
mod error;
mod events;
pub mod fence;
mod job;
mod mailbox;
mod messages;
mod options;
mod puts;
mod route;
mod thread;
mod transports;
mod window;
mod worker;

#[cfg(test)]
mod tests;

pub(crate) use claim::{FarPool, FarSection, UcxClaim};
pub use error::UcxError;
pub use options::{OneSided, UcxOptions, UcxUse};

use crate::copy::job::Place;
use crate::copy::schedule::Class;
use crate::fabric::tcp::NewJob;
use crate::ids::{ClaimNo, LifeId, PeerRef};
use crate::memory::{FarPath, GateTable, Pool, Ticket};
use crate::peer::hello::{FarKey, UcxMode, UcxOffer};
use crate::runtime::meter::Meter;
use crate::runtime::pulse::Beat;
use crate::runtime::queue;
use crate::runtime::shared::NodeShared;
use crate::runtime::stats::Stats;
use kvroom_kernels::layout::PoolLayout;
use mailbox::{Border, Born, Command, EndNo, Mailbox, NotTaken};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use thread::Facts;
use tokio::sync::oneshot;

/// UCX in this process: its library, a context, and the one thread that calls it. Clones are the same.
#[derive(Clone, Debug)]
pub struct Ucx(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    mailbox: Arc<Mailbox>,
    facts: Facts,
    /// What is registered. It stays so.
    keys: Mutex<Vec<(Pool, FarKey)>>,
}

/// A worker that serves one session, before there is one.
#[derive(Debug)]
pub(crate) struct UcxEnd {
    handle: Handle,
    address: Vec<u8>,
    probe: FarKey,
    path: Arc<FarPath>,
    border: Arc<OnceLock<Border>>,
}

/// Told why a route is over; must not block.
pub(crate) type TellOver = Box<dyn Fn(&str) + Send + Sync>;

/// The way to one life of a peer. Clones are the same route; usable from any thread.
#[derive(Clone, Debug)]
pub(crate) struct UcxRoute {
    handle: Arc<Handle>,
    path: Arc<FarPath>,
    mode: UcxMode,
    border: Arc<OnceLock<Border>>,
}

/// An end, as others have it: closed with the last of these.
#[derive(Debug)]
struct Handle {
    number: EndNo,
    mailbox: Arc<Mailbox>,
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
    /// Its place in the queue of UCX.
    pub(crate) queued: Option<queue::Place>,
}

impl Ucx {
    /// Opens the library, makes a context, and starts the thread, whose beat this is. Blocks for as long as UCX
    /// looks at the machine.
    ///
    /// # Errors
    /// [`UcxError`]: what is missing, and what to do.
    pub fn start(options: &UcxOptions, beat: &Arc<Beat>) -> Result<Ucx, UcxError> {
        let mailbox = Mailbox::new(beat).map_err(|error| UcxError::Call {
            call: "eventfd",
            status: error.to_string(),
            advice: "; look at `ulimit -n`",
        })?;
        let mailbox = Arc::new(mailbox);
        let facts = thread::start(options, &mailbox)?;
        Ok(Ucx(Arc::new(Shared {
            mailbox,
            facts,
            keys: Mutex::default(),
        })))
    }

    /// The version of the library.
    pub fn version(&self) -> (u32, u32, u32) {
        let version = self.0.facts.version;
        (version.major, version.minor, version.release)
    }

    /// Whether one of its transports is RDMA.
    pub fn has_rdma(&self) -> bool {
        self.0.facts.rdma
    }

    /// Asks the thread whether it is there; its beat has the answer.
    pub(crate) fn ask_whether_it_is_there(&self) {
        // One that has ended has said so.
        let _ = self.0.mailbox.put(Command::Ask);
    }

    /// Ends the thread, and waits until it calls UCX no more: when the process exits, the library takes itself apart,
    /// and must not be at work then. Ends when all routes have.
    pub(crate) async fn quit(&self) {
        // One that has ended needs no word.
        let _ = self.0.mailbox.put(Command::Quit);
        self.0.mailbox.wait_ended().await;
    }

    /// A worker for one session.
    pub(crate) async fn end(&self) -> Result<UcxEnd, UcxError> {
        let born: Born = self.ask(Command::End).await?;
        Ok(UcxEnd {
            handle: Handle {
                number: born.number,
                mailbox: Arc::clone(&self.0.mailbox),
            },
            address: born.address,
            probe: born.probe,
            path: born.path,
            border: born.border,
        })
    }

    /// Registers a pool, which stays registered, and with it its memory, for as long as the process runs. The same
    /// pool is registered once.
    pub(crate) async fn register(&self, pool: &Pool) -> Result<FarKey, UcxError> {
        if let Some(key) = self.key_of(pool) {
            return Ok(key);
        }
        let mine = pool.clone();
        let key = self.ask(|reply| Command::Register(mine, reply)).await?;
        let mut keys = self.0.keys.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have asked at the same time; both keys are good, and one is told.
        if let Some((_, key)) = keys.iter().find(|(known, _)| known.same_pool(pool)) {
            return Ok(key.clone());
        }
        keys.push((pool.clone(), key.clone()));
        Ok(key)
    }

    /// How a pool is written, if it was registered.
    pub(crate) fn key_of(&self, pool: &Pool) -> Option<FarKey> {
        let keys = self.0.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let known = keys.iter().find(|(known, _)| known.same_pool(pool));
        known.map(|(_, key)| key.clone())
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(mailbox::Reply<T>) -> Command,
    ) -> Result<T, UcxError> {
        ask(&self.0.mailbox, command).await
    }
}

/// Asks the thread, and waits for its answer.
async fn ask<T>(
    mailbox: &Mailbox,
    command: impl FnOnce(mailbox::Reply<T>) -> Command,
) -> Result<T, UcxError> {
    let (reply, answer) = oneshot::channel();
    mailbox.put(command(reply)).map_err(|not| not.why)?;
    answer
        .await
        .unwrap_or_else(|_| Err(UcxError::Ended(String::new())))
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A thread that has ended needs none.
        let _ = self.mailbox.put(Command::Quit);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.mailbox.put(Command::Close(self.number));
    }
}

impl UcxEnd {
    /// Where it is.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// A word of this side that the peer may write.
    pub(crate) fn probe(&self) -> FarKey {
        self.probe.clone()
    }

    /// Connects to the peer's worker, and finds out whether bytes come there (and from there, in
    /// [`UcxMode::Messages`]), within [`UcxOptions::wire_up`]. Dropped before it is done, it is closed.
    pub(crate) async fn connect(
        self,
        theirs: &UcxOffer,
        mode: UcxMode,
    ) -> Result<UcxRoute, UcxError> {
        let (number, theirs) = (self.handle.number, Box::new(theirs.clone()));
        let mailbox = &self.handle.mailbox;
        ask(mailbox, |reply| {
            Command::Connect(number, theirs, mode, reply)
        })
        .await?;
        Ok(UcxRoute {
            handle: Arc::new(self.handle),
            path: self.path,
            mode,
            border: self.border,
        })
    }
}

impl UcxRoute {
    /// One behind which there is no thread.
    #[cfg(test)]
    #[allow(clippy::unwrap_used)]
    pub(crate) fn nowhere(mode: UcxMode) -> UcxRoute {
        UcxRoute {
            handle: Arc::new(Handle {
                number: 1,
                mailbox: Arc::new(Mailbox::new(&tests::beat()).unwrap()),
            }),
            path: Arc::default(),
            mode,
            border: Arc::default(),
        }
    }

    /// Whether this node's own gates are before its pages: bytes come in messages.
    pub(crate) fn gated_here(&self) -> bool {
        self.mode == UcxMode::Messages
    }

    /// A session begins over it: from now on there may be jobs and claims.
    /// If it ends by itself, `over` is told why: what the session posts after that goes nowhere.
    pub(crate) fn begin(
        &self,
        peer: PeerRef,
        node: &Arc<NodeShared>,
        meter: &Arc<Meter>,
        over: TellOver,
    ) {
        self.guard(peer, &node.gates, &node.stats, meter, over);
    }

    /// What comes from the peer goes through these gates. The first call counts.
    fn guard(
        &self,
        peer: PeerRef,
        gates: &Arc<GateTable>,
        stats: &Arc<Stats>,
        meter: &Arc<Meter>,
        over: TellOver,
    ) {
        self.border.get_or_init(|| Border {
            peer,
            over,
            gates: Arc::clone(gates),
            stats: Arc::clone(stats),
            meter: Arc::clone(meter),
        });
        // It may have ended since it was connected, when there was nobody to tell.
        let border = Arc::clone(&self.border);
        let began = self.handle.put(|number| Command::Began(number, border));
        if let (Err(NotTaken { why, .. }), Some(border)) = (began, self.border.get()) {
            (border.over)(&why.to_string());
        }
    }

    /// What its gates hear of it.
    pub(crate) fn path(&self) -> &Arc<FarPath> {
        &self.path
    }

    /// Hands a job over. One that finds no place says so by its ticket.
    pub(crate) fn post(&self, job: UcxJob) {
        let posted = self
            .handle
            .put(|number| Command::Post(number, Box::new(job)));
        if let Err(NotTaken { command, why }) = posted
            && let Command::Post(_, mut job) = command
        {
            job.ticket.errored(why.to_string());
            if let (UcxError::Ended(_), Some(border)) = (&why, self.border.get()) {
                (border.over)(&why.to_string());
            }
        }
    }

    /// Jobs of this life were cancelled.
    pub(crate) fn cancel(&self, life: LifeId) {
        // A thread that has ended posts nothing.
        let _ = self.handle.put(|number| Command::Cancel(number, life));
    }

    /// The session is over: jobs are handed back, and the path is destroyed.
    pub(crate) fn close(&self) {
        let _ = self.handle.put(Command::Close);
    }
}

/// Endpoints of a route. Two let what small rooms send pass what large ones do.
const ENDPOINTS: usize = 2;

/// By which endpoint a class goes.
fn endpoint_of(class: Class) -> usize {
    match class {
        Class::Interactive => 0,
        Class::Bulk => ENDPOINTS - 1,
    }
}

impl Handle {
    fn put(&self, command: impl FnOnce(EndNo) -> Command) -> Result<(), NotTaken> {
        self.mailbox.put(command(self.number))
    }
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
            queued: job.queued,
        }
    }
}
