//! The table of rooms: who is there, which is meant, what is shown, what is forgotten.
//!
//! ```text
//!   Starting ──▶ Live ──▶ Over (outcome known, memory held) ──▶ Released ──▶ forgotten
//!      └ refused: forgotten at once                             at most so many, for so long
//! ```
//!
//! Rules: only the keeper has one. A room is in it under one number for its whole life; keys are found
//! by order, so that the newest attempt is the last one. What a room gave up is not kept: pages when
//! its memory is back.

use super::chunks::Chunks;
use super::keeper::{Ask, Reply, Seen};
use super::problems;
use super::request::{FinishRoom, RoleName};
use super::view::{self, End, LandedBytes, PoolPages, Room, RoomState};
use crate::daemon::http::{Id, Problem};
use crate::daemon::status::{Status, StatusPage, StatusSlot};
use kvroom::{Landed, Outcome, Proof, ReceiveRoom, Role, RoomKey, SendRoom, StateName};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A room's handle. Clones are the same; the last one that goes aborts the room, if it is alive.
#[derive(Clone, Debug)]
pub(super) enum Handle {
    Receive(Arc<ReceiveRoom>),
    Send(Arc<SendRoom>),
}

impl Handle {
    pub(super) fn abort(&self, reason: &str) {
        match self {
            Handle::Receive(room) => room.abort(reason),
            Handle::Send(room) => room.abort(reason),
        }
    }

    pub(super) async fn outcome(&self) -> Outcome {
        match self {
            Handle::Receive(room) => room.outcome().await,
            Handle::Send(room) => room.outcome().await,
        }
    }

    /// Waits until the memory is back, and gives it to its pools; or until it is known never to come.
    pub(super) async fn over(&self) -> MemoryOver {
        let (proofs, landed) = match self {
            Handle::Receive(room) => {
                let back = room.released().await;
                (back.proofs, back.landed)
            }
            Handle::Send(room) => {
                let back = room.released().await;
                (back.proofs, back.landed)
            }
        };
        let status = match self {
            Handle::Receive(room) => room.poll(),
            Handle::Send(room) => room.poll(),
        };
        match status.leaked {
            true => MemoryOver::Leaked,
            false => MemoryOver::Back(proofs, landed),
        }
    }

    fn outcome_now(&self) -> Option<Outcome> {
        match self {
            Handle::Receive(room) => room.try_outcome(),
            Handle::Send(room) => room.try_outcome(),
        }
    }

    pub(super) fn state(&self) -> StateName {
        match self {
            Handle::Receive(room) => room.poll().state,
            Handle::Send(room) => room.poll().state,
        }
    }
}

/// What became of a room's memory.
pub(super) enum MemoryOver {
    /// It is back, on these proofs.
    Back(Vec<Proof>, Landed),
    /// The node stopped before it was proven quiet: it never comes.
    Leaked,
}

/// How far a room is, for who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Alive,
    Ended,
    /// Its memory is back, or is known never to come.
    Released,
}

/// Which room is meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Which {
    pub(super) id: u64,
    /// The newest, if not said.
    pub(super) attempt: Option<u32>,
    pub(super) role: Option<RoleName>,
}

pub(super) enum Phase {
    /// Its shard has not answered yet; what is asked meanwhile waits here.
    Starting(Vec<Ask>),
    Live(Handle),
    Over(Outcome, Handle),
    Released {
        outcome: Outcome,
        proofs: Vec<Proof>,
        landed: Landed,
        age: Duration,
    },
    /// Its memory was not proven quiet when the node stopped.
    Leaked(Outcome),
}

/// Why the memory of a room is held for ever.
const LEAKED: &str = "the node stopped before it was proven that nobody uses this memory any more: it is leaked, and \
                      must not be used again before every process that may write it is gone";

/// One room.
pub(super) struct Record {
    pub(super) key: RoomKey,
    pub(super) role: RoleName,
    /// Of the request that started it.
    pub(super) digest: u128,
    pub(super) tag: Option<String>,
    pub(super) retry_of: Option<u32>,
    pub(super) traceparent: Option<String>,
    pub(super) peers: Vec<String>,
    pub(super) pages: u64,
    pub(super) held: Vec<PoolPages>,
    pub(super) since: Instant,
    pub(super) phase: Phase,
    /// Who waits to hear that it was started, and whether it is new to them.
    pub(super) starters: Vec<(bool, Reply<(bool, Seen)>)>,
    pub(super) stage: watch::Sender<Stage>,
    pub(super) chunks: Chunks,
    pub(super) landed: Arc<AtomicU32>,
    pub(super) finished: Option<FinishRoom>,
    /// Its slot on the status page.
    pub(super) slot: Option<StatusSlot>,
}

