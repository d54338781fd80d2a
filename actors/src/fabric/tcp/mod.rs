//! Copies to another process, over several stream connections.
//!
//! ```text
//!   shard ── NewJob ──▶ TcpRoute ──small──▶ part on the home shard's thread ──▶ 1 connection
//!                           └─────large──▶ part on each lane's thread ──▶ its connections
//!
//!   prefill                                        decode
//!   source pages ── writev ──▶ frames ──▶ readv ── through the gate ──▶ destination pages
//!        ▲ ticket                                    │ trailer valid: marked
//!        └────────────── acknowledged ◀──────────────┘
//! ```
//!
//! Rules:
//! - a byte is placed after its header's CRC was checked, within the claim's own pages, through its
//!   open gate, which is held for one non-blocking read;
//! - a frame counts after its trailer says that it is valid; coverage is the receiver's own account;
//! - a frame of slices of cells names no heads and no tokens: which these are the receiver's claim says,
//!   and each end walks the receiver's order of the bytes with a plan of its own;
//! - a sender's source is free the moment its job is over: what is half written goes on from zeroes
//!   and ends with a void trailer. No zero-copy send, for the same reason;
//! - memory that the CPU does not reach is read and written by way of staging (`staged`): a frame for it
//!   counts when it is out of its slot;
//! - "flushed" means acknowledged by the receiving lane. What a lost connection had not acknowledged
//!   goes out again on another one of the same route: the same bytes, through the same gate;
//! - between two processes of one host a device's bytes may stay where they are (`handed`): then frames
//!   say where, and what a lost connection had not acknowledged fails.

pub(crate) mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub(crate) mod handed;
mod job;
mod options;
mod receive;
mod route;
mod send;
mod sliced;
pub(crate) mod staged;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use job::NewJob;
pub(in crate::fabric) use job::{Job as FrameJob, Next, Stretch};
pub(crate) use options::{tune, tune_control};
pub(in crate::fabric) use receive::place_whole;

use super::stream::Detached;
use crate::copy::schedule::Class;
use crate::ids::{LifeId, PeerRef};
use crate::reason::Reason;
use crate::runtime::queue;
use crate::runtime::shared::NodeShared;
use actix::{Actor, Addr, ArbiterHandle};
use frame::RingName;
use handed::{Handing, Hands};
use route::{RouteActor, RouteWork};
use staged::{StagedSink, StagedSource};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A job of at most so many bytes goes the way of small pieces, whatever its class.
const SMALL: u64 = 64 << 10;

/// A data connection that has been opened and named by its token.
#[derive(Debug)]
pub(crate) struct DataConnection {
    pub(crate) stream: Detached,
    /// What was read behind its greeting.
    pub(crate) read: Vec<u8>,
    /// For small pieces, or for large ones.
    pub(crate) class: Class,
    /// Counted from 0 within the class.
    pub(crate) index: u16,
}

/// What the owner of a route must hear.
#[derive(Clone, Debug)]
pub(crate) enum RouteEvent {
    /// This connection is gone; whoever opened it opens it again.
    Lost { class: Class, index: u16 },
    /// The peer broke the protocol: its session ends with this.
    Violation(Reason),
}

/// Told of events, on the thread of a lane; must not block.
pub(crate) type RouteEvents = Arc<dyn Fn(RouteEvent) + Send + Sync>;

/// Which route something is about.
#[derive(Clone)]
pub(crate) struct RouteIdentity(Weak<[Addr<RouteActor>]>);

impl RouteIdentity {
    /// Whether both are of the same route.
    pub(crate) fn same(&self, other: &RouteIdentity) -> bool {
        Weak::ptr_eq(&self.0, &other.0)
    }

    /// Whether anybody has the route still.
    pub(crate) fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// The way to one life of a peer. Clones are the same route; usable from any thread.
#[derive(Clone)]
pub(crate) struct TcpRoute {
    small: Addr<RouteActor>,
    large: Arc<[Addr<RouteActor>]>,
    next: Arc<AtomicUsize>,
    /// Parts for large pieces that have, or had, a connection: whoever dialed says how many.
    used: Arc<AtomicUsize>,
    node: Arc<NodeShared>,
    handing: Arc<Handing>,
    /// The part for small pieces is on the thread of this shard.
    home: usize,
}

impl TcpRoute {
    /// As [`TcpRoute::start_with`], into memory that the CPU reaches alone.
    #[cfg(test)]
    pub(crate) fn start(
        peer: PeerRef,
        name: &str,
        node: &Arc<NodeShared>,
        home: &ArbiterHandle,
        lanes: &[ArbiterHandle],
        events: RouteEvents,
    ) -> Self {
        let far = Err("there is nothing for devices here".to_owned());
        TcpRoute::start_with(peer, name, node, home, lanes, events, (None, far))
    }

