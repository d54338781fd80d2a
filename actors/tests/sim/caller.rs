//! Callers: engines that start rooms, push pages, change their minds, and look at what they get.
//!
//! ```text
//!   source page:   stamped (room, attempt, page, layer) ─▶ lent ─▶ back ─▶ poisoned
//!   destination:   lent ─▶ Done: every cell must bear its stamp ─▶ poisoned
//!   free page:     must bear the poison that was left in it
//! ```

use super::chance::roll;
use super::fact::{Fact, LeaseNo};
use super::node::{Attached, CELL, Draft, Gate, In, Kept, Lent, SPENT};
use super::plan::{MS, Mistake, Request, US, Who};
use super::plant::Plant;
use super::shard::attached;
use super::world::{Ev, World};
use crate::memory::{CancelFlag, Lease, Pool, WriteLease};
use kvroom_actors::ids::{ChunkNo, LifeId, PoolId, RoomKey};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::receiver::{LegPlan, Terms};
use kvroom_actors::room::{Chunk, Outcome, Role};
use kvroom_actors::supervisor::custody::Held;
use kvroom_actors::supervisor::io::{Input, Start, StartRefused, StartRole};
use kvroom_kernels::coverage::{Coverage, Rect};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What a caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Begin,
    Start(Who),
    Push(usize),
    Finish,
    Abort(Who),
    /// The key is used once more, which must be refused.
    Again(Who),
    /// What is left of an earlier attempt is given up.
    Leave(Who, LifeId),
}

/// One request's callers, on all its nodes.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    pub(crate) attempt: u32,
    pub(crate) sides: BTreeMap<Who, Side>,
    /// Chunks that are pushed, and how many pushes that took.
    pushed: usize,
    chunks: u32,
    tries: u32,
    /// How many outcomes its node had delivered when a side was over.
    over_at: BTreeMap<Who, u64>,
}

/// How far one of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Wanted,
    Running(LifeId),
    Over { done: bool },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeInfo {
    request: usize,
    attempt: u32,
    who: Who,
}

const UNKNOWN: u64 = u64::MAX;

/// What a cell of a request holds.
fn stamp(room: u64, attempt: u32, page: u64, layer: u32) -> u64 {
    roll(&[room, u64::from(attempt), page, u64::from(layer)])
}

fn fill(lease: &mut WriteLease, layer: u32, index: usize, word: u64) {
    for chunk in lease.page_mut(layer, index).chunks_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .chunks(8)
        .map(|c| u64::from_le_bytes(c.try_into().unwrap()))
}

impl World {
    pub(crate) fn caller_node(&self, i: usize, call: &Call) -> Option<usize> {
        let who = match call {
            Call::Begin => return None,
            Call::Push(_) | Call::Finish => Who::Sender,
            Call::Start(who) | Call::Abort(who) | Call::Again(who) | Call::Leave(who, _) => *who,
        };
        Some(self.place_of(i, who))
    }

    fn place_of(&self, i: usize, who: Who) -> usize {
        let links = &self.plan.requests[i].links;
        match who {
            Who::Sender => self.plan.links[links[0]].sender,
            Who::Receiver(rank) => self.plan.links[links[rank]].receiver,
        }
    }