impl Record {
    /// What the status page says of it.
    fn status(&self) -> Status {
        let state = match self.state() {
            RoomState::Registered => StateName::Registered,
            RoomState::Transferring => StateName::Transferring,
            RoomState::Draining => StateName::Draining,
            RoomState::Done => StateName::Done,
            RoomState::Aborted => StateName::Aborted,
        };
        let released = matches!(self.phase, Phase::Released { .. });
        Status::of(state, self.outcome().as_ref()).released(released)
    }

    pub(super) fn handle(&self) -> Option<&Handle> {
        match &self.phase {
            Phase::Live(handle) | Phase::Over(_, handle) => Some(handle),
            Phase::Starting(_) | Phase::Released { .. } | Phase::Leaked(_) => None,
        }
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        match &self.phase {
            Phase::Starting(_) => None,
            Phase::Live(handle) => handle.outcome_now(),
            Phase::Over(outcome, _) | Phase::Released { outcome, .. } | Phase::Leaked(outcome) => {
                Some(outcome.clone())
            }
        }
    }

    pub(super) fn state(&self) -> RoomState {
        match &self.phase {
            Phase::Starting(_) => RoomState::Registered,
            Phase::Live(handle) => match handle.state() {
                StateName::Aborted => RoomState::Draining,
                state => state.into(),
            },
            Phase::Over(Outcome::Done, _)
            | Phase::Leaked(Outcome::Done)
            | Phase::Released {
                outcome: Outcome::Done,
                ..
            } => RoomState::Done,
            Phase::Over(..) | Phase::Leaked(_) => RoomState::Draining,
            Phase::Released { .. } => RoomState::Aborted,
        }
    }

    /// Everything that is known without asking its shard.
    pub(super) fn show(&self) -> Room {
        let (released, proofs, landed, age) = match &self.phase {
            Phase::Released {
                proofs,
                landed,
                age,
                ..
            } => (true, view::proof_names(proofs), Some(landed), *age),
            _ => (false, Vec::new(), None, self.since.elapsed()),
        };
        let sends = self.role == RoleName::Send;
        let mut held = self.held.clone();
        if !released {
            held.extend(self.chunks.pages().map(|(pool, pages)| PoolPages {
                pool: pool.to_owned(),
                pages,
            }));
        }
        Room {
            id: Id(self.key.id.0),
            attempt: self.key.attempt,
            retry_of: self.retry_of,
            role: self.role,
            state: self.state(),
            outcome: self.outcome().as_ref().map(End::from),
            released,
            proofs,
            landed: landed.filter(|_| !sends).map(|landed| LandedBytes {
                pieces: landed.pieces,
                bytes: landed.bytes,
                wanted: landed.wanted,
            }),
            peers: self.peers.clone(),
            legs: Vec::new(),
            tag: self.tag.clone(),
            pages: self.pages,
            pool_pages: held,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            quarantined: false,
            held_because: matches!(self.phase, Phase::Leaked(_)).then(|| LEAKED.to_owned()),
            chunks: sends.then(|| view::Chunks {
                pushed: u32::try_from(self.chunks.len()).unwrap_or(u32::MAX),
                landed: self.landed.load(Ordering::Relaxed),
            }),
            traceparent: self.traceparent.clone(),
            status_slot: self.slot.as_ref().map(StatusSlot::index),
        }
    }

    fn holds(&self, pool: &str, page: u32) -> bool {
        let mut held = self.held.iter();
        held.any(|one| one.pool == pool && one.pages.contains(&page))
            || self
                .chunks
                .pages()
                .any(|(name, pages)| name == pool && pages.binary_search(&page).is_ok())
    }
}

/// What a list is narrowed to.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    pub(super) state: Option<RoomState>,
    pub(super) role: Option<RoleName>,
    pub(super) tag: Option<String>,
    pub(super) peer: Option<String>,
    /// Only these, or all but these.
    pub(super) among: Option<(bool, std::collections::HashSet<(RoomKey, RoleName)>)>,
    /// Only those that came before this number.
    pub(super) before: Option<u64>,
    pub(super) limit: usize,
}

/// All rooms that are not forgotten.
pub(super) struct Table {
    records: BTreeMap<u64, Record>,
    keys: BTreeMap<(u64, u32, RoleName), u64>,
    /// Released rooms, oldest first, with when they were.
    released: VecDeque<(u64, Instant)>,
    next: u64,
    keep: usize,
    keep_for: Duration,
    /// Where schedulers look that poll, if there is one.
    page: Option<StatusPage>,
}