    /// A route without connections: its part for small pieces runs on `home`, one for large pieces
    /// on each of `lanes`, of which as many are used as there are connections. What goes to memory that the
    /// CPU does not reach goes by way of `sink`; an error says why nothing of a device is handed to the
    /// peer or taken from it (`handed`).
    pub(crate) fn start_with(
        peer: PeerRef,
        name: &str,
        node: &Arc<NodeShared>,
        home: &ArbiterHandle,
        lanes: &[ArbiterHandle],
        events: RouteEvents,
        (sink, near): (Option<Arc<dyn StagedSink>>, Result<(), String>),
    ) -> Self {
        let handing = Arc::new(Handing::new(name, near));
        let limits = &node.limits;
        let aux = limits.rooms.saturating_mul(usize::from(limits.receivers));
        let jobs = node.job_slots.saturating_add(aux);
        let part = |arbiter: &ArbiterHandle, speaks: bool| {
            let (name, node, events) = (name.to_owned(), Arc::clone(node), Arc::clone(&events));
            let (sink, handing) = (sink.clone(), Arc::clone(&handing));
            RouteActor::start_in_arbiter(arbiter, move |_| {
                RouteActor::new(peer, name, node, events, jobs, sink, (handing, speaks))
            })
        };
        let used = usize::from(node.net.connections.max(1)).min(lanes.len());
        TcpRoute {
            small: part(home, true),
            large: (lanes.iter().take(used))
                .map(|lane| part(lane, false))
                .collect(),
            next: Arc::default(),
            used: Arc::default(),
            node: Arc::clone(node),
            handing,
            home: peer.0 as usize,
        }
    }

    /// A connection of it.
    pub(crate) fn attach(&self, connection: DataConnection) {
        let part = match connection.class {
            Class::Interactive => Some(&self.small),
            Class::Bulk => {
                let at = usize::from(connection.index) % self.large.len().max(1);
                self.used.fetch_max(at + 1, Ordering::Relaxed);
                self.large.get(at)
            }
        };
        if let Some(part) = part {
            part.do_send(RouteWork::Attach(connection));
        }
    }

    /// Whether bytes of a device could go to this peer otherwise than over its connections.
    pub(crate) fn is_near(&self) -> bool {
        self.handing.is_near()
    }

    /// Whether bytes for this pool of the peer may be handed out of this ring; asks, the first time.
    pub(crate) fn way(&self, ring: &RingName, pool: &str) -> Hands {
        self.handing.way(ring, pool)
    }

    /// What tells it from others, without keeping it.
    pub(crate) fn identity(&self) -> RouteIdentity {
        RouteIdentity(Arc::downgrade(&self.large))
    }

    /// A job for it. Bounded by what was admitted, as a lane's.
    pub(crate) fn post(&self, job: NewJob) {
        self.post_from(job, None);
    }

    /// A job whose bytes are in staging, and not in the pages that its ticket has. Both are let go of when
    /// it is over.
    pub(crate) fn post_staged(&self, job: NewJob, source: Box<dyn StagedSource>) {
        self.post_from(job, Some(source));
    }

    fn post_from(&self, mut job: NewJob, source: Option<Box<dyn StagedSource>>) {
        let used = self.used.load(Ordering::Relaxed).max(1);
        let at = match job.lane {
            Some(lane) => usize::from(lane) % used,
            None => self.next.fetch_add(1, Ordering::Relaxed) % used,
        };
        let large = job.bytes() > SMALL && job.class == Class::Bulk;
        let (homes, lanes) = (&self.node.stats.homes, &self.node.stats.lanes);
        let (part, queue) = match self.large.get(at) {
            Some(part) if large || job.lane.is_some() => (part, lanes.get(at)),
            _ => (&self.small, homes.get(self.home % homes.len().max(1))),
        };
        job.queued = queue.map(queue::Place::take);
        part.do_send(RouteWork::Post(Box::new(job), source));
    }

    /// A life's jobs were cancelled.
    pub(crate) fn cancel(&self, life: LifeId) {
        for part in self.parts() {
            part.do_send(RouteWork::Cancel(life));
        }
    }

    /// This life of the peer is over: closes every connection and hands all jobs back. The future
    /// ends when that is done.
    pub(crate) async fn close(&self) {
        let closing: Vec<_> = self.parts().map(|p| p.send(RouteWork::Close)).collect();
        for part in closing {
            // A part that has stopped has let go of everything.
            let _ = part.await;
        }
    }

    fn parts(&self) -> impl Iterator<Item = &Addr<RouteActor>> {
        std::iter::once(&self.small).chain(self.large.iter())
    }
}

impl fmt::Debug for TcpRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpRoute")
            .field("lanes", &self.large.len())
            .field("handing", &self.handing)
            .finish_non_exhaustive()
    }
}