    pub(crate) fn call(&mut self, i: usize, attempt: u32, call: Call) {
        if call == Call::Begin {
            let current = self.callers[i].attempt;
            if attempt > 0 && attempt != current + 1 {
                return;
            }
            return self.begin_attempt(i, attempt);
        }
        let n = self.caller_node(i, &call).unwrap_or(0);
        if let Call::Leave(_, life) = call {
            if self.nodes[n].up && self.lives.contains_key(&(n, life)) {
                let reason = Reason::from(Code::HandleDropped);
                self.tell(n, Input::Abort { life, reason });
            }
            return;
        }
        if self.callers[i].attempt != attempt {
            return;
        }
        if !self.nodes[n].up {
            if let Call::Start(who) = call {
                self.side_over(i, who, false);
            }
            return;
        }
        match call {
            Call::Begin | Call::Leave(..) => {}
            Call::Start(Who::Sender) => self.start_sender(i, n, false),
            Call::Start(Who::Receiver(rank)) => self.start_receiver(i, n, rank, false),
            // A key that long ago may be forgotten: nodes remember so many.
            Call::Again(who) if self.is_long_over(i, n, who) => {}
            Call::Again(Who::Sender) => self.start_sender(i, n, true),
            Call::Again(Who::Receiver(rank)) => self.start_receiver(i, n, rank, true),
            Call::Push(chunk) => self.push(i, n, chunk),
            Call::Finish => self.finish(i, n),
            Call::Abort(who) => {
                if let Some(Side::Running(life)) = self.callers[i].sides.get(&who).copied() {
                    let reason = Reason::from(Code::Requested);
                    self.tell(n, Input::Abort { life, reason });
                }
            }
        }
    }

    fn is_long_over(&self, i: usize, n: usize, who: Who) -> bool {
        let over_at = self.callers[i].over_at.get(&who).copied();
        self.nodes[n].outcomes - over_at.unwrap_or(0) > SPENT as u64 / 2
    }

    fn begin_attempt(&mut self, i: usize, attempt: u32) {
        let request = self.plan.requests[i].clone();
        for (who, side) in self.callers[i].sides.clone() {
            if let Side::Running(life) = side {
                let wait = self.roll(23, i, 0..300) * MS;
                self.after(wait, Ev::Call(i, attempt, Call::Leave(who, life)));
            }
        }
        let caller = &mut self.callers[i];
        *caller = Caller {
            attempt,
            ..Caller::default()
        };
        caller.sides.insert(Who::Sender, Side::Wanted);
        self.after(
            request.sender_late,
            Ev::Call(i, attempt, Call::Start(Who::Sender)),
        );
        for rank in 0..request.links.len() {
            let who = Who::Receiver(rank);
            self.callers[i].sides.insert(who, Side::Wanted);
            let late = request.receivers_late * (rank as u64 + 1);
            self.after(late, Ev::Call(i, attempt, Call::Start(who)));
        }
        if attempt == 0 {
            for (who, wait) in request.aborts {
                self.after(wait, Ev::Call(i, attempt, Call::Abort(who)));
            }
        }
    }

    fn key(&self, i: usize) -> RoomKey {
        RoomKey::new(self.plan.requests[i].room, self.callers[i].attempt)
    }

    fn new_life(&mut self, i: usize, n: usize, who: Who) -> LifeId {
        let life = LifeId(self.nodes[n].next_life);
        self.nodes[n].next_life += 1;
        let attempt = self.callers[i].attempt;
        let info = LifeInfo {
            request: i,
            attempt,
            who,
        };
        self.lives.insert((n, life), info);
        life
    }

    fn start_with(&self, i: usize, life: LifeId, role: StartRole<Lent>, kept: Kept) -> In {
        let request = &self.plan.requests[i];
        let mut attached = attached(kept, request.deadline, request.class);
        attached.life = life;
        Input::Start(Box::new(Start {
            life,
            key: self.key(i),
            tag: request.tag.map(|t| format!("agent-{t}").into()),
            pages: u64::from(request.pages),
            attached,
            role,
        }))
    }

    fn start_sender(&mut self, i: usize, n: usize, again: bool) {
        let request = &self.plan.requests[i];
        let (pace, chunks) = (request.pace, request.cuts.len());
        let receivers = request.links.len() as u16;
        let life = self.new_life(i, n, Who::Sender);
        let kept = Kept::Sender {
            cancel: CancelFlag::new(),
        };
        let start = self.start_with(i, life, StartRole::Sender { receivers }, kept);
        if !again {
            self.callers[i]
                .sides
                .insert(Who::Sender, Side::Running(life));
            let attempt = self.callers[i].attempt;
            for chunk in 0..chunks {
                let wait = pace * chunk as u64;
                self.after(wait, Ev::Call(i, attempt, Call::Push(chunk)));
            }
            let wait = pace * chunks as u64;
            self.after(wait, Ev::Call(i, attempt, Call::Finish));
        }
        self.tell(n, start);
    }

