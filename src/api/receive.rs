//! The decode side.

use super::Released;
use super::batch::{Batch, admit};
use super::block::block_on;
use super::error::{StartError, StartErrorKind};
use super::node::{Node, Peer};
use super::parts::{self, Cover};
use super::send::Launched;
use kvroom_actors::copy::schedule::Class;
use kvroom_actors::handle::{RoomShared, Status};
use kvroom_actors::ids::{LifeId, PeerRef, RoomId, RoomKey};
use kvroom_actors::memory::{Lease, WriteLease};
use kvroom_actors::peer::message::{AuxRow, Part, Trace};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::{Outcome, Role, receiver};
use kvroom_actors::runtime::shared::Pools;
use kvroom_actors::supervisor::actor::Inbound;
use kvroom_actors::supervisor::attached::{Attached, Draft, DraftLeg, Lent, Refusal};
use kvroom_actors::supervisor::custody::Held;
use kvroom_actors::supervisor::io::{Input, Start, StartRefused, StartRole};
use kvroom_kernels::layout::PoolKind;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A decode room to be started.
#[derive(Debug)]
#[must_use = "a builder starts nothing by itself"]
pub struct ReceiveBuilder {
    pub(super) node: Node,
    id: RoomId,
    attempt: u32,
    from: Vec<(PeerRef, Cover)>,
    ranks: Option<parts::Ranks>,
    among: Option<parts::Receivers>,
    /// A named sender whose handle another node gave.
    stranger: Option<String>,
    leases: Vec<WriteLease>,
    aux: Option<WriteLease>,
    skip: u64,
    total: Option<u64>,
    receivers: u16,
    rank: u16,
    tag: Option<Arc<str>>,
    checksum: bool,
    deadline: Option<Duration>,
    class: Class,
    apart: bool,
    retry_of: Option<u32>,
    trace: Option<Trace>,
}

/// A decode room. Dropping it aborts the room.
#[derive(Debug)]
pub struct ReceiveRoom {
    key: RoomKey,
    life: LifeId,
    shared: Arc<RoomShared>,
    /// Keeps the node alive as long as the room has a handle.
    node: Node,
    detached: bool,
}

