//! The prefill side.

use super::Released;
use super::batch::{Batch, admit};
use super::block::block_on;
use super::chunk::Slot;
use super::error::{Ended, FinishError, FinishProblem, ReserveError, StartError, StartErrorKind};
use super::node::Node;
use kvroom_actors::copy::schedule::Class;
use kvroom_actors::handle::{RoomShared, Status};
use kvroom_actors::ids::{LifeId, PoolId, RoomId, RoomKey};
use kvroom_actors::memory::{Lease, ReadLease};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::{Outcome, Role};
use kvroom_actors::runtime::shared::NodeShared;
use kvroom_actors::supervisor::actor::Inbound;
use kvroom_actors::supervisor::attached::{Attached, ChunkSlot, Lent, RealInput};
use kvroom_actors::supervisor::custody::Held;
use kvroom_actors::supervisor::io::{Input, Start, StartRole};
use kvroom_kernels::layout::PoolKind;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};

/// A prefill room to be started.
#[derive(Clone, Debug)]
#[must_use = "a builder starts nothing by itself"]
pub struct SendBuilder {
    pub(super) node: Node,
    id: RoomId,
    attempt: u32,
    receivers: u16,
    tag: Option<Arc<str>>,
    deadline: Option<Duration>,
    class: Class,
    lane: Option<u16>,
    apart: bool,
    retry_of: Option<u32>,
}

/// A prefill room. Dropping it aborts the room.
#[derive(Debug)]
pub struct SendRoom {
    key: RoomKey,
    life: LifeId,
    shared: Arc<RoomShared>,
    node: Node,
    receivers: u16,
    /// Made with the first slot: many rooms are registered long before their first chunk.
    window: OnceLock<Arc<Semaphore>>,
    chunks: AtomicU32,
    /// What `finish` said; it is said once.
    finished: OnceLock<u64>,
    detached: bool,
}

impl SendBuilder {
    pub(super) fn new(node: Node, id: RoomId) -> Self {
        SendBuilder {
            node,
            id,
            attempt: 0,
            receivers: 1,
            tag: None,
            deadline: None,
            class: Class::Bulk,
            lane: None,
            apart: false,
            retry_of: None,
        }
    }

    pub(super) fn key(&self) -> RoomKey {
        RoomKey {
            id: self.id,
            attempt: self.attempt,
        }
    }

    /// How long it may take.
    pub(super) fn time(&self) -> Option<Duration> {
        self.deadline.or(self.node.shared().deadlines.outcome)
    }

    /// Which try this is; 0 if not said.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// How many receivers there will be; 1 if not said. The room is over when all have it.
    pub fn receivers(mut self, receivers: u16) -> Self {
        self.receivers = receivers;
        self
    }

    /// A tag to abort many rooms by (an agent's session).
    pub fn tag(mut self, tag: &str) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// From now to the outcome; the node's default if not said.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How urgent its copies are; bulk if not said.
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Says that this is a new try of that attempt of the room, which failed: shown in
    /// [`RoomInfo`](crate::RoomInfo) and in recordings, and counted. See [`Retry`](crate::Retry) for who does
    /// that by itself.
    pub fn retry_of(mut self, attempt: u32) -> Self {
        self.retry_of = Some(attempt);
        self
    }

    /// Keeps the room out of what is counted about rooms: those that were started and ended, their
    /// states and times. For what a host runs for itself, as a probe of its own. Everything else is as
    /// for any room, limits and lists of rooms among it.
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Has everything copied by this lane, counted from 0, and nothing by the room's shard itself: a
    /// lane that is near the memory, say, or one that is to be tried. Over a network the lane has a
    /// connection of its own only if there are as many ([`crate::Net::connections`]); if not, it
    /// shares another lane's; and that connection is one for bulk, so that what is urgent
    /// ([`Class::Interactive`]) has its turn on the lane, and then waits behind what the kernel has taken for
    /// it. All lanes if not said.
    pub fn lane(mut self, lane: u16) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Starts the room. Waits while the node has as many rooms as it may ([`crate::Limits::rooms`]).
    ///
    /// # Errors
    /// See [`StartErrorKind`].
    pub async fn start(self) -> Result<SendRoom, StartError> {
        self.launch(None).await.map_err(plain)?.wait().await
    }