    fn start_receiver(&mut self, i: usize, n: usize, rank: usize, again: bool) {
        let request = self.plan.requests[i].clone();
        let link = request.links[rank];
        let peer = self.links[link].ends[1].peer_ref();
        let want = request.pages - request.skip;
        let pages = peer.and_then(|_| self.lease(n, 0, want));
        let (Some(peer), Some(pages)) = (peer, pages) else {
            // No peer was met yet, or the pool is full: the caller tries again for a while.
            return self.try_later(i, Call::Start(Who::Receiver(rank)), again);
        };
        let mut leases = vec![(Held::Section(0), pages)];
        if request.aux {
            match self.lease(n, 1, 1) {
                Some(row) => leases.push((Held::Aux, row)),
                None => {
                    let (_, pages) = leases.remove(0);
                    self.free(n, pages);
                    return self.try_later(i, Call::Start(Who::Receiver(rank)), again);
                }
            }
        }
        let mut wanted = Coverage::new();
        wanted.insert(0, 0..self.plan.layers, 0..want).unwrap();
        let mut aux = None;
        if let Some((_, row)) = leases.get(1) {
            wanted.insert(Rect::AUX, 0..1, 0..1).unwrap();
            aux = row.lease.borrow().pages().first().copied();
        }
        let terms = Terms {
            legs: vec![LegPlan { wanted }],
            total: request.total(),
            checksum: request.checksum,
        };
        let draft = Draft {
            receivers: request.links.len() as u16,
            rank: rank as u16,
            skip: u64::from(request.skip) * Request::PAGE_TOKENS,
            total: request.total(),
            checksum: request.checksum,
            aux,
        };
        let life = self.new_life(i, n, Who::Receiver(rank));
        let role = StartRole::Receiver {
            terms,
            peers: vec![peer],
            leases,
        };
        let gate = Gate::None;
        let start = self.start_with(i, life, role, Kept::Receiver { gate, draft });
        if !again {
            let who = Who::Receiver(rank);
            self.callers[i].sides.insert(who, Side::Running(life));
        }
        self.tell(n, start);
    }

    fn try_later(&mut self, i: usize, call: Call, again: bool) {
        if again {
            return;
        }
        self.callers[i].tries += 1;
        let attempt = self.callers[i].attempt;
        if self.callers[i].tries < 60 || self.plan.requests[i].probe {
            return self.after(20 * MS, Ev::Call(i, attempt, call));
        }
        match call {
            Call::Start(who) => self.side_over(i, who, false),
            // Without room for its pages the engine gives the request up.
            _ => self.after(0, Ev::Call(i, attempt, Call::Abort(Who::Sender))),
        }
    }

    fn push(&mut self, i: usize, n: usize, at: usize) {
        let Some(Side::Running(life)) = self.callers[i].sides.get(&Who::Sender).copied() else {
            return;
        };
        let request = self.plan.requests[i].clone();
        let from = request.cuts[at];
        let to = request.cuts.get(at + 1).copied().unwrap_or(request.pages);
        if request.mistake == Some(Mistake::Missing) && at == 0 && request.cuts.len() > 1 {
            self.callers[i].pushed += 1;
            return;
        }
        let Some(lent) = self.lease_source(i, n, 0, u64::from(from)..u64::from(to)) else {
            return self.try_later(i, Call::Push(at), false);
        };
        let chunk = |no: u32, lent: &Lent| Chunk {
            no: ChunkNo(no),
            pool: PoolId(0),
            tokens: u64::from(from) * 2..(u64::from(to) * 2).min(request.total()),
            layers: 0..self.plan.layers,
            pages: lent.lease.borrow().pages().into(),
            page_tokens: Request::PAGE_TOKENS as u32,
            pool_layers: self.plan.layers,
        };
        let mut pushes = vec![(chunk(self.callers[i].chunks, &lent), lent)];
        self.callers[i].chunks += 1;
        let again = match request.mistake {
            Some(Mistake::OtherPages) => self.lease_source(i, n, 0, u64::from(from)..u64::from(to)),
            _ if request.repeats => {
                let pages = pushes[0].0.pages.clone();
                let lease = self.nodes[n].pools[0].lease_read(&pages).ok();
                lease.map(|lease| self.lent(n, 0, lease.into()))
            }
            _ => None,
        };
        if let Some(lent) = again {
            let no = self.callers[i].chunks;
            self.callers[i].chunks += 1;
            let chunk = Chunk {
                no: ChunkNo(no),
                pages: lent.lease.borrow().pages().into(),
                ..pushes[0].0.clone()
            };
            pushes.push((chunk, lent));
        }
        self.callers[i].pushed += 1;
        for (chunk, lease) in pushes {
            self.tell(n, Input::Push { life, chunk, lease });
        }
    }