impl ReceiveBuilder {
    pub(super) fn new(node: Node, id: RoomId) -> Self {
        ReceiveBuilder {
            node,
            id,
            attempt: 0,
            from: Vec::new(),
            ranks: None,
            among: None,
            stranger: None,
            leases: Vec::new(),
            aux: None,
            skip: 0,
            total: None,
            receivers: 1,
            rank: 0,
            tag: None,
            checksum: false,
            deadline: None,
            class: Class::Bulk,
            apart: false,
            retry_of: None,
            trace: None,
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

    /// The same room, to be given other pages.
    pub(super) fn without_pages(&self) -> ReceiveBuilder {
        ReceiveBuilder {
            node: self.node.clone(),
            from: self.from.clone(),
            ranks: self.ranks.clone(),
            among: self.among.clone(),
            stranger: self.stranger.clone(),
            leases: Vec::new(),
            aux: None,
            tag: self.tag.clone(),
            ..*self
        }
    }

    /// Which try this is; 0 if not said.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// An expected sender, which covers everything. At least one sender must be named.
    pub fn from(self, peer: &Peer) -> Self {
        self.sender(peer, Cover::Whole)
    }

    /// An expected sender, which covers these layers (a pipeline stage). The senders' layers
    /// together must be all layers, without overlap.
    pub fn from_layers(self, peer: &Peer, layers: Range<u32>) -> Self {
        self.sender(peer, Cover::Layers(layers))
    }

    /// An expected sender, which covers these parts of pools (by their names): layers and heads of the
    /// model. The senders' parts together must be what this node's pools hold, without overlap. Both
    /// sides' pools say what their bytes mean ([`Pool::with_content`](crate::Pool::with_content)), and
    /// nothing else need be alike: pages may be of other sizes, and the bytes in another order.
    ///
    /// For who has computed routes ([`crate::layout::routes`]); [`ReceiveBuilder::from_ranks`] does.
    pub fn from_part<N: Into<String>>(
        self,
        peer: &Peer,
        parts: impl IntoIterator<Item = (N, crate::layout::Part)>,
    ) -> Self {
        let parts = parts.into_iter();
        let parts = parts.map(|(name, part)| (name.into(), part)).collect();
        self.sender(peer, Cover::Parts(parts))
    }

    /// The ranks that hold the request, all of them: each sends what this node's pools want and it holds,
    /// by what its own pools say of their bytes. Of ranks that hold the same, one is chosen; `turn` (the
    /// room's number, as a rule) sees to it that it is not always the same one. Those that are left over
    /// get no claim. [`crate::layout::routes`] is what chooses, and tells both sides who sends to whom.
    ///
    /// How many claims each sender gets depends on all receivers: see [`ReceiveBuilder::ranks`].
    pub fn from_ranks(mut self, peers: &[&Peer], turn: u64) -> Self {
        for peer in peers {
            if !peer.is_of(&self.node) {
                self.stranger.get_or_insert_with(|| peer.name().to_owned());
            }
        }
        let peers = peers.iter().map(|peer| (*peer).clone()).collect();
        self.ranks = Some(parts::Ranks { peers, turn });
        self
    }

    /// All ranks that receive the request, by what their pools hold, and which of them this is: then
    /// senders are chosen for all of them together, and each is told how many claims it gets. It is the
    /// number of legs that [`crate::layout::routes`] gives it for the same ranks and turn, which is what
    /// it says to [`SendBuilder::receivers`](crate::SendBuilder::receivers).
    ///
    /// If not said, senders are chosen for this rank alone, and told of
    /// [`receivers`](ReceiveBuilder::receivers) and [`rank`](ReceiveBuilder::rank).
    pub fn ranks(mut self, all: &[Vec<crate::layout::CubeLayout>], me: usize) -> Self {
        let all = all.to_vec();
        self.among = Some(parts::Receivers { all, me });
        self
    }

    fn sender(mut self, peer: &Peer, cover: Cover) -> Self {
        if !peer.is_of(&self.node) {
            self.stranger.get_or_insert_with(|| peer.name().to_owned());
        }
        self.from.push((peer.id(), cover));
        self
    }

    /// Destination pages: one lease a pool, one page for every page of `[skip, total)`, in order.
    pub fn into(mut self, lease: WriteLease) -> Self {
        self.leases.push(lease);
        self
    }

    /// Where the aux row goes: one page of an aux pool. The first sender writes it.
    pub fn aux(mut self, lease: WriteLease) -> Self {
        self.aux = Some(lease);
        self
    }

    /// The first token wanted: what lies before it is here already. At a page boundary; 0 if not
    /// said.
    pub fn skip(mut self, tokens: u64) -> Self {
        self.skip = tokens;
        self
    }

    /// Length of the request in tokens; if not said, all pages of the first lease are full.
    pub fn total(mut self, tokens: u64) -> Self {
        self.total = Some(tokens);
        self
    }

    /// How many receivers the room has in all; 1 if not said.
    pub fn receivers(mut self, receivers: u16) -> Self {
        self.receivers = receivers;
        self
    }

    /// Which of them this is; 0 if not said.
    pub fn rank(mut self, rank: u16) -> Self {
        self.rank = rank;
        self
    }

    /// A tag to abort many rooms by (an agent's session).
    pub fn tag(mut self, tag: &str) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Whether both sides sum up all bytes and compare before the room is done.
    pub fn checksum(mut self, on: bool) -> Self {
        self.checksum = on;
        self
    }

    /// From now to the outcome; the node's default if not said.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How urgent the room is; bulk if not said.
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

    /// The trace context of the request, carried to the senders.
    pub fn trace(mut self, trace_id: u128, span_id: u64) -> Self {
        self.trace = Some(Trace { trace_id, span_id });
        self
    }

    /// Starts the room. Waits while the node has as many rooms as it may ([`crate::Limits::rooms`]).
    ///
    /// # Errors
    /// See [`StartErrorKind`]; the leases are handed back.
    pub async fn start(self) -> Result<ReceiveRoom, StartError> {
        self.launch(None).await?.wait().await
    }

    /// As [`ReceiveBuilder::start`], on a plain thread.
    ///
    /// # Errors
    /// See [`StartErrorKind`]; the leases are handed back.
    pub fn blocking_start(self) -> Result<ReceiveRoom, StartError> {
        block_on(self.start())
    }

    pub(super) async fn launch(
        self,
        batch: Option<&mut Batch>,
    ) -> Result<Launched<ReceiveRoom>, StartError> {
        let node = self.node.clone();
        let permit = match admit(&node, batch.is_some()).await {
            Ok(permit) => permit,
            Err(kind) => return Err(self.refuse(kind)),
        };
        let pools = Arc::clone(&node.shared().pools.borrow());
        let (draft, terms, peers) = match self.check(&pools) {
            Ok(checked) => checked,
            Err(kind) => return Err(self.refuse(kind)),
        };
        let shared = Arc::new(RoomShared::default());
        let (reply, answer) = oneshot::channel();
        let (life, since) = (node.shared().new_life(), node.shared().now());
        let key = RoomKey {
            id: self.id,
            attempt: self.attempt,
        };
        let pages = self.leases.iter().map(|l| l.pages().len() as u64).sum();
        let attached = Attached::receiver(
            Arc::clone(&shared),
            reply,
            permit,
            self.class,
            since,
            self.deadline,
            draft,
        )
        .apart(self.apart)
        .retry_of(self.retry_of);
        let mut leases = Vec::with_capacity(self.leases.len() + usize::from(self.aux.is_some()));
        for (i, lease) in (0..).zip(self.leases) {
            leases.push((Held::Section(i), Lent::from(Lease::Write(lease))));
        }
        if let Some(lease) = self.aux {
            leases.push((Held::Aux, Lent::from(Lease::Write(lease))));
        }
        let role = StartRole::Receiver {
            terms,
            peers,
            leases,
        };
        let start = Start {
            life,
            key,
            tag: self.tag,
            pages,
            attached: Box::new(attached),
            role,
        };
        let message = Inbound::Core(Input::Start(Box::new(start)));
        let put = match batch {
            Some(batch) => {
                batch.push(&node, self.id, message);
                Ok(())
            }
            None => node.inbox(self.id).put(message),
        };
        if let Err(message) = put {
            let leases = match *message {
                Inbound::Core(Input::Start(start)) => match start.role {
                    StartRole::Receiver { leases, .. } => leases,
                    StartRole::Sender { .. } => Vec::new(),
                },
                _ => Vec::new(),
            };
            let leases = leases.into_iter().map(|(_, lent)| lent.lease).collect();
            return Err(with_leases(StartErrorKind::NodeStopped, leases));
        }
        let room = ReceiveRoom {
            key,
            life,
            shared,
            node,
            detached: false,
        };
        Ok(Launched { room, answer })
    }

    fn refuse(self, kind: StartErrorKind) -> StartError {
        StartError {
            kind,
            leases: self.leases,
            aux: self.aux,
        }
    }

    /// Everything that can be wrong with the request, named.
    fn check(
        &self,
        pools: &Pools,
    ) -> Result<(Draft, receiver::Terms, Vec<PeerRef>), StartErrorKind> {
        let limits = &self.node.shared().limits;
        let bad = |text: String| Err(StartErrorKind::BadRequest(text));
        if self.from.is_empty() && self.ranks.is_none() {
            return bad("no sender: name at least one with from(&peer)".into());
        }
        if let Some(name) = &self.stranger {
            return bad(format!(
                "the handle of {name:?} is another node's: name the sender with the one that connect() \
                 of this node gave"
            ));
        }
        let too_many = |senders: usize| StartErrorKind::LimitReached {
            limit: "senders",
            value: limits.senders.into(),
            advice: format!("{senders} senders were named"),
        };
        if self.from.len() > usize::from(limits.senders) {
            return Err(too_many(self.from.len()));
        }
        if self.receivers == 0 || self.receivers > limits.receivers || self.rank >= self.receivers {
            return bad(format!(
                "rank({}) of receivers({}): a room has 1 to {} receivers, ranks count from 0",
                self.rank, self.receivers, limits.receivers
            ));
        }
        let first = self.leases.iter().find(|lease| !parts::is_state(lease));
        let total = match (self.total, first) {
            (Some(total), _) => total,
            (None, Some(lease)) => {
                let tokens = u64::from(lease.pool().layout().page_tokens.max(1));
                self.skip
                    .saturating_add(lease.pages().len() as u64 * tokens)
            }
            (None, None) => self.skip,
        };
        if self.skip > total {
            return bad(format!("skip({}) is beyond total({total})", self.skip));
        }
        let mut named = Vec::new();
        let mut wanted_bytes = 0u64;
        let mut pages_in_all = 0;
        for lease in &self.leases {
            let layout = lease.pool().layout();
            let Some(id) = pools.id_of(lease.pool()) else {
                let why = if lease.pool().is_retired() {
                    "was retired: lease pages of another one"
                } else {
                    "is not one of this node's: give it to the builder, or to add_pool()"
                };
                return bad(format!("pool {:?} {why}", layout.name));
            };
            let is_state = parts::is_state(lease);
            if layout.kind != PoolKind::Kv && !is_state {
                return bad(format!(
                    "pool {:?} holds aux rows: give it to aux()",
                    layout.name
                ));
            }
            if named.contains(&id) {
                return bad(format!(
                    "two leases of pool {:?}: make them one",
                    layout.name
                ));
            }
            let per = u64::from(layout.page_tokens.max(1));
            if is_state && lease.pages().len() != 1 {
                return bad(format!(
                    "a request has one row of pool {:?}, its lease has {}",
                    layout.name,
                    lease.pages().len()
                ));
            }
            if !is_state && !self.skip.is_multiple_of(per) {
                return bad(format!(
                    "skip({}) is not at a page boundary of pool {:?} ({per} tokens a page)",
                    self.skip, layout.name
                ));
            }
            let want = match is_state {
                true => 1,
                false => total.div_ceil(per) - self.skip / per,
            };
            if want != lease.pages().len() as u64 {
                return bad(format!(
                    "tokens {}..{total} fill {want} pages of pool {:?}, its lease has {}",
                    self.skip,
                    layout.name,
                    lease.pages().len()
                ));
            }
            if lease.is_busy() {
                return bad(format!(
                    "a write of the lease of pool {:?} has not ended: its device took too long; take other \
                     pages",
                    layout.name
                ));
            }
            named.push(id);
            pages_in_all += lease.pages().len();
            wanted_bytes += want * u64::from(layout.layers) * layout.page_bytes;
        }
        if pages_in_all > limits.pages_per_claim {
            return Err(StartErrorKind::LimitReached {
                limit: "pages_per_claim",
                value: limits.pages_per_claim as u64,
                advice: format!("the room has {pages_in_all} pages"),
            });
        }
        let aux = match &self.aux {
            None => None,
            Some(lease) => {
                let layout = lease.pool().layout();
                let id = pools.id_of(lease.pool());
                match (id, lease.pages()) {
                    (Some(pool), [row]) if layout.kind == PoolKind::Aux => {
                        wanted_bytes += u64::from(layout.layers) * layout.page_bytes;
                        Some(AuxRow { pool, row: *row })
                    }
                    _ => {
                        return bad(format!(
                            "an aux row is one page of an aux pool of this node; this lease has \
                             {} of pool {:?}",
                            lease.pages().len(),
                            layout.name
                        ));
                    }
                }
            }
        };
        let legs = self.legs()?;
        if legs.len() > usize::from(limits.senders) {
            return Err(too_many(legs.len()));
        }
        let is_cells = |leg: &parts::Leg| !matches!(leg.part, Part::Slices(_));
        if let Some(lease) = self.leases.iter().find(|lease| parts::is_state(lease))
            && legs.iter().all(is_cells)
        {
            return bad(format!(
                "pool {:?} holds states, which move in parts: name the senders with from_ranks() or \
                 from_part()",
                lease.pool().layout().name
            ));
        }
        let peers = legs.iter().map(|leg| leg.peer).collect();
        let draft = Draft {
            skip: self.skip,
            total,
            pools: named,
            legs: (legs.iter())
                .map(|leg| DraftLeg {
                    part: leg.part.clone(),
                    receivers: leg.receivers,
                    rank: leg.rank,
                })
                .collect(),
            aux,
            checksum: self.checksum,
            trace: self.trace,
            wanted: wanted_bytes,
        };
        Ok((
            draft,
            receiver::Terms {
                legs: (legs.into_iter())
                    .map(|leg| receiver::LegPlan { wanted: leg.wanted })
                    .collect(),
                total,
                checksum: self.checksum,
            },
            peers,
        ))
    }

    /// Who covers what.
    fn legs(&self) -> Result<Vec<parts::Leg>, StartErrorKind> {
        let into = parts::Into {
            leases: &self.leases,
            aux: self.aux.as_ref(),
            receivers: self.receivers,
            rank: self.rank,
        };
        match (&self.ranks, &self.among) {
            (None, None) => into.named(&self.from),
            (None, Some(_)) => Err(StartErrorKind::BadRequest(
                "ranks() says who receives; say with from_ranks() who sends".into(),
            )),
            (Some(_), _) if !self.from.is_empty() => Err(StartErrorKind::BadRequest(
                "from_ranks() names all senders: name none by another one of the from methods"
                    .into(),
            )),
            (Some(ranks), among) => into.routed(ranks, among.as_ref()),
        }
    }
}

impl Launched<ReceiveRoom> {
    pub(super) async fn wait(mut self) -> Result<ReceiveRoom, StartError> {
        self.answered().await.map(|()| self.room)
    }

    /// What its shard says; asked once. May be dropped and called again before.
    pub(super) async fn answered(&mut self) -> Result<(), StartError> {
        match (&mut self.answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(refusal)) => Err(refused(*refusal)),
            Err(_) => Err(with_leases(StartErrorKind::NodeStopped, Vec::new())),
        }
    }
}

/// A shard's no, as the API says it.
pub(super) fn refused(refusal: Refusal) -> StartError {
    let kind = match refusal.why {
        StartRefused::RoomExists(key) => StartErrorKind::RoomExists(key),
        StartRefused::KeySpent { key, outcome } => StartErrorKind::KeySpent { key, outcome },
        StartRefused::LimitReached {
            limit,
            value,
            advice,
        } => StartErrorKind::LimitReached {
            limit,
            value,
            advice: advice.into(),
        },
        StartRefused::ShuttingDown => StartErrorKind::NodeStopped,
    };
    with_leases(kind, refusal.leases)
}

fn with_leases(kind: StartErrorKind, all: Vec<Lease>) -> StartError {
    let (mut leases, mut aux) = (Vec::new(), None);
    for lease in all {
        if let Lease::Write(lease) = lease {
            match lease.pool().layout().kind {
                PoolKind::Aux if !parts::is_state(&lease) => aux = Some(lease),
                PoolKind::Kv | PoolKind::Aux => leases.push(lease),
            }
        }
    }
    StartError { kind, leases, aux }
}

impl ReceiveRoom {
    /// The room's key.
    pub fn key(&self) -> RoomKey {
        self.key
    }