    /// As [`SendBuilder::start`], on a plain thread.
    ///
    /// # Errors
    /// See [`StartErrorKind`].
    pub fn blocking_start(self) -> Result<SendRoom, StartError> {
        block_on(self.start())
    }

    /// Hands the room to its shard, without waiting for the answer.
    pub(super) async fn launch(
        self,
        batch: Option<&mut Batch>,
    ) -> Result<Launched<SendRoom>, StartErrorKind> {
        let node = self.node;
        let shared_node = node.shared();
        let limit = shared_node.limits.receivers;
        if self.receivers == 0 || self.receivers > limit {
            return Err(StartErrorKind::BadRequest(format!(
                "receivers({}): a room has 1 to {limit} receivers (Limits::receivers)",
                self.receivers
            )));
        }
        let lanes = shared_node.beats.lanes.len();
        if let Some(lane) = self.lane.filter(|lane| usize::from(*lane) >= lanes) {
            return Err(StartErrorKind::BadRequest(format!(
                "lane({lane}): the node has {lanes}, counted from 0 (NodeBuilder::lanes)"
            )));
        }
        let slots = shared_node.job_slots;
        if usize::from(self.receivers) > slots {
            // `reserve` would wait for ever.
            return Err(StartErrorKind::LimitReached {
                limit: "jobs_per_lane",
                value: shared_node.limits.jobs_per_lane as u64,
                advice: format!(
                    "a chunk for {} receivers needs as many jobs at once, all lanes hold {slots}",
                    self.receivers
                ),
            });
        }
        let permit = admit(&node, batch.is_some()).await?;
        let shared = Arc::new(RoomShared::default());
        let (reply, answer) = oneshot::channel();
        let (life, since) = (shared_node.new_life(), shared_node.now());
        let key = RoomKey {
            id: self.id,
            attempt: self.attempt,
        };
        let attached = Attached::sender(
            Arc::clone(&shared),
            reply,
            permit,
            self.class,
            since,
            self.deadline,
        )
        .on_lane(self.lane)
        .apart(self.apart)
        .retry_of(self.retry_of);
        let role = StartRole::Sender {
            receivers: self.receivers,
        };
        let start = Start {
            life,
            key,
            tag: self.tag,
            pages: 0,
            attached: Box::new(attached),
            role,
        };
        let message = Inbound::Core(Input::Start(Box::new(start)));
        match batch {
            Some(batch) => batch.push(&node, self.id, message),
            None => node
                .inbox(self.id)
                .put(message)
                .map_err(|_| StartErrorKind::NodeStopped)?,
        }
        let room = SendRoom {
            key,
            life,
            shared,
            receivers: self.receivers,
            window: OnceLock::new(),
            chunks: AtomicU32::new(0),
            finished: OnceLock::new(),
            detached: false,
            node,
        };
        Ok(Launched { room, answer })
    }
}

/// Permits, at once if they are there; whoever has to wait for them is counted. None if there will be
/// none.
async fn acquire(
    node: &NodeShared,
    from: &Arc<Semaphore>,
    permits: u32,
    waited: &AtomicU64,
) -> Option<OwnedSemaphorePermit> {
    match Arc::clone(from).try_acquire_many_owned(permits) {
        Ok(permit) => Some(permit),
        Err(TryAcquireError::Closed) => None,
        Err(TryAcquireError::NoPermits) => {
            node.stats.add(waited);
            Arc::clone(from).acquire_many_owned(permits).await.ok()
        }
    }
}

/// A room that its shard has not answered for yet.
#[derive(Debug)]
pub(super) struct Launched<R> {
    pub(super) room: R,
    pub(super) answer:
        oneshot::Receiver<Result<(), Box<kvroom_actors::supervisor::attached::Refusal>>>,
}

impl Launched<SendRoom> {
    pub(super) async fn wait(mut self) -> Result<SendRoom, StartError> {
        self.answered().await.map(|()| self.room)
    }

    /// What its shard says; asked once. May be dropped and called again before.
    pub(super) async fn answered(&mut self) -> Result<(), StartError> {
        match (&mut self.answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(refusal)) => Err(super::receive::refused(*refusal)),
            Err(_) => Err(plain(StartErrorKind::NodeStopped)),
        }
    }
}

fn plain(kind: StartErrorKind) -> StartError {
    StartError {
        kind,
        leases: Vec::new(),
        aux: None,
    }
}