    fn finish(&mut self, i: usize, n: usize) {
        let Some(Side::Running(life)) = self.callers[i].sides.get(&Who::Sender).copied() else {
            return;
        };
        let request = self.plan.requests[i].clone();
        if self.callers[i].pushed < request.cuts.len() {
            return self.try_later(i, Call::Finish, false);
        }
        let mut aux = None;
        if request.aux {
            aux = self.lease_source(i, n, 1, u64::MAX..u64::MAX);
            if aux.is_none() {
                return self.try_later(i, Call::Finish, false);
            }
        }
        let total = match request.mistake {
            Some(Mistake::Length) => request.total() + 2,
            _ => request.total(),
        };
        self.tell(n, Input::Finish { life, total, aux });
    }

    /// Leases free pages to be written; each must be as it was left.
    fn lease(&mut self, n: usize, pool: usize, count: u32) -> Option<Lent> {
        let total = self.nodes[n].layouts[pool].pages;
        let stride = [1, 5, 7][self.roll(20, n, 0..3) as usize];
        for _ in 0..24 {
            let node = &mut self.nodes[n];
            let first = node.next_page[pool];
            node.next_page[pool] = (first + count) % total;
            let pages: Vec<u32> = (0..count).map(|i| (first + i * stride) % total).collect();
            let Ok(lease) = node.pools[pool].lease_write(&pages) else {
                continue;
            };
            self.check_canaries(n, pool, &pages);
            for page in &pages {
                // What is in it is not known until it is poisoned again.
                self.nodes[n].canaries[pool][*page as usize] = UNKNOWN;
            }
            return Some(self.lent(n, pool, lease.into()));
        }
        None
    }

    pub(crate) fn check_canaries(&mut self, n: usize, pool: usize, pages: &[u32]) {
        let node = &self.nodes[n];
        let mut wrong = None;
        for page in pages {
            let left = node.canaries[pool][*page as usize];
            for layer in 0..node.layouts[pool].layers {
                let mut bytes = [0; CELL as usize];
                node.pools[pool].observe(layer, *page, &mut bytes).unwrap();
                let found = words(&bytes).find(|word| *word != left);
                if let (Some(found), true) = (found, left != UNKNOWN) {
                    wrong = Some((*page, found, left));
                }
            }
        }
        if let Some((page, found, left)) = wrong {
            self.fact(Fact::Canary {
                node: n,
                page,
                found,
                left,
            });
        }
    }

    fn lent(&mut self, n: usize, pool: usize, lease: Lease) -> Lent {
        let no: LeaseNo = self.next_lease;
        self.next_lease += 1;
        self.fact(Fact::Leased {
            node: n,
            lease: no,
            pool: self.nodes[n].pool_no[pool],
            write: matches!(lease, Lease::Write(_)),
            pages: lease.pages().to_vec(),
        });
        Lent {
            no,
            lease: RefCell::new(lease),
        }
    }