impl Table {
    /// Keeps so many rooms that are over, for so long.
    pub(super) fn new(keep: usize, keep_for: Duration, page: Option<StatusPage>) -> Table {
        Table {
            page,
            records: BTreeMap::new(),
            keys: BTreeMap::new(),
            released: VecDeque::new(),
            next: 1,
            keep,
            keep_for,
        }
    }

    /// The number of the room with this key and role.
    pub(super) fn exactly(&self, key: RoomKey, role: RoleName) -> Option<u64> {
        self.keys.get(&(key.id.0, key.attempt, role)).copied()
    }

    /// The number of the room that is meant.
    pub(super) fn find(&self, which: Which) -> Result<u64, Problem> {
        let Which { id, attempt, role } = which;
        let attempts = match attempt {
            Some(attempt) => attempt..=attempt,
            None => 0..=u32::MAX,
        };
        let from = (id, *attempts.start(), RoleName::Receive);
        let to = (id, *attempts.end(), RoleName::Send);
        let mut found = self.keys.range(from..=to).rev();
        let mut fitting = found
            .by_ref()
            .filter(|((_, _, r), _)| role.is_none_or(|role| role == *r));
        let Some((newest, seq)) = fitting.next() else {
            return Err(problems::unknown(id, attempt, role));
        };
        match fitting.next() {
            Some((other, _)) if other.1 == newest.1 => {
                Err(problems::which_role(RoomKey::new(id, newest.1)))
            }
            _ => Ok(*seq),
        }
    }