    /// Its role.
    pub fn role(&self) -> Role {
        Role::Receiver
    }

    /// Its state, by one atomic load.
    pub fn poll(&self) -> Status {
        self.shared.status()
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

    /// As [`ReceiveRoom::outcome`], on a plain thread.
    pub fn blocking_outcome(&self) -> Outcome {
        block_on(self.outcome())
    }

    /// Waits until nobody can write the pages any more, and takes the leases. There are none, and no
    /// proof, only if the node stopped with the room still held.
    pub async fn released(&self) -> Released<WriteLease> {
        self.shared.wait_released().await;
        self.take()
    }

    /// What [`ReceiveRoom::released`] gives, if it is there.
    pub fn try_released(&self) -> Option<Released<WriteLease>> {
        let status = self.shared.status();
        (status.released || status.leaked).then(|| self.take())
    }

    /// As [`ReceiveRoom::released`], on a plain thread.
    pub fn blocking_released(&self) -> Released<WriteLease> {
        block_on(self.released())
    }

    /// Lets the room go on without its handle. Its leases go back to their pools when it is over.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// Its life on this node, for tests.
    #[doc(hidden)]
    pub fn life(&self) -> LifeId {
        self.life
    }

    fn take(&self) -> Released<WriteLease> {
        let outcome = self
            .shared
            .outcome()
            .cloned()
            .unwrap_or_else(|| Outcome::Aborted(Code::NodeShutdown.into()));
        let (mut leases, mut aux) = (Vec::new(), None);
        let (proofs, landed, all) = match self.shared.take_back() {
            Some(back) => (back.proofs, back.landed, back.leases),
            None => Default::default(),
        };
        for (held, lease) in all {
            if let Lease::Write(lease) = lease {
                match held {
                    Held::Aux => aux = Some(lease),
                    Held::Section(_) | Held::Chunk(_) => leases.push(lease),
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

    fn end(&self, reason: Reason) {
        if self.shared.outcome().is_none() {
            self.shared.abort_asked(self.node.shared().now());
            // A stopped shard has ended its rooms.
            let _ = self
                .node
                .inbox(self.key.id)
                .put(Inbound::Core(Input::Abort {
                    life: self.life,
                    reason,
                }));
        }
    }
}

impl Drop for ReceiveRoom {
    fn drop(&mut self) {
        if !self.detached {
            self.end(Reason::new(Code::HandleDropped, "its handle was dropped"));
        }
    }
}