    /// Leases pages, writes what the request holds there, and keeps them for reading.
    fn lease_source(
        &mut self,
        i: usize,
        n: usize,
        pool: usize,
        pages: std::ops::Range<u64>,
    ) -> Option<Lent> {
        let first = pages.start;
        let count = (pages.end - pages.start).max(1) as u32;
        let (room, attempt) = (self.plan.requests[i].room, self.callers[i].attempt);
        let lent = self.lease(n, pool, count)?;
        self.fact(Fact::Freed { lease: lent.no });
        let Lease::Write(mut lease) = lent.lease.into_inner() else {
            return None;
        };
        for layer in 0..self.nodes[n].layouts[pool].layers {
            for index in 0..count as usize {
                let page = first.wrapping_add(index as u64);
                fill(&mut lease, layer, index, stamp(room, attempt, page, layer));
            }
        }
        Some(self.lent(n, pool, lease.into_read().into()))
    }

    pub(crate) fn admitted(&mut self, n: usize, life: LifeId) {
        let node = &self.nodes[n];
        let Some(l) = node.core.life(life) else {
            return;
        };
        let mut wants = Vec::new();
        if l.role() == Role::Receiver {
            for (held, lent) in l.custody().leases() {
                let section = match held {
                    Held::Section(i) => i,
                    _ => Rect::AUX,
                };
                let places = lent.lease.borrow().pages().len() as u32;
                wants.push((lent.no, section, places));
            }
        }
        let request = self.lives.get(&(n, life)).map(|info| info.request);
        let fact = Fact::Started {
            at: node.life(),
            life,
            key: l.key(),
            role: l.role(),
            receivers: request.map_or(0, |i| self.plan.requests[i].links.len()),
            due: node.running.now().0 + l.attached().deadline,
            wants,
            layers: self.plan.layers,
        };
        self.fact(fact);
    }

    pub(crate) fn start_refused(
        &mut self,
        n: usize,
        why: &StartRefused,
        attached: &Attached,
        leases: Vec<(Held, Lent)>,
    ) {
        let Some(info) = self.lives.remove(&(n, attached.life)) else {
            return;
        };
        let key = RoomKey::new(self.plan.requests[info.request].room, info.attempt);
        self.fact(Fact::StartRefused {
            at: self.nodes[n].life(),
            key,
            why: why.to_string(),
        });
        for (_, lent) in leases {
            self.free(n, lent);
        }
        let side = self.callers[info.request].sides.get(&info.who).copied();
        if side == Some(Side::Running(attached.life)) {
            self.side_over(info.request, info.who, false);
        }
    }

    pub(crate) fn published(&mut self, n: usize, life: LifeId, outcome: &Outcome) {
        let Some(info) = self.lives.get(&(n, life)).copied() else {
            return;
        };
        self.nodes[n].outcomes += 1;
        let done = *outcome == Outcome::Done;
        if self.callers[info.request].attempt == info.attempt {
            self.side_over(info.request, info.who, done);
        }
    }

    fn side_over(&mut self, i: usize, who: Who, done: bool) {
        let outcomes = self.nodes[self.place_of(i, who)].outcomes;
        self.callers[i].over_at.insert(who, outcomes);
        let request = &self.plan.requests[i];
        let (retries, probe, impatient) = (request.retries, request.probe, request.impatient);
        let caller = &mut self.callers[i];
        caller.sides.insert(who, Side::Over { done });
        let attempt = caller.attempt;
        let receivers_done = caller
            .sides
            .iter()
            .all(|(who, side)| *who == Who::Sender || *side == Side::Over { done: true });
        let all_over = caller
            .sides
            .values()
            .all(|side| matches!(side, Side::Over { .. }));
        let again = all_over && !receivers_done || impatient && !done;
        if again && attempt < retries && !self.calm {
            let wait = match impatient {
                true => 0,
                false => self.roll(21, i, 0..40) * MS,
            };
            self.after(wait, Ev::Call(i, attempt + 1, Call::Begin));
        } else if !probe && self.roll(22, i, 0..12) == 0 {
            let wait = self.roll(22, i, 1..3_000) * US;
            self.after(wait, Ev::Call(i, attempt, Call::Again(who)));
        }
    }