    /// Puts a room in, and gives its number.
    pub(super) fn insert(&mut self, record: Record) -> u64 {
        let seq = self.next;
        self.next += 1;
        let (key, role) = (record.key, record.role);
        self.keys.insert((key.id.0, key.attempt, role), seq);
        self.records.insert(seq, record);
        seq
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Record> {
        self.records.get(&seq)
    }

    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut Record> {
        self.records.get_mut(&seq)
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Record> {
        let mut record = self.records.remove(&seq)?;
        if let (Some(page), Some(slot)) = (&mut self.page, record.slot.take()) {
            page.release(slot);
        }
        self.keys
            .remove(&(record.key.id.0, record.key.attempt, record.role));
        Some(record)
    }

    /// Shows on the status page how far a room is; it gets a slot if it has none and there is one.
    pub(super) fn tell(&mut self, seq: u64) {
        let (Some(page), Some(record)) = (&mut self.page, self.records.get_mut(&seq)) else {
            return;
        };
        if record.slot.is_none() {
            let role = match record.role {
                RoleName::Receive => Role::Receiver,
                RoleName::Send => Role::Sender,
            };
            record.slot = page.assign(record.key, role);
        }
        if let Some(slot) = &record.slot {
            page.set(slot, &record.status());
        }
    }

    /// As [`Table::tell`], of all rooms that are alive and have a slot.
    pub(super) fn tell_all(&mut self) {
        let Some(page) = &mut self.page else { return };
        for record in self.records.values() {
            if let (Phase::Live(_) | Phase::Over(..), Some(slot)) = (&record.phase, &record.slot) {
                page.set(slot, &record.status());
            }
        }
    }

    /// Its memory is back: from now on it is only remembered.
    pub(super) fn released(&mut self, seq: u64, now: Instant) {
        if self.records.contains_key(&seq) {
            self.released.push_back((seq, now));
        }
    }

    /// Forgets rooms that are over for too long, or too many.
    pub(super) fn forget(&mut self, now: Instant) {
        while let Some((seq, at)) = self.released.front().copied() {
            let old = now.saturating_duration_since(at) > self.keep_for;
            if !old && self.released.len() <= self.keep {
                break;
            }
            self.released.pop_front();
            self.remove(seq);
        }
    }

    /// A room that holds this page now, for people.
    pub(super) fn holder(&self, pool: &str, page: u32) -> Option<String> {
        let mut alive = self.records.values().rev();
        let found =
            alive.find(|r| !matches!(r.phase, Phase::Released { .. }) && r.holds(pool, page));
        found.map(|record| format!("room {}", record.key))
    }

    /// Rooms, newest first, and where the next ones begin.
    pub(super) fn list(&self, filter: &Filter) -> (Vec<Room>, Option<u64>) {
        let below = filter.before.unwrap_or(u64::MAX);
        let mut fitting = self
            .records
            .range(..below)
            .rev()
            .filter(|(_, record)| fits(record, filter));
        let page: Vec<_> = fitting.by_ref().take(filter.limit).collect();
        let next = fitting.next().and(page.last().map(|(seq, _)| **seq));
        (
            page.into_iter().map(|(_, record)| record.show()).collect(),
            next,
        )
    }

    /// Every room.
    pub(super) fn all(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }
}

fn fits(record: &Record, filter: &Filter) -> bool {
    filter.role.is_none_or(|role| role == record.role)
        && filter
            .tag
            .as_ref()
            .is_none_or(|tag| record.tag.as_ref() == Some(tag))
        && filter
            .peer
            .as_ref()
            .is_none_or(|peer| record.peers.contains(peer))
        && filter.state.is_none_or(|state| record.state() == state)
        && filter
            .among
            .as_ref()
            .is_none_or(|(inside, keys)| keys.contains(&(record.key, record.role)) == *inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvroom::Code;

    fn record(id: u64, attempt: u32, role: RoleName) -> Record {
        Record {
            key: RoomKey::new(id, attempt),
            role,
            digest: 0,
            tag: (id == 7).then(|| "seven".to_owned()),
            retry_of: None,
            traceparent: None,
            peers: vec!["p".to_owned()],
            pages: 0,
            held: Vec::new(),
            since: Instant::now(),
            phase: Phase::Released {
                outcome: Outcome::Aborted(Code::Requested.into()),
                proofs: Vec::new(),
                landed: Landed::default(),
                age: Duration::ZERO,
            },
            starters: Vec::new(),
            stage: watch::channel(Stage::Released).0,
            chunks: Chunks::default(),
            landed: Arc::default(),
            finished: None,
            slot: None,
        }
    }

    fn which(id: u64, attempt: Option<u32>, role: Option<RoleName>) -> Which {
        Which { id, attempt, role }
    }

    #[test]
    fn the_newest_attempt_is_meant_if_none_is_said_and_two_roles_must_be_told_apart() {
        let mut table = Table::new(10, Duration::from_secs(1), None);
        let first = table.insert(record(5, 0, RoleName::Send));
        let second = table.insert(record(5, 3, RoleName::Send));
        let both = table.insert(record(5, 3, RoleName::Receive));
        table.insert(record(6, 9, RoleName::Receive));
        assert_eq!(table.find(which(5, Some(0), None)).ok(), Some(first));
        let problem = table.find(which(5, None, None)).unwrap_err();
        assert_eq!(problem.code, "which-role");
        assert_eq!(
            table.find(which(5, None, Some(RoleName::Send))).ok(),
            Some(second)
        );
        assert_eq!(
            table.find(which(5, None, Some(RoleName::Receive))).ok(),
            Some(both)
        );
        assert_eq!(table.find(which(5, Some(1), None)).unwrap_err().status, 404);
        assert_eq!(table.find(which(4, None, None)).unwrap_err().status, 404);
    }

    #[test]
    fn rooms_that_are_over_are_forgotten_oldest_first_by_number_and_by_age() {
        let start = Instant::now();
        let mut table = Table::new(2, Duration::from_secs(60), None);
        let all: Vec<u64> = (0..4)
            .map(|id| table.insert(record(id, 0, RoleName::Send)))
            .collect();
        for seq in &all {
            table.released(*seq, start);
        }
        table.forget(start);
        assert_eq!(table.all().map(|r| r.key.id.0).collect::<Vec<_>>(), [2, 3]);
        assert!(table.find(which(0, None, None)).is_err());
        table.forget(start + Duration::from_secs(61));
        assert_eq!(table.all().count(), 0);
        assert!(table.keys.is_empty());
    }

    #[test]
    fn pages_of_a_list_follow_each_other_without_a_gap_while_rooms_are_added() {
        let mut table = Table::new(100, Duration::from_secs(60), None);
        for id in 0..10 {
            table.insert(record(id, 0, RoleName::Send));
        }
        let mut filter = Filter {
            limit: 4,
            ..Filter::default()
        };
        let mut seen = Vec::new();
        loop {
            let (rooms, next) = table.list(&filter);
            seen.extend(rooms.iter().map(|room| room.id.0));
            table.insert(record(100 + seen.len() as u64, 0, RoleName::Send));
            match next {
                Some(next) => filter.before = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        let tagged = Filter {
            tag: Some("seven".into()),
            limit: 4,
            ..Filter::default()
        };
        assert_eq!(table.list(&tagged).0.len(), 1);
        let none = Filter {
            state: Some(RoomState::Done),
            limit: 4,
            ..Filter::default()
        };
        assert!(table.list(&none).0.is_empty());
    }
}