impl SendRoom {
    /// The room's key.
    pub fn key(&self) -> RoomKey {
        self.key
    }

    /// Its role.
    pub fn role(&self) -> Role {
        Role::Sender
    }

    /// Its state, by one atomic load.
    pub fn poll(&self) -> Status {
        self.shared.status()
    }

    /// Waits for room for one more chunk. This is where back-pressure is felt.
    ///
    /// # Errors
    /// The room is over.
    pub async fn reserve(&self) -> Result<Slot<'_>, Ended> {
        let slot = async {
            let shared = self.node.shared();
            let waited = &shared.stats.reserve_waited_window;
            let window = acquire(shared, self.window(), 1, waited).await?;
            let waited = &shared.stats.reserve_waited_jobs;
            let jobs = acquire(shared, &shared.jobs, u32::from(self.receivers), waited).await?;
            Some(ChunkSlot { window, jobs })
        };
        tokio::select! {
            biased;
            outcome = self.shared.wait_outcome() => Err(self.ended(outcome)),
            slot = slot => match slot {
                Some(slot) => Ok(Slot { room: self, slot }),
                None => Err(self.ended(Outcome::Aborted(Code::NodeShutdown.into()))),
            },
        }
    }

    /// A slot, if there is one now.
    ///
    /// # Errors
    /// The room is over, or all slots are in use.
    pub fn try_reserve(&self) -> Result<Slot<'_>, ReserveError> {
        if let Some(outcome) = self.shared.outcome() {
            return Err(self.ended(outcome.clone()).into());
        }
        let (limits, stats) = (&self.node.shared().limits, &self.node.shared().stats);
        let full = |error, limit, value, counter| match error {
            TryAcquireError::NoPermits => {
                stats.add(counter);
                ReserveError::Full { limit, value }
            }
            TryAcquireError::Closed => self
                .ended(Outcome::Aborted(Code::NodeShutdown.into()))
                .into(),
        };
        let window = Arc::clone(self.window()).try_acquire_owned().map_err(|e| {
            let (value, counter) = (limits.chunks_in_flight, &stats.reserve_full_window);
            full(e, "chunks_in_flight", value, counter)
        })?;
        let jobs = Arc::clone(&self.node.shared().jobs)
            .try_acquire_many_owned(u32::from(self.receivers))
            .map_err(|e| {
                let (value, counter) = (limits.jobs_per_lane, &stats.reserve_full_jobs);
                full(e, "jobs_per_lane", value, counter)
            })?;
        Ok(Slot {
            room: self,
            slot: ChunkSlot { window, jobs },
        })
    }

    /// As [`SendRoom::reserve`], on a plain thread.
    ///
    /// # Errors
    /// The room is over.
    pub fn blocking_reserve(&self) -> Result<Slot<'_>, Ended> {
        block_on(self.reserve())
    }

    /// Says that no chunk follows, how long the request is in tokens, and what the aux row holds
    /// (one page of an aux pool; needed if the receiver asked for one). Never blocks.
    ///
    /// # Errors
    /// The room is over, or it was said before, or the lease is no aux row; the lease is handed
    /// back.
    pub fn finish(&self, total_tokens: u64, aux: Option<ReadLease>) -> Result<(), FinishError> {
        if let Some(outcome) = self.shared.outcome() {
            let why = FinishProblem::Ended(self.ended(outcome.clone()));
            return Err(FinishError { why, aux });
        }
        if let Some(lease) = &aux {
            let layout = lease.pool().layout();
            if layout.kind != PoolKind::Aux
                || lease.pages().len() != 1
                || self.pool_id(lease).is_none()
            {
                let why = FinishProblem::BadAux(format!(
                    "an aux row is one page of an aux pool of this node; this lease has {} of \
                     pool {:?}",
                    lease.pages().len(),
                    layout.name
                ));
                return Err(FinishError { why, aux });
            }
        }
        if self.finished.set(total_tokens).is_err() {
            let before = self.finished.get().copied().unwrap_or(total_tokens);
            let why = FinishProblem::Twice(before);
            return Err(FinishError { why, aux });
        }
        let aux = aux.map(|lease| Lent::from(Lease::Read(lease)));
        let input = Input::Finish {
            life: self.life,
            total: total_tokens,
            aux,
        };
        match self.put(input) {
            Ok(()) => Ok(()),
            Err(message) => {
                let aux = match *message {
                    Inbound::Core(Input::Finish {
                        aux: Some(lent), ..
                    }) => match lent.lease {
                        Lease::Read(lease) => Some(lease),
                        Lease::Write(_) => None,
                    },
                    _ => None,
                };
                let ended = self.ended(Outcome::Aborted(Code::NodeShutdown.into()));
                Err(FinishError {
                    why: ended.into(),
                    aux,
                })
            }
        }
    }

    /// Ends the room. The outcome is known at once; the memory follows when it is proven quiet.
    /// Never blocks; does nothing to a room that is over.
    pub fn abort(&self, reason: impl Into<String>) {
        self.end(Reason::new(Code::Requested, reason));
    }

    /// Waits for the outcome.
    pub async fn outcome(&self) -> Outcome {
        self.shared.wait_outcome().await
    }

    /// The outcome, if it is known.
    pub fn try_outcome(&self) -> Option<Outcome> {
        self.shared.outcome().cloned()
    }

    /// As [`SendRoom::outcome`], on a plain thread.
    pub fn blocking_outcome(&self) -> Outcome {
        block_on(self.outcome())
    }

    /// Waits until nothing of the room can be read or written any more, and takes what it still
    /// held: chunks nobody waits for by themselves, and the aux row. Nothing, and no proof, if the node
    /// stopped with the room still held.
    pub async fn released(&self) -> Released<ReadLease> {
        self.shared.wait_released().await;
        self.take()
    }

    /// What [`SendRoom::released`] gives, if it is there.
    pub fn try_released(&self) -> Option<Released<ReadLease>> {
        let status = self.shared.status();
        (status.released || status.leaked).then(|| self.take())
    }

    /// As [`SendRoom::released`], on a plain thread.
    pub fn blocking_released(&self) -> Released<ReadLease> {
        block_on(self.released())
    }

    /// Lets the room go on without its handle. Its leases go back to their pools when it is over.
    pub fn detach(mut self) {
        self.detached = true;
    }

    fn take(&self) -> Released<ReadLease> {
        let outcome = self
            .shared
            .outcome()
            .cloned()
            .unwrap_or_else(|| Outcome::Aborted(Code::NodeShutdown.into()));
        let (mut leases, mut aux) = (Vec::new(), None);
        let back = self.shared.take_back();
        let (proofs, landed, all) = match back {
            Some(back) => (back.proofs, back.landed, back.leases),
            None => Default::default(),
        };
        for (held, lease) in all {
            if let Lease::Read(lease) = lease {
                match held {
                    Held::Aux => aux = Some(lease),
                    Held::Chunk(_) | Held::Section(_) => leases.push(lease),
                }
            }
        }
        Released {
            leases,
            aux,
            outcome,
            proofs,
            landed,
        }
    }

    pub(super) fn end(&self, reason: Reason) {
        if self.shared.outcome().is_none() {
            self.shared.abort_asked(self.node.shared().now());
            // A stopped shard has ended its rooms.
            let _ = self.put(Input::Abort {
                life: self.life,
                reason,
            });
        }
    }

    fn ended(&self, outcome: Outcome) -> Ended {
        let reason = match outcome {
            Outcome::Done => Reason::new(Code::KeySpent, "the room is done"),
            Outcome::Aborted(reason) => reason,
        };
        Ended {
            key: self.key,
            reason,
        }
    }

    pub(super) fn put(&self, input: RealInput) -> Result<(), Box<Inbound>> {
        self.node.inbox(self.key.id).put(Inbound::Core(input))
    }

    fn window(&self) -> &Arc<Semaphore> {
        self.window.get_or_init(|| {
            Arc::new(Semaphore::new(
                self.node
                    .shared()
                    .limits
                    .chunks_in_flight
                    .min(Semaphore::MAX_PERMITS),
            ))
        })
    }

    /// Its life on this node, for tests.
    #[doc(hidden)]
    pub fn life(&self) -> LifeId {
        self.life
    }

    pub(super) fn next_chunk(&self) -> u32 {
        self.chunks.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn pool_id(&self, lease: &ReadLease) -> Option<PoolId> {
        self.node.shared().pools.borrow().id_of(lease.pool())
    }
}

impl Drop for SendRoom {
    fn drop(&mut self) {
        if !self.detached {
            self.end(Reason::new(Code::HandleDropped, "its handle was dropped"));
        }
    }
}