    /// A chunk, or an aux row, is with its caller again.
    pub(crate) fn chunk_back(&mut self, n: usize, lent: Lent) {
        self.free(n, lent);
    }

    pub(crate) fn returned(
        &mut self,
        n: usize,
        life: LifeId,
        leases: Vec<(Held, Lent)>,
        outcome: Option<&Outcome>,
    ) {
        let at = self.nodes[n].life();
        self.fact(Fact::Returned {
            at,
            life,
            leases: leases.iter().map(|(_, lent)| lent.no).collect(),
        });
        if self.is_over() {
            // What the caller would do now is not defined any more.
            return std::mem::forget(leases);
        }
        let info = self.lives.remove(&(n, life));
        let late = self.planted(Plant::LateWrite, 4);
        for (held, lent) in leases {
            if let (Some(info), Some(Outcome::Done)) = (info, outcome)
                && matches!(&*lent.lease.borrow(), Lease::Write(_))
            {
                let wrong = self.look_at(info, held, &lent);
                self.fact(Fact::Looked { at, life, wrong });
            }
            if self.planted(Plant::LeaseLeaked, 11) {
                std::mem::forget(lent);
                continue;
            }
            let first = lent.lease.borrow().pages().first().copied();
            if late && let (Some(page), Held::Section(_)) = (first, held) {
                let pool: Pool = self.nodes[n].pools[0].clone();
                self.after(300 * US, Ev::LateWrite(pool, page, self.plan.layers));
            }
            self.free(n, lent);
        }
    }

    /// Whether each cell bears its stamp; the first that does not.
    fn look_at(&self, info: LifeInfo, held: Held, lent: &Lent) -> Option<String> {
        let request = &self.plan.requests[info.request];
        let lease = lent.lease.borrow();
        let Lease::Write(lease) = &*lease else {
            return None;
        };
        for layer in 0..lease.pool().layout().layers {
            for index in 0..lease.pages().len() {
                let page = match held {
                    Held::Section(_) => index as u64 + u64::from(request.skip),
                    _ => u64::MAX,
                };
                let stamp = stamp(request.room, info.attempt, page, layer);
                if let Some(word) = words(lease.page(layer, index)).find(|w| *w != stamp) {
                    return Some(format!(
                        "{held:?}, layer {layer}, place {index}: {word:016x} instead of {stamp:016x}"
                    ));
                }
            }
        }
        None
    }

    /// The caller poisons the pages, and gives them back.
    fn free(&mut self, n: usize, lent: Lent) {
        let Lent { no, lease } = lent;
        let poison = roll(&[0x0070_6f69_736f_6e00, n as u64, u64::from(no)]) | 1;
        let writable = match lease.into_inner() {
            Lease::Write(lease) => Ok(lease),
            Lease::Read(lease) => lease.into_write(),
        };
        match writable {
            Ok(mut lease) => {
                let pool = usize::from(lease.pool().same_pool(&self.nodes[n].pools[1]));
                for layer in 0..lease.pool().layout().layers {
                    for index in 0..lease.pages().len() {
                        fill(&mut lease, layer, index, poison);
                    }
                }
                for page in lease.pages() {
                    self.nodes[n].canaries[pool][*page as usize] = poison;
                }
                lease.release();
            }
            Err(lease) => {
                self.fact(Fact::StillRead { lease: no });
                lease.release();
            }
        }
        if !self.planted(Plant::PagesKept, 9) {
            self.fact(Fact::Freed { lease: no });
        }
    }

    /// A node dies, and its callers with it.
    pub(crate) fn forget_callers(&mut self, n: usize) {
        let lives: Vec<(usize, LifeId)> = self
            .lives
            .range((n, LifeId(0))..(n + 1, LifeId(0)))
            .map(|(k, _)| *k)
            .collect();
        for key in lives {
            let Some(info) = self.lives.remove(&key) else {
                continue;
            };
            let side = self.callers[info.request].sides.get(&info.who).copied();
            if side == Some(Side::Running(key.1)) {
                self.side_over(info.request, info.who, false);
            }
        }
    }
}
